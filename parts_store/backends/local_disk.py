"""Objects on a local disk: obstore's, and beyond it locks, renames, and ETags that do not come back.

Knows nothing of chunks or parts. Every path is built by `LocalBackend._path`, which refuses keys that would leave the
store's folder. Reading follows symbolic links; deleting removes the link itself; nothing below the folder of the write
protocol may be a link.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import BinaryIO, override

from parts_store.backends.failures import translating, translating_async
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import (
    Condition,
    Delete,
    Done,
    Entry,
    Get,
    Head,
    IfAbsent,
    List,
    Listed,
    Lock,
    Lost,
    Missing,
    Move,
    Outcome,
    Put,
    Refused,
    gate_of,
)
from parts_store.errors import ConcurrentWriteError, LocalPathError, StoreConfigError
from parts_store.format.keys import PROTOCOL_FOLDER
from parts_store.format.tags import Tag

try:
    import fcntl
except ImportError:  # no such locks on Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True


# So many files are removed without giving way to others.
_MAX_AT_ONCE = 100
# How often something is tried again because another process removed a folder or a lock file at that moment.
_MAX_TRIES = 1000
# How long a create waits for another one of the same key, where there are no hard links.
_CREATE_TRIES, _CREATE_SECONDS = 500, 0.01
# What a filesystem answers that has no hard links, or does not permit another one.
_NO_HARD_LINKS = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
# What a filesystem answers that has no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
_NOT_THERE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True, repr=False)
class LocalBackend(ObjectBackend):
    """A folder of this machine."""

    _root: str = field(init=False)

    @override
    def __post_init__(self) -> None:
        super(LocalBackend, self).__post_init__()
        object.__setattr__(self, "_root", os.fspath(self.store.prefix or "/"))

    @override
    @translating_async
    async def perform(self, request: BackendRequest) -> Outcome:
        # What a lock protects is done at once: cancelled, it would go on by itself when the lock is somebody else's.
        match request:
            case Move() | Put(condition=IfAbsent()):
                return self.perform_sync(request)
            case Delete(keys) if len(keys) <= _MAX_AT_ONCE:
                return self.perform_sync(request)
            case Put(tag=Tag()) | Delete() | List(through_links=False):
                return await asyncio.to_thread(self.perform_sync, request)
        try:
            outcome = await self._perform(request)
        except Exception as error:
            return self._put_again(request, error)
        return self._answered(request, outcome)

    @override
    @translating
    def perform_sync(self, request: BackendRequest) -> Outcome:
        match request:
            case Move():
                return self._move(request)
            case Put(tag=Tag()) | Put(condition=IfAbsent()):
                return self._put(request)
            case Delete(keys):
                for folder in {self._delete_file(key) for key in keys}:
                    _remove_empty(folder, self._root)
                return Done()
            case List(folder, through_links=False):
                return Listed(tuple(self._walk(folder)))
        try:
            outcome = self._perform_sync(request)
        except Exception as error:
            return self._put_again(request, error)
        return self._answered(request, outcome)

    def _path(self, key: str) -> str:
        """Return the path of a key; raise if it is not below the store's folder, or a link is where none may be."""
        segments = key.split("/")
        if "\0" in key or any(each in ("", ".", "..") for each in segments) or (os.sep != "/" and os.sep in key):
            raise LocalPathError(key, "expected a key below the store's folder, found one that may lead out of it")
        if PROTOCOL_FOLDER in segments:
            # What is here is moved, overwritten and removed: never elsewhere, wherever a link may lead.
            for count in range(segments.index(PROTOCOL_FOLDER) + 1, len(segments)):
                self._require_no_link("/".join(segments[:count]), key)
        return os.path.join(self._root, key)

    def _require_no_link(self, folder: str, key: str) -> None:
        if os.path.islink(path := os.path.join(self._root, folder)):
            raise LocalPathError(key, f"{path} is a symbolic link: remove it")

    def _answered(self, request: BackendRequest, outcome: Outcome) -> Outcome:
        """Return the outcome of a request: a kernel always answers, and a link without a target is no absence."""
        if isinstance(outcome, Lost):
            raise outcome.error
        if isinstance(outcome, Missing) and isinstance(request, Get | Head):
            self._require_absent(request.key)
        return outcome

    def _require_absent(self, key: str) -> None:
        """Raise if a key is missing because a symbolic link at or above it has no target."""
        path = os.path.join(self._root, key)
        while len(path) > len(self._root):
            try:
                mode = os.lstat(path).st_mode
            except _NOT_THERE:
                path = os.path.dirname(path)
                continue
            if stat.S_ISLNK(mode) and not os.path.exists(path):
                raise LocalPathError(key, f"{path} is a symbolic link without a target")
            return

    # --- objects --------------------------------------------------------------------------------------------------

    def _put_again(self, request: BackendRequest, error: Exception) -> Outcome:
        """Write what obstore could not because a folder was removed meanwhile; raise the error if it is another one."""
        if isinstance(request, Put) and (isinstance(error, FileNotFoundError) or "os error 2)" in str(error)):
            return self._put(request)
        raise error

    def stamp(self, key: str) -> tuple[int, ...] | None:
        """Return what tells the file at a key from another one that takes its place; None if there is no file."""
        try:
            found = os.stat(self._path(key))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _put(self, put: Put) -> Outcome:
        """Write a file, at once: not by obstore, whose unfinished files are in no listing, and would stay for ever."""
        path = self._path(put.key)
        folder, name = os.path.split(path)
        is_hidden = PROTOCOL_FOLDER in put.key.split("/")
        if not is_hidden:
            # Where listings do not show it.
            folder = os.path.join(folder, PROTOCOL_FOLDER)
            self._require_no_link(os.path.relpath(folder, self._root), put.key)
        unfinished = os.path.join(folder, f"{name}.{secrets.token_hex(8)}")
        for _ in range(_MAX_TRIES):
            try:
                with _open_new(unfinished, put.key) as file:
                    file.write(put.data)
                if put.tag is not None:
                    # An ETag is made of inode, time and size. Inodes come back, and the kernel's clock moves every few
                    # milliseconds: a file that a tag was meant for is like no other.
                    now = time.time_ns()
                    os.utime(unfinished, ns=(now, now))
                return self._put_in_place(unfinished, path, put.key, put.condition)
            except FileNotFoundError:
                # Another process removed the file or its folder.
                continue
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unfinished)
                if not is_hidden:
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)
        raise _removed_meanwhile(put.key)

    def _put_in_place(self, unfinished: str, path: str, key: str, condition: Condition | None) -> Outcome:
        if condition is None:
            os.replace(unfinished, path)
            return Done()
        if not isinstance(condition, IfAbsent):
            raise TypeError(f"a local disk knows no other condition than absence: {condition}")
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return Refused()
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return self._create_by_rename(unfinished, path, key)
        return Done()

    def _create_by_rename(self, unfinished: str, path: str, key: str) -> Outcome:
        """Create a file where there are no hard links: look and rename, under a lock that all who create it take."""
        lock = os.path.join(os.path.dirname(unfinished), f"{os.path.basename(path)}.lock")
        for _ in range(_CREATE_TRIES):
            release = self._take(lock, key, is_shared=False) if HAS_LOCKS else lambda: None
            if release is not None:
                try:
                    if os.path.lexists(path):
                        return Refused()
                    os.replace(unfinished, path)
                    return Done()
                finally:
                    release()
            time.sleep(_CREATE_SECONDS)
        raise ConcurrentWriteError(key, "another process creates it all the time")

    def _move(self, request: Move) -> Outcome:
        source, target = self._path(request.source), self._path(request.target)
        for _ in range(_MAX_TRIES):
            try:
                os.replace(source, target)
            except _NOT_THERE:
                if not os.path.exists(source):
                    return Missing()
                # Its folder may go at any time, with the last object in it.
                _make_folder(os.path.dirname(target), request.target)
            else:
                return Done()
        raise _removed_meanwhile(request.target)

    def _delete_file(self, key: str) -> str:
        """Remove a file, or a link whatever it leads to; return the folder, which may be empty then."""
        path = self._path(key)
        try:
            os.unlink(path)
        except PermissionError:
            # What other systems than Linux say of a folder.
            if not os.path.isdir(path):
                raise
        except (*_NOT_THERE, IsADirectoryError):
            pass
        return os.path.dirname(path)

    def _walk(self, folder: str) -> Iterator[Entry]:
        """List all files below a folder, and links as themselves: what is behind one is not in this folder."""
        if folder and os.path.islink(path := self._path(folder)):
            yield _entry(folder, os.lstat(path))
            return
        folders = [folder]
        while folders:
            at = folders.pop()
            with contextlib.suppress(*_NOT_THERE), os.scandir(self._path(at) if at else self._root) as found:
                for each in found:
                    key = f"{at}/{each.name}" if at else each.name
                    if each.is_dir(follow_symlinks=False):
                        folders.append(key)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        yield _entry(key, each.stat(follow_symlinks=False))

    # --- locks ----------------------------------------------------------------------------------------------------

    @override
    @translating
    def lock(self, lock: Lock) -> Callable[[], None] | None:
        if lock.shared is None:
            return self._take(self._path(lock.key), lock.key, is_shared=False)
        gate = self._path(gate_of(lock.shared))
        if os.path.lexists(gate):
            # Whoever wants the shared lock alone goes first. If its holder died, the file goes here.
            passed = self._take(gate, lock.shared, is_shared=False)
            if passed is None:
                return None
            passed()
        release_shared = self._take(self._path(lock.shared), lock.shared, is_shared=True)
        if release_shared is None:
            return None
        release: Callable[[], None] | None = None
        try:
            release = self._take(self._path(lock.key), lock.key, is_shared=False)
        finally:
            if release is None:
                release_shared()
        if release is None:
            return None
        own = release

        def release_both() -> None:
            try:
                own()
            finally:
                release_shared()

        return release_both

    def _take(self, path: str, key: str, *, is_shared: bool) -> Callable[[], None] | None:
        """Take the lock of a file without waiting; return what gives it back, None if it is held."""
        for _ in range(_MAX_TRIES):
            try:
                descriptor = _descriptors.open(path)
            except FileNotFoundError:
                _make_folder(os.path.dirname(path), key)
                continue
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                    raise LocalPathError(key, f"{path} is no file that can be locked: remove what is there") from error
                raise
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                _descriptors.close(descriptor)
                return None
            except OSError as error:
                _descriptors.close(descriptor)
                if error.errno in _NO_LOCKS:
                    expected = f"'exclusive', since the filesystem of {self._root} has no locks"
                    raise StoreConfigError("concurrency", expected, str(error)) from error
                raise
            except BaseException:
                _descriptors.close(descriptor)
                raise
            # Who held it may have removed it before we had it.
            if _is_same_file(descriptor, path):
                return lambda: _unlock(descriptor, path, self._root, is_shared=is_shared)
            _descriptors.close(descriptor)
        raise _removed_meanwhile(key)


