"""Refuse chunks that were cut off, where the codec would return undefined values: chunks of blosc and of szip.

blosc does not compare its header with the number of bytes that it is given, and numcodecs returns what lies behind such
a chunk in memory, now and then (numcodecs#228). imagecodecs returns as many bytes of szip as the header of a chunk
says, whatever was decoded of them. Therefore a store checks the values that it returns, whatever pipeline decodes them.
The documents keep the names of these codecs, which other software knows.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import RangeByteRequest

from parts_store._compat.zarr import read_metadata
from parts_store.errors import CodecError
from parts_store.format.layout import Wanted, resolve
from parts_store.format.parts import parse_integer
from parts_store.format.shard_index import CODEC, ShardIndex, Table, is_hole, shard_index_of

# Parts of the names of the codecs that decide how a store reads a chunk of an array without parts.
_DECIDING: Final = (CODEC.encode(), b"blosc", b"szip")
# The header of a chunk of blosc has the sizes of the chunk when it is decompressed, and as it is stored.
_BLOSC_HEADER: Final = struct.Struct("<4xI4xI")
SZIP_LIMITS: Final = {
    "options_mask": (0, 2**32 - 1),
    "pixels_per_block": (2, 32),
    "bits_per_pixel": (1, 64),
    "pixels_per_scanline": (1, 4096),
}
"""The smallest and the largest value of each parameter of szip, in the order of HDF5."""
# The number of bytes when a chunk of szip is decoded.
_SZIP_HEADER_NBYTES: Final = 4
# The bytes of such pixels are separated, and compressed as pixels of 8 bits.
_SEPARATED: Final = (32, 64)


def decide_reads(codecs: bytes) -> bool:
    """Return whether codecs, as JSON, may decide how a store reads a chunk: by a shard index, or with a check."""
    return any(name in codecs for name in _DECIDING)


# --- blosc ------------------------------------------------------------------------------------------------------------


def require_blosc_sizes(data: bytes | memoryview, nbytes: int | None = None) -> None:
    """Raise `CodecError` if a chunk of blosc has fewer bytes than its header says.

    If the size of the decompressed chunk is given, both sizes must be exactly those in the header.
    """
    has_header = len(data) >= _BLOSC_HEADER.size
    decompressed, stored = _BLOSC_HEADER.unpack_from(data) if has_header else (0, 0)
    is_exact = nbytes is None or (decompressed, stored) == (nbytes, len(data))
    if not has_header or stored > len(data) or not is_exact:
        size = "a whole chunk" if nbytes is None else f"{nbytes} bytes in a whole chunk"
        found = f"{len(data)} bytes with a header that says {stored} bytes for {decompressed}"
        raise CodecError("blosc", size, f"{found}: the chunk is cut off or damaged")


@dataclass(frozen=True, slots=True)
class BloscCheck:
    """A check of chunks of blosc, which may have other bytes before and behind them."""

    before: int
    behind: int

    def require_whole(self, pieces: Sequence[memoryview]) -> None:
        """Raise `CodecError` unless a chunk is whole."""
        nbytes = sum(piece.nbytes for piece in pieces)
        require_blosc_sizes(_cut(pieces, self.before, nbytes - self.behind))


# --- szip -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Szip:
    """The four parameters of the filter szip."""

    options_mask: int
    pixels_per_block: int
    bits_per_pixel: int
    pixels_per_scanline: int

    def decode(self, data: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
        """Return the bytes of a chunk; raise `CodecError` if it ends too early or has more than `most` bytes."""
        nbytes = int.from_bytes(data[:_SZIP_HEADER_NBYTES].tobytes(), "little")
        is_separated = self.bits_per_pixel in _SEPARATED
        is_odd = is_separated and nbytes % (self.bits_per_pixel // 8)
        if len(data) <= _SZIP_HEADER_NBYTES or is_odd or not 0 < nbytes <= most:
            found = f"{len(data)} bytes, with a header that says {nbytes} bytes"
            raise CodecError("szip", f"a chunk of whole pixels, and of up to {most} bytes when it is decoded", found)
        bits = 8 if is_separated else self.bits_per_pixel
        pixel_nbytes = 4 if bits > 16 else 2 if bits > 8 else 1
        # All scanlines are padded to whole blocks, the last one also to its whole length.
        line_nbytes = self.pixels_per_scanline * pixel_nbytes
        blocks = -(-self.pixels_per_scanline // self.pixels_per_block)
        padded_nbytes = blocks * self.pixels_per_block * pixel_nbytes
        lines, rest = divmod(nbytes, line_nbytes)
        needed = lines * padded_nbytes + rest if rest else (lines - 1) * padded_nbytes + line_nbytes
        decoded = self._decode_lines(data[_SZIP_HEADER_NBYTES:], bits, -(-nbytes // line_nbytes) * padded_nbytes)
        if len(decoded) < needed:
            found = f"{len(decoded)} bytes: the chunk is cut off or damaged"
            raise CodecError("szip", f"{needed} bytes of {nbytes}, with padding, when a chunk is decoded", found)
        if padded_nbytes != line_nbytes:
            decoded = np.pad(decoded, (0, -len(decoded) % padded_nbytes))
            decoded = decoded.reshape(-1, padded_nbytes)[:, :line_nbytes].ravel()
        decoded = decoded[:nbytes]
        if is_separated:
            decoded = np.ascontiguousarray(decoded.reshape(self.bits_per_pixel // 8, -1).T).ravel()
        return decoded

    def _decode_lines(self, data: NDArray[np.uint8], bits: int, nbytes: int) -> NDArray[np.uint8]:
        """Return up to `nbytes` bytes, as many as the data has; raise `CodecError` if it cannot be decoded.

        The library tells how many bytes it has decoded only for whole blocks that it need not put in order afterwards.
        """
        # The package is an extra.
        imagecodecs: Any = import_module("imagecodecs")
        pixels = -(-self.pixels_per_scanline // self.pixels_per_block) * self.pixels_per_block
        try:
            found = imagecodecs.szip_decode(data, self.options_mask, self.pixels_per_block, bits, pixels, out=nbytes)
        except (RuntimeError, ValueError) as error:
            raise CodecError("szip", "a chunk that szip can decode", str(error)) from error
        return np.frombuffer(found, np.uint8)


@dataclass(frozen=True, slots=True)
class SzipCheck:
    """A check of chunks of szip. It decodes them, since nothing else tells how many bytes a chunk should have."""

    szip: Szip
    # The size of a chunk when all codecs have decoded it.
    chunk_nbytes: int

    def require_whole(self, pieces: Sequence[memoryview]) -> None:
        """Raise `CodecError` unless a chunk is whole."""
        data = np.frombuffer(_cut(pieces, 0, sum(piece.nbytes for piece in pieces)), np.uint8)
        self.szip.decode(data, most_decoded(self.chunk_nbytes))


def most_decoded(chunk_nbytes: int) -> int:
    """Return the most bytes that szip decodes of a chunk: codecs before it may add checksums, or make it larger."""
    return 2 * chunk_nbytes + 64


# --- shards, and the choice of a check --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """A check of shards, whose inner chunks are checked."""

    index: ShardIndex
    inner: "ChunkCheck"

    def require_whole(self, pieces: Sequence[memoryview]) -> None:
        """Raise `CodecError` unless all inner chunks of a shard are whole. zarr reports an index that is damaged."""
        # A shard that is assembled from a file has one piece for each inner chunk.
        shard = pieces if len(pieces) <= 2 else (memoryview(b"".join(pieces)),)
        span = resolve(self.index.request, sum(piece.nbytes for piece in shard))
        table = self.index.decode(bytes(_cut(shard, span.start, span.stop)))
        for start, nbytes in [] if table is None else table[~is_hole(table)].tolist():
            self.inner.require_whole((_cut(shard, start, start + nbytes),))

    def require_inner(
        self, wanted: Sequence[Wanted], values: Sequence[Sequence[memoryview] | None], table: Table | None
    ) -> None:
        """Raise `CodecError` unless the inner chunks that were read from a shard with this index are whole."""
        for request, value in zip(wanted, values, strict=True):
            try:
                if value is not None:
                    self.inner.require_whole(value)
            except CodecError:
                # Only zarr asks for whole inner chunks; other callers may read other ranges.
                if table is None or _is_inner_chunk(request, table):
                    raise


type ChunkCheck = BloscCheck | SzipCheck | ShardCheck


def _is_inner_chunk(request: Wanted, table: Table) -> bool:
    if not isinstance(request, RangeByteRequest):
        return False
    return bool(np.any((table[:, 0] == request.start) & (table[:, 1] == request.end - request.start)))


def _cut(pieces: Sequence[memoryview], start: int, stop: int) -> memoryview:
    """Return the bytes `start <= i < stop` of a value, without a copy if they are in one piece."""
    if len(pieces) == 1:
        return pieces[0][max(0, start) : max(0, stop)]
    found, at = [], 0
    for piece in pieces:
        inside = piece[max(0, start - at) : max(0, stop - at)]
        if inside.nbytes:
            found.append(inside)
        at += piece.nbytes
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


def check_of(document: Mapping[str, Any]) -> ChunkCheck | None:
    """Return the check of an array's chunks, given the document that zarr reads; None if its codecs need none."""
    text = json.dumps(document.get("codecs"))
    if "blosc" not in text and "szip" not in text:
        return None
    members = {name: value for name, value in document.items() if name not in ("attributes", "storage_transformers")}
    try:
        return _check_of_text(json.dumps({**members, "zarr_format": 3, "node_type": "array"}))
    # zarr reports what is wrong with the document when it opens the array.
    except Exception:
        return None


