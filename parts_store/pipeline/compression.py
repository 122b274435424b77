"""Encode and decode the inner chunks of a shard, all of one call together.

Each class here stands for a chain of inner codecs after the `bytes` codec. Zarr's codecs take one chunk per call, which
costs more time than the work itself for small chunks.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numcodecs
import numpy as np
import zstandard
from numcodecs import blosc
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.buffer import cpu
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4, Zlib

from parts_store._compat.zarr import ArraySpec, decode_sync, encode_sync
from parts_store.codecs.damaged_chunks import CheckedBlosc, require_blosc_sizes
from parts_store.pipeline.blosc_chunks import join_chunks

_MAGIC_NBYTES, _BLOCK_HEADER_NBYTES, _CHECKSUM_NBYTES = 4, 3, 4
# The smallest frame: the magic number, a descriptor, another byte, and the header of an empty block.
_LEAST_NBYTES: Final = 9
_RUN: Final = 1
# The number of inner chunks from which on one call for all of them is faster than a call for each.
_MANY: Final = 16
_SHUFFLES: Final = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}
# The window size by which zlib knows that a stream has the header and the checksum of gzip.
_GZIP: Final = 16 + zlib.MAX_WBITS


def _header_nbytes(descriptor: int) -> int:
    """Return the size of a frame header with the magic number, by its descriptor."""
    is_single_segment = (descriptor >> 5) & 1
    # The size of the content. A single segment without the flag has one byte for it.
    content = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    window = 1 - is_single_segment
    return _MAGIC_NBYTES + 1 + window + (0, 1, 2, 4)[descriptor & 3] + content


_HEADER_NBYTES: Final = np.array([_header_nbytes(descriptor) for descriptor in range(256)])


def are_single_frames(data: NDArray[np.uint8], offsets: NDArray[Any], lengths: NDArray[Any]) -> bool:
    """Return whether each of these ranges ends where the frame ends that begins it; a wrong frame may give any answer.

    A frame is a header, blocks, of which the last has a flag, and perhaps a checksum. All frames are compared at once.
    """
    starts, nbytes = offsets.astype(np.int64), lengths.astype(np.int64)
    if np.any(nbytes < _LEAST_NBYTES) or np.any(starts + nbytes > len(data)):
        return False
    descriptor = data[starts + _MAGIC_NBYTES].astype(np.int64)
    blocks = starts + _HEADER_NBYTES[descriptor]
    stops = starts + nbytes - _CHECKSUM_NBYTES * ((descriptor >> 2) & 1)
    while len(blocks):
        if np.any(blocks + _BLOCK_HEADER_NBYTES > stops):
            return False
        first, second, third = (data[blocks + at].astype(np.int64) for at in range(_BLOCK_HEADER_NBYTES))
        numbers = first | second << 8 | third << 16
        blocks = blocks + _BLOCK_HEADER_NBYTES + np.where((numbers >> 1) & 3 == _RUN, 1, numbers >> 3)
        is_last = (numbers & 1).astype(bool)
        if np.any(is_last & (blocks != stops)):
            return False
        blocks, stops = blocks[~is_last], stops[~is_last]
    return True


type Bytes = NDArray[np.uint8]


class NotDecodedError(Exception):
    """Data that this module cannot decode, and that zarr's own codecs have to decode or refuse."""


