"""ReferenceStore: a read-only zarr store of arrays of references."""

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Never, Self, override

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store

from parts_store.backends.registered_files import Registries
from parts_store.errors import StoreConfigError
from parts_store.format.keys import DOCUMENT, join, split, splits
from parts_store.format.metadata import with_checks
from parts_store.format.ranges import require_byte_request, resolve
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import document_of
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.pieces import Piece, nbytes_of, slice_pieces
from parts_store.manifests.reading import ReadSettings, join_bytes, read_pieces

type Value = tuple[Piece, ...]
"""The value of a key, in pieces. A metadata document is one piece."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The keys of an array or a group of references, and their values. Pure."""

    nodes: dict[str, PartsArray | PartsGroup]

    @classmethod
    def of(cls, root: PartsArray | PartsGroup) -> "Tree":
        """Return the tree with this array or group at its root."""
        return cls(dict(root.nodes()) if isinstance(root, PartsGroup) else {"": root})

    def value(self, key: str) -> Value | None:
        """Return the value of a key, None if there is no such key."""
        path, name = split(key)
        if name == DOCUMENT and path in self.nodes:
            return (_document(self.nodes[path]),)
        for above, relative in splits(key):
            array = self.nodes.get(above)
            if isinstance(array, PartsArray):
                return _chunk(array, relative)
        return None

    def keys(self, folder: str) -> Iterator[str]:
        """Yield every key below a folder."""
        below = f"{folder}/" if folder else ""
        for path, node in self.nodes.items():
            if not (f"{path}/".startswith(below) or below.startswith(f"{path}/" if path else "")):
                continue
            for relative in _keys(node):
                if (key := join(path, relative)).startswith(below):
                    yield key

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names directly in a folder, each of them once."""
        start = len(folder) + 1 if folder else 0
        seen: set[str] = set()
        if isinstance(group := self.nodes.get(folder), PartsGroup):
            seen = {DOCUMENT, *group}
        else:
            seen = {key[start:].partition("/")[0] for key in self.keys(folder)}
        yield from sorted(seen)


def _document(node: PartsArray | PartsGroup) -> bytes:
    # Without the storage transformer: this store returns whole chunks.
    document = node.document() if isinstance(node, PartsGroup) else with_checks(document_of(node.metadata))
    return json.dumps(document, indent=2).encode()


def _chunk(array: PartsArray, relative: str) -> Value | None:
    numbers = re.findall("[0-9]+", relative) if array.ndim else []
    index = tuple(int(number) for number in numbers)
    references = array.references
    if len(index) != array.ndim or array.metadata.encode_chunk_key(index) != relative:
        return None
    if any(number >= count for number, count in zip(index, references.grid, strict=True)):
        return None
    return references.pieces(index)


def _keys(node: PartsArray | PartsGroup) -> Iterator[str]:
    yield DOCUMENT
    if isinstance(node, PartsArray):
        for index, _ in node.references.all_pieces():
            yield node.metadata.encode_chunk_key(index)


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

    def __init__(
        self, root: PartsArray | PartsGroup, registries: Registries, *, settings: ReadSettings | None = None
    ) -> None:
        super().__init__(read_only=True)
        self._root, self._registries, self._settings = root, registries, settings or ReadSettings()
        self._tree = Tree.of(root)

    @property
    def root(self) -> PartsArray | PartsGroup:
        """Return the array or the group at the root of the store."""
        return self._root

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_tree"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tree = Tree.of(self._root)

    @override
    def with_read_only(self, read_only: bool = False) -> Self:
        if not read_only:
            raise StoreConfigError(str(self), "a store that can be written", "one that can only be read")
        return type(self)(self._root, self._registries, settings=self._settings)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReferenceStore) or self._settings != other._settings:
            return False
        if isinstance(self._root, PartsArray):
            return self._root.is_same(other._root)
        return bool(self._root == other._root)

    # Like the stores of zarr.
    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"references://{len(self._tree.nodes)} nodes"

    def __repr__(self) -> str:
        return f"ReferenceStore({self._root!r})"

    # --- reading --------------------------------------------------------------------------------------------------

    async def _read(
        self,
        wanted: Sequence[tuple[Value | None, ByteRequest | None]],
        prototype: BufferPrototype,
        settings: ReadSettings,
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
        (buffer,) = await self._read([(self._tree.value(key), byte_range)], prototype, self._settings)
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
        value = self._tree.value(key)
        if value is None:
            raise BaseExceptionGroup("no such key", [FileNotFoundError(key)])
        settings = replace(self._settings, concurrency=max(1, max_concurrency))
        buffers = await self._read([(value, each) for each in byte_ranges], prototype, settings)
        if buffers:
            yield list(enumerate(buffers))

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        wanted = [(self._tree.value(key), byte_range) for key, byte_range in key_ranges]
        return await self._read(wanted, prototype, self._settings)

    @override
    async def exists(self, key: str) -> bool:
        return self._tree.value(key) is not None

    @override
    async def getsize(self, key: str) -> int:
        value = self._tree.value(key)
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
        for key in self._tree.keys(""):
            yield key

    @override
    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._tree.keys(prefix.rstrip("/")):
            yield key

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in self._tree.names(prefix.rstrip("/")):
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
        raise StoreConfigError(str(self), "a store that can be written", "one that can only be read")

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._refuse()

    @override
    async def delete(self, key: str) -> None:
        self._refuse()
