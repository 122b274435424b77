"""Being the only writer of a chunk, where there are locks: on a local disk, and within a session."""

from parts_store.errors import ConcurrentWriteError
from parts_store.plan.steps import Done, Lock, Steps, Wait

# The longest wait is the fifth; together they make up five minutes.
_MAX_WAIT = 5
_MAX_WAITS = 2000


def lock_folder(folder: str) -> Steps[None]:
    """Be the only writer of the chunk that this folder is beside until the steps have ended."""
    for repeat in range(_MAX_WAITS):
        (outcome,) = yield (Lock(f"{folder}.lock", "the only writer of a chunk"),)
        if isinstance(outcome, Done):
            return
        yield (Wait(min(repeat + 1, _MAX_WAIT)),)
    raise ConcurrentWriteError(folder, "somebody has held its lock for five minutes")