class _Descriptors:
    """The open lock files of this process.

    A lock lasts as long as any process has the descriptor open: a forked process closes those that it inherits.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        # Held during a fork: nothing is open then that is not in the set.
        self._guard = threading.RLock()

    def open(self, path: str) -> int:
        """Open a lock file, which is made if there is none; never through a link."""
        with self._guard:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            self._open.add(descriptor)
            return descriptor

    def close(self, descriptor: int) -> None:
        """Close a lock file, by which its lock is given back."""
        with self._guard:
            if descriptor in self._open:
                self._open.remove(descriptor)
                os.close(descriptor)

    def is_open(self, descriptor: int) -> bool:
        """Whether this process opened the lock file, and not the one that it is a fork of."""
        return descriptor in self._open

    def before_fork(self) -> None:
        """Let no lock file be opened or closed during the fork."""
        self._guard.acquire()

    def after_fork(self) -> None:
        """Go on in the process that was forked."""
        self._guard.release()

    def after_fork_in_child(self) -> None:
        """Close the lock files of the other process, which keeps its locks by its own descriptors."""
        self._guard = threading.RLock()
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()


_descriptors = _Descriptors()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_descriptors.before_fork,
        after_in_parent=_descriptors.after_fork,
        after_in_child=_descriptors.after_fork_in_child,
    )


def _unlock(descriptor: int, path: str, root: str, *, is_shared: bool) -> None:
    """Give a lock back, and leave no file and no empty folder if nobody else has it."""
    if not _descriptors.is_open(descriptor):
        return
    try:
        # A file is removed by whoever has the lock on it alone, and only if the path still leads to that file.
        if (not is_shared or _is_taken_alone(descriptor)) and _is_same_file(descriptor, path):
            os.unlink(path)
    finally:
        _descriptors.close(descriptor)
    with contextlib.suppress(OSError):
        os.rmdir(path.removesuffix(".lock"))
    _remove_empty(os.path.dirname(path), root)


def _is_taken_alone(descriptor: int) -> bool:
    """Whether a shared lock could be turned into one that nobody else has; it is lost if not."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except _NOT_THERE:
        return False


