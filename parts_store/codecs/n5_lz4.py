"""The `parts_store.n5_lz4` codec: reads the three ways in which N5 programs write a block that is compressed with LZ4.

The Java library writes blocks of up to 64 KiB, each with a header that begins with `LZ4Block`. z5py writes one LZ4
block without a header. zarr 2 writes one LZ4 block behind its size, as Zarr's own codec `numcodecs.lz4` does it. No
codec of Zarr reads the first two. The checksums of the Java library are compared if the package `xxhash` is installed.
"""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final, Never, Self, cast, override

from numcodecs.lz4 import decompress
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.types import JSON

from parts_store._compat.zarr import ArraySpec, ThreadedCodec
from parts_store.codecs.configuration import read_configuration
from parts_store.errors import CodecError

NAME: Final = "parts_store.n5_lz4"
_MAGIC: Final = b"LZ4Block"
# The magic, the method, the compressed and the decompressed size, and a checksum.
_HEADER: Final = struct.Struct("<8sBIII")
_STORED, _COMPRESSED = 0x10, 0x20
# How the Java library computes the checksum of the decompressed bytes with xxHash: it uses 28 bits.
_SEED: Final = 0x9747B28C
_CHECKSUM_BITS: Final = 0x0FFFFFFF
# The largest size that the C library takes.
_MAX_NBYTES: Final = 0x7E000000


@dataclass(frozen=True)
class N5Lz4Codec(ThreadedCodec, BytesBytesCodec):
    """A codec that reads blocks of N5 that are compressed with LZ4. It cannot write them.

    Examples
    --------
    >>> ps.codecs.N5Lz4Codec().to_dict()
    {'name': 'parts_store.n5_lz4', 'configuration': {}}
    """

    is_fixed_size = False

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        read_configuration(data, NAME)
        return cls()

    @override
    def to_dict(self) -> dict[str, JSON]:
        return {"name": NAME, "configuration": {}}

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        nbytes = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        return chunk_spec.prototype.buffer.from_bytes(decode(chunk_bytes.to_bytes(), nbytes))

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Never:  # noqa: ARG002 - zarr's signature
        found = "a write; store the values in an array with another compressor"
        raise CodecError(NAME, "reads only, because N5 programs do not agree on how LZ4 is written", found)

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError


def decode(data: bytes, nbytes: int) -> bytes:
    """Return the `nbytes` bytes that were compressed to `data`; raise `CodecError` if there are more or fewer."""
    if data.startswith(_MAGIC):
        decoded = b"".join(_java_blocks(data, nbytes))
        if len(decoded) != nbytes:
            raise CodecError(NAME, f"{nbytes} bytes", f"{len(decoded)} bytes in the blocks of the Java library")
        return decoded
    # The size can be in front of the block. It is tried first: now and then a block with a size can be decoded without
    # it, to other values of the same size, but no block without a size is likely to begin with it.
    if int.from_bytes(data[:4], "little") == nbytes:
        try:
            return _lz4(data[4:], nbytes)
        except CodecError:
            pass
    return _lz4(data, nbytes)


def _java_blocks(data: bytes, nbytes: int) -> Iterator[bytes]:
    """Yield what is in the blocks of the Java library, of which there must be `nbytes` bytes at most."""
    at, left = 0, nbytes
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise CodecError(NAME, f"{_HEADER.size} bytes of a header", f"{len(data) - at} bytes")
        magic, token, stored, decoded, checksum = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size
        at = start + stored
        if magic != _MAGIC or at > len(data) or decoded > left:
            raise CodecError(NAME, f"a block within {len(data)} bytes, and of {left} bytes at most", "another header")
        left -= decoded
        # The last block is empty.
        if decoded == 0:
            return
        method = token & 0xF0
        if method == _STORED and stored == decoded:
            piece = data[start:at]
        elif method == _COMPRESSED:
            piece = _lz4(data[start:at], decoded)
        else:
            raise CodecError(NAME, "a stored or a compressed block", f"method {method:#x} of {stored} bytes")
        _require_checksum(piece, checksum)
        yield piece


@cache
def _xxhash() -> Callable[[bytes, int], int] | None:
    """Return the function for a checksum of 32 bits; None if `xxhash` is not installed."""
    try:
        return cast("Callable[[bytes, int], int]", import_module("xxhash").xxh32_intdigest)
    except ImportError:
        return None


def _require_checksum(piece: bytes, checksum: int) -> None:
    """Raise `CodecError` if the decompressed bytes of a block of the Java library have another checksum."""
    digest = _xxhash()
    if digest is not None and (found := digest(piece, _SEED) & _CHECKSUM_BITS) != checksum:
        raise CodecError(NAME, f"bytes with the checksum {checksum:#x}", f"{found:#x}: the block was changed")


def _lz4(block: bytes, nbytes: int) -> bytes:
    """Return the contents of an LZ4 block, which are `nbytes` bytes."""
    if not 0 < nbytes <= _MAX_NBYTES:
        raise CodecError(NAME, f"a size of at most {_MAX_NBYTES} bytes", f"{nbytes} bytes")
    try:
        return bytes(decompress(struct.pack("<I", nbytes) + block))
    except (RuntimeError, ValueError) as error:
        raise CodecError(NAME, f"an LZ4 block of {nbytes} bytes", str(error)) from error
