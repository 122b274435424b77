"""Files of a local disk that other processes may remove at any time: folders, and locks, shared or exclusive."""

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Buffer, Callable
from dataclasses import dataclass
from typing import Final

from parts_store.errors import ConcurrentWriteError, LocalPathError, StoreConfigError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

# The errors of a filesystem without locks.
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_HAS_TIME_OF_DESCRIPTOR: Final = os.utime in os.supports_fd
# How often something is tried again because another process removed a folder or a lock file at that moment.
MAX_TRIES: Final = 1000


def removed_meanwhile(key: str) -> ConcurrentWriteError:
    """Return the error for a folder that another process keeps removing."""
    return ConcurrentWriteError(key, "another process keeps removing the folder that it belongs in")


def write_new(path: str, key: str, data: Buffer, *, has_own_time: bool = False) -> None:
    """Write a new file, and make its folder as often as another process removes it.

    With `has_own_time`, the time of the file is the time of this call in nanoseconds, and not that of the kernel's
    clock, which has steps of milliseconds.
    """
    descriptor = _create(path, key)
    try:
        view = memoryview(data).cast("B")
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
        if has_own_time:
            now = time.time_ns()
            os.utime(descriptor if _HAS_TIME_OF_DESCRIPTOR else path, ns=(now, now))
    finally:
        os.close(descriptor)


def _create(path: str, key: str) -> int:
    for _ in range(MAX_TRIES):
        try:
            return os.open(path, _NEW, 0o666)
        except NOT_THERE:
            make_folder(os.path.dirname(path), key)
    raise removed_meanwhile(key)


def make_folder(folder: str, key: str) -> None:
    """Make the folder of a key; raise `LocalPathError` if a file is in its place."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, *NOT_THERE) as error:
        # If another process makes and removes the folder at the same time, the error says that it exists.
        if (obstacle := _obstacle(folder)) is not None:
            raise LocalPathError(
                key, f"expected a folder at {obstacle}, found a file or a symbolic link without a folder"
            ) from error


def _obstacle(folder: str) -> str | None:
    """Return the path of a file, or of a link without a folder, that prevents a folder; None if there is none."""
    while True:
        try:
            mode = os.lstat(folder).st_mode
        except NOT_THERE:
            folder = os.path.dirname(folder)
            continue
        return None if stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and os.path.isdir(folder)) else folder


def remove_empty(folder: str, root: str) -> None:
    """Remove a folder and the folders above it, up to the root, as long as they are empty."""
    with contextlib.suppress(OSError):
        while len(folder) > len(root):
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def take_lock(path: str, key: str, root: str) -> Callable[[], None] | None:
    """Take the lock of a file without waiting; return the function that releases it, None if the lock is held."""
    descriptor = _lock(path, key, root, fcntl.LOCK_EX)
    return None if descriptor is None else lambda: _unlock(descriptor, path, root, is_shared=False)


def share_lock(path: str, key: str, root: str) -> Callable[[], None] | None:
    """Share the lock of a file as `take_lock` takes it.

    The threads of this process hold it together: to make and remove the file and its folder for each of them would
    take longer than to write a small chunk.
    """
    return _shared_locks.share(path, key, root)


def _lock(path: str, key: str, root: str, kind: int) -> int | None:
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
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BaseException as error:
            _descriptors.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                expected = f"'exclusive', since the filesystem of {root} has no locks"
                raise StoreConfigError("concurrency", expected, str(error)) from error
            raise
        # The holder before may have removed the file before this process had the lock.
        if _is_same_file(descriptor, path):
            return descriptor
        _descriptors.close(descriptor)
    raise removed_meanwhile(key)


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


@dataclass(slots=True)
class _SharedLock:
    """A shared lock that some threads of this process hold."""

    descriptor: int
    holders: int = 0


class _SharedLocks:
    """The shared locks of this process, by the paths of their files."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, _SharedLock] = {}

    def share(self, path: str, key: str, root: str) -> Callable[[], None] | None:
        """Share a lock that other threads hold, or take it; return the function that releases it."""
        with self._guard:
            lock = self._locks.get(path)
            # Another program may have removed the file, and then a lock on it excludes no process.
            if lock is None or not _is_same_file(lock.descriptor, path):
                descriptor = _lock(path, key, root, fcntl.LOCK_SH)
                if descriptor is None:
                    return None
                lock = self._locks[path] = _SharedLock(descriptor)
            lock.holders += 1
        return lambda: self._release(lock, path, root)

    def _release(self, lock: _SharedLock, path: str, root: str) -> None:
        with self._guard:
            lock.holders -= 1
            if lock.holders:
                return
            if self._locks.get(path) is lock:
                del self._locks[path]
            _unlock(lock.descriptor, path, root, is_shared=True)

    def after_fork_in_child(self) -> None:
        """Forget the locks of the parent process."""
        self._guard = threading.Lock()
        self._locks.clear()


_descriptors = _Descriptors()
_shared_locks = _SharedLocks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_descriptors.before_fork,
        after_in_parent=_descriptors.after_fork,
        after_in_child=_descriptors.after_fork_in_child,
    )
    os.register_at_fork(after_in_child=_shared_locks.after_fork_in_child)


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
    with contextlib.suppress(OSError):
        os.rmdir(path.removesuffix(".lock"))
    remove_empty(os.path.dirname(path), root)


def _is_made_exclusive(descriptor: int) -> bool:
    """Return whether a shared lock could be made exclusive; if not, the lock is lost."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except NOT_THERE:
        return False
