"""Being the only writer of a chunk, where there are locks: on a local disk, and within a session.

On a local disk there is a lock for each chunk, and one for each array. Whoever changes a chunk holds the lock of the
chunk alone, and shares the lock of the array. Whoever deletes the array, or a folder of its chunks, holds the lock of
the array alone. So a lock file is deleted by its holder, or while nobody can hold it or wait for it.
"""

from typing import Final

from parts_store.engine.steps import Done, Lock, Steps, Wait, gate_of
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import PROTOCOL_FOLDER, join, split

# The longest wait is the fifth; together they make up five minutes.
_MAX_WAIT = 5
_MAX_WAITS = 2000
_ARRAY_LOCK: Final = "array.lock"


def lock_folder(folder: str) -> Steps[None]:
    """Be the only writer of the chunk that this folder is beside until the steps have ended."""
    yield from _lock(Lock(f"{folder}.lock", "the only writer of a chunk"), folder)


def lock_chunk(folder: str) -> Steps[None]:
    """Do the same on a local disk, where the array must not be deleted meanwhile."""
    shared = join(split(folder)[0], _ARRAY_LOCK)
    yield from _lock(Lock(f"{folder}.lock", "the only writer of a chunk", shared), folder)


def lock_array(array: str) -> Steps[None]:
    """Let nobody change a chunk of the array at a path on a local disk until the steps have ended."""
    gate, lock = array_locks(array)
    for key in (gate, lock):
        yield from _lock(Lock(key, "nobody else changes the array"), lock)


def array_locks(array: str) -> tuple[str, str]:
    """Return the keys of the locks of an array: the one that is taken first, and the one that its writers share."""
    lock = join(array, f"{PROTOCOL_FOLDER}/{_ARRAY_LOCK}")
    return gate_of(lock), lock


def _lock(lock: Lock, what: str) -> Steps[None]:
    for repeat in range(_MAX_WAITS):
        (outcome,) = yield (lock,)
        if isinstance(outcome, Done):
            return
        yield (Wait(min(repeat + 1, _MAX_WAIT)),)
    raise ConcurrentWriteError(what, "somebody has held its lock for five minutes")
