"""A bucket, or a local disk, all of whose states have a number.

One action is one step of the schedule: it happens at once, as a whole. Requests for several objects are several
actions. Answers are small tuples, so that they can be compared, and are made into the plan's own classes, whichever
copy of them it is, only when they are given to it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from tests.model.patched import Plan


class NoAnswerError(Exception):
    """The transport's error where no answer came."""

    def add_note(self, note: str, /) -> None:
        pass


class Object(NamedTuple):
    etag: str
    data: bytes
    # The tag as text: what a store keeps.
    tag: str | None
    # When it was written: before the beginning, or how often a long time had passed by then.
    time: int = 0


type Raw = tuple[Any, ...]
"""An answer: its kind first."""

DONE: Raw = ("done",)
MISSING: Raw = ("missing",)
REFUSED: Raw = ("refused",)
LOST: Raw = ("lost",)

# The prefix of the key of a lock that is held.
LOCKED = "locked "
# Under which a state keeps its time, if it is later than the beginning.
TIME = "time"
BEGINNING = 1


@dataclass(eq=False, slots=True)
class Action:
    """One request for one object, by a client, at a position in its operations."""

    kind: str
    key: str
    # Which request of its batch this is of.
    slot: int
    # By whom, and when: an object that it writes is like no other.
    author: str
    operation: tuple[int, int]
    wanted: Any = None
    data: bytes = b""
    tag: str | None = None
    # "absent", an ETag in a tuple, or None for none.
    condition: str | tuple[str] | None = None
    target: str = ""

    def __str__(self) -> str:
        text = self._text()
        # The folder beside the chunk, and generations, in few letters.
        text = re.sub(r"a/\.parts-txn/[0-9a-f]{32}", "~", text)
        return re.sub(r"[0-9a-f]{32}", lambda found: _short(found.group()), text)

    def _text(self) -> str:
        tag = "" if self.tag is None else f" of {short(self.tag)}"
        match self.kind, self.condition:
            case "put", None:
                return f"PUT {self.key}{tag}"
            case "put", "absent":
                return f"PUT {self.key}{tag} if absent"
            case "put", _:
                return f"PUT {self.key}{tag} if match {self.condition}"
            case "move", _:
                return f"MOVE {self.key} to {self.target}"
            case _:
                return f"{self.kind.upper()} {self.key}"


def short(tag: str) -> str:
    """A tag as traces show it: client and number of its generation, and its mode."""
    _, generation, mode, *_ = tag.split(";")
    return _short(generation) + mode + ("e" if ";e=" in tag else "")


def _short(generation: str) -> str:
    client = int(generation[:16], 16)
    return f"{'abcdefghi'[client - 10] if client else ''}{int(generation[16:], 16)}"


def actions(batch: Iterable[Any], author: str, operation: tuple[int, int]) -> tuple[Action, ...]:
    """The requests of a plan as actions, by the names of their classes: there are several copies of those."""
    found: list[Action] = []
    for slot, request in enumerate(batch):
        who = f"{author}.{slot}"
        match type(request).__name__:
            case "Get":
                versioned = None if request.if_match is None else (request.if_match,)
                found.append(Action("get", request.key, slot, who, operation, request.wanted, condition=versioned))
            case "Head":
                found.append(Action("head", request.key, slot, who, operation))
            case "Put":
                data, tag = bytes(memoryview(request.data)), None if request.tag is None else str(request.tag)
                condition = _condition(request.condition)
                found.append(Action("put", request.key, slot, who, operation, data=data, tag=tag, condition=condition))
            case "Delete":
                # Many are deleted by one request, but not at one time.
                found += [Action("delete", key, slot, who, operation) for key in request.keys]
            case "List":
                found.append(Action("list", request.folder, slot, who, operation))
            case "Move":
                found.append(Action("move", request.source, slot, who, operation, target=request.target))
            case "Lock":
                found.append(Action("lock", request.key, slot, who, operation))
            case name:
                raise TypeError(f"no such request: {name}")
    return tuple(found)


def is_old(entry: Any) -> bool:
    """Whether an entry of a listing may be a dead writer's for a repair: its time says so, in microseconds."""
    return bool(entry.modified.microsecond)


