"""Open the files that a file refers to, as far as references to them are allowed."""

import posixpath
from typing import Final
from urllib.parse import quote, unquote

from parts_store.adoption.description import CannotBeReadError, OpenOther, OtherFile
from parts_store.adoption.source_file import BlockReader
from parts_store.backends.existing_files import find_file
from parts_store.backends.file_registry import folder_of
from parts_store.backends.registered_files import Registries, find_store
from parts_store.errors import PartsStoreError
from parts_store.format.references import ENCODED_SCHEMES

_LOCAL: Final = "file"


def other_files(location: str, registries: Registries) -> OpenOther:
    """Return what opens other files, by the names that the file at a URL has for them."""
    opened: dict[str, OtherFile] = {}
    blocks: dict[tuple[str, int], bytes] = {}

    def open_other(name: str) -> OtherFile:
        url = location_of(name, location)
        if url not in opened:
            opened[url] = _open(name, url, registries, blocks)
        return opened[url]

    return open_other


def _open(name: str, url: str, registries: Registries, blocks: dict[tuple[str, int], bytes]) -> OtherFile:
    shown = name.encode(errors="backslashreplace").decode()
    try:
        store, key = find_store(url, registries)
    except PartsStoreError:
        problem = f"its values are in another file, in a folder that references may not point to: {shown}"
        raise CannotBeReadError(problem) from None
    stored = find_file(store, key, url)
    if stored is None:
        raise CannotBeReadError(f"its values are in another file, which does not exist: {shown}")
    reader = BlockReader(stored, blocks)
    return OtherFile(url, reader.buffered(), stored.nbytes, stored.checksum, lambda: reader.failure)


def location_of(name: str, location: str) -> str:
    """Return the URL of a file, given its name in the file at a URL: a path, or a path from the folder of that file."""
    scheme, _, rest = folder_of(location).partition("://")
    host, _, folder = rest.partition("/")
    is_encoded = scheme.lower() in ENCODED_SCHEMES
    folder = unquote(folder) if is_encoded else folder
    if name.startswith("/") and scheme.lower() != _LOCAL:
        raise CannotBeReadError(f"its values are in a file of another machine: {name}")
    path = posixpath.normpath(posixpath.join(f"/{folder}", name)).lstrip("/")
    return f"{scheme}://{host}/{quote(path) if is_encoded else path}"
