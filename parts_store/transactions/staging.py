r"""The staged copy of a write: one object beside the chunk, with the bytes of all parts but the anchor.

    PARTSTXN1\n, the length of the header (4 bytes, little-endian), the header (JSON), the bytes of the parts in order

A staged copy is never changed. While it exists, its writer is registered at the chunk. If the anchor carries the
generation of the copy, both together are the whole chunk. A second, empty object marks the writer as finished.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, Literal

from parts_store.engine.steps import Entry, Found, Outcome, Put, Steps, get
from parts_store.format.keys import Chunk
from parts_store.format.layout import Encoded, Span
from parts_store.format.tags import Tag

_MAGIC = b"PARTSTXN1\n"
DONE: Final = ".done"
_ANY: Final = "*"
# A writer whose copy is this much older than the copy of another writer, by the store's clock, is dead. A writer that
# only stalled starts again with a new copy.
FORGOTTEN_AFTER: Final = timedelta(hours=24)
# After so many seconds, an object that registers a writer may have been removed as that of a dead writer.
MAX_STALL: Final = 300.0

type StagingKind = Literal["write", "settle"]
"""What the writer does: write the chunk, or finish the write of another writer."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The writers of a chunk: the generations that have a copy beside it, and those that are marked as finished."""

    # When each copy was written, by the store's clock.
    present: Mapping[str, datetime]
    done: frozenset[str]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Registry":
        """Return the writers that a listing of the folder beside the chunk shows."""
        names = {entry.key.rpartition("/")[2]: entry.modified for entry in entries}
        done = frozenset(name.removesuffix(DONE) for name in names if name.endswith(DONE))
        return cls({name: written for name, written in names.items() if not name.endswith(DONE)}, done)

    def others_at_work(self, ours: Collection[str], dead: Collection[str] = ()) -> frozenset[str]:
        """Return the writers that may still send requests, except the caller's own generations and the dead writers."""
        now = max((written for name, written in self.present.items() if name in ours), default=None)
        return frozenset(
            name
            for name, written in self.present.items()
            if name not in self.done
            and name not in ours
            and name not in dead
            and (now is None or now - written <= FORGOTTEN_AFTER)
        )

    def has_others(self, ours: Collection[str]) -> bool:
        """Return whether there is a trace of another writer, at work or not."""
        return bool((self.present.keys() | self.done) - set(ours))

    def finished(self, ours: Collection[str], dead: Collection[str] = ()) -> tuple[str, ...]:
        """Return the writers that send no more requests, except the caller's own generations, in a fixed order."""
        others = self.present.keys() | self.done
        return tuple(sorted(others - self.others_at_work(ours, dead) - set(ours)))


def key_of(chunk: Chunk, generation: str) -> str:
    """Return the key of the staged copy."""
    return f"{chunk.side_folder}/{generation}"


def stage(chunk: Chunk, data: Sequence[Encoded], tag: Tag, kind: StagingKind = "write") -> Put:
    """Return the request that writes the staged copy."""
    header = {
        "key": chunk.relative,
        "gen": tag.generation,
        "sizes": list(tag.sizes),
        "suffixes": [part.key_suffix for part in chunk.parts.parts],
        "kind": kind,
    }
    encoded = json.dumps(header).encode()
    others = _others(chunk, data) if kind == "write" else []
    body = b"".join([_MAGIC, len(encoded).to_bytes(4, "little"), encoded, *others])
    return Put(key_of(chunk, tag.generation), body, tag, None, "staged copy")


def chunk_of(copy: Found) -> str | None:
    """Return the key of the chunk of a staged copy, relative to its array; None if the object is not a copy."""
    key = _header(memoryview(copy.data))[0].get("key")
    return key if isinstance(key, str) else None


def _header(view: memoryview) -> tuple[dict[str, Any], int]:
    """Return the header of a staged copy, empty if it is not valid, and the position of the first part."""
    start = len(_MAGIC) + 4
    stop = start + int.from_bytes(view[len(_MAGIC) : start], "little")
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        return {}, stop
    try:
        header = json.loads(bytes(view[start:stop]))
    except (ValueError, RecursionError):
        return {}, stop
    return header if isinstance(header, dict) else {}, stop


def read_copy(chunk: Chunk, tag: Tag) -> Steps[dict[int, Found] | None]:
    """Return the other parts of a write, from the tag of its anchor or its staged copy; None if they are not there."""
    if tag.embedded is not None:
        return _cut(chunk, memoryview(tag.embedded), tag)
    copy = yield from get(key_of(chunk, tag.generation), "staged copy")
    return None if copy is None else unstage(chunk, copy, tag)


def embed(chunk: Chunk, data: Sequence[Encoded], tag: Tag) -> Tag:
    """Return the tag of an anchor that contains the other parts."""
    return replace(tag, embedded=b"".join(_others(chunk, data)))


def with_replaced(tag: Tag, etags: Iterable[str | None] | None) -> Tag:
    """Return the tag of an anchor that tells which objects are replaced by the parts that it contains.

    `etags` are the ETags of those that may have no tags, None if they are not known.
    """
    if etags is None:
        return replace(tag, replaced=_ANY)
    digests = sorted({_digest(each) for each in etags if each is not None})
    return replace(tag, replaced=",".join(digests) or None)


def is_foreign(outcome: Outcome, tag: Tag) -> bool:
    """Return whether another program has written a part after the write whose anchor has this tag.

    Then the parts in the tag are not the whole truth: an object without a tag is neither of this write nor replaced by
    it.
    """
    if not isinstance(outcome, Found) or outcome.tag is not None or tag.embedded is None or tag.replaced == _ANY:
        return False
    return outcome.etag is None or _digest(outcome.etag) not in (tag.replaced or "").split(",")


def _digest(etag: str) -> str:
    return blake2b(etag.encode(), digest_size=4).hexdigest()


def _others(chunk: Chunk, data: Sequence[Encoded]) -> list[Encoded]:
    return [part for index, part in enumerate(data) if index != chunk.parts.anchor]


def unstage(chunk: Chunk, copy: Found, tag: Tag) -> dict[int, Found] | None:
    """Return the parts in a staged copy, as if they had been read; None if the copy does not match the tag."""
    view = memoryview(copy.data)
    suffixes = [part.key_suffix for part in chunk.parts.parts]
    header, stop = _header(view)
    expected = (tag.generation, suffixes, list(tag.sizes), "write")
    if tuple(header.get(name) for name in ("gen", "suffixes", "sizes", "kind")) != expected:
        return None
    return _cut(chunk, view[stop:], tag)


def _cut(chunk: Chunk, others: memoryview, tag: Tag) -> dict[int, Found] | None:
    """Return the parts that are one after the other in these bytes; None if the bytes do not match the tag."""
    if len(tag.sizes) != len(chunk.part_keys):
        return None
    parts, start = {}, 0
    for index, nbytes in enumerate(tag.sizes):
        if index != chunk.parts.anchor:
            # Without an ETag, because the object at the part's own key may be another one.
            parts[index] = Found(others[start : start + nbytes], Span(0, nbytes), nbytes, None, None, tag)
            start += nbytes
    return parts if start == len(others) else None
