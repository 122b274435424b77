"""A call in another process returns, raises, or fails by itself: the process may crash, hang or be killed."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parts_store.errors import AdoptionError
from parts_store.isolation import NoAnswerError, ProcessEndedError, call_isolated, end_idle_processes

ROOT = Path(__file__).parent.parent
# Nothing takes so long that is not hanging.
SOON = 300.0


@pytest.fixture(autouse=True)
def _no_processes_are_left() -> Iterator[None]:
    yield
    end_idle_processes()


def pid(_: object) -> int:
    return os.getpid()


def refuse(location: str) -> None:
    raise AdoptionError(location, (("the file", "refused"),))


class TwoArgumentsError(Exception):
    """An error that can be pickled, but not be read again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def fail(_: object) -> None:
    raise TwoArgumentsError("one", "other")


def end(code: int) -> None:
    os._exit(code)


def crash(_: object) -> None:
    ctypes.string_at(0)


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


def hang(_: object) -> None:
    """Never return, and never let another thread of Python run."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def hang_without_caller(_: object) -> None:
    """Kill the process that called this one, and never return."""
    os.kill(os.getppid(), signal.SIGKILL)
    hang(None)


def lambda_of(_: object) -> Callable[[], None]:
    return lambda: None


def is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
        # A process that has ended, but that its parent has not asked for.
        return ") Z " not in Path(f"/proc/{number}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_calls_are_answered_by_one_other_process() -> None:
    first = call_isolated(pid, 0, SOON)
    assert first != os.getpid()
    assert call_isolated(pid, 0, SOON) == first
    end_idle_processes()
    assert not is_alive(first)
    assert call_isolated(pid, 0, SOON) != first


def test_what_a_call_raises_is_raised_and_the_process_goes_on() -> None:
    first = call_isolated(pid, 0, SOON)
    with pytest.raises(AdoptionError, match="refused") as caught:
        call_isolated(refuse, "file.h5", SOON)
    assert caught.value.location == "file.h5"
    with pytest.raises(RuntimeError, match="TwoArgumentsError: one other"):
        call_isolated(fail, 0, SOON)
    with pytest.raises(RuntimeError, match="lambda"):
        call_isolated(lambda_of, 0, SOON)
    assert call_isolated(pid, 0, SOON) == first


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("function", "argument", "how"),
    [
        (end, 3, "exit code 3"),
        (end, 0, "exit code 0"),
        (crash, 0, "SIGSEGV"),
        (kill, signal.SIGKILL, "SIGKILL"),
        (kill, signal.SIGABRT, "SIGABRT"),
    ],
)
def test_a_process_that_ends_fails_its_call_only(function: Callable[[Any], Any], argument: int, how: str) -> None:
    with pytest.raises(ProcessEndedError, match=how):
        call_isolated(function, argument, SOON)
    assert call_isolated(pid, 0, SOON) != os.getpid()


@pytest.mark.slow
def test_a_process_that_was_killed_while_it_waited_is_replaced() -> None:
    first = call_isolated(pid, 0, SOON)
    os.kill(first, signal.SIGKILL)
    while is_alive(first):
        time.sleep(0.01)
    assert call_isolated(pid, 0, SOON) != first


@pytest.mark.slow
def test_a_call_without_an_end_is_ended_in_time() -> None:
    first = call_isolated(pid, 0, SOON)
    began = time.monotonic()
    with pytest.raises(NoAnswerError):
        call_isolated(hang, None, 0.5)
    assert 0.5 <= time.monotonic() - began < SOON
    assert not is_alive(first)


@pytest.mark.slow
def test_threads_share_a_few_processes_and_one_crash_harms_no_other_call() -> None:
    def call(number: int) -> int | None:
        try:
            return call_isolated(end if number % 10 == 3 else pid, 1, SOON)
        except ProcessEndedError:
            return None

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(call, range(60)))
    assert [number for number, each in enumerate(found) if each is None] == [3, 13, 23, 33, 43, 53]
    assert os.getpid() not in found


@pytest.mark.slow
@pytest.mark.parametrize("is_hanging", [True, False])
def test_processes_end_if_their_caller_is_killed(is_hanging: bool) -> None:
    call = "call_isolated(hang_without_caller, None, 1.0)" if is_hanging else "time.sleep(600)"
    code = f"from tests.test_isolation import *; print(call_isolated(pid, 0, SOON), flush=True); {call}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        number = int(caller.stdout.readline())
        if not is_hanging:
            caller.kill()
    began = time.monotonic()
    while is_alive(number):
        assert time.monotonic() - began < SOON
        time.sleep(0.05)


@pytest.mark.slow
def test_a_fork_does_not_use_the_processes_of_its_parent() -> None:
    first = call_isolated(pid, 0, SOON)
    code = f"""
import os
from tests.test_isolation import *
first = call_isolated(pid, 0, SOON)
child = os.fork()
if not child:
    os._exit(0 if call_isolated(pid, 0, SOON) != first else 1)
assert os.waitpid(child, 0)[1] == 0
assert call_isolated(pid, 0, SOON) == first
assert first != {first}
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, timeout=SOON)
