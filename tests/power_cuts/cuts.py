"""Cut the power at every moment of a scenario, and read what may be left on the disk."""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.power_cuts.disk import Disk
from tests.power_cuts.recording import Event, KilledError, Recorder, Returned, Tree, tree_of, write_tree
from tests.power_cuts.scenarios import Scenario, Values, opened


@dataclass(slots=True)
class Result:
    """How many contents of the disk were read, and what was wrong with some of them."""

    events: int = 0
    cuts: int = 0
    # With repetitions: a content may be possible after several cuts.
    possible: int = 0
    read: int = 0
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded scenario: the disk before it, and what happened. Cuts before `start` are not of interest."""

    disk: Disk
    events: list[Event]
    start: int = 0


def record(scenario: Scenario, folder: Path, *, lives: int | None = None) -> Trace | None:
    """Carry out a scenario on a durable store; with `lives`, kill the first call after so many events.

    Returns None if the first call ends before it is killed.
    """
    folder.mkdir(parents=True)
    scenario.prepare(opened(folder))
    recorder = Recorder(str(folder))
    disk = Disk.of(recorder, tree_of(folder))
    acts, start = list(scenario.acts), 0
    if lives is not None:
        store = opened(folder, durable=True)
        try:
            with recorder.recording(lives=lives):
                acts.pop(0)(store)
        except KilledError:
            start = len(recorder.events)
        else:
            return None
    store = opened(folder, durable=True)
    for act in acts:
        with recorder.recording():
            act(store)
        recorder.events.append(Returned())
    trace = Trace(disk, recorder.events, start)
    require_complete(trace, folder)
    return trace


def require_complete(trace: Trace, folder: Path) -> None:
    """Raise unless the events lead to what is in the folder: every change was recorded."""
    disk = trace.disk.copy()
    for event in trace.events:
        disk.apply(event)
    if disk.seen != tree_of(folder):
        raise AssertionError(f"the events lead to {disk.seen}, and the folder has {tree_of(folder)}")


def cut_everywhere(
    scenario: Scenario, trace: Trace, folder: Path, *, limit: int, seed: int = 0, stops: bool = False
) -> Result:
    """Cut the power before and after every event, and read every content that the disk may have then.

    With `stops`, return at the first violation.
    """
    result, rng, disk = Result(events=len(trace.events)), random.Random(seed), trace.disk.copy()
    returned = len(scenario.values) - 1 - sum(isinstance(each, Returned) for each in trace.events)
    is_killed = returned > 0
    known: dict[tuple[object, ...], str | None] = {}
    for at in range(len(trace.events) + 1):
        if at:
            disk.apply(trace.events[at - 1])
            returned += isinstance(trace.events[at - 1], Returned)
        if at < trace.start:
            continue
        result.cuts += 1
        first = 0 if is_killed and returned == 1 else returned
        allowed = scenario.values[first : returned + 2]
        for tree in disk.states(limit, rng):
            result.possible += 1
            found = (*sorted(tree.items()), allowed)
            if found not in known:
                known[found] = problem(scenario, tree, allowed, folder / str(len(known)))
                result.read += 1
            if (wrong := known[found]) is not None:
                result.violations.append(f"after {at} events: {wrong}")
                if stops:
                    return result
    return result


def problem(scenario: Scenario, tree: Tree, allowed: tuple[Values, ...], folder: Path) -> str | None:
    """Return what is wrong with a store on this content of the disk, None if nothing is."""
    write_tree(folder, tree)
    try:
        store = opened(folder)
        found = scenario.read(store)
        for each, expected in zip(found, zip(*allowed, strict=True), strict=True):
            if each not in expected:
                return f"a reader found {each!r} and not one of {expected}: {sorted(tree)}"
        if (report := opened(folder).verify()).is_damaged:
            return f"{report}: {sorted(tree)}"
        scenario.again(opened(folder))
        if (found := scenario.read(opened(folder))) != scenario.last:
            return f"after another write, a reader found {found}"
    except Exception as error:
        return f"{type(error).__name__}: {error}: {sorted(tree)}"
    finally:
        shutil.rmtree(folder)
    return None
