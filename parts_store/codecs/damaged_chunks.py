"""Decode chunks that may be damaged: refuse those that were cut off, and never use much more memory than is expected.

For a chunk that was cut off, some codecs return undefined values. blosc does not compare its header with the number of
bytes that it is given, and numcodecs returns what lies behind such a chunk in memory, now and then (numcodecs#228).
imagecodecs returns as many bytes of szip as the header of a chunk says, whatever was decoded of them. Wherever this
package decodes chunks, `with_checks` has replaced these codecs. The documents keep their names, which other software
knows.

The codecs of zarr decompress whatever is there: a few kilobytes can become terabytes. `decompress` stops at the size
that is known.
"""

import bz2
import gzip
import io
import lzma
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, override

import zstandard
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs import BloscCodec, ShardingCodec
from zarr.codecs.numcodecs import Blosc
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec, ThreadedCodec, decode_sync, encode_sync
from parts_store.codecs.szip import SzipCodec
from parts_store.errors import CodecConfigError, CodecError

# The header of a chunk of blosc has the sizes of the chunk when it is decompressed, and as it is stored.
_BLOSC_HEADER: Final = struct.Struct("<4xI4xI")


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


@dataclass(frozen=True)
class CheckedBlosc(ThreadedCodec, BytesBytesCodec):
    """A codec `blosc` or `numcodecs.blosc` of zarr, which refuses chunks that were cut off."""

    is_fixed_size = False

    codec: BloscCodec | Blosc

    @override
    def to_dict(self) -> dict[str, JSON]:
        return self.codec.to_dict()

    @override
    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        return replace(self, codec=self.codec.evolve_from_array_spec(array_spec))

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        require_blosc_sizes(memoryview(chunk_bytes.as_numpy_array()))
        decoded: Buffer = decode_sync(self.codec, chunk_bytes, chunk_spec)
        return decoded

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        encoded: Buffer | None = encode_sync(self.codec, chunk_bytes, chunk_spec)
        return encoded

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError


def with_checks(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return codecs that decode the same chunks, and refuse those that were cut off."""
    return tuple(map(_with_check, codecs))


def _with_check(codec: Codec) -> Codec:
    match codec:
        case BloscCodec() | Blosc():
            return CheckedBlosc(codec)
        case ShardingCodec():
            inner = with_checks(codec.codecs)
            return codec if inner == tuple(codec.codecs) else replace(codec, codecs=inner)
        case _ if type(codec).__module__.startswith("imagecodecs") and codec.to_dict()["name"] == "imagecodecs_szip":
            try:
                return SzipCodec.from_dict({**codec.to_dict(), "name": "parts_store.szip"})
            # A chunk without a header has no size that could be compared.
            except CodecConfigError:
                return codec
        case _:
            return codec


# --- decompression to a size that is known ----------------------------------------------------------------------------

# The memory that a frame of zstd may claim for its window, if it has fewer bytes than that.
_LEAST_WINDOW: Final = 1 << 27


class SizeError(ValueError):
    """Compressed data that has another size than is known of it."""


def decompress(codec: Mapping[str, Any], data: bytes, nbytes: int) -> bytes | None:
    """Return what a codec of zarr has compressed to `data`; None if this module does not know the codec.

    At most one byte more than `nbytes` is decompressed. Raises `SizeError` if there are more, or fewer, and any error
    of the library that decompresses.
    """
    known = _DECOMPRESSORS.get(str(codec["name"]))
    configuration: Mapping[str, Any] = codec.get("configuration") or {}
    # Data of other formats of LZMA than xz.
    if known is None or configuration.get("format", lzma.FORMAT_XZ) != lzma.FORMAT_XZ or configuration.get("filters"):
        return None
    found = known(data, nbytes + 1)
    if len(found) != nbytes:
        found_nbytes = f"more than {nbytes}" if len(found) > nbytes else str(len(found))
        raise SizeError(f"expected {nbytes} bytes, found {found_nbytes} bytes when they are decompressed")
    return found


def _gzip(data: bytes, limit: int) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(data)).read(limit)


def _zlib(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, limit)
    if len(found) < limit and not stream.eof:
        raise SizeError(f"a stream that ends after {len(found)} bytes")
    return found


def _bz2(data: bytes, limit: int) -> bytes:
    return bz2.BZ2File(io.BytesIO(data)).read(limit)


def _lzma(data: bytes, limit: int) -> bytes:
    return lzma.LZMAFile(io.BytesIO(data), format=lzma.FORMAT_XZ).read(limit)


def _zstd(data: bytes, limit: int) -> bytes:
    # The window of a frame can be as large as all of its data.
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(limit, _LEAST_WINDOW))
    return decompressor.stream_reader(data, read_across_frames=True).read(limit)


_DECOMPRESSORS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "numcodecs.zlib": _zlib,
    "numcodecs.bz2": _bz2,
    "numcodecs.lzma": _lzma,
    "zstd": _zstd,
}
