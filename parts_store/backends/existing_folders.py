"""Existing folders: list the files and folders in them, and notice whether something in them changes."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import obstore
from obstore.store import HTTPStore

from parts_store.backends.addresses import open_url, secrets_of
from parts_store.backends.existing_files import find_file
from parts_store.backends.failures import translated

# How many files are listed to find one among them.
_FIRST: Final = 1000


@dataclass(frozen=True, slots=True)
class Listing:
    """The names of the files and of the folders in a folder."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExistingFolder:
    """A folder of an object store."""

    store: Any

    @classmethod
    def open(cls, url: str, options: dict[str, Any]) -> "ExistingFolder":
        """Open the folder at a URL. No request is made."""
        return cls(open_url(url, options, create=False))

    def list(self, below: str) -> Listing:
        """Return what is in the folder `below` of this folder; the path ends with '/', or is empty."""
        with translated("list", below, lambda: secrets_of(self.store)):
            found = obstore.list_with_delimiter(self.store, below or None)
        files = [meta["path"] for meta in found["objects"]]
        # Some programs create an object with the name of the folder.
        inside = [path for path in files if path != below.rstrip("/")]
        return Listing(_names(inside), _names(found["common_prefixes"]))


def _names(paths: Any) -> tuple[str, ...]:
    return tuple(path.rstrip("/").rpartition("/")[2] for path in paths)


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """An existing folder, with the number of files below it and the time of the newest one."""

    # The URL of the folder, without '/' at its end.
    location: str
    # The names of the files in the folder itself.
    names: tuple[str, ...]
    count: int
    newest: datetime

    @property
    def state(self) -> tuple[Any, ...]:
        """Return what changes when a file below the folder is written or deleted."""
        return self.count, self.newest


def find_folder(store: Any, key: str, location: str) -> StoredFolder | None:
    """Return the folder with a key in a store, None if there are no files below it; `location` is its URL."""
    if isinstance(store, HTTPStore):
        return None
    with translated("list", key, lambda: secrets_of(store)):
        names = _names(meta["path"] for meta in obstore.list_with_delimiter(store, key)["objects"])
        times = [meta["last_modified"] for batch in obstore.list(store, key) for meta in batch]
    return StoredFolder(location.rstrip("/"), names, len(times), max(times)) if times else None


@dataclass(frozen=True, slots=True)
class FolderReader:
    """The files below a folder of a store, by their paths relative to the folder."""

    store: Any
    # The key of the folder, without '/' at its end; "" for all of the store.
    key: str

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the paths and the sizes of all files below the folder."""
        skipped = len(self.key) + 1 if self.key else 0
        with translated("list", self.key, lambda: secrets_of(self.store)):
            for batch in obstore.list(self.store, self.key or None):
                for meta in batch:
                    yield meta["path"][skipped:], meta["size"]

    def contents(self, below: str) -> Listing:
        """Return what is in the folder `below` of this folder, which is "" for the folder itself."""
        place = self._place(below)
        return ExistingFolder(self.store).list(f"{place}/" if place else "")

    def first_files(self, below: str) -> list[tuple[str, int]]:
        """Return the paths and sizes of some of the files below a folder, as many as one request returns."""
        place = self._place(below)
        with translated("list", place, lambda: secrets_of(self.store)):
            batch = next(iter(obstore.list(self.store, place or None, chunk_size=_FIRST)), [])
        return [(meta["path"][len(place) + 1 if place else 0 :], meta["size"]) for meta in batch]

    def read(self, path: str, nbytes: int) -> bytes | None:
        """Return the first `nbytes` bytes of a file, fewer if the file is shorter; None if there is no such file."""
        found = find_file(self.store, self._place(path), path)
        return None if found is None else found.read(0, nbytes)

    def read_known(self, path: str, nbytes: int) -> bytes:
        """Return the first `nbytes` bytes of a file that has at least as many, with one request."""
        if nbytes == 0:
            return b""
        place = self._place(path)
        with translated("get", place, lambda: secrets_of(self.store)):
            return bytes(self.store.get_range(place, start=0, end=nbytes))

    def _place(self, path: str) -> str:
        return "/".join(each for each in (self.key, path) if each)
