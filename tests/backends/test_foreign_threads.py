"""A process that used obstore with an event loop ends with exit code 0, however soon it ends."""

import _thread
import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from parts_store._compat import foreign_threads
from parts_store._compat.foreign_threads import wait_for_foreign_threads
from tests.effort import examples

SECONDS = 300
# Without the wait, one process of eight aborts when six run at a time on two cores.
PROCESSES = examples(60)
CHILD = """
import asyncio
import obstore
from obstore.store import MemoryStore
import parts_store.backends

async def use(store):
    await asyncio.gather(*(obstore.put_async(store, f"{number}", b"x" * 1000) for number in range(20)))
    for number in range(5):
        await obstore.get_async(store, f"{number}")

asyncio.run(use(MemoryStore()))
"""


@pytest.mark.slow
def test_processes_that_end_after_their_last_request_do_not_abort() -> None:
    def exit_code(_number: int) -> int:
        return subprocess.run([sys.executable, "-c", CHILD], check=False, capture_output=True).returncode

    with ThreadPoolExecutor(6) as pool:
        codes = Counter(pool.map(exit_code, range(PROCESSES)))
    assert codes == {0: PROCESSES}


class SlowLoop(asyncio.SelectorEventLoop):
    """An event loop that takes its time to wake up, as if another thread had the interpreter lock."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waking, self.may_wake, self.is_awake = (threading.Event() for _ in range(3))

    def _write_to_self(self) -> None:
        self.is_waking.set()
        self.may_wake.wait(SECONDS)
        self.is_awake.set()


@pytest.fixture
def waking() -> Iterator[SlowLoop]:
    """Yield a loop that a thread wakes that the module threading does not know of."""
    loop = SlowLoop()
    _thread.start_new_thread(loop.call_soon_threadsafe, (print,))
    assert loop.is_waking.wait(SECONDS)
    yield loop
    loop.may_wake.set()
    assert loop.is_awake.wait(SECONDS)
    loop.close()


def test_wait_ends_when_the_event_loop_was_woken(waking: SlowLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_threads, "_MAX_SECONDS", SECONDS)
    threading.Timer(0.1, waking.may_wake.set).start()
    wait_for_foreign_threads()
    assert waking.is_awake.is_set()


def test_wait_for_a_thread_that_does_not_end_is_bounded(waking: SlowLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_threads, "_MAX_SECONDS", 0.1)
    begin = time.monotonic()
    wait_for_foreign_threads()
    assert time.monotonic() - begin >= 0.1
    assert not waking.is_awake.is_set()


@pytest.mark.parametrize("kind", ["of the module threading", "that do something else"])
def test_other_threads_are_not_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(_seconds: float) -> None:
        raise AssertionError("waits for another thread")

    monkeypatch.setattr(foreign_threads, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    loop, begun, may_end = SlowLoop(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(SECONDS)

    if kind == "of the module threading":
        begun = loop.is_waking
        threading.Thread(target=loop.call_soon_threadsafe, args=(print,)).start()
    else:
        _thread.start_new_thread(work, ())
    try:
        assert begun.wait(SECONDS)
        wait_for_foreign_threads()
    finally:
        may_end.set()
        loop.may_wake.set()
        loop.close()
