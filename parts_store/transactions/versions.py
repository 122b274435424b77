"""Which write of a chunk somebody saw."""

from dataclasses import dataclass
from typing import Final

from parts_store.engine.steps import Condition, Found, IfAbsent, IfMatch
from parts_store.errors import ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.tags import Tag


@dataclass(frozen=True, slots=True)
class Absent:
    """There was no chunk."""

    @property
    def condition(self) -> Condition:
        """The condition that the anchor is still what it was."""
        return IfAbsent()

    def conditions(self, chunk: Chunk) -> list[Condition | None]:
        """The same for every part, None where it is not known."""
        known: list[Condition | None] = [None] * len(chunk.part_keys)
        known[chunk.parts.anchor] = self.condition
        return known

    def is_still(self, anchor: Found | None) -> bool:
        """Whether the chunk, by its anchor, is still what it was."""
        return anchor is None


@dataclass(frozen=True, slots=True)
class Version:
    """A write of a chunk: its tag if it has one, and the objects that it was read from."""

    tag: Tag | None
    # Of every part; None where it was not touched, or read from a copy.
    parts: tuple[IfMatch | None, ...]
    anchor: int

    @property
    def generation(self) -> str | None:
        """Its generation, None if it is not tagged."""
        return None if self.tag is None else self.tag.generation

    @property
    def staged_generation(self) -> str | None:
        """Return its generation if it was written with a staged copy, otherwise None."""
        return self.tag.generation if self.tag is not None and self.tag.is_staged else None

    @property
    def condition(self) -> Condition | None:
        """The condition that the anchor is still what it was, None if it was not touched."""
        return self.parts[self.anchor]

    @property
    def known_parts(self) -> dict[int, IfMatch]:
        """Return the objects that the parts were read from, by part, where they are known."""
        return {part: each for part, each in enumerate(self.parts) if each is not None}

    def conditions(self, _: Chunk) -> list[Condition | None]:
        """The same for every part, None where it is not known."""
        return list(self.parts)

    def is_still(self, anchor: Found | None) -> bool:
        """Whether the chunk, by its anchor, is still what it was."""
        if anchor is None or anchor.unchanged != self.condition:
            return False
        # On S3 an ETag comes back with the bytes, and another write may differ in other parts alone.
        return anchor.generation == self.generation

    def fits(self, other: "Version") -> bool:
        """Whether the two may be one write: by their generation, and by the anchor's ETag where both touched it."""
        anchors = (self.condition, other.condition)
        return self.generation == other.generation and (None in anchors or anchors[0] == anchors[1])


type Seen = Absent | Version
"""What a chunk was when somebody read it in order to change it."""

WHOSE: Final = "which write it belongs to"
NOT_AS_SEEN: Final = "it is not what it was when it was read to be changed"


def is_of_layout(found: Found, chunk: Chunk) -> bool:
    """Return whether an object of a chunk was written with the layout of the chunk's array, as far as its tag says."""
    layout = None if found.tag is None else found.tag.layout
    return layout is None or chunk.layout is None or layout == chunk.layout


def require_layout(chunk: Chunk, *found: Found | None) -> None:
    """Raise `LayoutChangedError` if one of these objects of a chunk was written with another layout of the array."""
    if not all(each is None or is_of_layout(each, chunk) for each in found):
        raise LayoutChangedError(chunk.array, f"chunk {chunk.chunk_key!r} was written with another layout")


def require_still(seen: Seen | None, anchor: Found | None, chunk_key: str) -> None:
    """Raise unless the chunk, by its anchor, is still what was seen of it, if anything was."""
    if seen is not None and not seen.is_still(anchor):
        raise ConcurrentWriteError(chunk_key, NOT_AS_SEEN)
