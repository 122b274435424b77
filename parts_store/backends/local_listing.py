"""Listings of a local disk without obstore, which looks at the metadata of every file.

The keys are the same as obstore's. Folders with symbolic links, with names that obstore encodes or refuses, and with
anything that is neither a file nor a folder are left to obstore.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

from parts_store.backends.local_objects import NAME, is_path

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
