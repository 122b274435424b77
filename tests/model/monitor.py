"""The specification: a register that holds one chunk or none, and whether it may have done what the clients saw.

The monitor follows all orders at once in which the operations that have begun may have taken effect. What cannot be
explained by any of them is a violation. It knows nothing of parts, tags or stores.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.values import Layout, Value


class Violation(Exception):  # noqa: N818 - it is what is looked for
    """The code under test broke a promise."""


type Kind = Literal[
    "write", "write repeatedly", "write if absent", "delete", "delete repeatedly", "change", "read", "none"
]
type Id = tuple[int, int]
"""An operation: the number of its client, and its own."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What an operation does to the register, and what it returns."""

    kind: Kind
    # What is written.
    value: Value = None
    # By what a change is known.
    mark: bytes = b""
    # What a read is to return: "full", "exists", "size", "first byte", or the numbers of inner chunks.
    view: str | tuple[int, ...] = "full"

    def results(self, layout: Layout, value: Value) -> tuple[Value, object]:
        """The register after it, and what it returns."""
        match self.kind:
            case "write" | "write repeatedly":
                return self.value, None
            case "write if absent":
                return self.value if value is None else value, None
            case "delete" | "delete repeatedly":
                return None, None
            case "change":
                return layout.changed(value, self.mark), None
            case "read":
                return value, view_of(layout, value, self.view)
            case "none":
                return value, None


def view_of(layout: Layout, value: Value, view: str | tuple[int, ...]) -> object:
    """What a read returns of a chunk."""
    match view:
        case "full":
            return value
        case "exists":
            return value is not None
        case "size":
            return None if value is None else len(value)
        case "first byte":
            # Of the data, which is the anchor's.
            return None if value is None else value[len(layout.header) : len(layout.header) + 1]
        case tuple():
            return layout.inner(value, view)
        case _:
            raise ValueError(view)


@dataclass(frozen=True, slots=True)
class Answer:
    """How an operation ended."""

    # The name of the error, None if there was none.
    error: str | None
    value: object = None


def _is_unknown(effect: Effect, answer: Answer) -> bool:
    """Return whether the result is unknown, and the operation may take effect at any later time."""
    match answer.error:
        case "AmbiguousWriteError":
            return True
        case "NoAnswerError":
            # A write says so only of what comes before its commit.
            return effect.kind in ("delete", "delete repeatedly")
        case _:
            return False


class _Config(NamedTuple):
    """One way that things may have gone: the register, and the operations that have taken effect but not returned."""

    value: Value
    effective: frozenset[tuple[Id, object]]


class _State(NamedTuple):
    configs: frozenset[_Config]
    pending: tuple[tuple[Id, Effect], ...]


class Monitor:
    """All that may have happened, by numbers, so that the checker can compare and remember it."""

    def __init__(self, layout: Layout, initial: Value) -> None:
        self.layout = layout
        self._states: list[_State] = []
        self._numbers: dict[_State, int] = {}
        self._closures: dict[int, frozenset[_Config]] = {}
        self._invoked: dict[tuple[int, Id], int] = {}
        self._returned: dict[tuple[int, Id, Answer], int] = {}
        self._possible: dict[int, frozenset[Value]] = {}
        self.initial = self._number(_State(frozenset([_Config(initial, frozenset())]), ()))

    def _number(self, state: _State) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
        return number

    def invoke(self, state: int, operation: Id, effect: Effect) -> int:
        """The operation has begun."""
        key = (state, operation)
        if key not in self._invoked:
            configs, pending = self._states[state]
            self._invoked[key] = self._number(_State(configs, (*pending, (operation, effect))))
        return self._invoked[key]

    def respond(self, state: int, operation: Id, answer: Answer) -> int:
        """The operation has ended; raises if it cannot have ended so."""
        key = (state, operation, answer)
        if key not in self._returned:
            self._returned[key] = self._respond(state, operation, answer)
        return self._returned[key]

    def _respond(self, number: int, operation: Id, answer: Answer) -> int:
        state = self._states[number]
        effect = dict(state.pending)[operation]
        if _is_unknown(effect, answer):
            return number
        pending = tuple(each for each in state.pending if each[0] != operation)
        if effect.kind in ("none", "read") and (effect.kind == "none" or answer.error is not None):
            return self._number(_State(frozenset(_without(each, operation) for each in state.configs), pending))
        every = self._closure(number)
        if answer.error is not None:
            # It says that it had no effect.
            left = frozenset(each for each in every if operation not in dict(each.effective))
        else:
            wanted = (operation, answer.value)
            left = frozenset(_without(each, operation) for each in every if wanted in each.effective)
        if not left:
            name = "abcdefgh"[operation[0]] + str(operation[1])
            outcome = answer.error or f"returned {answer.value!r}"
            raise Violation(f"operation {name} ({effect.kind}) {outcome}: no order of the operations explains it")
        return self._number(_State(left, pending))

    def _closure(self, number: int) -> frozenset[_Config]:
        """All ways to let pending operations take effect, or not."""
        if number not in self._closures:
            configs, pending = self._states[number]
            seen, todo = set(configs), list(configs)
            while todo:
                for each in self._next(todo.pop(), pending):
                    if each not in seen:
                        seen.add(each)
                        todo.append(each)
            self._closures[number] = frozenset(seen)
        return self._closures[number]

    def _next(self, config: _Config, pending: tuple[tuple[Id, Effect], ...]) -> Iterator[_Config]:
        effective = dict(config.effective)
        for operation, effect in pending:
            # A delete that is under way may act more than once, and so may a write whose answer was lost.
            if operation in effective and effect.kind not in ("delete repeatedly", "write repeatedly"):
                continue
            value, result = effect.results(self.layout, config.value)
            yield _Config(value, frozenset({**effective, operation: result}.items()))

    def possible(self, state: int) -> frozenset[Value]:
        """What the register may hold now."""
        if state not in self._possible:
            self._possible[state] = frozenset(each.value for each in self._closure(state))
        return self._possible[state]

    def is_idle(self, state: int) -> bool:
        """Return whether no operation is under way, or has ended with an unknown result."""
        return not self._states[state].pending

    def again(self, state: int, value: Value) -> int:
        """A write may take effect a second time: a known limit where ETags come back, see the protocol."""
        configs, pending = self._states[state]
        repeated = frozenset(_Config(value, each.effective) for each in self._closure(state))
        return self._number(_State(configs | repeated, pending))


def _without(config: _Config, operation: Id) -> _Config:
    return _Config(config.value, frozenset(each for each in config.effective if each[0] != operation))
