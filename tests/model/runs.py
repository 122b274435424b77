"""Clients under way: the steps of their operations, one batch of requests after the other.

A client is where its answers have brought it: a position. Positions form a tree, and a client's steps are run again
from the beginning only where the tree grows, so that states are small and can be compared.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tests.model.clients import Client, Setting, Steps
from tests.model.monitor import Answer, Id
from tests.model.scenario import Operation
from tests.model.store import DONE, Action, Raw, Store, actions

# In a path: a long time passes before the next answer is taken.
STALL: Final = "stall"
type Event = tuple[Raw, ...] | Literal["stall"] | None
"""What brings a client from one position to the next: the answers to a batch, a long time, or, None, a crash."""


class Returned(NamedTuple):
    operation: Id
    answer: Answer
    # It took no request, and so it began and ended at the same time.
    is_instant: bool


class _Run:
    """A client's steps under way."""

    def __init__(self, setting: Setting, number: int, program: tuple[Operation, ...], store: Store) -> None:
        self.client = Client(setting, number)
        self.program, self.number, self.store = program, number, store
        self.at = -1
        self.steps: Steps[object] | None = None
        # What ended since the last request.
        self.returned: list[Returned] = []
        self.batch: tuple[Any, ...] | None = None
        self.is_first = False
        # How many batches of this operation were answered.
        self.sent = 0
        self._begin_next()

    def _begin_next(self) -> None:
        self.at += 1
        self.steps = self.client.steps(self.program[self.at]) if self.at < len(self.program) else None
        self.batch, self.is_first, self.sent = None, True, 0
        if self.steps is not None:
            self._advance(None)

    def send(self, raws: tuple[Raw, ...]) -> None:
        self.returned, self.is_first = [], False
        self.sent += 1
        self._advance(tuple(self.store.answer(raw) for raw in raws))

    def take(self, event: Event) -> None:
        match event:
            case None:
                self.crash()
            case "stall":
                self.client.stall()
            case _:
                self.send(event)

    def crash(self) -> None:
        self.returned = []
        if self.steps is not None:
            self.steps.close()
        self.client.restart()
        self._begin_next()

    def _advance(self, outcomes: tuple[Any, ...] | None) -> None:
        assert self.steps is not None
        try:
            batch = next(self.steps) if outcomes is None else self.steps.send(outcomes)
            while type(batch[0]).__name__ == "Wait":
                batch = self.steps.send((self.store.answer(DONE),) * len(batch))
        except StopIteration as done:
            answer = Answer(None, done.value)
        # Whatever it is: only some of them may be.
        except Exception as error:
            answer = Answer(type(error).__name__)
        else:
            self.batch = batch
            return
        self.returned.append(Returned((self.number, self.at), answer, self.is_first))
        self._begin_next()


@dataclass(eq=False, slots=True)
class Position:
    """How far a client has come, by the answers that it got."""

    tree: "Tree"
    # How to come here.
    path: tuple[Event, ...]
    batch: tuple[Any, ...] | None
    operation: Id
    # The operation begins with the next action.
    begins: bool
    # What is still to be done of the batch.
    todo: tuple[Action, ...]
    answers: tuple[tuple[int, Raw], ...] = ()
    live: _Run | None = None
    children: dict[tuple[Action, Raw] | Literal["stall"] | None, "Step"] = field(default_factory=dict)

    def step(self, action: Action | None, raw: Raw = DONE) -> "Step":
        """Where the client is after an answer, or after a crash if there is no action."""
        key = None if action is None else (action, raw)
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = self._step(action, raw)
        return child

    def stall(self) -> "Step":
        """Where the client is if a long time has passed before it took the last answers; nothing else is under way."""
        if not self.path or self.begins or not self.todo:
            return Step(self, ())
        child = self.children.get(STALL)
        if child is None:
            child = self.children[STALL] = self.tree.grow_from((*self.path[:-1], STALL, self.path[-1]))
        return child

    def _step(self, action: Action | None, raw: Raw) -> "Step":
        if action is None:
            return self.tree.grow(self, None)
        left = tuple(each for each in self.todo if each is not action)
        # Of a request for many objects, the answer that is not good is the answer.
        earlier = dict(self.answers).get(action.slot, DONE)
        answers = {**dict(self.answers), action.slot: raw if earlier == DONE else earlier}
        if left:
            rest = tuple(sorted(answers.items()))
            return Step(Position(self.tree, self.path, self.batch, self.operation, False, left, rest), ())
        assert self.batch is not None
        return self.tree.grow(self, tuple(answers[slot] for slot in range(len(self.batch))))


class Step(NamedTuple):
    """Where a client comes to, and what ended on the way."""

    position: Position
    returned: tuple[Returned, ...]


class Tree:
    """All positions of one client."""

    def __init__(self, setting: Setting, number: int, program: tuple[Operation, ...], store: Store) -> None:
        self.setting, self.number, self.program, self.store = setting, number, program, store
        self.runs = 0
        # One position for all ways to come to the beginning of an operation, if they leave nothing behind.
        self._beginnings: dict[object, Position] = {}
        self.root = self._position(_Run(setting, number, program, store), ())

    def grow(self, parent: Position, answers: tuple[Raw, ...] | None) -> Step:
        run, parent.live = parent.live, None
        if run is None:
            return self.grow_from((*parent.path, answers))
        run.take(answers)
        return Step(self._position(run, (*parent.path, answers)), tuple(run.returned))

    def grow_from(self, path: tuple[Event, ...]) -> Step:
        self.runs += 1
        run = _Run(self.setting, self.number, self.program, self.store)
        for event in path:
            run.take(event)
        return Step(self._position(run, path), tuple(run.returned))

    def _position(self, run: _Run, path: tuple[Event, ...]) -> Position:
        operation = (self.number, run.at)
        author = f"{'abcdefgh'[self.number]}{run.at}.{run.sent}"
        todo = () if run.batch is None else actions(run.batch, author, operation)
        begins = run.is_first and run.batch is not None
        position = Position(self, path, run.batch, operation, begins, todo, (), run)
        if begins or not todo:
            position = self._beginnings.setdefault((run.at, run.client.memory), position)
        return position
