"""A chunk is its old value or its new one, wherever its writer ends: at each of its requests, or killed at any moment.

Every operation is stopped at every request that it makes, on every kind of store and at every level; then the chunk is
read, repaired, read again without parts_store, and written again. Then real processes are killed, many of them, while
others read.
"""

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.sync import sync

import parts_store as ps
from conformance.readers import minimal
from integration.breaking import Breaking, Crash, How
from integration.chaos import driver
from integration.chaos.plan import LANES, Plan
from integration.conftest import Bucket
from integration.scenes import (
    NEW,
    NEXT,
    OPERATIONS,
    PROTOTYPE,
    Operation,
    Order,
    Stage,
    Value,
    changes,
    check,
    ends,
    read_every_way,
)
from parts_store import PartsStore
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Lock
from parts_store.maintenance.report import Problem
from parts_store.store.options import Concurrency
from tests.effort import examples

PLACES = ["memory", "memory with digests", "disk", "minio"]
LEVELS: list[Concurrency] = ["exclusive", "writers", "full"]
ORDERS: list[Order] = ["repair first", "write first"]
# What a crash can be like, where requests are sent one after the other.
PLAIN = (How.NOTHING_ARRIVES, How.IT_ARRIVES)


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    place, level = request.param
    match place:
        case "disk":
            objects: Any = LocalStore(tmp_path, automatic_cleanup=True)
        case "minio":
            bucket: Bucket = request.getfixturevalue("bucket")
            objects = bucket.store()
            # The first write asks the server: not one of the requests that are interrupted here.
            PartsStore(objects).check()
        case _:
            objects = MemoryStore()
    return Stage(objects, place, level)


def everywhere(names: Iterable[str], fewer: Iterable[str]) -> pytest.MarkDecorator:
    """These operations at every place and level; fewer on a real server, where all takes its time.

    And on a disk where nothing is promised, for there it is done as where a little is.
    """
    stages = [(place, level) for place in PLACES for level in LEVELS]
    slow = [("disk", "full"), *((place, level) for place, level in stages if place == "minio")]
    cases = [(stage, name) for stage in stages for name in (fewer if stage in slow else names)]
    ids = [f"{place}-{level}-{name}" for (place, level), name in cases]
    return pytest.mark.parametrize(("stage", "name"), cases, indirect=["stage"], ids=ids)


# --- every request ----------------------------------------------------------------------------------------------------


def every_crash(stage: Stage, requests: Sequence[BackendRequest | Lock]) -> Iterator[tuple[int, How, Order]]:
    """Where, how, and in which order it is checked; whether a request arrives that changes nothing, does not matter.

    What a request leaves that arrived, is what the next one leaves that did not: so both orders are tried.
    """
    for at, request in enumerate(requests):
        if changes(request) or not stage.is_slow:
            yield at, How.NOTHING_ARRIVES, ORDERS[at % 2]
        if changes(request):
            yield at, How.IT_ARRIVES, ORDERS[at % 2]
        if changes(request) and not stage.is_slow:
            yield at, How.THE_REST_ARRIVES, ORDERS[(at + 1) % 2]


@everywhere(OPERATIONS, ["create", "overwrite", "overwrite what is interrupted", "set if absent", "delete", "modify"])
def test_a_crash_at_any_request_leaves_the_old_value_or_the_new_one(stage: Stage, name: str) -> None:
    operation = OPERATIONS[name]

    def crash(case: tuple[str, tuple[int, How, Order]]) -> None:
        layout, (at, how, order) = case
        scene = stage.scene(operation, layout)
        assert not ends(operation.act(scene.breaking(Breaking(None, at, how)), scene.key))
        check(scene, (operation.before, operation.after), order)
        scene.remove()

    layouts = ["three"] if stage.is_slow else ["three", "one"]
    cases = [(layout, case) for layout in layouts for case in every_crash(stage, stage.requests(operation, layout))]
    with ThreadPoolExecutor(4 if stage.is_slow else 1) as pool:
        list(pool.map(crash, cases))


