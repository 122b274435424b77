"""What a plan asks of a backend, and what comes back.

A protocol is a generator that yields batches of requests, whose order within the batch does not matter, and is sent
their outcomes. What may be expected to fail comes back as an outcome; everything else is raised.
"""

from collections.abc import Buffer, Generator
from dataclasses import dataclass

from parts_store.plan.ranges import Span, Wanted
from parts_store.plan.tags import Tag


@dataclass(frozen=True, slots=True)
class Get:
    """Read an object, or a range of it."""

    key: str
    wanted: Wanted
    why: str


@dataclass(frozen=True, slots=True)
class Head:
    """Ask for an object's size, ETag and tag."""

    key: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """Write an object, whole."""

    key: str
    data: Buffer
    tag: Tag | None
    # Only if there is none yet.
    create: bool
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove objects; those that are not there are no matter."""

    keys: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the `repeat`-th moment pass before trying again; each is longer than the one before."""

    repeat: int


type Request = Get | Head | Put | Delete | Wait


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An object, or a range of it: its bytes at `span`, and what is known of the whole."""

    data: Buffer
    span: Span
    nbytes: int
    etag: str | None
    tag: Tag | None

    @property
    def generation(self) -> str | None:
        """The write that the object belongs to, None if it does not say."""
        return None if self.tag is None else self.tag.generation


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such object."""


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The range asked for begins beyond the end of the object."""


@dataclass(frozen=True, slots=True)
class Done:
    """The object was written, or the objects removed."""


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """Nothing was written, for there is such an object."""


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """No answer came: the object may have been written or not."""

    error: Exception


def content(outcome: "Outcome") -> bytes | None:
    """The bytes of an object that was read whole, None if there is none."""
    return bytes(memoryview(outcome.data)) if isinstance(outcome, Found) else None


type Outcome = Found | Missing | OutOfRange | Done | AlreadyExists | Lost
type Steps[T] = Generator[tuple[Request, ...], tuple[Outcome, ...], T]
