"""Folders of a local disk that other processes may remove at any time."""

import contextlib
import os
import stat
from typing import BinaryIO, Final

from parts_store.errors import ConcurrentWriteError, LocalPathError

NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)
# How often something is tried again because another process removed a folder or a lock file at that moment.
MAX_TRIES: Final = 1000


def removed_meanwhile(key: str) -> ConcurrentWriteError:
    """Return the error for a folder that another process keeps removing."""
    return ConcurrentWriteError(key, "another process keeps removing the folder that it belongs in")


def open_new(path: str, key: str) -> BinaryIO:
    """Open a new file, and make its folder as often as another process removes it."""
    for _ in range(MAX_TRIES):
        try:
            return open(path, "xb")
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
