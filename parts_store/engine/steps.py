"""Requests to a backend, and their outcomes.

`Steps` are a generator that yields batches of requests and receives their outcomes. The order of the requests in a
batch does not matter. Expected failures are outcomes; all other failures are raised.
"""

from collections.abc import Buffer, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from parts_store.format.layout import Span, Wanted
from parts_store.format.references import Reference
from parts_store.format.tags import Tag

# How often a request is made if it is refused without a reason, is not answered, or loses a race.
MAX_TRIES: Final = 6
# How many waits are skipped if a conditional PUT got no response: the rest takes some seconds together.
_SKIPPED_WAITS: Final = 4

# Why a read makes a request, in the words of `explain`.
DATA: Final = "data"
INDEX: Final = "index of the shard"


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """A condition: the object does not exist."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """A condition: the object still has this ETag, and this version if the store has versions."""

    etag: str | None
    version: str | None


type Condition = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class Get:
    """A request to read an object or a range of it; with `if_match`, it is `Refused` if the ETag is another.

    Some servers ignore this condition, so the caller also compares the ETag of the response.
    """

    key: str
    wanted: Wanted
    why: str
    if_match: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """A request for the size, the ETag and the tag of an object."""

    key: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """A request to write a whole object.

    A backend that cannot store tags gives the object an ETag that no object at this key had before.
    """

    key: str
    data: Buffer
    tag: Tag | None
    # None: write in any case.
    condition: Condition | None
    why: str


@dataclass(frozen=True, slots=True)
class Refer:
    """A request to make a chunk a range of an existing file; only in a session."""

    key: str
    reference: Reference
    tag: Tag
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A request to delete objects; keys without an object are ignored."""

    keys: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class List:
    """A request for all objects in a folder and below it."""

    folder: str
    why: str
    # On a local disk: whether to follow symbolic links; if not, the links themselves are listed.
    through_links: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A request to rename an object, which keeps its ETag and replaces any object there; only on a local disk."""

    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A request for an exclusive lock until the steps have ended; only on a local disk and in a session.

    On a local disk, the lock at `shared` is taken too. Any number of these requests hold it at the same time, and then
    no request holds it exclusively. The request is refused while the lock at `gate_of(shared)` is held: a request for
    exclusive use of the shared lock takes that lock first, so that no new requests get the shared lock.
    """

    key: str
    why: str
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A request to wait before the `repeat`-th retry; each wait is longer than the one before."""

    repeat: int
    # Whether other clients are waited for. Then the request is refused after the operation, and those that belong to
    # it, have waited for five minutes in all.
    is_for_others: bool = False


type TrialRequest = Get | Head | Put | Delete | List


@dataclass(frozen=True, slots=True)
class Trial:
    """A request whose error is returned as the outcome `Failed` instead of raised."""

    request: TrialRequest


type StepRequest = Get | Head | Put | Refer | Delete | List | Move | Lock | Wait | Trial


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An outcome: the bytes of an object at `span`, and the size, ETag, version and tag of the object."""

    data: Buffer
    span: Span
    nbytes: int
    etag: str | None
    version: str | None
    tag: Tag | None
    # By the clock of the store; None if the backend does not say.
    modified: datetime | None = None

    @property
    def generation(self) -> str | None:
        """The write that the object belongs to, None if it has no tag."""
        return None if self.tag is None else self.tag.generation

    @property
    def unchanged(self) -> IfMatch:
        """The condition that the object has not changed."""
        return IfMatch(self.etag, self.version)

    def is_same(self, other: "Found") -> bool:
        """Return whether both are of the same write; an ETag alone may be the same for equal bytes."""
        return (self.generation, self.unchanged) == (other.generation, other.unchanged)


@dataclass(frozen=True, slots=True)
class Missing:
    """An outcome: the object does not exist."""


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """An outcome: the requested range starts beyond the end of the object."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a listing."""

    key: str
    nbytes: int
    etag: str | None
    # By the clock of the store.
    modified: datetime
    # Why it cannot be read, None if nothing is known against it. Only a listing that does not follow links tells it.
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """An outcome: the objects of a listing, in no particular order."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """An outcome: the request was carried out."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An outcome: nothing was done. A condition is not met, a lock is held, or the store refused without a reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """An outcome: no response. The request may have been carried out, or may be carried out later."""

    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An outcome: the request of a `Trial` raised this error."""

    error: Exception