class InnerCodecs(Protocol):
    """A chain of codecs that turns the bytes of inner chunks into stored bytes, and back."""

    def decode(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Bytes:
        """Return the bytes of the inner chunks at these offsets of a shard, one row per inner chunk."""

    def encode(self, chunks: Bytes) -> tuple[Sequence[Any], NDArray[np.uint64]]:
        """Return the stored bytes of inner chunks, given one per row, and the length of each.

        The bytes are a list of buffers, of which one may hold several inner chunks.
        """


@dataclass(frozen=True, slots=True)
class Uncompressed:
    """Inner chunks that are stored as they are."""

    chunk_nbytes: int

    def decode(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Bytes:
        """Return the bytes of the inner chunks: a view of the shard where they are one after another."""
        chunks, rows = self.unpack(shard, offsets, lengths)
        return chunks if rows is None else chunks[rows]

    def unpack(
        self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> tuple[Bytes, NDArray[np.int64] | None]:
        """Return the bytes of the inner chunks as they are stored, and the row of each; None if they are in order."""
        if (lengths != self.chunk_nbytes).any():
            raise NotDecodedError
        count, nbytes = len(offsets), self.chunk_nbytes
        if count == 1 and len(only := shard[int(offsets[0]) :][:nbytes]) == nbytes:
            return only.reshape(1, nbytes), None
        positions = offsets.astype(np.int64)
        first = int(positions.min())
        packed = shard[first : first + count * nbytes]
        rows, rest = np.divmod(positions - first, nbytes)
        if len(packed) == count * nbytes and not rest.any() and int(rows.max()) < count:
            chunks = packed.reshape(count, nbytes)
            return chunks, None if np.array_equal(rows, np.arange(count)) else rows
        # The inner chunks of an adopted file have other bytes between them.
        return np.stack([shard[start : start + nbytes] for start in positions.tolist()]), None

    def encode(self, chunks: Bytes) -> tuple[Sequence[Any], NDArray[np.uint64]]:
        """Return the inner chunks as they are."""
        return [chunks], np.full(len(chunks), self.chunk_nbytes, np.uint64)


@dataclass(frozen=True, slots=True)
class Zstd:
    """Inner chunks that are compressed with zstd, all of a shard in one call of the package `zstandard`."""

    chunk_nbytes: int
    level: int
    has_checksum: bool

    def decode(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Bytes:
        """Decompress the inner chunks."""
        try:
            decompressed: Any = (self._decode_few if len(offsets) < _MANY else self._decode_many)(
                shard, offsets, lengths
            )
        except (zstandard.ZstdError, ValueError) as error:
            raise NotDecodedError from error
        return np.frombuffer(b"".join(decompressed), np.uint8).reshape(len(offsets), self.chunk_nbytes)

    def _decode_few(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> list[bytes]:
        decompressor, size = zstandard.ZstdDecompressor(), self.chunk_nbytes
        frames = [shard[at : at + nbytes] for at, nbytes in zip(offsets.tolist(), lengths.tolist(), strict=True)]
        if any(zstandard.frame_content_size(frame) not in (size, -1) for frame in frames):  # type: ignore[arg-type]
            raise NotDecodedError
        found = [decompressor.decompress(frame, size, allow_extra_data=False) for frame in frames]  # type: ignore[arg-type]
        if any(len(chunk) != size for chunk in found):
            raise NotDecodedError
        return found

    def _decode_many(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Any:
        if not are_single_frames(shard, offsets, lengths):
            # The call below ignores bytes behind a frame. They are damage, or several frames: zarr's codec decides.
            raise NotDecodedError
        segments = np.stack([offsets, lengths], axis=1).astype("<u8", copy=False)
        sizes = np.full(len(offsets), self.chunk_nbytes, "<u8")
        frames = zstandard.BufferWithSegments(shard, segments.tobytes())  # type: ignore[arg-type]
        return zstandard.ZstdDecompressor().multi_decompress_to_buffer(frames, sizes.tobytes())

    def encode(self, chunks: Bytes) -> tuple[Sequence[Any], NDArray[np.uint64]]:
        """Compress the inner chunks."""
        starts = np.arange(len(chunks), dtype="<u8") * np.uint64(self.chunk_nbytes)
        segments = np.stack([starts, np.full(len(chunks), self.chunk_nbytes, "<u8")], axis=1)
        compressor = zstandard.ZstdCompressor(self.level, write_checksum=self.has_checksum)
        given = zstandard.BufferWithSegments(chunks, segments.tobytes())  # type: ignore[arg-type]
        compressed = list(compressor.multi_compress_to_buffer(given))  # type: ignore[call-overload]
        return compressed, np.fromiter(map(len, compressed), np.uint64, len(compressed))


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Inner chunks that are compressed with one codec, each by one call of a library."""

    chunk_nbytes: int
    compress: Callable[[Any], bytes]
    decompress: Callable[[memoryview], bytes]

    def decode(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Bytes:
        """Decompress the inner chunks."""
        stored, stops = memoryview(shard), (offsets + lengths).tolist()
        try:
            found = [self.decompress(stored[at:stop]) for at, stop in zip(offsets.tolist(), stops, strict=True)]
        except (zlib.error, RuntimeError, ValueError) as error:
            raise NotDecodedError from error
        if any(len(chunk) != self.chunk_nbytes for chunk in found):
            raise NotDecodedError
        return np.frombuffer(b"".join(found), np.uint8).reshape(len(found), self.chunk_nbytes)

    def encode(self, chunks: Bytes) -> tuple[Sequence[Any], NDArray[np.uint64]]:
        """Compress the inner chunks."""
        compressed = [self.compress(chunk) for chunk in chunks]
        return compressed, np.fromiter(map(len, compressed), np.uint64, len(compressed))


@dataclass(frozen=True, slots=True)
class Blosc(OneByOne):
    """Inner chunks that are compressed with blosc, and decompressed in one call if each is one block of blosc."""

    def decode(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Bytes:
        """Decompress the inner chunks."""
        joined = join_chunks(shard, offsets, lengths, self.chunk_nbytes) if len(offsets) >= _MANY else None
        if joined is None:
            # `super()` needs the class, which `slots` replaces.
            return OneByOne.decode(self, shard, offsets, lengths)
        try:
            found = blosc.decompress(joined)
        except RuntimeError as error:
            raise NotDecodedError from error
        return np.frombuffer(found, np.uint8).reshape(len(offsets), self.chunk_nbytes)


@dataclass(frozen=True, slots=True)
class AnyCodecs:
    """Inner chunks that zarr's codecs encode and decode, one call per codec and chunk."""

    codecs: tuple[Any, ...]
    spec: ArraySpec
    chunk_nbytes: int

    def decode(self, shard: Bytes, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Bytes:
        """Decode the inner chunks one by one."""
        chunks = np.empty((len(offsets), self.chunk_nbytes), np.uint8)
        for row, (start, nbytes) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
            stored: Any = cpu.Buffer.from_array_like(shard[start : start + nbytes])
            for codec in reversed(self.codecs):
                stored = decode_sync(codec, stored, self.spec)
            decoded = stored.as_numpy_array()
            if decoded.nbytes != self.chunk_nbytes:
                raise NotDecodedError
            chunks[row] = decoded.view(np.uint8)
        return chunks

    def encode(self, chunks: Bytes) -> tuple[Sequence[Any], NDArray[np.uint64]]:
        """Encode the inner chunks one by one."""
        encoded = []
        for chunk in chunks:
            stored: Any = cpu.Buffer.from_array_like(chunk)
            for codec in self.codecs:
                stored = encode_sync(codec, stored, self.spec)
            encoded.append(stored.as_numpy_array())
        return encoded, np.fromiter((each.nbytes for each in encoded), np.uint64, len(encoded))


def choose_inner_codecs(codecs: Sequence[BytesBytesCodec], spec: ArraySpec, chunk_nbytes: int) -> InnerCodecs:
    """Return what encodes and decodes the inner chunks of a shard with these codecs."""
    match codecs:
        case []:
            return Uncompressed(chunk_nbytes)
        case [ZstdCodec(level=level, checksum=has_checksum)]:
            return Zstd(chunk_nbytes, level, has_checksum)
        case [CheckedBlosc(codec=BloscCodec() as codec)]:
            name, shuffle = codec.cname.encode(), _SHUFFLES[codec.shuffle]
            options = {"shuffle": shuffle, "blocksize": codec.blocksize, "typesize": codec.typesize}
            compress = partial(blosc.compress, cname=name, clevel=codec.clevel, **options)
            return Blosc(chunk_nbytes, compress, _decompress_blosc)
        case [GzipCodec(level=level)]:
            return OneByOne(chunk_nbytes, partial(zlib.compress, level=level, wbits=_GZIP), _decompress_gzip)
        case [Zlib() | LZ4() as codec]:
            library = numcodecs.get_codec(codec.codec_config)
            return OneByOne(chunk_nbytes, library.encode, library.decode)
        case _:
            return AnyCodecs(tuple(codecs), spec, chunk_nbytes)


def _decompress_blosc(stored: memoryview) -> bytes:
    require_blosc_sizes(stored)
    decompressed: bytes = blosc.decompress(stored)
    return decompressed


def _decompress_gzip(stored: memoryview) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    decompressed = stream.decompress(stored)
    if not stream.eof or stream.unused_data:
        # A stream that was cut off, or bytes behind it: zarr's codec knows further streams, and refuses all else.
        raise NotDecodedError
    return decompressed
