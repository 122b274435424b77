"""Files and folders of a local disk: synchronise, make, read, write and list them on the calling thread.

Other processes may remove files and folders at any time. obstore hands every request to another thread, which takes
several times as long as reading a small file, and looks at the metadata of every file that it lists. The files, the
ETags, the keys and the outcomes are the same as obstore's. The versions are not: obstore has none for files. Folders
with symbolic links, with names that obstore encodes or refuses, and with anything that is neither a file nor a folder
are left to obstore.

With `durable=True`, a file is synchronised before it gets its name, or before another file refers to it. A new name,
and a removed one, is an entry of a folder, which is synchronised after the change. The folders above it are
synchronised, too, unless this process has done so since the folder was made: another process may have made the folder a
moment ago.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Buffer, Callable, Iterator, Mapping, Sequence
from typing import Final, override

from zarr.abc.store import OffsetByteRequest, RangeByteRequest

from parts_store.engine.steps import Found, Missing, Outcome, OutOfRange
from parts_store.errors import ConcurrentWriteError, LocalPathError, StoreConfigError, describe
from parts_store.format.keys import is_protocol_key
from parts_store.format.layout import BufferChain, Span, Wanted, pieces_of, resolve

try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC: int | None = None
else:
    # On macOS, `fsync` leaves the data in the cache of the drive.
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)

# Windows cannot open a folder to synchronise it.
_CAN_SYNC_FOLDERS: Final = sys.platform != "win32"
NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)
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
                except NOT_THERE:
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


_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_HAS_TIME_OF_DESCRIPTOR: Final = os.utime in os.supports_fd
_HAS_WRITEV: Final = hasattr(os, "writev")
# How many buffers Linux and macOS write at once.
_MAX_PIECES: Final = 1024
# How often something is tried again because another process removed a folder or a lock file at that moment.
MAX_TRIES: Final = 1000


def removed_meanwhile(key: str) -> ConcurrentWriteError:
    """Return the error for a folder that another process keeps removing."""
    return ConcurrentWriteError(key, "another process keeps removing the folder that it belongs in")


def write_new(path: str, key: str, data: Buffer, *, has_own_time: bool = False, sync: Sync = NO_SYNC) -> None:
    """Write a new file, and make its folder as often as another process removes it.

    With `has_own_time`, the time of the file is the time of this call in nanoseconds, and not that of the kernel's
    clock, which has steps of milliseconds. The content of the file is synchronised, its name is not.
    """
    descriptor = _create(path, key)
    try:
        rest = BufferChain(pieces_of(data))
        while rest.nbytes:
            rest = rest[_write_some(descriptor, rest.pieces) :]
        if has_own_time:
            now = time.time_ns()
            os.utime(descriptor if _HAS_TIME_OF_DESCRIPTOR else path, ns=(now, now))
        sync.file(descriptor)
    finally:
        os.close(descriptor)


def _write_some(descriptor: int, pieces: Sequence[memoryview]) -> int:
    """Write as much of some buffers as the operating system takes at once; return the number of bytes."""
    return os.writev(descriptor, pieces[:_MAX_PIECES]) if _HAS_WRITEV else os.write(descriptor, pieces[0])


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


# Windows has neither `pread` nor the inodes that ETags are made of.
_HAS_FILES: Final = hasattr(os, "pread")
# A name that is part of a key as it is.
NAME: Final = r"[\w.+=@,~-]+"
# Keys that are paths as they are. All other keys are left to obstore, which refuses some of them.
_SEGMENT: Final = rf"(?!\.{{1,2}}(?:/|$)){NAME}"
_PATH_LIKE: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
# The largest number of bytes that Linux reads or writes at once.
_MAX_NBYTES: Final = 0x7FFFF000
# The largest number of bytes whose copy takes less time than to hand a request to another thread.
_MAX_AT_ONCE: Final = 1 << 18
_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
# The folders of stores on filesystems that cannot tell whether a read has to wait for the disk.
_cannot_tell: Final[set[str]] = set()


def is_path(key: str) -> bool:
    """Return whether a key is the path of a file below the store's folder as it is, so that obstore is not needed."""
    return _HAS_FILES and _PATH_LIKE.fullmatch(key) is not None


def read(path: str, key: str, wanted: Wanted) -> Outcome:
    """Read a file or a range of it."""
    outcome = _read(path, key, wanted, _read_span)
    if outcome is None:
        raise TypeError("a read that may wait has found nothing")
    return outcome


def read_at_once(root: str, key: str, wanted: Wanted) -> Outcome | None:
    """Read a file below a folder, or a range of it; return None if it is large, or if the disk may have to be read."""
    # Files of the write protocol are mostly absent, which every filesystem can tell.
    if (_NO_WAIT is None or root in _cannot_tell) and not is_protocol_key(key):
        return None
    try:
        return _read(f"{root}/{key}", key, wanted, _read_cached)
    except NotImplementedError:
        _cannot_tell.add(root)
        return None


