"""What a store knows of one path: the array there, how the store learnt of it, and what zarr was served.

A record is a frozen value. Its methods return the record that follows from an event; `Catalog` keeps the records.
"""

from dataclasses import dataclass, replace
from enum import Enum

from parts_store.format import metadata
from parts_store.format.metadata import ArrayRecord, Document
from parts_store.format.shard_index import ShardIndex
from parts_store.format.sharded_arrays import mentions_shards, shards_of

type Stamp = tuple[int, ...]
"""Identifies the file of a `zarr.json` on a local disk. An empty stamp is equal to that of no file."""


class Plain(Enum):
    """What is known of a path where there is no array with parts."""

    # An array whose chunks are single objects.
    ARRAY = "array"
    # A group, or nothing.
    NO_ARRAY = "no array"


@dataclass(frozen=True, slots=True)
class PlainArray:
    """An array without parts, and its stored document, whose members stay as stored unless zarr changes them."""

    stored: bytes

    def shard_index(self, relative: str) -> ShardIndex | None:
        """Return the index of the shard at a key, which is relative to the array; None if there is no shard."""
        found = shards_of(self.stored)
        return found.index if found is not None and found.encoding.is_chunk_key(relative) else None

    @property
    def is_sharded(self) -> bool:
        """Whether the document mentions shards."""
        return mentions_shards(self.stored)


type Entry = ArrayRecord | PlainArray | Plain


class Source(Enum):
    """How the store learnt of an array."""

    # From the array's own `zarr.json`, read or written through this store.
    DOCUMENT = "document"
    # From a document that is written after the chunks.
    EXPECTED = "expected"
    # From the consolidated metadata of a group alone, which may be out of date.
    CONSOLIDATED = "consolidated"


@dataclass(frozen=True, slots=True)
class Served:
    """What zarr was served last of a path, or wrote there."""

    # The digest of the array; empty for an array without parts; None if zarr was told that there is nothing.
    digest: str | None
    # Whether it was a member of consolidated metadata.
    is_consolidated: bool = False


@dataclass(frozen=True, slots=True)
class PathRecord:
    """What a store knows of one path."""

    # None if unknown. `Plain.NO_ARRAY` is never kept: another process may create an array at any time.
    entry: Entry | None = None
    source: Source = Source.DOCUMENT
    # On a local disk, the file that the document was read from.
    stamp: Stamp | None = None
    served: Served | None = None
    # Whether chunks of the array were read or written.
    is_used: bool = False

    @property
    def served_digest(self) -> str | None:
        """The digest of the array that zarr was served last, None if it was served none."""
        return None if self.served is None else self.served.digest

    @property
    def was_absent(self) -> bool:
        """Whether zarr was told last that there is nothing: if zarr writes a document there, it creates an array."""
        return self.served is not None and self.served.digest is None

    def is_as_served(self, entry: Entry) -> bool:
        """Whether this is the array that zarr was served last, if it was served one."""
        return self.served_digest in (None, digest_of(entry))

    def learnt(self, entry: Entry, stamp: Stamp | None) -> "PathRecord":
        """Return the record after the array's own document was read or written."""
        if entry is Plain.NO_ARRAY:
            return replace(self, entry=None, source=Source.DOCUMENT, stamp=stamp)
        served = None if self.was_absent else self.served
        return replace(self, entry=entry, source=Source.DOCUMENT, stamp=stamp, served=served)

    def learnt_plain(self, stamp: Stamp | None) -> "PathRecord":
        """Return the record after the document of an array of Zarr v2 was found; one of Zarr v3 takes precedence."""
        if isinstance(self.entry, ArrayRecord | PlainArray):
            return self
        return replace(self, entry=Plain.ARRAY, stamp=stamp, served=Served(""))

    def served_by_group(self, entry: Entry) -> "PathRecord":
        """Return the record after zarr was served this array as a member of consolidated metadata."""
        served = Served(digest_of(entry), is_consolidated=True)
        if self.entry is None or self.source is Source.CONSOLIDATED:
            return replace(self, entry=entry, source=Source.CONSOLIDATED, served=served)
        if digest_of(self.entry) != digest_of(entry):
            # Either the document or the consolidated metadata is out of date: the next use reads the document.
            return replace(self, entry=None, source=Source.DOCUMENT, served=served)
        return replace(self, served=served)

    def served_array(self, entry: Entry) -> "PathRecord":
        """Return the record after zarr was served this array by its own document, or wrote it."""
        return replace(self, served=Served(digest_of(entry)))

    def served_no_array(self, *, is_missing: bool) -> "PathRecord":
        """Return the record after zarr was served a document that is not an array's, or that there is none."""
        if is_missing:
            return replace(self, served=Served(None))
        return self if self.was_absent else replace(self, served=None)

    def relied_on(self, entry: Entry, *, may_vanish: bool) -> "PathRecord":
        """Return the record after a caller used the array; `may_vanish` if a session can discard it."""
        record = self if self.is_used else replace(self, is_used=True)
        if isinstance(entry, ArrayRecord) and record.served_digest is None:
            return replace(record, served=Served(entry.digest))
        if entry is Plain.NO_ARRAY and may_vanish:
            # The caller was told that the array is gone, which happens when a session discards its changes.
            return record.served_no_array(is_missing=False)
        return record

    def doubted(self) -> "PathRecord":
        """Return the record without the array, but with what zarr was served."""
        return replace(self, entry=None, source=Source.DOCUMENT)

    def in_other_snapshot(self) -> "PathRecord":
        """Return the record for another snapshot: what zarr was served is kept, since its handles still exist."""
        return replace(self.doubted(), served=None if self.was_absent else self.served)

    def forgotten(self) -> "PathRecord":
        """Return the record without the array and without what zarr was served."""
        return replace(self.doubted(), served=None)


def digest_of(entry: Entry) -> str:
    """Return the digest of all that decides how the chunks of an array are read; empty if it has no parts."""
    return entry.digest if isinstance(entry, ArrayRecord) else ""


def described(entry: Entry | None) -> Document | None:
    """Return the stored document of an array without its attributes, None if it is not known."""
    match entry:
        case ArrayRecord(stored=document):
            found: Document | None = document
        case PlainArray(stored):
            found = metadata.parse(stored)
        case _:
            found = None
    return None if found is None else {name: value for name, value in found.items() if name != "attributes"}


def is_created_again(before: Entry | None, now: Entry | None) -> bool:
    """Return whether an array was deleted or created again, with chunks that are encoded in another way.

    A shape and attributes are changed without creating the array again. False if it is not known what was before.
    """
    if before is now or (was := described(before)) is None:
        return False
    found = described(now)
    return found is None or was | {"shape": None} != found | {"shape": None}


def document_not_served(entry: Entry | None) -> Document | None:
    """Return the stored document of an array if zarr is served a different one, else None."""
    if isinstance(entry, ArrayRecord):
        return entry.stored
    document = metadata.parse(entry.stored) if isinstance(entry, PlainArray) else None
    return document if document is not None and metadata.serve(document) != document else None
