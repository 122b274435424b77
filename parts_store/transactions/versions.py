"""The version of a chunk that a client has seen."""

from dataclasses import dataclass
from typing import Final

from parts_store.engine.steps import Condition, Found, IfAbsent, IfMatch
from parts_store.errors import ConcurrentWriteError, LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.tags import Tag


@dataclass(frozen=True, slots=True)
class Absent:
    """The observation that there was no chunk."""

    @property
    def condition(self) -> Condition:
        """Return the condition that there is still no anchor."""
        return IfAbsent()

    def conditions(self, chunk: Chunk) -> list[Condition | None]:
        """Return the condition for every part, None where it is not known."""
        known: list[Condition | None] = [None] * len(chunk.part_keys)
        known[chunk.parts.anchor] = self.condition
        return known

    def is_still(self, anchor: Found | None) -> bool:
        """Return whether the chunk has not changed, judging by its anchor."""
        return anchor is None


@dataclass(frozen=True, slots=True)
class Version:
    """A write of a chunk: its tag, if it has one, and the objects that it was read from."""

    tag: Tag | None
    # The object of every part; None if the part was not read, or was read from a staged copy.
    parts: tuple[IfMatch | None, ...]
    anchor: int

    @property
    def generation(self) -> str | None:
        """Return its generation, None if it has no tag."""
        return None if self.tag is None else self.tag.generation

    @property
    def condition(self) -> Condition | None:
        """Return the condition that the anchor has not changed, None if the anchor was not read."""
        return self.parts[self.anchor]

    @property
    def strong_etag(self) -> str | None:
        """Return the ETag of the anchor; None if the anchor was not read, or two writes may have this ETag."""
        anchor = self.parts[self.anchor]
        etag = None if anchor is None else anchor.etag
        return None if etag is None or etag.startswith("W/") else etag

    def conditions(self, _: Chunk) -> list[Condition | None]:
        """Return the condition for every part, None where it is not known."""
        return list(self.parts)

    def is_still(self, anchor: Found | None) -> bool:
        """Return whether the chunk has not changed, judging by its anchor."""
        seen = self.parts[self.anchor]
        if anchor is None or seen is None or anchor.etag != seen.etag:
            return False
        # What was read from a staged file has no version.
        if seen.version not in (None, anchor.version):
            return False
        # On S3 an anchor with the same bytes has the same ETag, and the two writes may differ in their other parts.
        return anchor.generation == self.generation

    def fits(self, other: "Version") -> bool:
        """Return whether two versions may be one write, by their generations and by the ETags of their anchors."""
        anchors = (self.condition, other.condition)
        return self.generation == other.generation and (None in anchors or anchors[0] == anchors[1])


type Seen = Absent | Version
"""What a client saw of a chunk when it read the chunk to change it."""

WHOSE: Final = "which write it belongs to"
NOT_AS_SEEN: Final = "it was changed after it was read for this write"


def is_of_layout(found: Found, chunk: Chunk) -> bool:
    """Return whether an object of a chunk has the layout of its array; True if its tag does not say."""
    layout = None if found.tag is None else found.tag.layout
    return layout is None or chunk.layout is None or layout == chunk.layout


def require_layout(chunk: Chunk, *found: Found | None) -> None:
    """Raise `LayoutChangedError` if an object of a chunk was written with another layout of the array."""
    if not all(each is None or is_of_layout(each, chunk) for each in found):
        raise LayoutChangedError(chunk.array, f"chunk {chunk.chunk_key!r} was written with another layout")


def require_still(seen: Seen | None, anchor: Found | None, chunk_key: str) -> None:
    """Raise `ConcurrentWriteError` if the chunk has changed since it was seen, judging by its anchor."""
    if seen is not None and not seen.is_still(anchor):
        raise ConcurrentWriteError(chunk_key, NOT_AS_SEEN)