def _is_below(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and not key.startswith(LOCKED)


def _condition(condition: Any) -> str | tuple[str] | None:
    if condition is None:
        return None
    return "absent" if type(condition).__name__ == "IfAbsent" else (condition.etag,)


class Store:
    """All states that were reached, and what every action makes of them."""

    def __init__(self, plan: Plan, *, has_tags: bool, has_unique_etags: bool, ignores_match_of_missing: bool) -> None:
        self.steps = plan.steps
        self.parse_tag = plan.tags.Tag.parse
        self.span = plan.layout.Span
        self.has_tags = has_tags
        self.has_unique_etags = has_unique_etags
        # Old versions of MinIO.
        self.ignores_match_of_missing = ignores_match_of_missing
        self.states: list[dict[str, Object]] = []
        self._numbers: dict[frozenset[tuple[str, Object]], int] = {}
        self._performed: dict[tuple[int, Action], tuple[int, Raw]] = {}
        self._released: dict[tuple[int, str], int] = {}

    def number(self, objects: Mapping[str, Object]) -> int:
        key = frozenset(objects.items())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.states)
            self.states.append(dict(objects))
        return number

    def object(self, data: bytes, tag: str | None, author: str, time: int = 0) -> Object:
        etag = author if self.has_unique_etags else blake2b(data, digest_size=4).hexdigest()
        return Object(etag, data, tag if self.has_tags else None, time)

    def time(self, state: int) -> int:
        """How often a long time has passed, counted from the beginning."""
        clock = self.states[state].get(TIME)
        return BEGINNING if clock is None else clock.time

    def let_time_pass(self, state: int) -> int:
        """The state a long time later: all that is there is old."""
        return self.number({**self.states[state], TIME: Object("", b"", None, self.time(state) + 1)})

    def is_locked(self, state: int, key: str, owner: str) -> bool:
        """Return whether another client holds a lock."""
        holder = self.states[state].get(f"{LOCKED}{key}")
        return holder is not None and holder.etag != owner

    def release(self, state: int, owner: str) -> int:
        """Return the state without the locks of an owner, or without all locks if `owner` is empty."""
        memo = (state, owner)
        if memo not in self._released:
            objects = self.states[state]
            kept = {
                key: each
                for key, each in objects.items()
                if not key.startswith(LOCKED) or (owner and each.etag != owner)
            }
            self._released[memo] = state if len(kept) == len(objects) else self.number(kept)
        return self._released[memo]

    def perform(self, state: int, action: Action) -> tuple[int, Raw]:
        """The state after an action, and the answer."""
        memo = (state, action)
        found = self._performed.get(memo)
        if found is None:
            found = self._performed[memo] = self.perform_once(state, action)
        return found

    def perform_once(self, state: int, action: Action) -> tuple[int, Raw]:
        """The same, not remembered."""
        objects = self.states[state]
        key = action.key
        match action.kind:
            case "head" | "get":
                if key in objects and not self._is_met(objects[key], action.condition):
                    return state, REFUSED
                return state, self._read(objects.get(key), action)
            case "put":
                if not self._is_met(objects.get(key), action.condition):
                    return state, REFUSED
                written = self.object(action.data, action.tag, action.author, self.time(state))
                return self.number({**objects, key: written}), DONE
            case "delete":
                return self.number({name: each for name, each in objects.items() if name != key}), DONE
            case "list":
                prefix = f"{key}/" if key else ""
                below = [(name, each) for name, each in objects.items() if _is_below(name, prefix)]
                now = self.time(state)
                entries = sorted((name, len(each.data), each.etag, each.time, now) for name, each in below)
                return state, ("listed", *entries)
            case "move":
                if key not in objects:
                    return state, MISSING
                moved = {name: each for name, each in objects.items() if name != key}
                return self.number({**moved, action.target: objects[key]}), DONE
            case "lock":
                holder = Object("abcdefgh"[action.operation[0]], b"", None)
                return self.number({**objects, f"{LOCKED}{key}": holder}), DONE
            case _:
                raise TypeError(action.kind)

    def _is_met(self, there: Object | None, condition: str | tuple[str] | None) -> bool:
        match condition:
            case None:
                return True
            case "absent":
                return there is None
            case (etag,):
                return self.ignores_match_of_missing if there is None else there.etag == etag
            case _:
                raise TypeError(condition)

    @staticmethod
    def _read(there: Object | None, action: Action) -> Raw:
        if there is None:
            return MISSING
        nbytes = len(there.data)
        match action.wanted:
            case None:
                start, stop = (0, nbytes) if action.kind == "get" else (0, 0)
            case RangeByteRequest(start=first, end=end):
                start, stop = first, min(end, nbytes)
            case OffsetByteRequest(offset=offset):
                start, stop = offset, nbytes
            case SuffixByteRequest(suffix=suffix):
                start, stop = max(0, nbytes - suffix), nbytes
            case _:
                raise TypeError(action.wanted)
        if action.wanted is not None and start >= stop:
            return ("beyond",)
        return ("found", there.etag, there.data[start:stop], start, stop, nbytes, there.tag)

    def answer(self, raw: Raw) -> Any:
        """An answer as the plan knows it."""
        steps = self.steps
        match raw:
            case ("found", etag, data, start, stop, nbytes, tag):
                return steps.Found(data, self.span(start, stop), nbytes, etag, None, self.parse_tag(tag))
            case ("missing",):
                return steps.Missing()
            case ("beyond",):
                return steps.OutOfRange()
            case ("listed", *entries):
                return steps.Listed(
                    tuple(
                        steps.Entry(key, nbytes, etag, datetime(2000 + time, 1, 1, 0, 0, 0, time < now, tzinfo=UTC))
                        for key, nbytes, etag, time, now in entries
                    )
                )
            case ("done",):
                return steps.Done()
            case ("refused",):
                return steps.Refused()
            case ("lost",):
                return steps.Lost(NoAnswerError("no answer came"))
            case _:
                raise TypeError(raw)
