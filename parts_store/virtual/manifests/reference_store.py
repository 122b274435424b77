"""ReferenceStore: a read-only zarr store of arrays of references."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Never, Self, override

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store

from parts_store.virtual.manifests.array import PartsArray, ReferenceNode
from parts_store.virtual.manifests.entries import Piece, nbytes_of, slice_pieces
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.reading import ReferenceReadSettings, join_bytes, read_pieces
from parts_store.virtual.manifests.references import chunk_of_key
from parts_store.virtual.registries import Registries
from parts_store.virtual.store_access import (
    DOCUMENT,
    UnwritableStoreError,
    join,
    require_byte_request,
    resolve,
    split,
    splits,
)

type Value = tuple[Piece, ...]
"""The value of a key, in pieces. A metadata document is one piece."""


class ReferenceStore(Store):
    """A read-only zarr store that reads chunks from the files that they refer to.

    Parameters
    ----------
    root
        The array or the group at the root of the store.
    registries
        The registries of the stores that may be read.
    settings
        How ranges of files are coalesced and requested.
    """

    def __init__(self, root: ReferenceNode, registries: Registries, *, settings: ReferenceReadSettings) -> None:
        super().__init__(read_only=True)
        self._root, self._registries, self._settings = root, registries, settings
        self._nodes = dict(root.nodes())

    @override
    def with_read_only(self, read_only: bool = False) -> Self:
        if not read_only:
            self._refuse()
        return type(self)(self._root, self._registries, settings=self._settings)

    @override
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ReferenceStore) and self._settings == other._settings and self._root.is_same(other._root)
        )

    # Like the stores of zarr.
    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"references://{len(self._nodes)} nodes"

    def __repr__(self) -> str:
        return f"ReferenceStore({self._root!r})"

    # --- values ---------------------------------------------------------------------------------------------------

    def _value(self, key: str) -> Value | None:
        """Return the value of a key, None if there is no such key."""
        path, name = split(key)
        if name == DOCUMENT and path in self._nodes:
            # Without the storage transformer: this store returns whole chunks.
            return (json.dumps(self._nodes[path].document(), indent=2).encode(),)
        for above, relative in splits(key):
            array = self._nodes.get(above)
            if isinstance(array, PartsArray):
                index = chunk_of_key(array.metadata, relative)
                return None if index is None else array.references.pieces(index)
        return None

    def _keys(self, folder: str) -> Iterator[str]:
        """Yield every key below a folder."""
        below = join(folder, "")
        for path, node in self._nodes.items():
            if f"{path}/".startswith(below) or below.startswith(join(path, "")):
                yield from (key for key in _keys_of(path, node) if key.startswith(below))

    def _names(self, folder: str) -> list[str]:
        """Return the names directly in a folder."""
        if isinstance(group := self._nodes.get(folder), PartsGroup):
            return sorted({DOCUMENT, *group})
        start = len(join(folder, ""))
        return sorted({key[start:].partition("/")[0] for key in self._keys(folder)})

    # --- reading --------------------------------------------------------------------------------------------------

    async def _read(
        self,
        wanted: Sequence[tuple[Value | None, ByteRequest | None]],
        prototype: BufferPrototype,
        settings: ReferenceReadSettings,
    ) -> list[Buffer | None]:
        """Read ranges of values, with as few requests as the settings allow; None where there is no value."""
        # Ranges are coalesced across keys: neighbouring chunks are often neighbours in a file.
        ranges = [
            () if value is None else slice_pieces(value, resolve(byte_range, nbytes_of(*value)))
            for value, byte_range in wanted
        ]
        found = await read_pieces(ranges, self._registries, settings)
        return [
            None if value is None else prototype.buffer.from_bytes(join_bytes(pieces))
            for (value, _), pieces in zip(wanted, found, strict=True)
        ]

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        require_byte_request(byte_range)
        (buffer,) = await self._read([(self._value(key), byte_range)], prototype, self._settings)
        return buffer

    @override
    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        max_concurrency: int = 10,
        max_gap_bytes: int = 0,
        max_coalesced_bytes: int = 0,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Read many ranges of a value, coalesced as this store is configured and not as the caller asks."""
        value = self._value(key)
        if value is None:
            raise BaseExceptionGroup("no such key", [FileNotFoundError(key)])
        settings = replace(self._settings, concurrency=max(1, max_concurrency))
        buffers = await self._read([(value, byte_range) for byte_range in byte_ranges], prototype, settings)
        if buffers:
            yield list(enumerate(buffers))

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        wanted = [(self._value(key), byte_range) for key, byte_range in key_ranges]
        return await self._read(wanted, prototype, self._settings)

    @override
    async def exists(self, key: str) -> bool:
        return self._value(key) is not None

    @override
    async def getsize(self, key: str) -> int:
        value = self._value(key)
        if value is None:
            raise FileNotFoundError(key)
        return nbytes_of(*value)

    @property
    @override
    def supports_consolidated_metadata(self) -> bool:
        # All documents are in memory. Without this, xarray would warn that it found no consolidated metadata.
        return False

    # --- listing --------------------------------------------------------------------------------------------------

    @property
    @override
    def supports_listing(self) -> bool:
        return True

    @override
    async def list(self) -> AsyncIterator[str]:
        for key in self._keys(""):
            yield key

    @override
    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._keys(prefix.rstrip("/")):
            yield key

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in self._names(prefix.rstrip("/")):
            yield name

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    @override
    def supports_writes(self) -> bool:
        return False

    @property
    @override
    def supports_deletes(self) -> bool:
        return False

    def _refuse(self) -> Never:
        raise UnwritableStoreError(str(self), "a store that can be written", "one that can only be read")

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._refuse()

    @override
    async def delete(self, key: str) -> None:
        self._refuse()


def _keys_of(path: str, node: PartsArray | PartsGroup) -> Iterator[str]:
    yield join(path, DOCUMENT)
    if isinstance(node, PartsArray):
        for index, _ in node.references.all_pieces():
            yield join(path, node.metadata.encode_chunk_key(index))
