"""Repeat a write of a chunk that lost a race to another client."""

import random
import time
from collections.abc import Callable
from typing import Final

from parts_store.errors import ConcurrentWriteError
from parts_store.pipeline.threads import require_not_stopped

# Every wait is random, and on average twice as long as the one before, up to the longest.
_FIRST_WAIT_SECONDS: Final = 0.002
_LONGEST_WAIT_SECONDS: Final = 0.5
# As long as a writer on a local disk waits for a lock.
_MAX_SECONDS: Final = 300.0


def retry(write: Callable[[], None]) -> None:
    """Write a chunk, and write it again as long as other clients change it in between.

    Only `ConcurrentWriteError` is followed by a further attempt: nothing was written then, and the next attempt reads
    what the other client has written. After `AmbiguousWriteError` this is unknown: a second attempt could overwrite
    what a third client wrote to the same region after the first one.

    Raises
    ------
    ConcurrentWriteError
        If other clients have changed the chunk for five minutes. The error of the last attempt is its cause.
    """
    since: float | None = None
    attempts = 0
    while True:
        try:
            write()
        except ConcurrentWriteError as error:
            attempts += 1
            now = time.monotonic()
            since = now if since is None else since
            if now - since > _MAX_SECONDS:
                problem = (
                    f"it was changed during all {attempts} attempts to write it, in {now - since:.0f} seconds; "
                    "let fewer clients write to it at the same time, or use smaller chunks or shards"
                )
                raise ConcurrentWriteError(error.chunk_key, problem) from error
            longest = min(_FIRST_WAIT_SECONDS * 2.0 ** min(attempts, 16), _LONGEST_WAIT_SECONDS)
            # Nothing of this write is stored, so it can end here if the caller does not want it any more.
            require_not_stopped()
            time.sleep(random.uniform(0, longest))  # noqa: S311 - not for cryptography
        else:
            return
