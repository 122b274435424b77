"""What a writer may rely on: the promises of the callers, and the abilities of the backend."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


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

    @property
    def is_registered(self) -> bool:
        """Return whether writers look for each other before they remove a staged copy.

        Where an ETag can occur twice, a delayed conditional PUT may overwrite a newer object.
        """
        return not self.has_unique_etags and self.level is not Level.EXCLUSIVE
