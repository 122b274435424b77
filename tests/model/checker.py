"""Runs clients against the store in every order, or in random ones, and holds what they see to the monitor."""

import gc
import random
from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.model.clients import Client, Setting, Steps
from tests.model.monitor import Answer, Effect, Id, Monitor, Violation, view_of
from tests.model.patched import load
from tests.model.runs import Position, Tree
from tests.model.scenario import Operation, Scenario
from tests.model.store import BEGINNING, DONE, LOST, REFUSED, TIME, Action, Object, Raw, Store, actions, short
from tests.model.values import Value, read_plain

# The writers that died before the beginning.
DEAD = f"{2:032x}"
REGISTERED = f"{3:032x}"
# A run by oneself that needs more requests than this does not end.
_MAX_REQUESTS = 400


class State(NamedTuple):
    store: int
    monitor: int
    faults: int
    # PUTs that may still be carried out.
    late: tuple[Action, ...]
    positions: tuple[Position, ...]


class Transition(NamedTuple):
    """What happens next: to whom, which action, and how it goes."""

    client: int
    action: Action | None
    how: str


class Looks(NamedTuple):
    """What a single client finds in a state of the store."""

    read: Answer
    others: tuple[tuple[str | tuple[int, ...], Answer], ...]
    repaired: Answer
    plain: Value | str
    beside: tuple[str, ...]
    plain_at_once: Value | str
    plain_now: Value | str
    beside_now: tuple[str, ...]


