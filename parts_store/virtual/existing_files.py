"""Existing files and folders: open and list them, notice whether they change, and copy files into a store."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.store import HTTPStore, LocalStore, S3Store

from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import secrets_of_url
from parts_store.virtual.store_access import address_of, is_about_object, local_path, open_url, secrets_of, translated

# A file that is copied through this process is read in blocks of this size.
_BLOCK = 1 << 24


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An existing file, with a checksum by which a later change is noticed."""

    store: Any
    key: str
    # The URL for references.
    location: str
    nbytes: int
    checksum: str | datetime

    @property
    def state(self) -> tuple[Any, ...]:
        """Return what changes when the file is written."""
        return self.nbytes, self.checksum

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `start <= i < stop`, cut at the end of the file."""
        last = min(stop, self.nbytes)
        if start >= last:
            return b""
        with translated("get", _shown(self.key), lambda: secrets_of(self.store)):
            return bytes(self.store.get_range(self.key, start=start, end=last))


def _shown(key: str) -> str:
    """Return the key for messages, without the query of a URL, which may be a signature."""
    return key.partition("?")[0]


def open_file(url: str | Path, options: dict[str, Any]) -> StoredFile:
    """Open the file at a URL or a path."""
    text = str(url)
    is_local = "://" not in text or text.startswith("file://")
    if is_local:
        path = (local_path(text) if text.startswith("file://") else Path(text).expanduser()).resolve()
        if not path.is_file():
            raise StoreConfigError("url", "a file", describe(text))
        folder, key, location = str(path.parent), path.name, path.as_uri()
    else:
        # The query may contain a '/'.
        address, mark, query = text.partition("?")
        folder, _, name = address.rpartition("/")
        key, location = f"{name}{mark}{query}", text
    found = find_file(open_url(folder, options, create=False), key, location)
    if found is None:
        raise StoreConfigError("url", "a file", describe(text))
    return found


def find_file(store: Any, key: str, location: str) -> StoredFile | None:
    """Return the file with a key in a store, None if there is none; `location` is its URL.

    On a local disk, a device or a named pipe is no file: reading it could take forever.
    """
    is_local = isinstance(store, LocalStore)
    if is_local and (path := Path(store.prefix or "/", key)).exists() and not path.is_file():
        return None
    with translated("head", _shown(key), lambda: [*secrets_of(store), *secrets_of_url(location)]):
        try:
            meta = store.head(key)
        except FileNotFoundError as error:
            if not is_about_object(error):
                raise
            return None
    # On a local disk the ETag depends on the inode and changes with a copy. Icechunk compares the time.
    checksum = meta["last_modified"] if is_local or meta["e_tag"] is None else meta["e_tag"]
    return StoredFile(store, key, location, meta["size"], checksum)


def copy_file(file: StoredFile, store: Any, key: str) -> int:
    """Copy a file into a store, on the server if possible, and return the number of copied bytes.

    On one local disk, the file is linked instead of copied.
    """
    with translated("copy", key, lambda: [*secrets_of(file.store), *secrets_of(store)]):
        if isinstance(file.store, LocalStore) and isinstance(store, LocalStore):
            source, target = Path(file.store.prefix or "/", file.key), Path(store.prefix or "/", key)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)
                return file.nbytes
            return 0
        (one, above), (other, above_other) = address_of(file.store), address_of(store)
        if one == other and isinstance(store, S3Store):
            # A store of the whole bucket, which contains both keys.
            container = S3Store(config={**store.config}, client_options=store.client_options)
            source_key, target_key = (
                f"{folder}/{name}".strip("/") for folder, name in ((above, file.key), (above_other, key))
            )
            obstore.copy(container, source_key, target_key)
        else:
            with obstore.open_writer(store, key) as writer:
                for start in range(0, file.nbytes, _BLOCK):
                    writer.write(file.read(start, start + _BLOCK))
        return file.nbytes


# How many files are listed to find one among them.
_FIRST: Final = 1000


@dataclass(frozen=True, slots=True)
class Listing:
    """The names of the files and of the folders in a folder."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


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
        with translated("list", place, lambda: secrets_of(self.store)):
            found = obstore.list_with_delimiter(self.store, f"{place}/" if place else None)
        # Some programs create an object with the name of the folder.
        files = [meta["path"] for meta in found["objects"] if meta["path"] != place]
        return Listing(_names(files), _names(found["common_prefixes"]))

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
