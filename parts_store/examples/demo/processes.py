"""Start the processes of the demo, and end them when the block that needs them ends, for any reason."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager


@contextmanager
def started(calls: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process of `worker` for each list of arguments, and kill those that still run at the end of the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(_process(arguments)) for arguments in calls]


@contextmanager
def _process(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    # The import path is sent, because this process may have changed it.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    process = subprocess.Popen(  # noqa: S603 (this Python, and a module of this package)
        [sys.executable, "-m", "parts_store.examples.demo.worker", str(os.getpid()), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        # Ctrl-C is for this process, which ends the others.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
