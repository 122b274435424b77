"""Locks that make a process the only writer of a chunk: on a local disk, and within a session.

On a local disk there is a lock for each chunk, and one for each array. A writer of a chunk holds the lock of the chunk
exclusively, and shares the lock of the array. A process that deletes the array, or a folder of its chunks, holds the
lock of the array exclusively. So a lock file is deleted by its holder, or while no process can hold it or wait for it.
The backend decides whether the lock of a chunk is a file of its own, or a byte range of the file of the array.
"""

from typing import Final

from parts_store.engine.steps import Done, Lock, Steps, Wait, gate_of
from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import PROTOCOL_FOLDER, join, split

# All waits together take five minutes. The fifth and all later ones are the longest.
_MAX_WAIT = 5
_MAX_WAITS = 2000
_ARRAY_LOCK: Final = "array.lock"


def lock_chunk(folder: str, *, shares_array: bool) -> Steps[None]:
    """Lock the chunk that a folder lies beside until the steps have ended, and share the lock of its array if asked."""
    shared = join(split(folder)[0], _ARRAY_LOCK) if shares_array else None
    yield from _lock(Lock(f"{folder}.lock", "lock of a chunk", shared), folder)


def lock_array(array: str) -> Steps[None]:
    """Keep all writers away from the array at a path on a local disk until the steps have ended."""
    gate, lock = array_locks(array)
    for key in (gate, lock):
        yield from _lock(Lock(key, "lock of an array"), lock)


def remove_unused_locks(array: str) -> Steps[None]:
    """Remove the lock files of an array, unless another process holds them. The end of the steps removes them."""
    for key in array_locks(array):
        yield (Lock(key, "lock of an array"),)


def array_locks(array: str) -> tuple[str, str]:
    """Return the keys of the locks of an array: the lock that is taken first, and the lock that its writers share."""
    lock = join(array, f"{PROTOCOL_FOLDER}/{_ARRAY_LOCK}")
    return gate_of(lock), lock


def _lock(lock: Lock, what: str) -> Steps[None]:
    for repeat in range(_MAX_WAITS):
        (outcome,) = yield (lock,)
        if isinstance(outcome, Done):
            return
        yield (Wait(min(repeat + 1, _MAX_WAIT)),)
    raise ConcurrentWriteError(what, "another process has held its lock for five minutes")
