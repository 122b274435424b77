"""Which array a key belongs to, and whether the key is that of a chunk, of a part, or of something else."""

from dataclasses import dataclass

from parts_store.catalog.records import Entry, Plain, PlainArray
from parts_store.format.keys import Chunk, PartPlacement, is_default_key, join
from parts_store.format.layout import plan_split, require_no_empty
from parts_store.format.metadata import ArrayRecord
from parts_store.format.shard_index import ShardIndex


@dataclass(frozen=True, slots=True)
class OwnedChunk:
    """A chunk of an array with parts."""

    chunk: Chunk
    record: ArrayRecord
    # Whether the array is known from the consolidated metadata of a group alone.
    is_unconfirmed: bool = False

    @property
    def may_have_gaps(self) -> bool:
        """Whether a shard may be a range of an existing file, with bytes between its inner chunks that are not its own.

        Such a shard has two parts, of which the second is its index.
        """
        sizes, index = self.record.parts.sizes, self.record.shard_index
        if index is None or self.record.placement is not PartPlacement.SPLIT or not index.is_understood:
            return False
        return len(sizes) == 2 and index.location == "end" and sizes[-1] == index.nbytes

    def cut(self, value: memoryview) -> list[memoryview]:
        """Return the value as it is stored: whole, or in parts. Raise if it does not fit the array's parts."""
        value = self.record.as_stored(self.chunk.relative, self.chunk.array, value)
        spans = plan_split(self.record.parts, value.nbytes, self.chunk.chunk_key)
        is_whole = self.record.placement is PartPlacement.WHOLE
        stored = [value] if is_whole else [value[span.start : span.stop] for span in spans]
        if self.record.placement is not PartPlacement.BESIDE:
            require_no_empty(self.chunk.parts, [each.nbytes for each in stored], self.chunk.chunk_key)
        return stored


@dataclass(frozen=True, slots=True)
class Hidden:
    """A part of a chunk, or an object of the write protocol: neither shown nor usable by itself."""

    owner: str


@dataclass(frozen=True, slots=True)
class Other:
    """Any other key: its value is passed through unchanged."""

    # The path of the array without parts that the key belongs to, None if it belongs to no known array.
    array: str | None = None
    # Whether that array is known from the consolidated metadata of a group alone.
    is_unconfirmed: bool = False
    # The index of the shard at the key, None if the key is not known to be that of a shard.
    shard_index: ShardIndex | None = None
    # That array, None if its document is not known.
    record: PlainArray | None = None


type Owner = OwnedChunk | Hidden | Other


def owner_in(entry: Entry, path: str, relative: str, *, is_unconfirmed: bool = False) -> Owner | None:
    """Return what a key is in the array at a path, None if it does not belong to this array."""
    if isinstance(entry, PlainArray):
        return Other(path, is_unconfirmed, entry.shard_index(relative), entry)
    if entry is Plain.ARRAY:
        return Other(path, is_unconfirmed)
    if not isinstance(entry, ArrayRecord):
        return None
    if entry.encoding.is_chunk_key(relative):
        return OwnedChunk(entry.chunk(path, relative), entry, is_unconfirmed)
    for part in entry.parts.parts:
        suffix = part.key_suffix
        if suffix and relative.endswith(suffix) and entry.encoding.is_chunk_key(relative.removesuffix(suffix)):
            return Hidden(f"chunk {join(path, relative.removesuffix(suffix))!r}")
    if entry.placement is not PartPlacement.BESIDE and is_default_key(relative):
        # A chunk key with another number of dimensions. Icechunk accepts it, and can then not list the array any more.
        return Hidden(f"array {path!r}, which has no such chunk")
    return None
