"""Call functions in processes of their own, so that a library that crashes or hangs fails one call only.

A process answers many calls, one after the other, because it takes more than a second to start one. It is not a process
of `multiprocessing`: workers of dask may not start those, and they would run the script of the caller again.
"""

import atexit
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, Final

# A call may wait for a server, so that more processes than processors are of use.
_MAX_PROCESSES: Final = max(4, os.cpu_count() or 1)
# How many seconds a process may take to start and to import what a call needs.
_START: Final = 120.0
# A process ends by itself if it is not called for so many seconds; after half of them it is not called any more.
_IDLE: Final = 60.0
# A process whose caller was killed ends by itself so many seconds after the call should have ended.
_LATE: Final = 5.0
# The import path is sent, because the caller may have changed it.
_CODE: Final = (
    "import sys; from multiprocessing.connection import Connection; caller = Connection(int(sys.argv[1])); "
    f"sys.path[:] = caller.recv(); from {__name__} import serve; serve(caller)"
)


class ProcessEndedError(Exception):
    """The process ended before it answered; the message says how."""


class NoAnswerError(Exception):
    """The process did not answer in time, and was ended."""


def call_isolated[A, T](function: Callable[[A], T], argument: A, seconds: float) -> T:
    """Return what a function returns for an argument in another process; raise what it raises there.

    The function, the argument and what is returned have to be picklable, and the function importable. Raises
    `NoAnswerError` if it takes more than this number of seconds, not counting imports, and `ProcessEndedError` if it
    ends its process.
    """
    task = pickle.dumps((function, argument, seconds))
    value, error = pickle.loads(_own_pool().call(task, seconds))  # noqa: S301 (of a process that was started here)
    if error is not None:
        raise error
    result: T = value
    return result


def end_idle_processes() -> None:
    """End the processes of this process that wait for a call."""
    _own_pool().end_idle()


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that answers calls, and when it answered the last one."""

    process: subprocess.Popen[bytes]
    connection: Connection
    since: float

    @classmethod
    def start(cls) -> "_Process":
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-c", _CODE, str(theirs.fileno())]
            # The command contains nothing but a number.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])  # noqa: S603
        with suppress(OSError):
            # If the process has ended already, the call fails.
            ours.send(sys.path)
        return cls(process, ours, time.monotonic())

    @property
    def is_usable(self) -> bool:
        return self.process.poll() is None and time.monotonic() - self.since < _IDLE / 2

    def call(self, task: bytes, seconds: float) -> bytes:
        try:
            self.connection.send_bytes(task)
            for limit in (_START, seconds):
                if not self.connection.poll(limit):
                    raise NoAnswerError
                answer = self.connection.recv_bytes()
        except (OSError, EOFError):
            raise ProcessEndedError(_how_it_ended(self.process.wait(_START))) from None
        return answer

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class _Pool:
    """Processes that wait for a call, and how many more may be called at the same time."""

    idle: list[_Process] = field(default_factory=list)
    free: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(_MAX_PROCESSES))

    def call(self, task: bytes, seconds: float) -> bytes:
        with self.free:
            process = self._take() or _Process.start()
            try:
                answer = process.call(task, seconds)
            except BaseException:
                process.end()
                raise
            self.idle.append(_Process(process.process, process.connection, time.monotonic()))
            return answer

    def end_idle(self) -> None:
        while (process := self._pop()) is not None:
            process.end()

    def _take(self) -> _Process | None:
        while (process := self._pop()) is not None:
            if process.is_usable:
                return process
            process.end()
        return None

    def _pop(self) -> _Process | None:
        # Other threads may take the last one.
        try:
            return self.idle.pop()
        except IndexError:
            return None


# By the number of the process that uses them: a fork of it must not use the same connections.
_pools: dict[int, _Pool] = {}
atexit.register(end_idle_processes)


def _own_pool() -> _Pool:
    return _pools.setdefault(os.getpid(), _Pool())


def _how_it_ended(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def serve(caller: Connection) -> None:
    """Answer calls until the caller ends, or does not call for a while. Runs in a process of its own."""
    # An interrupt from the keyboard is for the caller, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Path(os.devnull).open("w") as nowhere, suppress(EOFError, OSError):
        while caller.poll(_IDLE):
            task = caller.recv_bytes()
            try:
                function, argument, seconds = pickle.loads(task)  # noqa: S301 (of the caller)
            except Exception as error:
                caller.send_bytes(b"")
                caller.send_bytes(_dump(None, error))
                continue
            caller.send_bytes(b"")
            # A thread of the interpreter that ends the process even if a library never returns.
            faulthandler.dump_traceback_later(seconds + _LATE, exit=True, file=nowhere)
            answer = _answer(function, argument)
            faulthandler.cancel_dump_traceback_later()
            caller.send_bytes(answer)


def _answer(function: Callable[[Any], Any], argument: Any) -> bytes:
    try:
        return _dump(function(argument), None)
    # The caller decides what to do about it.
    except Exception as error:
        return _dump(None, error)


def _dump(value: Any, error: Exception | None) -> bytes:
    try:
        data = pickle.dumps((value, error))
        if error is not None:
            pickle.loads(data)  # noqa: S301 (some errors can be pickled, but not be read again)
    except Exception as problem:
        return pickle.dumps((None, RuntimeError(f"{type(error or problem).__name__}: {error or problem}")))
    return data