@everywhere(["overwrite"], ["overwrite"])
def test_a_repair_that_crashes_at_any_request_is_repaired(stage: Stage, name: str) -> None:
    overwrite = OPERATIONS[name]
    starts = [at for at, request in enumerate(stage.requests(overwrite)) if changes(request)]
    # In memory, all that an interrupted write can leave; elsewhere, some of it.
    for start in starts if stage.place.startswith("memory") else starts[1::4]:
        for at in itertools.count():
            scene = stage.scene(overwrite)
            assert scene.crash(NEW, start, How.IT_ARRIVES)
            value = read_every_way(scene)
            store = scene.breaking(Breaking(None, at, PLAIN[(start + at) % 2]))
            try:
                store.repair(scene.array, min_age=0)
                is_done = True
            except Crash:
                is_done = False
            check(scene, (value,), ORDERS[at % 2])
            scene.remove()
            if is_done:
                break


def every_cancellation(stage: Stage, operation: Operation) -> Iterator[tuple[int, How]]:
    for at, request in enumerate(stage.requests(operation)):
        # No client waits for a lock there.
        if isinstance(request, Lock):
            continue
        if changes(request) or not stage.is_slow:
            yield at, How.NOTHING_ARRIVES
        if changes(request):
            yield at, How.IT_ARRIVES
            yield at, How.THE_REST_ARRIVES
            # This overlaps what is written next: only where that is allowed, and what is sent can be told apart.
            if stage.level != "exclusive" and operation.has_conditions and stage.place != "disk":
                yield at, How.IT_ARRIVES_LATE


@everywhere(["create", "create over orphans", "overwrite", "overwrite what is interrupted", "delete"], ["overwrite"])
def test_a_cancelled_operation_leaves_the_old_value_or_the_new_one(stage: Stage, name: str) -> None:
    operation = OPERATIONS[name]

    def cancel(case: tuple[int, How]) -> None:
        at, how = case
        scene = stage.scene(operation)
        breaking = Breaking(None, at, how, hangs=True)
        sync(_cancelled(operation, scene.breaking(breaking), scene.key, breaking))
        allowed: tuple[Value, ...] = (operation.before, operation.after)
        if how is How.IT_ARRIVES_LATE:
            assert read_every_way(scene) in allowed
            scene.write(NEXT)
            sync(breaking.deliver())
            allowed = (NEXT,)
        check(scene, allowed, ORDERS[at % 2])
        scene.remove()

    with ThreadPoolExecutor(4 if stage.is_slow else 1) as pool:
        list(pool.map(cancel, every_cancellation(stage, operation)))


async def _cancelled(operation: Operation, store: PartsStore, key: str, breaking: Breaking) -> None:
    """Cancel an operation at a request, and wait until it has ended."""

    async def act() -> None:
        await operation.act(store, key)

    task = asyncio.ensure_future(act())
    await asyncio.wait_for(breaking.reached.wait(), timeout=300)
    task.cancel()
    await asyncio.sleep(0)
    if breaking.how is How.IT_ARRIVES_LATE:
        # It waits for what it has sent, unless it is told again.
        task.cancel()
    else:
        breaking.released.set()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, also if the tests run in the background, where interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def put_sync(store: PartsStore, key: str) -> None:
    store.set_sync(key, PROTOTYPE.buffer.from_bytes(NEW))


def modify_sync(store: PartsStore, key: str) -> None:
    store.get_sync(key)
    put_sync(store, key)


SYNCHRONOUS: dict[str, Callable[[PartsStore, str], None]] = {
    "create": put_sync,
    "overwrite": put_sync,
    "overwrite what is interrupted": put_sync,
    "delete": PartsStore.delete_sync,
    "modify": modify_sync,
}


@pytest.mark.usefixtures("interrupts")
@everywhere(SYNCHRONOUS, ["overwrite"])
def test_an_interrupted_operation_leaves_the_old_value_or_the_new_one(stage: Stage, name: str) -> None:
    operation, act = OPERATIONS[name], SYNCHRONOUS[name]
    for how in PLAIN:
        for at in itertools.count():
            scene = stage.scene(operation)
            breaking = Breaking(None, at, how, interrupts=True)
            store = scene.breaking(breaking)
            try:
                act(store, scene.key)
            except KeyboardInterrupt:
                check(scene, (operation.before, operation.after), ORDERS[at % 2])
            else:
                assert not breaking.is_dead
                break
            # The process goes on, and so does its store.
            act(store, scene.key)
            assert read_every_way(scene) == operation.after
            scene.remove()


