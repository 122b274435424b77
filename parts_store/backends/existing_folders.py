"""Existing folders: list the files and folders in them, and notice whether something in them changes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import obstore
from obstore.store import HTTPStore

from parts_store.backends.addresses import open_url, secrets_of
from parts_store.backends.failures import translated


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
