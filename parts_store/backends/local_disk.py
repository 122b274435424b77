"""The backend for a local disk: files, listings, locks, renames, and ETags that never repeat.

Knows nothing about chunks and parts. Every path is built by `LocalBackend._path`, which refuses keys that would leave
the store's folder. Reading follows symbolic links; deleting removes the link itself; links in the folder of the write
protocol are refused.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, override

from parts_store.backends import local_files, local_locks
from parts_store.backends.failures import name_and_key, translated
from parts_store.backends.local_files import NO_SYNC, DiskSync, Sync
from parts_store.backends.object_store import Calls, ObjectBackend, run_calls
from parts_store.engine import steps
from parts_store.engine.backend import LIST_PAGE, BackendRequest
from parts_store.engine.steps import Condition, Outcome
from parts_store.errors import ConcurrentWriteError, LocalPathError
from parts_store.format.keys import PROTOCOL_FOLDER, is_protocol_key
from parts_store.format.layout import Wanted
from parts_store.format.tags import Tag

# The number of files that are removed without giving other tasks a turn.
_MAX_AT_ONCE: Final = 100
# How long a create waits for another create of the same key, on filesystems without hard links.
_CREATE_TRIES, _CREATE_SECONDS = 500, 0.01
# The errors of a filesystem that has no hard links, or does not permit another one.
_NO_HARD_LINKS: Final = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@dataclass(frozen=True, slots=True, repr=False)
class LocalBackend(ObjectBackend):
    """A backend that stores objects in a folder of this machine.

    With `is_durable`, what a request changes is on the disk when it returns, except the names of staged files, and the
    removal of lock files, unfinished files and empty folders, which mean nothing to a reader.
    """

    is_durable: bool = False
    _root: str = field(init=False)
    _sync: Sync = field(init=False, compare=False)

    @override
    def __post_init__(self) -> None:
        super(LocalBackend, self).__post_init__()
        object.__setattr__(self, "_root", os.fspath(self.store.prefix or "/"))
        object.__setattr__(self, "capabilities", replace(self.capabilities, has_locks=local_locks.HAS_LOCKS))
        with translated("open", self._root):
            object.__setattr__(self, "_sync", DiskSync(self._root) if self.is_durable else NO_SYNC)

    @override
    async def perform(self, request: BackendRequest) -> Outcome:
        match request:
            case steps.List(through_links=True):
                return await ObjectBackend.perform(self, request)
            case steps.Head() | steps.Move() | steps.Put(condition=steps.IfAbsent()):
                return self.perform_sync(request)
            case steps.Delete(keys) if len(keys) <= _MAX_AT_ONCE:
                return self.perform_sync(request)
            case steps.Get(key, wanted) if local_files.is_path(key):
                if (outcome := self._get_at_once(request, key, wanted)) is not None:
                    return outcome
        # Short requests under a lock run on this thread: in a thread, a cancelled request would continue without the
        # lock. The other requests may take long.
        return await asyncio.to_thread(self.perform_sync, request)

    def _get_at_once(self, request: steps.Get, key: str, wanted: Wanted) -> Outcome | None:
        """Read a file that takes less time than to hand the request to another thread; None if it may take longer."""
        try:
            outcome = local_files.read_at_once(self._root, key, wanted)
            return None if outcome is None else self._answered(request, outcome)
        except BaseException as error:
            self._raise_translated(request, error)

    @override
    def perform_sync(self, request: BackendRequest) -> Outcome:
        try:
            return self._perform_on_files(request)
        except BaseException as error:
            self._raise_translated(request, error)

    def _perform_on_files(self, request: BackendRequest) -> Outcome:
        """Carry out a request without obstore, where that is possible."""
        match request:
            case steps.Get(key, wanted) if local_files.is_path(key):
                return self._answered(request, local_files.read(f"{self._root}/{key}", key, wanted))
            case steps.Head(key) if local_files.is_path(key):
                return self._answered(request, local_files.look(f"{self._root}/{key}", key))
            case steps.Put(key, data, None, None) if local_files.is_path(key):
                local_files.write(f"{self._root}/{key}", key, data, sync=self._sync)
                return steps.Done()
            case steps.Put(tag=Tag()) | steps.Put(condition=steps.IfAbsent()):
                return self._put(request)
            case steps.Put() if self.is_durable:
                # obstore does not synchronise what it writes.
                return self._put(request)
            case steps.Move():
                return self._move(request)
            case steps.Delete(keys):
                return self._delete_files(keys)
            case _:
                return run_calls(self.calls(request))

    @override
    def calls(self, request: BackendRequest) -> Calls[Outcome]:
        match request:
            case steps.List(folder, through_links=False):
                return steps.Listed(tuple(self._walk(folder)))
        try:
            outcome = yield from ObjectBackend.calls(self, request)
        except Exception as error:
            return self._put_again(request, error)
        return self._answered(request, outcome)

    def _path(self, key: str) -> str:
        """Return the path of a key; raise if it is not below the store's folder, or in a linked protocol folder."""
        if not local_files.is_path(key):
            _require_inside(key)
        if is_protocol_key(key):
            # Files of the write protocol are moved, overwritten and removed, so they must not be outside the store.
            segments = key.split("/")
            for count in range(segments.index(PROTOCOL_FOLDER) + 1, len(segments)):
                self._require_no_link("/".join(segments[:count]), key)
        return f"{self._root}/{key}"

    def _require_no_link(self, folder: str, key: str) -> None:
        if os.path.islink(path := f"{self._root}/{folder}"):
            raise LocalPathError(key, f"{path} is a symbolic link: remove it")

    def _answered(self, request: BackendRequest, outcome: Outcome) -> Outcome:
        """Return the outcome; raise for a lost response, and for a link without a target, which is not absence."""
        if isinstance(outcome, steps.Lost):
            raise outcome.error
        if isinstance(outcome, steps.Missing) and isinstance(request, steps.Get | steps.Head):
            self._require_absent(request.key)
        return outcome

    def _require_absent(self, key: str) -> None:
        """Raise if a key is missing because a symbolic link at or above it has no target."""
        at = key
        while at:
            path = f"{self._root}/{at}"
            try:
                mode = os.lstat(path).st_mode
            except local_files.NOT_THERE:
                at = at.rpartition("/")[0]
                continue
            if stat.S_ISLNK(mode) and not os.path.exists(path):
                raise LocalPathError(
                    key, f"{path} is a symbolic link without a target: restore the target, or remove the link"
                )
            return

    def _put_again(self, request: BackendRequest, error: Exception) -> Outcome:
        """Write an object again if obstore failed because a folder was removed; raise any other error."""
        if isinstance(request, steps.Put) and (isinstance(error, FileNotFoundError) or "os error 2)" in str(error)):
            return self._put(request)
        raise error

    @property
    @override
    def file_stamp(self) -> Callable[[str], tuple[int, ...] | None]:
        return self.stamp

    def stamp(self, key: str) -> tuple[int, ...] | None:
        """Return what identifies the file at a key, so that a replacement is noticed; None if there is no file."""
        try:
            found = os.stat(f"{self._root}/{key}" if local_files.is_path(key) else self._path(key))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def _put(self, put: steps.Put) -> Outcome:
        """Write a file without obstore, whose unfinished files are in no listing and would never be removed."""
        path = self._path(put.key)
        folder, name = os.path.split(path)
        is_hidden = is_protocol_key(put.key)
        if is_hidden and put.condition is None and self._is_created(path, put):
            return steps.Done()
        if not is_hidden:
            # Listings do not show this folder.
            folder = os.path.join(folder, PROTOCOL_FOLDER)
            self._require_no_link(os.path.relpath(folder, self._root), put.key)
        unfinished = os.path.join(folder, f"{name}.{secrets.token_hex(8)}")
        for _ in range(local_files.MAX_TRIES):
            try:
                # An ETag consists of inode, time and size. Inodes are used again, and the kernel's clock has steps of
                # milliseconds. A time in nanoseconds makes the ETag unique.
                local_files.write_new(unfinished, put.key, put.data, has_own_time=put.tag is not None, sync=self._sync)
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
        raise local_files.removed_meanwhile(put.key)

    def _is_created(self, path: str, put: steps.Put) -> bool:
        """Write a new file of the write protocol under its own name; return False if the file exists.

        Staged files need no other name until they are finished: no client reads them before their writer has said so.
        Their names are synchronised by the journal that refers to them, or when they are moved.
        """
        try:
            local_files.write_new(path, put.key, put.data, has_own_time=put.tag is not None, sync=self._sync)
        except FileExistsError:
            return False
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            raise
        return True

    def _put_in_place(self, unfinished: str, path: str, key: str, condition: Condition | None) -> Outcome:
        if condition is None:
            os.replace(unfinished, path)
            self._sync.folder(os.path.dirname(path))
            return steps.Done()
        if not isinstance(condition, steps.IfAbsent):
            raise TypeError(f"a local disk supports only the condition that the file is absent: {condition}")
        if is_protocol_key(key):
            # A journal must not be on the disk before the staged files that it names.
            self._sync.folder(os.path.dirname(path))
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return steps.Refused()
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return self._create_by_rename(unfinished, path, key)
        self._sync.folder(os.path.dirname(path))
        return steps.Done()

    def _create_by_rename(self, unfinished: str, path: str, key: str) -> Outcome:
        """Create a file without hard links: check and rename under a lock that every creator takes."""
        lock = os.path.join(os.path.dirname(unfinished), f"{os.path.basename(path)}.lock")
        for _ in range(_CREATE_TRIES):
            release = local_locks.take_lock(lock, key, self._root) if local_locks.HAS_LOCKS else lambda: None
            if release is not None:
                try:
                    if os.path.lexists(path):
                        return steps.Refused()
                    os.replace(unfinished, path)
                    self._sync.folder(os.path.dirname(path))
                    return steps.Done()
                finally:
                    release()
            time.sleep(_CREATE_SECONDS)
        raise ConcurrentWriteError(key, "other processes keep creating it")

    def _move(self, request: steps.Move) -> Outcome:
        source, target = self._path(request.source), self._path(request.target)
        for _ in range(local_files.MAX_TRIES):
            try:
                os.replace(source, target)
            except local_files.NOT_THERE:
                if not os.path.exists(source):
                    return steps.Missing()
                # Another process may remove the folder with the last object in it.
                local_files.make_folder(os.path.dirname(target), request.target)
            else:
                self._sync.folder(os.path.dirname(target))
                return steps.Done()
        raise local_files.removed_meanwhile(request.target)

    def _delete_files(self, keys: Sequence[str]) -> Outcome:
        """Remove files in their order, folder by folder, and the folders that are empty then."""
        for _, of_folder in groupby(keys, key=lambda key: key.rpartition("/")[0]):
            for folder in {self._delete_file(key) for key in of_folder}:
                self._sync.folder(folder)
                local_files.remove_empty(folder, self._root)
        return steps.Done()

    def _delete_file(self, key: str) -> str:
        """Remove a file or a link, never the target of a link; return the folder, which may be empty now."""
        path = self._path(key)
        try:
            os.unlink(path)
        except PermissionError:
            # The error of systems other than Linux for a folder.
            if not os.path.isdir(path):
                raise
        except (*local_files.NOT_THERE, IsADirectoryError):
            pass
        return os.path.dirname(path)

    def _walk(self, folder: str) -> Iterator[steps.Entry]:
        """Yield all files below a folder, and links themselves, without following them."""
        if folder and os.path.islink(path := self._path(folder)):
            yield _entry(folder, path, os.lstat(path))
            return
        folders = [folder]
        while folders:
            at = folders.pop()
            with contextlib.suppress(*local_files.NOT_THERE), os.scandir(self._path(at) if at else self._root) as found:
                for each in found:
                    key = f"{at}/{each.name}" if at else each.name
                    if each.is_dir(follow_symlinks=False):
                        folders.append(key)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        yield _entry(key, each.path, each.stat(follow_symlinks=False))

    @override
    async def list_keys(self, folder: str, *, page: int = LIST_PAGE) -> AsyncIterator[Sequence[str]]:
        pages = local_files.list_files(self._root, folder, page)
        listed: list[list[str]] = []
        try:
            while (keys := await asyncio.to_thread(next, pages, None)) is not None:
                listed.append(keys)
                yield keys
        except local_files.LeftToObstoreError:
            known = {key for keys in listed for key in keys}
            async for more in ObjectBackend.list_keys(self, folder, page=page):
                yield [key for key in more if key not in known]

    @override
    async def list_folder(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        try:
            return await asyncio.to_thread(local_files.list_folder, self._root, prefix)
        except local_files.LeftToObstoreError:
            return await ObjectBackend.list_folder(self, prefix)

    @override
    def lock(self, lock: steps.Lock) -> Callable[[], None] | None:
        with translated(*name_and_key(lock), lambda: self.secrets):
            return self._take(lock.key) if lock.shared is None else self._take_both(lock.key, lock.shared)

    def _take(self, key: str) -> Callable[[], None] | None:
        return local_locks.take_lock(self._path(key), key, self._root)

    def _take_both(self, key: str, shared: str) -> Callable[[], None] | None:
        """Take a lock, and share another one that no process holds or waits for exclusively."""
        path = self._path(shared)
        gate = steps.gate_of(path)
        if os.path.lexists(gate):
            # A writer that waits for exclusive use of the shared lock goes first. If it died, this removes its file.
            local_locks.shared_locks.let_go(path)
            passed = local_locks.take_lock(gate, steps.gate_of(shared), self._root)
            if passed is None:
                return None
            passed()
        if local_locks.has_names():
            # The end of the key: the folder of another store may lie above this one, and its keys are longer.
            return local_locks.shared_locks.share(path, shared, self._root, key.rpartition("/")[2])
        with contextlib.ExitStack() as held:
            for take, each in ((local_locks.shared_locks.share, shared), (local_locks.take_lock, key)):
                release = take(self._path(each), each, self._root)
                if release is None:
                    return None
                held.callback(release)
            both = held.pop_all()
        # The lock that was taken last is released first.
        return both.close

    @override
    def keep_lock(self, key: str, /) -> contextlib.AbstractContextManager[None]:
        return local_locks.shared_locks.keep(self._path(key))


def _require_inside(key: str) -> None:
    """Raise `LocalPathError` if a key may lead out of the store's folder."""
    is_unsafe = "\0" in key or any(each in ("", ".", "..") for each in key.split("/"))
    if is_unsafe or (os.sep != "/" and os.sep in key):
        raise LocalPathError(key, "expected a key below the store's folder, found one that may lead out of it")


def _entry(key: str, path: str, found: os.stat_result) -> steps.Entry:
    unreadable = None
    if stat.S_ISLNK(found.st_mode) and not os.path.exists(path):
        unreadable = "a symbolic link without a target: restore the target, or remove the link"
    elif not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        unreadable = "no permission to read the file: restore the permission"
    return steps.Entry(key, found.st_size, None, datetime.fromtimestamp(found.st_mtime, UTC), unreadable)
