"""Existing files: open them for adoption, and copy them into a store."""

import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore, S3Store

from parts_store.backends.addresses import address_of, local_path, open_url, secrets_of
from parts_store.backends.failures import is_about_object, translated
from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import secrets_of_url

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
