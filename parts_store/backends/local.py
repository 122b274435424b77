"""Objects on a local disk: obstore's, and beyond it locks, renames, and ETags that do not come back.

Knows nothing of chunks or parts.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, override

from parts_store.backends import BackendRequest
from parts_store.backends.objects import ObjectBackend
from parts_store.plan.steps import Condition, Delete, Done, IfAbsent, Lock, Lost, Missing, Move, Outcome, Put, Refused
from parts_store.plan.tags import Tag

try:
    import fcntl
except ImportError:  # no such locks on Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True


# So many files are removed without giving way to others.
_MAX_AT_ONCE = 100


@dataclass(frozen=True, slots=True, repr=False)
class LocalBackend(ObjectBackend):
    """A folder of this machine."""

    @override
    async def perform(self, request: BackendRequest) -> Outcome:
        # What a lock protects is done at once: cancelled, it would go on by itself when the lock is somebody else's.
        match request:
            case Move() | Put(condition=IfAbsent()):
                return self.perform_sync(request)
            case Delete(keys) if len(keys) <= _MAX_AT_ONCE:
                return self.perform_sync(request)
            case Put(tag=Tag()):
                return await asyncio.to_thread(self._put, request)
        return _answered(await super(LocalBackend, self).perform(request))

    @override
    def perform_sync(self, request: BackendRequest) -> Outcome:
        match request:
            case Move():
                return self._move(request)
            case Put(tag=Tag()):
                return self._put(request)
        return _answered(super(LocalBackend, self).perform_sync(request))

    def _path(self, key: str) -> Path:
        return Path(self.store.prefix or "/", key)

    def _put(self, put: Put) -> Outcome:
        """Write a file, at once: not by obstore, whose unfinished files are in no listing, and would stay for ever."""
        path = self._path(put.key)
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with _open_new(unfinished) as file:
                file.write(put.data)
            # An ETag is made of inode, time and size. Inodes come back, and the kernel's clock moves every few
            # milliseconds: a file that a tag was meant for is like no other.
            now = time.time_ns()
            os.utime(unfinished, ns=(now, now))
            return _put_in_place(unfinished, path, put.condition)
        finally:
            unfinished.unlink(missing_ok=True)

    def _move(self, request: Move) -> Outcome:
        target = self._path(request.target)
        while True:
            try:
                self._path(request.source).replace(target)
            except FileNotFoundError:
                if not self._path(request.source).exists():
                    return Missing()
                # Its folder may go at any time, with the last object in it.
                _make_folder(target.parent)
            else:
                return Done()

    @override
    def lock(self, lock: Lock) -> Callable[[], None] | None:
        path = self._path(lock.key)
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                _make_folder(path.parent)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            # Who held it may have removed it before we had it.
            if _is_same_file(descriptor, path):
                return lambda: _unlock(descriptor, path)
            os.close(descriptor)


def _answered(outcome: Outcome) -> Outcome:
    """The outcome of a request: a kernel always answers."""
    if isinstance(outcome, Lost):
        raise outcome.error
    return outcome


def _open_new(path: Path) -> BinaryIO:
    """A new file, in a folder that may go at any time, with the last object in it."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return path.open("xb")
        _make_folder(path.parent)


def _put_in_place(unfinished: Path, path: Path, condition: Condition | None) -> Outcome:
    if condition is None:
        unfinished.replace(path)
        return Done()
    if not isinstance(condition, IfAbsent):
        raise TypeError(f"a local disk knows no other condition than absence: {condition}")
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        return Refused()
    return Done()


def _make_folder(folder: Path) -> None:
    # Others may make it and remove it at the same time: then it is said to exist, and does not.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, exist_ok=True)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _unlock(descriptor: int, path: Path) -> None:
    """Give the lock back, and leave no file and no empty folder."""
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    for folder in (path.with_suffix(""), path.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()
