"""Wait at exit for threads of obstore and Icechunk that are handing a result to an event loop.

The Rust libraries call `call_soon_threadsafe` on a thread of their own. The call wakes the event loop before it
returns. If the program then ends at once, Python 3.12 and 3.13 end that thread when it takes the interpreter lock
again, which aborts the whole process (https://github.com/PyO3/pyo3-async-runtimes/issues/40).
"""

import sys
import threading
import time
from types import FrameType
from typing import Final

_MAX_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.001


def wait_for_foreign_threads() -> None:
    """Wait until no thread that Python did not start is handing over a result, for at most a second.

    A thread that waits for the interpreter lock has a frame, and takes the lock during the pauses.
    """
    deadline = time.monotonic() + _MAX_SECONDS
    while _is_result_handed_over() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)


def _is_result_handed_over() -> bool:
    known = {thread.ident for thread in threading.enumerate()}
    # The name is documented. There is no other way to see threads that Python did not start.
    frames = sys._current_frames()  # noqa: SLF001
    return any(_wakes_event_loop(frame) for thread, frame in frames.items() if thread not in known)


def _wakes_event_loop(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "call_soon_threadsafe":
            return True
        frame = frame.f_back
    return False
