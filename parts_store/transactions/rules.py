"""What a writer may rely on: the promises of the callers, and the abilities of the backend."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from parts_store.format.keys import Chunk

# The most bytes of other parts in the tag of an anchor, and the most parts: S3 allows 2 kB for all user metadata of an
# object. The index of a shard with 64 inner chunks has 1,028 bytes.
MAX_EMBEDDED: Final = 1200
_MOST_PARTS: Final = 8


class Level(Enum):
    """What the writers of a store promise for each chunk. Weaker promises cost more requests."""

    # At most one writer at a time.
    EXCLUSIVE = "exclusive"
    # Any number of writers, but a delete never overlaps a write.
    WRITERS = "writers"
    # Nothing is promised.
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that the writers of a store follow."""

    level: Level
    # A PUT can be conditional.
    has_conditions: bool
    # Two writes of an object never have the same ETag. On S3 they do if their bytes are equal.
    has_unique_etags: bool
    new_generation: Callable[[], str]
    # Starts a stopwatch; the returned function tells the seconds since then.
    start_watch: Callable[[], Callable[[], float]]
    # How many bytes of other parts the tag of an anchor may contain.
    max_embedded: int = 0

    @property
    def is_registered(self) -> bool:
        """Return whether writers look for each other before they remove a staged copy.

        Where an ETag can occur twice, a delayed conditional PUT may overwrite a newer object.
        """
        return not self.has_unique_etags and self.level is not Level.EXCLUSIVE

    def embeds(self, chunk: Chunk) -> bool:
        """Return whether the anchor of an overwrite contains the other parts, so that no staged copy is needed.

        This depends on the layout alone, so that all writers of an array do the same.
        """
        sizes = [size for part, size in enumerate(chunk.parts.sizes) if part != chunk.parts.anchor]
        if len(sizes) > _MOST_PARTS:
            return False
        return all(size is not None for size in sizes) and sum(filter(None, sizes)) <= self.max_embedded