def _entry(key: str, found: os.stat_result) -> Entry:
    return Entry(key, found.st_size, None, datetime.fromtimestamp(found.st_mtime, UTC))


def _removed_meanwhile(key: str) -> ConcurrentWriteError:
    return ConcurrentWriteError(key, "another process keeps removing the folder that it belongs in")


def _open_new(path: str, key: str) -> BinaryIO:
    """Open a new file, in a folder that may go at any time, with the last object in it."""
    for _ in range(_MAX_TRIES):
        try:
            return open(path, "xb")
        except _NOT_THERE:
            _make_folder(os.path.dirname(path), key)
    raise _removed_meanwhile(key)


def _make_folder(folder: str, key: str) -> None:
    """Make a folder for a key, unless it is removed again at once; raise if something else is in its place."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, *_NOT_THERE) as error:
        # Others may make it and remove it at the same time: then it is said to exist, and does not.
        if (obstacle := _obstacle(folder)) is not None:
            raise LocalPathError(key, f"{obstacle} is no folder, nor a link to one") from error


def _obstacle(folder: str) -> str | None:
    """Return what is in the way of a folder: a file, or a link that leads to no folder."""
    while True:
        try:
            mode = os.lstat(folder).st_mode
        except _NOT_THERE:
            folder = os.path.dirname(folder)
            continue
        return None if stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and os.path.isdir(folder)) else folder


def _remove_empty(folder: str, root: str) -> None:
    """Remove a folder and those above it, below the root, as far as they are empty."""
    with contextlib.suppress(OSError):
        while len(folder) > len(root):
            os.rmdir(folder)
            folder = os.path.dirname(folder)