def _read(path: str, key: str, wanted: Wanted, read_span: Callable[[int, Span], bytes | None]) -> Outcome | None:
    try:
        # Without O_NONBLOCK, a named pipe would make this wait for another program.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except NOT_THERE:
        return Missing()
    try:
        found = os.fstat(descriptor)
        if not _is_file(found, path, key):
            return Missing()
        nbytes = found.st_size
        span = resolve(wanted, nbytes)
        if span.nbytes == 0 and isinstance(wanted, RangeByteRequest | OffsetByteRequest):
            return OutOfRange()
        data = read_span(descriptor, span)
        if data is None:
            return None
        return Found(data, Span(span.start, span.start + len(data)), nbytes, _etag(found), _version(found, key), None)
    finally:
        os.close(descriptor)


def _read_span(descriptor: int, span: Span) -> bytes:
    """Read a range; the result is shorter if the file was made shorter meanwhile."""
    data = os.pread(descriptor, min(span.nbytes, _MAX_NBYTES), span.start)
    if len(data) == span.nbytes or not data:
        return data
    pieces, at = [data], span.start + len(data)
    while at < span.stop and (data := os.pread(descriptor, min(span.stop - at, _MAX_NBYTES), at)):
        pieces.append(data)
        at += len(data)
    return b"".join(pieces)


def _read_cached(descriptor: int, span: Span) -> bytes | None:
    """Read a small range from the memory of the kernel; return None if all of it is not there.

    Raises `NotImplementedError` if the filesystem cannot tell, as that of a container.
    """
    if span.nbytes > _MAX_AT_ONCE or _NO_WAIT is None:
        return None
    data = bytearray(span.nbytes)
    try:
        nbytes = os.preadv(descriptor, [data], span.start, _NO_WAIT)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise NotImplementedError from error
        # The disk would have to be read.
        return None
    return bytes(data) if nbytes == span.nbytes else None


def look(path: str, key: str) -> Outcome:
    """Return the size and the ETag of a file."""
    try:
        found = os.stat(path)
    except NOT_THERE:
        return Missing()
    if not _is_file(found, path, key):
        return Missing()
    return Found(b"", Span(0, 0), found.st_size, _etag(found), _version(found, key), None)


def _is_file(found: os.stat_result, path: str, key: str) -> bool:
    """Return True for a file and False for a folder, which is no object; raise for pipes, devices and the like."""
    if stat.S_ISREG(found.st_mode):
        return True
    if stat.S_ISDIR(found.st_mode):
        return False
    raise LocalPathError(key, f"expected a file at {path}, found a pipe, a device or the like")


def _etag(found: os.stat_result) -> str:
    return f'"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"'


def _version(found: os.stat_result, key: str) -> str | None:
    """Return the time of the last change of a file, its times and its name included, which no program can set.

    A file that is made again may have the inode, the modification time and the size of the one before. A staged file
    has no version, because it gets another one when it is moved.
    """
    return None if is_protocol_key(key) else f"{found.st_ctime_ns:x}"


def write(path: str, key: str, data: Buffer, *, sync: Sync = NO_SYNC) -> None:
    """Write a file: readers see the old file or the new one."""
    # Listings of obstore leave out names of this form, as those of its own unfinished files.
    unfinished = f"{path}#{secrets.randbits(63)}"
    for _ in range(MAX_TRIES):
        try:
            # A partial write of the object compares ETags. With the kernel's clock, they could come back.
            write_new(unfinished, key, data, has_own_time=True, sync=sync)
            os.replace(unfinished, path)
            sync.folder(os.path.dirname(path))
        except FileNotFoundError:
            # Another process removed the folder.
            continue
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
        return
    raise removed_meanwhile(key)


_PLAIN: Final = re.compile(NAME)
# The name of a file that is not finished. Listings of obstore leave it out.
_UNFINISHED: Final = re.compile(rf"{NAME}#[0-9]+")


class LeftToObstoreError(Exception):
    """A listing that only obstore can make: of a folder with links or special names, or one that cannot be read."""


def list_files(root: str, folder: str, page: int) -> Iterator[list[str]]:
    """Yield the keys of all files below a folder of a store, in pages of at least this many.

    Raises `LeftToObstoreError`, also after some pages.
    """
    found: list[str] = []
    remaining = [folder]
    while remaining:
        at = remaining.pop()
        try:
            folders, files = list_folder(root, at)
        except LeftToObstoreError as error:
            if at != folder and isinstance(error.__cause__, FileNotFoundError):
                # Another process has removed the folder since it was listed.
                continue
            raise
        found += files
        remaining += folders
        if len(found) >= page:
            yield found
            found = []
    if found:
        yield found


def list_folder(root: str, folder: str) -> tuple[list[str], list[str]]:
    """Return the folders and the keys directly in a folder of a store.

    Raises `LeftToObstoreError` if only obstore can list the folder, or raise the right error.
    """
    if folder and not is_path(folder):
        raise LeftToObstoreError(folder)
    folders: list[str] = []
    files: list[str] = []
    start = f"{folder}/" if folder else ""
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                name = entry.name
                if _PLAIN.fullmatch(name) is None and not _is_unfinished(entry):
                    raise LeftToObstoreError(folder)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(start + name)
                elif not entry.is_file(follow_symlinks=False):
                    raise LeftToObstoreError(folder)
                elif "#" not in name:
                    files.append(start + name)
    except OSError as error:
        raise LeftToObstoreError(folder) from error
    return folders, files


def _is_unfinished(entry: os.DirEntry[str]) -> bool:
    return _UNFINISHED.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)
