"""Encode and decode whole shards with a few NumPy calls per shard, whatever the number of its inner chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from zarr.codecs import ShardingCodec

from parts_store._compat.zarr import ArraySpec, subchunk_order
from parts_store.format.shard_index import NO_CHUNK, ShardIndex, encode_table, index_of_codec
from parts_store.pipeline.chunk import AT_START, ChunkLayout, plan_chunks
from parts_store.pipeline.compression import Bytes, NotDecodedError, Uncompressed


@dataclass(frozen=True, slots=True, eq=False)
class ShardLayout(ChunkLayout):
    """The layout of the shards of an array, and how their inner chunks are encoded."""

    grid: tuple[int, ...]
    # The numbers of the inner chunks, counted in C order, in the order in which they are written.
    write_order: NDArray[np.intp] | None
    index: ShardIndex

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a shard."""
        return tuple(count * size for count, size in zip(self.grid, self.chunk_shape, strict=True))

    @property
    def count(self) -> int:
        """The number of inner chunks."""
        return prod(self.grid)

    def separate(self, pieces: Sequence[Bytes]) -> tuple[Bytes, Bytes]:
        """Return the bytes of a shard, and those of its index; without a copy if the index is a part of its own.

        The bytes of the shard are in several pieces if it is stored in parts.
        """
        nbytes = self.index.nbytes
        if len(pieces) == 2 and len(pieces[1]) == nbytes and not self._data_start:
            return pieces[0], pieces[1]
        shard = pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, np.uint8)])
        return shard, shard[:nbytes] if self._data_start else shard[-nbytes:]

    def decode_into(self, target: NDArray[Any], shard: Bytes, index: Bytes) -> None:
        """Decode a shard into an array, which has the shard's shape, or less of it at the end of an axis.

        Raises
        ------
        NotDecodedError
            If this cannot be done here. Then zarr's codec decodes the shard, or says what is wrong with it.
        """
        offsets, lengths = self._read_index(shard, index)
        is_present = offsets != NO_CHUNK
        if is_present.all() and isinstance(self.codecs, Uncompressed) and target.shape == self.shape:
            packed, rows = self.codecs.unpack(shard, offsets, lengths)
            if rows is None:
                chunks = packed.view(self.dtype)
            elif len(np.unique(rows)) < self.count:
                # Inner chunks that share their bytes.
                chunks = packed[rows].view(self.dtype)
            else:
                # Large chunks are not copied into another order first.
                numbers = np.empty(self.count, np.intp)
                numbers[rows] = np.arange(self.count)
                blocks = packed.view(self.dtype).reshape(self.count, *self.chunk_shape)
                self._split_axes(target)[np.unravel_index(numbers, self.grid)] = blocks
                return
        elif is_present.all():
            chunks = self.codecs.decode(shard, offsets, lengths).view(self.dtype)
        else:
            chunks = np.empty((self.count, prod(self.chunk_shape)), self.dtype)
            chunks[~is_present] = self.fill_value
            if is_present.any():
                chunks[is_present] = self.codecs.decode(shard, offsets[is_present], lengths[is_present]).view(
                    self.dtype
                )
        self._put_together(chunks, target)

    def replace_start(self, shard: Bytes, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of a stored shard with those at the start of each axis replaced.

        Raises
        ------
        NotDecodedError
            As `decode_into` does.
        """
        whole = np.empty(self.shape, self.dtype)
        self.decode_into(whole, *self.separate([shard]))
        whole[tuple(slice(size) for size in values.shape)] = values
        return whole

    def decode_some(self, stored: Sequence[Bytes | None]) -> NDArray[Any]:
        """Decode inner chunks, given their bytes, or None for one that is not stored; the first axis counts them."""
        present = [each for each in stored if each is not None]
        if len(present) == len(stored):
            chunks = self._decode_present(present)
        else:
            chunks = np.full((len(stored), prod(self.chunk_shape)), self.fill_value, self.dtype)
            if present:
                chunks[[each is not None for each in stored]] = self._decode_present(present)
        return chunks.reshape(len(stored), *self.chunk_shape)

    def _decode_present(self, present: Sequence[Bytes]) -> NDArray[Any]:
        """Decode inner chunks, at least one; the first axis counts them."""
        lengths = np.array([len(each) for each in present], np.uint64)
        if len(present) == 1:
            decoded = self.codecs.decode(present[0], AT_START, lengths)
        else:
            offsets = np.cumsum(lengths, dtype=np.uint64) - lengths
            decoded = self.codecs.decode(np.concatenate(present), offsets, lengths)
        return decoded.view(self.dtype)

    def encode(self, values: NDArray[Any]) -> Bytes | None:
        """Encode a shard from its values; None if all of them are the fill value, and such chunks are not stored.

        The values have the shard's shape, or less of it at the end of an axis.
        """
        if isinstance(self.codecs, Uncompressed) and values.shape == self.shape:
            dense = self._encode_dense(values)
            if dense is not None:
                return dense
        chunks = self._take_apart(values)
        offsets = np.full(self.count, NO_CHUNK, np.uint64)
        lengths = np.full(self.count, NO_CHUNK, np.uint64)
        order = np.arange(self.count) if self.write_order is None else self.write_order
        if not self.stores_empty_chunks and (is_empty := self.find_empty(chunks)) is not None:
            order = order[~is_empty[order]]
            if not len(order):
                return None
            chunks = chunks[order]
        elif self.write_order is not None:
            chunks = chunks[order]
        encoded, lengths[order] = self.codecs.encode(chunks.view(np.uint8))
        stops = np.cumsum(lengths[order])
        offsets[order] = stops - lengths[order] + np.uint64(self._data_start)
        return self._assemble(encoded, self._write_index(offsets, lengths))

    def _encode_dense(self, values: NDArray[Any]) -> Bytes | None:
        """Copy values directly to where they are stored; None if some inner chunks are not stored."""
        order = np.arange(self.count) if self.write_order is None else self.write_order
        chunk_nbytes = prod(self.chunk_shape) * self.dtype.itemsize
        start, nbytes = self._data_start, self.count * chunk_nbytes
        shard = np.empty(nbytes + self.index.nbytes, np.uint8)
        chunks = shard[start : start + nbytes].view(self.dtype).reshape(self.count, *self.chunk_shape)
        blocks = self._split_axes(values)
        if self.write_order is None:
            chunks.reshape(*self.grid, *self.chunk_shape)[...] = blocks
        else:
            # NumPy makes a copy of what it takes in another order: of a small share of the shard at a time.
            positions, share = np.unravel_index(order, self.grid), -(-self.count // 16)
            for first in range(0, self.count, share):
                taken = tuple(each[first : first + share] for each in positions)
                chunks[first : first + share] = blocks[taken]
        if not self.stores_empty_chunks and self.find_empty(chunks.reshape(self.count, -1)) is not None:
            return None
        offsets = np.empty(self.count, np.uint64)
        offsets[order] = start + np.arange(self.count) * chunk_nbytes
        index = self._write_index(offsets, np.full(self.count, chunk_nbytes, np.uint64))
        index_start = 0 if start else nbytes
        shard[index_start : index_start + len(index)] = np.frombuffer(index, np.uint8)
        return shard

    def _read_index(self, shard: Bytes, index: Bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the offsets and lengths in a shard's index, if all of them are inside the shard."""
        offsets, lengths = self._parse_index(index.tobytes())
        is_present = offsets != NO_CHUNK
        limit = np.uint64(len(shard))
        if np.any(is_present & ((offsets > limit) | (lengths > limit) | (offsets + lengths > limit))):
            raise NotDecodedError
        return offsets, lengths

    def _parse_index(self, stored: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the offsets and lengths of all inner chunks."""
        table = self.index.decode(stored)
        if table is None:
            raise NotDecodedError
        offsets, lengths = table[:, 0], table[:, 1]
        if np.any((offsets == NO_CHUNK) != (lengths == NO_CHUNK)):
            # An index that is damaged: an inner chunk without an offset or without a length is not an absent one.
            raise NotDecodedError
        return offsets, lengths

    def _write_index(self, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> bytes:
        table = np.stack([offsets, lengths], axis=1).astype(cast("str", self.index.dtype), copy=False)
        return encode_table(table, has_checksum=self.index.has_checksum)

    @property
    def _data_start(self) -> int:
        """Where the inner chunks begin: behind the index, if the index comes first."""
        return self.index.nbytes if self.index.location == "start" else 0

    def _assemble(self, encoded: Sequence[Any], index: bytes) -> Bytes:
        """Return the bytes of a shard: the inner chunks, and the index before or after them."""
        pieces = (index, *encoded) if self._data_start else (*encoded, index)
        return np.frombuffer(b"".join(pieces), np.uint8)

    @property
    def _axes(self) -> tuple[int, ...]:
        """The axes of an array that is split into grid and chunk along each axis, in the order grid, then chunk."""
        ndim = len(self.grid)
        return (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))

    def _split_axes(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view of an array of a shard's shape, with axes for the grid first, and then those of a chunk."""
        split = [size for pair in zip(self.grid, self.chunk_shape, strict=True) for size in pair]
        return values.reshape(split, copy=False).transpose(self._axes)

    def _put_together(self, chunks: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy inner chunks, one per row, to where they belong in an array."""
        blocks = chunks.reshape(*self.grid, *self.chunk_shape)
        if target.shape == self.shape:
            self._split_axes(target)[...] = blocks
            return
        whole = np.empty(self.shape, target.dtype)
        self._split_axes(whole)[...] = blocks
        target[...] = whole[tuple(slice(size) for size in target.shape)]

    def _take_apart(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the inner chunks of an array, one per row, in C order and the stored byte order."""
        if values.shape != self.shape:
            whole = np.full(self.shape, self.fill_value, self.dtype)
            whole[tuple(slice(size) for size in values.shape)] = values
            values = whole
        chunks = np.empty((*self.grid, *self.chunk_shape), self.dtype)
        chunks[...] = self._split_axes(values)
        return chunks.reshape(self.count, prod(self.chunk_shape))


def plan_layout(codec: ShardingCodec, spec: ArraySpec) -> ShardLayout | None:
    """Return the layout of the shards of an array, None if only zarr's codec can encode and decode them."""
    index = index_of_codec(codec, spec.shape) if spec.shape else None
    if index is None or not index.is_understood:
        return None
    chunks = plan_chunks(codec.codecs, replace(spec, shape=tuple(codec.chunk_shape)))
    if chunks is None or not all(spec.shape):
        return None
    grid = tuple(size // chunk for size, chunk in zip(spec.shape, chunks.chunk_shape, strict=True))
    inner = (chunks.chunk_shape, chunks.dtype, chunks.fill_value, chunks.stores_empty_chunks, chunks.codecs)
    return ShardLayout(*inner, grid, _write_order(codec.subchunk_write_order, grid), index)


@lru_cache(maxsize=64)
def _write_order(name: str, grid: tuple[int, ...]) -> NDArray[np.intp] | None:
    """Return the numbers of inner chunks in the order in which they are written, None if that is C order."""
    order = subchunk_order(name, grid)
    return None if all(a < b for a, b in pairwise(order.tolist())) else order
