"""A process that runs scenarios, and that is replaced when it hangs or dies."""

import multiprocessing
import os
import signal
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Final

import icechunk
from zarr.errors import ZarrUserWarning

from integration.server import die_with_parent
from integration.soak.scenarios import Found, Scenario, Servers

_CONTEXT: Final = multiprocessing.get_context("spawn")


class Worker:
    """Runs one scenario after the other in another process, which is started when it is needed."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._process: multiprocessing.context.SpawnProcess | None = None
        self._pipe: Connection | None = None

    def run(self, scenario: Scenario, seed: int, seconds: float) -> Found | None:
        """Return what the scenario found, or None if it does not end in time; then its processes are killed."""
        pipe = self._started()
        pipe.send((scenario, seed))
        try:
            if pipe.poll(max(seconds, 0)):
                found: Found = pipe.recv()
                return found
        except EOFError:
            code = self._exit_code()
            self.close()
            return Found(0, (f"the process of the scenario ended with exit code {code}",))
        self.close()
        return None

    def close(self) -> None:
        """Kill the process, and all processes that it started."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is None:
            return
        pid = self._process.pid
        if pid is not None and self._process.is_alive():
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                # It has not yet made a group of its own.
                self._process.kill()
        self._process.join()
        self._process = self._pipe = None

    def _exit_code(self) -> int | None:
        assert self._process is not None
        self._process.join(300)
        return self._process.exitcode

    def _started(self) -> Connection:
        if self._pipe is None:
            self._pipe, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, self._servers))
            # An interrupt may come at any moment, and a process that was not started cannot be joined.
            process.start()
            self._process = process
            # The end of the process closes the pipe only if no other process has its end open.
            theirs.close()
        return self._pipe


def _serve(pipe: Connection, servers: Servers) -> None:
    """Run scenarios until the pipe is closed."""
    die_with_parent()
    # Ctrl-C reaches the group of the parent alone, which decides what becomes of this one.
    os.setpgid(0, 0)
    _hide_account()
    warnings.simplefilter("ignore", ZarrUserWarning)
    # Conflicts are expected, and Icechunk warns of each.
    icechunk.set_logs_filter("error")
    while True:
        try:
            scenario, seed = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(scenario, seed, servers))


def _run(scenario: Scenario, seed: int, servers: Servers) -> Found:
    try:
        return scenario(seed, servers)
    except BaseException:
        return Found(0, (traceback.format_exc()[-6000:],))


def _hide_account() -> None:
    """Hide the AWS account and the proxy of the caller from the scenarios and their processes."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
