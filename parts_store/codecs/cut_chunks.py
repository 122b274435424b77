"""Refuse chunks that were cut off, where a codec would return undefined values: chunks of blosc and of szip.

blosc does not compare its header with the number of bytes that it is given, and numcodecs returns what lies behind such
a chunk in memory, now and then (numcodecs#228). imagecodecs returns as many bytes of szip as the header of a chunk
says, whatever was decoded of them. Wherever this package decodes chunks, `with_checks` has replaced these codecs. The
documents keep their names, which other software knows.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self, override

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