class Checker:
    """All runs of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        plan = load(scenario.patches)
        self.layout = scenario.layout
        self.setting = Setting(plan, scenario)
        self.store = Store(
            plan,
            has_tags=not scenario.is_local,
            has_unique_etags=scenario.has_unique_etags,
            ignores_match_of_missing=scenario.ignores_match_of_missing,
        )
        self.monitor = Monitor(scenario.layout, scenario.interrupted or scenario.initial)
        self.trees = [Tree(self.setting, at, each, self.store) for at, each in enumerate(scenario.clients)]
        self.effects: dict[Id, Effect] = {
            (client, at): self.setting.effect(operation)
            for client, program in enumerate(scenario.clients)
            for at, operation in enumerate(program)
        }
        self.states = self.transitions = self.ends = self.walks = self.looked = self.failed_reads = 0
        self.is_complete = False
        self._looks: dict[int, Looks] = {}
        self._checked: set[tuple[int, int, bool]] = set()

    # --- what can happen

    def initial(self) -> State:
        objects = self._plain_objects(self.scenario.initial, 0) | self._plain_objects(self.scenario.orphans, 1)
        anchor = self.layout.part_keys[self._anchor]
        if self.scenario.initial is None:
            objects.pop(anchor, None)
        if self.scenario.interrupted is not None:
            objects |= self._staged_objects(self.scenario.interrupted)
        if self.scenario.registered is not None:
            copy = self._staged_copy(self.scenario.registered, REGISTERED)
            objects[copy.key] = self.store.object(bytes(copy.data), str(copy.tag), "3.copy", BEGINNING)
        store = self.store.number(objects)
        roots = tuple(tree.root for tree in self.trees)
        return State(store, self.monitor.initial, self.scenario.faults, (), roots)

    def _plain_objects(self, value: Value, number: int) -> dict[str, Object]:
        """The objects of a chunk at rest."""
        parts = [] if value is None else self.layout.split(value)
        tag = f"1;{number:032x};c;{','.join(str(len(part)) for part in parts)}" if self.scenario.is_tagged else None
        named = zip(self.layout.part_keys, parts, strict=False)
        found = {key: self.store.object(part, tag, f"{number}.{at}") for at, (key, part) in enumerate(named)}
        if parts and self.scenario.is_embedded:
            key = self.layout.part_keys[self._anchor]
            text = f"{tag};e={self._embedded(value)}".replace(";c;", ";s;")
            found[key] = found[key]._replace(tag=text)
        return found

    def _staged_objects(self, value: Value) -> dict[str, Object]:
        """Return what a writer leaves behind that dies right after its commit."""
        copy = self._staged_copy(value, DEAD)
        assert value is not None
        anchor = self.layout.split(value)[self._anchor]
        if self.scenario.embeds:
            tag = f"{copy.tag};e={self._embedded(value)}"
            return {self.layout.part_keys[self._anchor]: self.store.object(anchor, tag, "2.anchor")}
        return {
            copy.key: self.store.object(bytes(copy.data), str(copy.tag), "2.copy"),
            self.layout.part_keys[self._anchor]: self.store.object(anchor, str(copy.tag), "2.anchor"),
        }

    def _embedded(self, value: Value) -> str:
        """Return what the tag of an anchor contains of the other parts."""
        assert value is not None
        others = [part for at, part in enumerate(self.layout.split(value)) if at != self._anchor]
        return b64encode(b"".join(others)).decode()

    def _staged_copy(self, value: Value, generation: str) -> Any:
        """The PUT of the staged copy of a value."""
        assert value is not None
        plan = self.setting.plan
        parts = self.layout.split(value)
        tag = plan.tags.Tag(generation, "s", tuple(len(part) for part in parts))
        return plan.staging.stage(self.setting.chunk, [memoryview(part) for part in parts], tag)

    @property
    def _anchor(self) -> int:
        return [suffix for suffix, _ in self.layout.parts].index("")

    def enabled(self, state: State) -> list[Transition]:
        found = []
        for client, position in enumerate(state.positions):
            for action in position.todo:
                if action.kind == "lock" and self.store.is_locked(state.store, action.key, "abcdefgh"[client]):
                    continue
                found.append(Transition(client, action, "is carried out"))
                if state.faults:
                    found += [Transition(client, action, how) for how in self._faults(action)]
            if client in self.scenario.crashes and position.todo and not (position.begins and not position.answers):
                found.append(Transition(client, None, "crashes"))
        found += [Transition(-1, action, "comes late") for action in state.late]
        if self._may_time_pass(state):
            found.append(Transition(-1, None, "a long time passes"))
        return found

    def _may_time_pass(self, state: State) -> bool:
        """Whether no request is under way: none takes so long."""
        if self.store.time(state.store) >= BEGINNING + self.scenario.stalls or state.late:
            return False
        return any(each.todo for each in state.positions) and not any(each.answers for each in state.positions)

    def _faults(self, action: Action) -> Iterator[str]:
        if self.scenario.is_local:
            return
        if action.kind == "put" or (action.kind == "delete" and self.scenario.loses_deletes):
            yield "is carried out, the answer lost"
            yield "is lost"
        if action.kind == "put":
            if action.condition is not None:
                yield "is refused for no reason"
            if self.scenario.has_late_puts:
                yield "is delayed, the answer lost"

    def apply(self, state: State, transition: Transition) -> State:
        client, action, how = transition
        if client < 0:
            return self._let_time_pass(state) if action is None else self._come_late(state, action)
        store, monitor, faults, late, positions = state
        position = positions[client]
        if action is None:
            store = self.store.release(store, "abcdefgh"[client])
            return State(store, monitor, faults, late, _replaced(positions, client, position.step(None).position))
        if position.begins:
            monitor = self.monitor.invoke(monitor, action.operation, self.effects[action.operation])
        store, late, raw = self._perform(store, late, action, how)
        after, returned = position.step(action, raw)
        for operation, answer, is_instant in returned:
            self._require_expected(answer)
            if is_instant:
                monitor = self.monitor.invoke(monitor, operation, self.effects[operation])
            monitor = self.monitor.respond(monitor, operation, answer)
            if self.scenario.is_local:
                store = self.store.release(store, "abcdefgh"[client])
        faults -= how != "is carried out"
        return State(store, monitor, faults, late, _replaced(positions, client, after))

    def _perform(
        self, store: int, late: tuple[Action, ...], action: Action, how: str
    ) -> tuple[int, tuple[Action, ...], Raw]:
        """The store, the PUTs that may still come, and the answer."""
        match how:
            case "is carried out":
                store, raw = self.store.perform(store, action)
                return store, late, raw
            case "is carried out, the answer lost":
                return self.store.perform(store, action)[0], late, LOST
            case "is delayed, the answer lost":
                return store, (*late, action), LOST
            case "is refused for no reason":
                return store, late, REFUSED
            case _:
                return store, late, LOST

    def _come_late(self, state: State, action: Action) -> State:
        store, raw = self.store.perform(state.store, action)
        late = tuple(each for each in state.late if each is not action)
        monitor = state.monitor
        if self.scenario.repeats_writes and raw[0] == "done" and action.key == self.layout.part_keys[self._anchor]:
            monitor = self.monitor.again(monitor, self.effects[action.operation].value)
        return state._replace(store=store, monitor=monitor, late=late)

    def _let_time_pass(self, state: State) -> State:
        """Everybody stops between two requests, and goes on when what was written before is old."""
        monitor = state.monitor
        steps = [position.stall() for position in state.positions]
        for step in steps:
            for operation, answer, _ in step.returned:
                self._require_expected(answer)
                monitor = self.monitor.respond(monitor, operation, answer)
        positions = tuple(step.position for step in steps)
        return state._replace(store=self.store.let_time_pass(state.store), monitor=monitor, positions=positions)

    def _require_expected(self, answer: Answer) -> None:
        match answer.error:
            case None | "AmbiguousWriteError" | "NoAnswerError":
                return
            case "ConcurrentWriteError":
                self.failed_reads += 1
            case "IncompleteChunkError" | "PartSizeError" if self.scenario.allows_damage:
                self.failed_reads += 1
            case _:
                raise Violation(f"an operation says {answer.error}, and nothing is wrong")

    # --- what must hold in every state

    def check(self, state: State, *, is_end: bool) -> None:
        """A fresh reader finds what may be there, and so does everybody after a repair."""
        is_at_rest = is_end and self.monitor.is_idle(state.monitor)
        key = (state.store, state.monitor, is_at_rest)
        if key in self._checked and not is_end:
            return
        self._checked.add(key)
        if is_end and any(position.todo for position in state.positions):
            raise Violation("everybody waits for a lock")
        looks = self._look(self.store.release(state.store, ""))
        self._check_beside(looks, is_at_rest=is_at_rest)
        possible = self.monitor.possible(state.monitor)
        self._check_reads(looks, possible, is_at_rest=is_at_rest)
        value = looks.repaired.value
        if looks.repaired.error is not None or value not in self._repairable(looks, possible):
            raise Violation(f"after repair, a read finds {_shown(looks.repaired)}; there may be {_all(possible)}")
        if looks.plain != value:
            raise Violation(f"after repair, the plain layout holds {looks.plain!r}, and a read finds {value!r}")
        if looks.read.error is None and looks.plain_at_once != looks.read.value:
            raise Violation(f"after repair at once, the plain layout holds {looks.plain_at_once!r}, not {value!r}")
        if looks.beside:
            raise Violation(f"after repair, there is {', '.join(looks.beside)}")
        if is_at_rest and self.scenario.ends_tidy and not self.scenario.allows_lasting_damage:
            if looks.plain_now != looks.read.value:
                raise Violation(
                    f"at rest, the plain layout holds {looks.plain_now!r}, a read finds {looks.read.value!r}"
                )
            has_gone_well = state.faults == self.scenario.faults
            if has_gone_well and self.scenario.leaves_nothing and looks.beside_now:
                raise Violation(f"at rest, there is {', '.join(looks.beside_now)}")

    def _check_beside(self, looks: Looks, *, is_at_rest: bool) -> None:
        """Raise if there are more objects beside the chunk than allowed without a repair."""
        most = self.scenario.most_beside_at_rest if is_at_rest else self.scenario.most_beside
        if most is not None and len(looks.beside_now) > most:
            raise Violation(f"there are {len(looks.beside_now)} objects beside the chunk, and {most} are the most")

    def _check_reads(self, looks: Looks, possible: frozenset[Value], *, is_at_rest: bool) -> None:
        if looks.read.error is not None:
            is_damage = looks.read.error in ("IncompleteChunkError", "PartSizeError")
            is_allowed = self.scenario.allows_lasting_damage or (self.scenario.allows_damage and not is_at_rest)
            if not (is_damage and is_allowed):
                raise Violation(f"a fresh read says {looks.read.error}")
            return
        if looks.read.value not in possible:
            raise Violation(f"a fresh read finds {_shown(looks.read)}; there may be {_all(possible)}")
        for view, answer in looks.others:
            assert looks.read.value is None or isinstance(looks.read.value, bytes)
            expected = view_of(self.layout, looks.read.value, view)
            if answer != Answer(None, expected):
                raise Violation(f"a fresh read of {view} finds {_shown(answer)}, and should {expected!r}")

    def _repairable(self, looks: Looks, possible: frozenset[Value]) -> frozenset[Value]:
        return possible | {None} if looks.read.error is not None and self.scenario.allows_lasting_damage else possible

    def _look(self, store: int) -> Looks:
        looks = self._looks.get(store)
        if looks is None:
            self.looked += 1
            views: list[str | tuple[int, ...]] = ["exists", "size", "first byte"]
            views += [(0, 1), (1,)] if len(self.layout.parts) > 1 else []
            read = self._alone(store, Operation("read"))[1]
            others = tuple((view, self._alone(store, Operation("read", view=view))[1]) for view in views)
            after, ended = self._alone(store, None)
            if ended.error is not None:
                raise Violation(f"repair says {ended.error}")
            repaired = self._alone(after, Operation("read"))[1]
            needs_no_age = self.scenario.is_local or self.scenario.level != "exclusive" or self.scenario.embeds
            at_once = self._plain(self._alone(store, Operation("repair"))[0] if needs_no_age else after)[0]
            looks = Looks(read, others, repaired, *self._plain(after), at_once, *self._plain(store))
            self._looks[store] = looks
        return looks

    def _plain(self, store: int) -> tuple[Value | str, tuple[str, ...]]:
        objects = {key: each.data for key, each in self.store.states[store].items()}
        plain = read_plain(objects, self.layout)
        beside = [key for key in objects if key not in self.layout.part_keys and key != TIME]
        return plain, tuple(beside)

    def _alone(self, store: int, operation: Operation | None) -> tuple[int, Answer]:
        """Return what an operation or a repair returns without other clients."""
        client = Client(self.setting, 9)
        steps: Steps[object] = client.repair(is_dead=True) if operation is None else client.steps(operation)
        requests = 0
        answers: tuple[Any, ...] | None = None
        while requests < _MAX_REQUESTS:
            try:
                batch = next(steps) if answers is None else steps.send(answers)
            except StopIteration as done:
                return self.store.release(store, ""), Answer(None, done.value)
            # Whatever it is: the scenario says which of them may be.
            except Exception as error:
                return self.store.release(store, ""), Answer(type(error).__name__)
            given = [self.store.answer(DONE)] * len(batch)
            if type(batch[0]).__name__ != "Wait":
                for action in actions(batch, f"z{requests}", (0, 0)):
                    requests += 1
                    store, raw = self.store.perform_once(store, action)
                    given[action.slot] = self.store.answer(raw)
            answers = tuple(given)
        raise Violation(f"{'repair' if operation is None else operation.name} does not end")

    # --- all runs, and random ones

    def explore(self, *, limit: int | None = None, shortest: bool = False) -> None:
        """Every state that can be reached; raises with the transitions that led to a violation, the fewest if asked."""
        with _without_collection():
            self._explore(limit, shortest=shortest)

    def _explore(self, limit: int | None, *, shortest: bool) -> None:
        root = self.initial()
        parents: dict[State, tuple[State, Transition] | None] = {root: None}
        todo = deque([root])
        while todo:
            state = todo.popleft() if shortest else todo.pop()
            self.states += 1
            enabled = self.enabled(state)
            self.ends += not enabled
            last: tuple[Transition, ...] = ()
            try:
                self.check(state, is_end=not enabled)
                for transition in enabled:
                    self.transitions += 1
                    last = (transition,)
                    after = self.apply(state, transition)
                    if after not in parents:
                        parents[after] = (state, transition)
                        todo.append(after)
            except Violation as violation:
                raise Counterexample(self, violation, (*_path(parents, state), *last)) from violation
            if limit is not None and self.states >= limit:
                return
        self.is_complete = True

    def walk(self, seed: int) -> None:
        """One random run, which may stop at any point; the same for the same seed."""
        chance = random.Random(seed)
        state = self.initial()
        path: list[Transition] = []
        stops = chance.random() < 0.5
        weights = [chance.choice((1, 1, 4, 16)) for _ in state.positions] + [1]
        self.walks += 1
        try:
            while (enabled := self.enabled(state)) and not (stops and chance.random() < 0.02):
                normal = [each for each in enabled if each.how in ("is carried out", "comes late")]
                faults = [each for each in enabled if each.how not in ("is carried out", "comes late")]
                pool = faults if faults and (not normal or chance.random() < 0.06) else normal
                transition = chance.choices(pool, [weights[each.client] for each in pool])[0]
                path.append(transition)
                self.transitions += 1
                state = self.apply(state, transition)
                if chance.random() < 0.25:
                    self.check(state, is_end=False)
            self.check(state, is_end=not enabled)
            self.ends += not enabled
        except Violation as violation:
            raise Counterexample(self, violation, tuple(path), seed) from violation

    def explain(self, path: tuple[Transition, ...]) -> list[str]:
        """A run in words."""
        lines, state = [], self.initial()
        for client, action, how in path:
            who = "late" if client < 0 else "abcdefgh"[client]
            if action is None:
                lines.append(how if client < 0 else f"{who} {how}")
            else:
                raw = self.store.perform(state.store, action)[1] if how in ("is carried out", "comes late") else (how,)
                lines.append(f"{who}{'' if client < 0 else action.operation[1]}: {action} -> {_raw(raw)}")
            if action is not None and client >= 0:
                given = raw if how == "is carried out" else REFUSED if how == "is refused for no reason" else LOST
                returned = state.positions[client].step(action, given).returned
                lines += [f"    {who}{operation[1]} ends: {_shown(answer)}" for operation, answer, _ in returned]
            try:
                state = self.apply(state, Transition(client, action, how))
            except Violation:
                break
        return lines


class Counterexample(Exception):  # noqa: N818 - it is what was looked for
    """A violation, and how to come to it."""

    def __init__(self, checker: Checker, violation: Violation, path: tuple[Transition, ...], seed: int | None = None):
        self.checker, self.violation, self.path, self.seed = checker, violation, path, seed
        super().__init__(checker.scenario.name, str(violation))

    def __str__(self) -> str:
        seed = "" if self.seed is None else f" (seed {self.seed})"
        lines = self.checker.explain(self.path)
        return "\n    ".join([f"{self.checker.scenario.name}{seed}: {self.violation}", *lines])


@contextmanager
def _without_collection() -> Iterator[None]:
    """Millions of states that all stay are looked through for garbage in vain, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _path(parents: dict[State, tuple[State, Transition] | None], state: State) -> tuple[Transition, ...]:
    path = []
    while (step := parents[state]) is not None:
        state, transition = step
        path.append(transition)
    return tuple(reversed(path))


def _replaced(positions: tuple[Position, ...], at: int, position: Position) -> tuple[Position, ...]:
    return (*positions[:at], position, *positions[at + 1 :])


def _shown(answer: Answer) -> str:
    return answer.error or _bytes(answer.value)


def _bytes(value: object) -> str:
    """A value in few letters: its data, and of an index the numbers that are not zero."""
    if not isinstance(value, bytes) or len(value) < 32:
        return repr(value)
    return f"{value[:-32].decode(errors='replace')}[{value[-32:].replace(bytes(7), b'').hex()}]"


def _all(values: frozenset[Value]) -> str:
    return " or ".join(sorted(map(_bytes, values)))


def _raw(raw: Raw) -> str:
    match raw:
        case ("found", etag, data, _, _, _, tag):
            shown = "" if tag is None else f" of {short(tag)}"
            # Journals and staged copies are long, and say in their key what they are.
            text = f"{len(data)} bytes" if data[:1] in (b"{", b"P") else _bytes(data)
            return f"{text} [{etag}]{shown}" if data else f"[{etag}]{shown}"
        case ("listed", *entries):
            return f"{len(entries)} objects"
        case _:
            return " ".join(map(str, raw))
