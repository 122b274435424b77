"""Objects of a local disk as files: read, look at and write them on the calling thread.

obstore hands every request to another thread, which takes several times as long as reading a small file. The files, the
ETags and the outcomes are the same as obstore's. The versions are not: obstore has none for files.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Buffer, Callable
from typing import Final

from zarr.abc.store import OffsetByteRequest, RangeByteRequest

from parts_store.backends import local_files
from parts_store.backends.local_sync import NO_SYNC, Sync
from parts_store.engine.steps import Found, Missing, Outcome, OutOfRange
from parts_store.errors import LocalPathError
from parts_store.format.keys import is_protocol_key
from parts_store.format.ranges import Span, Wanted, resolve

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
    except local_files.NOT_THERE:
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
    except local_files.NOT_THERE:
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
    for _ in range(local_files.MAX_TRIES):
        try:
            # A partial write of the object compares ETags. With the kernel's clock, they could come back.
            local_files.write_new(unfinished, key, data, has_own_time=True, sync=sync)
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
    raise local_files.removed_meanwhile(key)
