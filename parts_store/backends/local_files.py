"""Files and folders of a local disk that other processes may remove at any time."""

import contextlib
import os
import stat
import time
from collections.abc import Buffer
from typing import Final

from parts_store.backends.local_sync import NO_SYNC, Sync
from parts_store.errors import ConcurrentWriteError, LocalPathError

NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_HAS_TIME_OF_DESCRIPTOR: Final = os.utime in os.supports_fd
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
        view = memoryview(data).cast("B")
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
        if has_own_time:
            now = time.time_ns()
            os.utime(descriptor if _HAS_TIME_OF_DESCRIPTOR else path, ns=(now, now))
        sync.file(descriptor)
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
