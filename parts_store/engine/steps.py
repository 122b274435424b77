"""What a plan asks of a backend, and what comes back.

A protocol is a generator that yields batches of requests, whose order within the batch does not matter, and is sent
their outcomes. What may be expected to fail comes back as an outcome; everything else is raised.
"""

from collections.abc import Buffer, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from parts_store.format.ranges import Span, Wanted
from parts_store.format.references import Reference
from parts_store.format.tags import Tag

# How often a request is made again, that was refused for no reason or not answered, or lost a race.
MAX_TRIES: Final = 6

# Why a read makes a request, in the words of `explain`.
DATA: Final = "data"
INDEX: Final = "index of the shard"


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Only if there is no such object."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Only if the object is still the one that had this ETag, and this version where the store counts them."""

    etag: str | None
    version: str | None


type Condition = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class Get:
    """Read an object, or a range of it; with `if_match`, only if it still has this ETag: else it is `Refused`.

    Not every server keeps this condition. Whoever sets it compares the ETag that came back, too.
    """

    key: str
    wanted: Wanted
    why: str
    if_match: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Ask for an object's size, ETag and tag."""

    key: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """Write an object, whole.

    A backend that cannot keep the tag gives the object an ETag instead that no object at this key had before.
    """

    key: str
    data: Buffer
    tag: Tag | None
    # None: whatever is there.
    condition: Condition | None
    why: str


@dataclass(frozen=True, slots=True)
class Refer:
    """Let a chunk be a range of an existing file; only in a session."""

    key: str
    reference: Reference
    tag: Tag
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove objects; those that are not there are no matter."""

    keys: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class List:
    """Ask for all objects in a folder, and below it."""

    folder: str
    why: str
    # On a local disk, whether to show what is behind symbolic links; if not, links are shown as themselves.
    through_links: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """Let an object take the place of another, or of none, at once and with its ETag; only on a local disk."""

    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class Lock:
    """Be the only one who holds this lock until the steps have ended; only on a local disk, and in a session.

    Together with it, on a local disk, hold the lock at `shared`, which any number of such requests hold at a time, and
    nobody then holds alone. The request is refused while the lock at `gate_of(shared)` is held: whoever wants the
    shared lock alone takes that one first, so that no further requests get in the way.
    """

    key: str
    why: str
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the `repeat`-th moment pass before trying again; each is longer than the one before."""

    repeat: int


type TrialRequest = Get | Head | Put | Delete | List


@dataclass(frozen=True, slots=True)
class Trial:
    """Carry out a request, and return what it would raise as `Failed`."""

    request: TrialRequest


type Request = Get | Head | Put | Refer | Delete | List | Move | Lock | Wait | Trial


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An object, or a range of it: its bytes at `span`, and what is known of the whole."""

    data: Buffer
    span: Span
    nbytes: int
    etag: str | None
    version: str | None
    tag: Tag | None

    @property
    def generation(self) -> str | None:
        """The write that the object belongs to, None if it does not say."""
        return None if self.tag is None else self.tag.generation

    @property
    def unchanged(self) -> IfMatch:
        """The condition that the object is still this one."""
        return IfMatch(self.etag, self.version)

    def is_same(self, other: "Found") -> bool:
        """Whether two looks saw the same write of an object; an ETag alone may come back with the bytes."""
        return (self.generation, self.unchanged) == (other.generation, other.unchanged)


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such object."""


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The range asked for begins beyond the end of the object."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a listing."""

    key: str
    nbytes: int
    etag: str | None
    # By the clock of the store.
    modified: datetime


@dataclass(frozen=True, slots=True)
class Listed:
    """The objects of a listing, in no order."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The object was written or moved, the objects removed, the lock taken, the moment passed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was done: the condition is not met, somebody holds the lock, or the store says so for no reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """No answer came: what was asked for may have been done, or not, or be done at any later time."""

    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """A request of a `Trial` raised this error."""

    error: Exception


type Outcome = Found | Missing | OutOfRange | Listed | Done | Refused | Lost | Failed
type Steps[T] = Generator[tuple[Request, ...], tuple[Outcome, ...], T]


def gate_of(shared: str) -> str:
    """Return the key of the lock that is taken first by whoever wants a shared lock alone."""
    return f"{shared.removesuffix('.lock')}.wanted.lock"


def unchanged(outcome: Outcome | None) -> Condition:
    """The condition that there is still what was found, or still nothing."""
    return outcome.unchanged if isinstance(outcome, Found) else IfAbsent()


def content(outcome: Outcome) -> bytes | None:
    """The bytes of an object that was read whole, None if there is none."""
    return bytes(memoryview(outcome.data)) if isinstance(outcome, Found) else None


def head(key: str, why: str) -> Steps[Found | None]:
    """An object's size, ETag and tag; None if there is no such object."""
    (outcome,) = yield (Head(key, why),)
    return outcome if isinstance(outcome, Found) else None


def get(key: str, why: str) -> Steps[Found | None]:
    """An object, whole; None if there is no such object."""
    (outcome,) = yield (Get(key, None, why),)
    return outcome if isinstance(outcome, Found) else None


def remove(keys: tuple[str, ...], why: str) -> Steps[None]:
    """Objects, gone; raises if no answer tells so."""
    yield from _insist(Delete(keys, why))


def put_if_absent(key: str, data: Buffer, why: str) -> Steps[None]:
    """An object, written unless there is one; raises if no answer tells that there is."""
    yield from _insist(Put(key, data, None, IfAbsent(), why))


def _insist(request: Request) -> Steps[None]:
    """A request that may be made twice, until it is answered."""
    # MinIO closes the connection after a refusal, and whoever uses it next gets no answer.
    outcome: Outcome = Missing()
    for repeat in range(MAX_TRIES):
        if repeat:
            yield (Wait(repeat),)
        (outcome,) = yield (request,)
        if not isinstance(outcome, Lost):
            return
    if isinstance(outcome, Lost):
        raise outcome.error