# --- real processes ---------------------------------------------------------------------------------------------------

KILLS = examples(120)
LEAST = {"unresolved": KILLS // 4, "writes": KILLS // 4, "reads": KILLS}


@pytest.mark.parametrize("level", LEVELS)
def test_killed_writers_tear_and_lose_nothing_on_a_disk(tmp_path: Path, level: Concurrency) -> None:
    plan = Plan(str(tmp_path), {}, level, LANES[level], kills=KILLS, seconds=500, seed=1, least=LEAST)
    report = driver.run(plan)
    print(report)
    assert report.violations == []
    assert report.kills >= KILLS
    assert report.unresolved >= LEAST["unresolved"]
    assert report.writes >= LEAST["writes"]
    assert report.reads >= LEAST["reads"]


@pytest.mark.parametrize("level", ["writers", "full"])
def test_killed_writers_tear_and_lose_nothing_on_a_real_server(bucket: Bucket, level: Concurrency) -> None:
    options = Plan.options_of(bucket.server)
    # What was sent before its sender was killed, has arrived after the pause.
    timing: dict[str, Any] = {"seconds": 500, "pause": 0.2, "life": (0.05, 0.6)}
    plan = Plan(bucket.name, options, level, LANES[level], kills=KILLS, seed=1, least=LEAST, **timing)
    report = driver.run(plan)
    print(report)
    assert report.violations == []
    assert report.kills >= KILLS
    assert report.unresolved >= LEAST["unresolved"]
    assert report.writes >= LEAST["writes"]
    assert report.reads >= LEAST["reads"]


KILLED = """
import os, signal, sys
import numpy as np
import zarr
import parts_store as ps
from integration.chaos.plan import Plan
from integration.server import Server
from parts_store.engine.steps import Put

name, *server = sys.argv[1:]
store = ps.PartsStore.from_url(f"s3://{name}", **Plan.options_of(Server(*server)))
perform = type(store._backend).perform_sync

def perform_and_die(self, request):
    outcome = perform(self, request)
    if isinstance(request, Put) and request.key == "a/c/0":
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome

type(store._backend).perform_sync = perform_and_die
zarr.open_array(store, path="a")[...] = np.arange(4096)
"""


# The other parts are in the tag of the anchor, or in a staged copy.
@pytest.mark.parametrize("header", [8, 1500], ids=["small", "large"])
def test_repair_completes_at_once_what_a_writer_killed_after_the_anchor_left(
    bucket: Bucket, tmp_path: Path, header: int
) -> None:
    old, new = np.full(4096, 7, "uint16"), np.arange(4096, dtype="uint16")
    parts = [ps.Part(".header", size=header), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    chosen: dict[str, Any] = {"chunks": (512,), "shards": (4096,), "dtype": "uint16", "compressors": None}
    store = PartsStore(bucket.store())
    # Half of the shard has no inner chunks, so that its index is another one.
    array = ps.create_array(store, "a", parts=parts, shape=(4096,), **chosen)
    array[2048:] = old[2048:]
    old[:2048] = 0
    server = bucket.server
    arguments = [bucket.name, server.endpoint, server.access_key, server.secret_key]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL

    def read_by_others(name: str) -> Any:
        for key in bucket.list_keys():
            (tmp_path / name / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / key).write_bytes(bucket.read(key))
        return minimal.read(tmp_path / name, "a")

    torn = read_by_others("torn")
    assert not np.array_equal(torn, old)
    assert not np.array_equal(torn, new)
    (finding,) = PartsStore(bucket.store()).verify().findings
    assert finding.problem is Problem.INTERRUPTED
    report = PartsStore(bucket.store()).repair()
    assert [each.problem for each in report.findings if each.is_repaired] == [Problem.INTERRUPTED]
    # A staged copy is kept for a day, because its writer may be active.
    assert [each.problem for each in report.findings if not each.is_repaired] == [Problem.LEFTOVERS] * (header > 8)
    np.testing.assert_array_equal(read_by_others("whole"), new)
    np.testing.assert_array_equal(zarr.open_array(PartsStore(bucket.store()), path="a")[...], new)
    assert PartsStore(bucket.store()).repair(min_age=0).is_clean
    assert bucket.list_keys() == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/0.header", "a/c/0.index"}
