"""Synchronise files and folders of a local disk, so that a power failure does not undo what a request has done.

A file is synchronised before it gets its name, or before another file refers to it. A new name, and a removed one, is
an entry of a folder, which is synchronised after the change. The folders above it are synchronised, too, unless this
process has done so since the folder was made: another process may have made the folder a moment ago.
"""

import contextlib
import errno
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, override

from parts_store.errors import StoreConfigError, describe

try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC: int | None = None
else:
    # On macOS, `fsync` leaves the data in the cache of the drive.
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)

# Windows cannot open a folder to synchronise it.
_CAN_SYNC_FOLDERS: Final = sys.platform != "win32"
_NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)
# The errors of a filesystem that cannot synchronise folders, or has no F_FULLFSYNC.
_NOT_SUPPORTED: Final = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EBADF}
# How many folders are remembered, each with an open descriptor.
_MAX_KNOWN: Final = 64


class Sync:
    """Do nothing: the operating system writes files and folders to the disk when it likes, in any order."""

    def file(self, descriptor: int) -> None:
        """Return when the content of an open file is on the disk."""

    def folder(self, folder: str) -> None:
        """Return when the entries of a folder are on the disk, and all entries that lead to the folder."""


NO_SYNC: Final = Sync()


class DiskSync(Sync):
    """Wait until files and folders below a folder are on the disk.

    An error means that it is not known what is on the disk. It is raised, and the call is not repeated: the operating
    system may have forgotten what it could not write, and a second call would seem to succeed.
    """

    def __init__(self, root: str) -> None:
        """Synchronise the entries that lead to the root; raise `StoreConfigError` if the filesystem cannot do that."""
        if not _CAN_SYNC_FOLDERS:
            raise StoreConfigError("durable", "False, since this system cannot synchronise folders", describe(True))
        self._root = root
        try:
            self.folder(root)
            _sync_above(root)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            expected = f"False, since the filesystem of {root} cannot synchronise folders"
            raise StoreConfigError("durable", expected, describe(True)) from error

    @override
    def file(self, descriptor: int) -> None:
        sync_descriptor(descriptor)

    @override
    def folder(self, folder: str) -> None:
        with contextlib.ExitStack() as opened:
            synced: dict[str, int] = {}
            for at in _upwards(folder, self._root):
                try:
                    descriptor = opened.enter_context(_opened(at))
                except _NOT_THERE:
                    # Another process has removed the folder, which was an entry of the folder above it.
                    if at == self._root:
                        raise
                    continue
                sync_descriptor(descriptor)
                if _known_folders.has(at, descriptor):
                    break
                synced[at] = descriptor
            # Only now: another thread does not synchronise what is above a known folder.
            _known_folders.add(synced)


def _upwards(folder: str, root: str) -> Iterator[str]:
    """Yield the paths of a folder and of the folders above it, up to the root."""
    while len(folder) > len(root):
        yield folder
        folder = os.path.dirname(folder)
    yield root


class _KnownFolders:
    """The folders that were synchronised together with all folders above them.

    Each is kept open, so that no other folder gets its inode. A folder that is still at its path has been there all the
    time, and so have the folders above it, which were not empty.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._guard = threading.Lock()

    def has(self, path: str, descriptor: int) -> bool:
        """Return whether an open folder is the one that is known at this path."""
        with self._guard:
            known = self._open.get(path)
            if known is None or not os.path.samestat(os.fstat(known), os.fstat(descriptor)):
                return False
            self._open.move_to_end(path)
            return True

    def add(self, folders: Mapping[str, int]) -> None:
        """Remember open folders by their paths."""
        with self._guard:
            for path, descriptor in folders.items():
                before = self._open.pop(path, None)
                if before is not None:
                    os.close(before)
                self._open[path] = os.dup(descriptor)
            while len(self._open) > _MAX_KNOWN:
                os.close(self._open.popitem(last=False)[1])

    def after_fork_in_child(self) -> None:
        """Make a new guard: a thread that the child does not have may have held the old one."""
        self._guard = threading.Lock()


_known_folders: Final = _KnownFolders()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_known_folders.after_fork_in_child)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_descriptor(descriptor: int) -> None:
    """Return when an open file or folder is on the disk, and not only in the cache of the drive."""
    try:
        if _FULL_SYNC is not None:
            try:
                fcntl.fcntl(descriptor, _FULL_SYNC)
            except OSError as error:
                # Network disks have `fsync` only.
                if error.errno not in _NOT_SUPPORTED:
                    raise
            else:
                return
        os.fsync(descriptor)
    except OSError as error:
        problem = f"it could not be synchronised to the disk, and may not be there: {error.strerror}"
        raise OSError(error.errno, problem) from error


def _sync_above(root: str) -> None:
    """Synchronise the folders above a folder, which may have been made together with it."""
    at = os.path.dirname(os.path.realpath(root))
    # A folder in which this process cannot make anything was there before. The root of the system is its own parent.
    while os.access(at, os.W_OK):
        with _opened(at) as descriptor:
            sync_descriptor(descriptor)
        if at == os.path.dirname(at):
            return
        at = os.path.dirname(at)
