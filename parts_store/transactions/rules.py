"""What a write may count on: what its callers promise, and what its backend can do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from parts_store.engine.backend import Means


class Level(Enum):
    """What the writers of a store promise of one chunk; the less they promise, the more requests it takes."""

    # There is one writer of a chunk at a time.
    EXCLUSIVE = "exclusive"
    # There are any number, and a delete does not overlap a write.
    WRITERS = "writers"
    # Nothing is promised.
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Rules:
    """By which rules the chunks of a store are written."""

    level: Level
    means: Means
    # A PUT can be conditional.
    has_conditions: bool
    # No ETag ever comes back; on S3 it does with the bytes.
    has_unique_etags: bool
    new_generation: Callable[[], str]
    # Starts a watch, which tells how many seconds have passed since.
    start_watch: Callable[[], Callable[[], float]]

    @property
    def is_registered(self) -> bool:
        """Whether writers look for each other before they remove a staged copy.

        Where an ETag comes back with the bytes, a late conditional PUT may hit what it was not meant for.
        """
        return not self.has_unique_etags and self.level is not Level.EXCLUSIVE

    @property
    def can_collect(self) -> bool:
        """Whether what belongs to nobody can be removed while others write: nobody does, or they are seen or kept away.

        Elsewhere, a write that begins at that moment would lose what is removed.
        """
        return self.level is Level.EXCLUSIVE or self.means is Means.LOCKS or self.is_registered