@lru_cache(maxsize=256)
def _check_of_text(text: str) -> ChunkCheck | None:
    document = json.loads(text)
    before = behind = 0
    for codec in reversed(document["codecs"]):
        configuration = codec.get("configuration", {})
        match codec["name"]:
            case "offset":
                before += configuration["offset"]
            case "pad" if configuration["location"] == "start":
                before += configuration["nbytes"]
            case "pad":
                behind += configuration["nbytes"]
            case "blosc" | "numcodecs.blosc":
                return BloscCheck(before, behind)
            case "imagecodecs_szip" if configuration.get("header") is True and codec is document["codecs"][-1]:
                parameters = [parse_integer(configuration[name], *limits) for name, limits in SZIP_LIMITS.items()]
                known = [number for number in parameters if number is not None]
                return SzipCheck(Szip(*known), _chunk_nbytes(document)) if len(known) == len(parameters) else None
            case "sharding_indexed" if codec is document["codecs"][-1]:
                return _check_of_shards(document, configuration)
            case _:
                # A checksum or another compressor behind notices what is missing.
                return None
    return None


def _chunk_nbytes(document: dict[str, Any]) -> int:
    """Return the size of a decoded chunk; the most that a header can say if chunks have several shapes."""
    shape = document["chunk_grid"]["configuration"].get("chunk_shape")
    item_nbytes: int = read_metadata(document).data_type.to_native_dtype().itemsize
    return 1 << 32 if shape is None else math.prod(shape) * item_nbytes


def _check_of_shards(document: dict[str, Any], configuration: Mapping[str, Any]) -> ShardCheck | None:
    chunk_shape = configuration["chunk_shape"]
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}
    inner = check_of({**document, "shape": chunk_shape, "chunk_grid": grid, "codecs": configuration["codecs"]})
    index = shard_index_of(document)
    return None if inner is None or index is None else ShardCheck(index, inner)