type Outcome = Found | Missing | OutOfRange | Listed | Done | Refused | Lost | Failed
type Steps[T] = Generator[tuple[StepRequest, ...], tuple[Outcome, ...], T]


def wait_after(request: StepRequest, outcome: Outcome, repeat: int) -> Wait:
    """Return the wait before a retry; it is long if the backend does not retry by itself.

    A backend does not retry a conditional PUT without a response, and a server or a network takes time to recover.
    """
    is_patient = isinstance(request, Put) and request.condition is not None and isinstance(outcome, Lost)
    return Wait(repeat + _SKIPPED_WAITS if is_patient else repeat)


def gate_of(shared: str) -> str:
    """Return the key of the lock that is taken before exclusive use of a shared lock."""
    return f"{shared.removesuffix('.lock')}.wanted.lock"


def unchanged(outcome: Outcome | None) -> Condition:
    """Return the condition that the object is unchanged, or still absent."""
    return outcome.unchanged if isinstance(outcome, Found) else IfAbsent()


def content(outcome: Outcome) -> bytes | None:
    """Return the bytes of an object that was read completely, None if it does not exist."""
    return bytes(memoryview(outcome.data)) if isinstance(outcome, Found) else None


def head(key: str, why: str) -> Steps[Found | None]:
    """Return the size, ETag and tag of an object; None if it does not exist."""
    (outcome,) = yield (Head(key, why),)
    return outcome if isinstance(outcome, Found) else None


def get(key: str, why: str) -> Steps[Found | None]:
    """Return a whole object; None if it does not exist."""
    (outcome,) = yield (Get(key, None, why),)
    return outcome if isinstance(outcome, Found) else None


def get_all(keys: Sequence[str], why: str) -> Steps[dict[str, bytes | None]]:
    """Return the contents of objects by their keys; None for an object that does not exist."""
    outcomes = (yield tuple(Get(key, None, why) for key in keys)) if keys else ()
    return {key: content(outcome) for key, outcome in zip(keys, outcomes, strict=True)}


def wait_for_others(repeat: int) -> Steps[bool]:
    """Wait before the `repeat`-th retry; return False if the operation has waited for other clients for too long."""
    # The wait before the fifth and all later retries is the longest.
    (outcome,) = yield (Wait(min(repeat, 5), is_for_others=True),)
    return isinstance(outcome, Done)


def remove(keys: tuple[str, ...], why: str) -> Steps[None]:
    """Delete objects; raise if the store never confirms it."""
    _require_answer((yield from until_answered(Delete(keys, why))))


def put_if_absent(key: str, data: Buffer, why: str) -> Steps[None]:
    """Write an object unless it exists; raise if the store never confirms that it exists."""
    _require_answer((yield from until_answered(Put(key, data, None, IfAbsent(), why))))


def until_answered(request: Put | Delete) -> Steps[Outcome]:
    """Repeat a request that has the same effect twice until the store answers; return the last outcome."""
    # MinIO closes the connection after a refusal, so that the next request on it gets no response.
    outcome: Outcome = Missing()
    for repeat in range(MAX_TRIES):
        if repeat:
            yield (wait_after(request, outcome, repeat),)
        (outcome,) = yield (request,)
        if not isinstance(outcome, Lost):
            break
    return outcome


def _require_answer(outcome: Outcome) -> None:
    if isinstance(outcome, Lost):
        raise outcome.error


def run_together[T](several: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run steps that do not depend on each other, and return their results in order.

    Each batch has the next requests of all steps that have not ended.
    """
    results: dict[int, T] = {}
    outcomes: dict[int, tuple[Outcome, ...] | None] = dict.fromkeys(range(len(several)))
    while outcomes:
        batches: dict[int, tuple[StepRequest, ...]] = {}
        for number, given in outcomes.items():
            try:
                batches[number] = next(several[number]) if given is None else several[number].send(given)
            except StopIteration as done:
                results[number] = done.value
        requests = tuple(request for batch in batches.values() for request in batch)
        answers = iter((yield requests) if requests else ())
        outcomes = {number: tuple(islice(answers, len(batch))) for number, batch in batches.items()}
    return [results[number] for number in range(len(several))]
