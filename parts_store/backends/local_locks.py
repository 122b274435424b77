"""Locks of a local disk, which end with their process: of a file, shared or exclusive, and of names within a file.

A name is a byte range of a file that many processes share. So the lock of a chunk needs no file of its own: on many
filesystems, to make a file takes longer than to write a small chunk. Systems that cannot lock byte ranges by descriptor
get a file for each name.
"""

import contextlib
import errno
import os
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from typing import Final, Literal

from parts_store.backends.local_files import MAX_TRIES, NOT_THERE, make_folder, remove_empty, removed_meanwhile
from parts_store.errors import LocalPathError, StoreConfigError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

type _LockKind = Literal["shared", "exclusive", "none"]
type Release = Callable[[], None]

# The errors of a filesystem without locks.
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
# The byte range that is locked for the whole file. Names have the ranges after it.
_WHOLE: Final = 0
_NAMES: Final = 1 << 62


def take_lock(path: str, key: str, root: str) -> Release | None:
    """Take the lock of a file without waiting; return the function that releases it, None if the lock is held."""
    descriptor = _lock(path, key, root, "exclusive")
    return None if descriptor is None else lambda: _unlock(descriptor, path, root, is_shared=False)


@cache
def has_names() -> bool:
    """Return whether byte ranges can be locked by descriptor: on Linux, but not in every sandbox."""
    if not HAS_LOCKS or not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    # This depends on the system alone, so that all of its processes use the same locks.
    descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _set_range(descriptor, "none", _WHOLE)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _set_lock(descriptor: int, kind: _LockKind) -> bool:
    """Lock or unlock a whole file without waiting; return whether that was possible."""
    if has_names():
        return _set_range(descriptor, kind, _WHOLE)
    kinds = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX, "none": fcntl.LOCK_UN}
    try:
        fcntl.flock(descriptor, kinds[kind] | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _set_range(descriptor: int, kind: _LockKind, start: int) -> bool:
    """Lock or unlock one byte of a file without waiting; return whether that was possible.

    As with `flock`, the lock belongs to the descriptor, and not to the process.
    """
    kinds = {"shared": fcntl.F_RDLCK, "exclusive": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
    # The C structure `flock`: the kind, what the start is relative to, the start, the length, and 0 for a process.
    request = struct.pack("hhqqi", kinds[kind], os.SEEK_SET, start, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except BlockingIOError:
        return False
    return True


def _lock(path: str, key: str, root: str, kind: _LockKind) -> int | None:
    """Lock a file without waiting, and return its descriptor; None if the lock is held."""
    for _ in range(MAX_TRIES):
        try:
            descriptor = _descriptors.open(path)
        except FileNotFoundError:
            make_folder(os.path.dirname(path), key)
            continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                raise LocalPathError(
                    key, f"expected a file that can be locked at {path}, found something else: remove it"
                ) from error
            raise
        is_locked = False
        try:
            if not _set_lock(descriptor, kind):
                return None
            # The holder before may have removed the file before this process had the lock.
            is_locked = _is_same_file(descriptor, path)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                expected = f"'exclusive', since the filesystem of {root} has no locks"
                raise StoreConfigError("concurrency", expected, str(error)) from error
            raise
        finally:
            if not is_locked:
                _descriptors.close(descriptor)
        if is_locked:
            return descriptor
    raise removed_meanwhile(key)


def _unlock(descriptor: int, path: str, root: str, *, is_shared: bool) -> None:
    """Release a lock, and remove its file and empty folders unless another process has the lock."""
    if not _descriptors.is_open(descriptor):
        return
    try:
        # Only an exclusive holder removes the file, and only if the path still leads to this file.
        if (not is_shared or _is_made_exclusive(descriptor)) and _is_same_file(descriptor, path):
            os.unlink(path)
    finally:
        _descriptors.close(descriptor)
    remove_empty(os.path.dirname(path), root)


def _is_made_exclusive(descriptor: int) -> bool:
    """Return whether a shared lock could be made exclusive; if not, it may be lost."""
    try:
        return _set_lock(descriptor, "exclusive")
    except OSError:
        return False


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except NOT_THERE:
        return False


def _place_of(name: str) -> int:
    """Return the byte of the file that is locked for a name. That two names have the same one is next to impossible."""
    return _WHOLE + 1 + int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % _NAMES


class _Descriptors:
    """A set of the lock files that this process has open.

    A lock lasts as long as any process has the descriptor open. So a forked process closes those that it inherits.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        # Held during a fork, so that every open lock file is in the set.
        self._guard = threading.RLock()

    def open(self, path: str) -> int:
        """Open a lock file, and create it if it does not exist; raise if it is a symbolic link."""
        with self._guard:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            self._open.add(descriptor)
            return descriptor

    def close(self, descriptor: int) -> None:
        """Close a lock file, which releases its lock."""
        with self._guard:
            if descriptor in self._open:
                self._open.remove(descriptor)
                os.close(descriptor)

    def is_open(self, descriptor: int) -> bool:
        """Return whether this process opened the lock file, and not the process that it was forked from."""
        return descriptor in self._open

    def before_fork(self) -> None:
        """Prevent that a lock file is opened or closed during the fork."""
        self._guard.acquire()

    def after_fork(self) -> None:
        """Continue in the process that called `fork`."""
        self._guard.release()

    def after_fork_in_child(self) -> None:
        """Close the lock files of the parent process, which keeps its locks through its own descriptors."""
        self._guard = threading.RLock()
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()


@dataclass(slots=True, eq=False)
class _SharedLock:
    """A shared lock that threads of this process hold, or that is kept for them."""

    path: str
    root: str
    descriptor: int
    holders: int = 0


class _SharedLocks:
    """The shared locks of this process, by the paths of their files, and the names that its threads have locked."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, _SharedLock] = {}
        # The threads of a process lock byte ranges through one descriptor, which does not exclude them.
        self._names: set[tuple[str, int]] = set()
        self._keepers: Counter[str] = Counter()
        # What is to be done when no thread changes the locks: each item ends a lock or a `keep`.
        self._endings = deque[Callable[[], None]]()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other thread change the locks within the block."""
        try:
            with self._guard:
                yield
        finally:
            self._carry_out_endings()

    def share(self, path: str, key: str, root: str, name: str | None = None) -> Release | None:
        """Share the lock of a file as `take_lock` takes it; with a name, hold the lock of that name exclusively.

        The threads of this process hold the shared lock together, through one descriptor.
        """
        place = None if name is None else _place_of(name)
        with self._alone():
            if (path, place) in self._names:
                return None
            lock = self._locks.get(path)
            # Another program may have removed the file, and then a lock on it excludes no process.
            if lock is None or not _is_same_file(lock.descriptor, path):
                descriptor = _lock(path, key, root, "shared")
                if descriptor is None:
                    return None
                lock = self._locks[path] = _SharedLock(path, root, descriptor)
            is_held = False
            try:
                is_held = place is None or _set_range(lock.descriptor, "exclusive", place)
            finally:
                if not is_held:
                    self._end(lock)
            if not is_held:
                return None
            lock.holders += 1
            if place is not None:
                self._names.add((path, place))
        return lambda: self._end_soon(partial(self._give_back, lock, place))

    def _end_soon(self, ending: Callable[[], None]) -> None:
        """End a lock or a `keep` without waiting: if a thread changes the locks, that thread does it afterwards.

        That thread may be this one: the garbage collector can end a task, and so release its lock, at any line.
        """
        self._endings.append(ending)
        self._carry_out_endings()

    def _carry_out_endings(self) -> None:
        while self._endings and self._guard.acquire(blocking=False):
            try:
                while self._endings:
                    self._endings.popleft()()
            finally:
                self._guard.release()

    def _give_back(self, lock: _SharedLock, place: int | None) -> None:
        if not _descriptors.is_open(lock.descriptor):
            # The lock belongs to the process that this one was forked from.
            return
        if place is not None:
            self._names.discard((lock.path, place))
            _set_range(lock.descriptor, "none", place)
        lock.holders -= 1
        self._end(lock)

    def _end(self, lock: _SharedLock) -> None:
        """Release a lock that no thread holds and that is not kept."""
        is_current = self._locks.get(lock.path) is lock
        if lock.holders or (is_current and self._keepers[lock.path]):
            return
        if is_current:
            del self._locks[lock.path]
        _unlock(lock.descriptor, lock.path, lock.root, is_shared=True)

    def let_go(self, path: str) -> None:
        """Release a lock that no thread holds, also if it is kept, because another client waits for it."""
        with self._alone():
            lock = self._locks.get(path)
            if lock is not None and not lock.holders:
                del self._locks[path]
                _unlock(lock.descriptor, path, lock.root, is_shared=True)

    @contextlib.contextmanager
    def keep(self, path: str) -> Iterator[None]:
        """Keep a lock when its last holder releases it, until the end of the block.

        To make and remove the file and its folder for each holder would take longer than to write a small chunk.
        """
        with self._alone():
            self._keepers[path] += 1
        try:
            yield
        finally:
            self._end_soon(partial(self._stop_keeping, path))

    def _stop_keeping(self, path: str) -> None:
        self._keepers[path] -= 1
        # A forked process has forgotten what its parent keeps.
        if self._keepers[path] <= 0:
            del self._keepers[path]
        if (lock := self._locks.get(path)) is not None:
            self._end(lock)

    def after_fork_in_child(self) -> None:
        """Forget the locks of the parent process."""
        self._guard = threading.Lock()
        self._locks.clear()
        self._names.clear()
        self._keepers.clear()
        self._endings.clear()


_descriptors = _Descriptors()
shared_locks = _SharedLocks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_descriptors.before_fork,
        after_in_parent=_descriptors.after_fork,
        after_in_child=_descriptors.after_fork_in_child,
    )
    os.register_at_fork(after_in_child=shared_locks.after_fork_in_child)
