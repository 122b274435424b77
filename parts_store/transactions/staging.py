r"""The staged copy of a write: one object beside the chunk, with the bytes of all parts but the anchor.

    PARTSTXN1\n, the length of the header (4 bytes, little-endian), the header (JSON), the bytes of the parts in order

It is never changed. While it is there, its writer is registered at the chunk, and whoever finds the anchor to be of its
generation has the whole chunk; a second, empty object tells that its writer has finished.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from parts_store.engine.steps import Entry, Found, Put
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Span
from parts_store.format.tags import Tag

_MAGIC = b"PARTSTXN1\n"
DONE: Final = ".done"
# A writer whose copy is that much older than another's, by the store's clock, is dead. One that only stalled begins
# again with a new copy.
FORGOTTEN_AFTER: Final = timedelta(hours=24)

type Kind = Literal["write", "settle"]
"""What its writer does: write the chunk, or bring another's write to its end."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Who is, or was, at work on a chunk: the generations with an object beside it, and which of them have finished."""

    # When each object was written, by the store's clock.
    present: Mapping[str, datetime]
    done: frozenset[str]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Registry":
        """The registry that a listing of the chunk's folder shows."""
        names = {entry.key.rpartition("/")[2]: entry.modified for entry in entries}
        done = frozenset(name.removesuffix(DONE) for name in names if name.endswith(DONE))
        return cls({name: written for name, written in names.items() if not name.endswith(DONE)}, done)

    def others_at_work(self, ours: Collection[str], dead: Collection[str] = ()) -> frozenset[str]:
        """Those who may still have requests under way, but us, whose generations are `ours`, and the dead."""
        now = max((written for name, written in self.present.items() if name in ours), default=None)
        return frozenset(
            name
            for name, written in self.present.items()
            if name not in self.done
            and name not in ours
            and name not in dead
            and (now is None or now - written <= FORGOTTEN_AFTER)
        )

    def finished(self, ours: Collection[str], dead: Collection[str] = ()) -> tuple[str, ...]:
        """Those who have nothing under way any more, but us; in a fixed order."""
        others = self.present.keys() | self.done
        return tuple(sorted(others - self.others_at_work(ours, dead) - set(ours)))


def key_of(chunk: Chunk, generation: str) -> str:
    """The key of the staged copy."""
    return f"{chunk.side_folder}/{generation}"


def stage(chunk: Chunk, data: Sequence[memoryview], tag: Tag, kind: Kind = "write") -> Put:
    """The write of the staged copy."""
    header = {
        "key": chunk.relative,
        "gen": tag.generation,
        "sizes": list(tag.sizes),
        "suffixes": [part.key_suffix for part in chunk.parts.parts],
        "kind": kind,
    }
    encoded = json.dumps(header).encode()
    others = [part for index, part in enumerate(data) if index != chunk.parts.anchor] if kind == "write" else []
    body = b"".join([_MAGIC, len(encoded).to_bytes(4, "little"), encoded, *others])
    return Put(key_of(chunk, tag.generation), body, tag, None, "staged copy")


def chunk_of(copy: Found) -> str | None:
    """The chunk, relative to its array, that a staged copy is of; None if this is none."""
    key = _header(memoryview(copy.data))[0].get("key")
    return key if isinstance(key, str) else None


def _header(view: memoryview) -> tuple[dict[str, Any], int]:
    """The header of a staged copy, empty if this is none, and where its parts begin."""
    start = len(_MAGIC) + 4
    stop = start + int.from_bytes(view[len(_MAGIC) : start], "little")
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        return {}, stop
    try:
        header = json.loads(bytes(view[start:stop]))
    except (ValueError, RecursionError):
        return {}, stop
    return header if isinstance(header, dict) else {}, stop


def unstage(chunk: Chunk, copy: Found, tag: Tag) -> dict[int, Found] | None:
    """The parts in a staged copy, as if they had been read; None if it is not what it should be."""
    view = memoryview(copy.data)
    suffixes = [part.key_suffix for part in chunk.parts.parts]
    header, stop = _header(view)
    expected = (tag.generation, suffixes, list(tag.sizes), "write")
    if tuple(header.get(name) for name in ("gen", "suffixes", "sizes", "kind")) != expected:
        return None
    parts = {}
    for index, nbytes in enumerate(tag.sizes):
        if index != chunk.parts.anchor:
            part = view[stop : stop + nbytes]
            # No ETag: it tells nothing of the object at the part's own key.
            parts[index] = Found(part, Span(0, nbytes), nbytes, None, None, tag)
            stop += nbytes
    return parts if stop == len(view) else None
