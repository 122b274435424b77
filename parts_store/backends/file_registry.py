"""FileRegistry: the stores of the folders that files are in, made from the URLs of the files."""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, Final, override
from urllib.parse import unquote

from obspec_utils.registry import ObjectStoreRegistry

from parts_store.backends.addresses import open_url
from parts_store.backends.registered_files import key_in
from parts_store.errors import StoreConfigError, describe
from parts_store.format.references import ENCODED_SCHEMES
from parts_store.redaction import hide_in_url

# With more folders of one bucket or server, the folder that contains all of them is registered.
_MAX_FOLDERS: Final = 16


class FileRegistry(ObjectStoreRegistry[Any]):
    """A registry that returns the keys of files as stores expect them: not percent-encoded."""

    @classmethod
    def of_folders(cls, folders: Iterable[str], options: Mapping[str, Any]) -> "FileRegistry":
        """Return a registry of the stores at the URLs of folders. Options are for stores that are not on this machine.

        Files in other folders cannot be read with it. Raises `StoreConfigError` for options if all folders are on this
        machine: they may be mistyped arguments.
        """
        registry = cls()
        fewest = fewest_folders(folders)
        if options and all(folder.startswith("file://") for folder in fewest):
            expected = "no options of obstore, because all files are on this machine"
            raise StoreConfigError("arguments", expected, ", ".join(sorted(options)))
        for folder in fewest:
            is_local = folder.startswith("file://")
            store = open_url(folder, {} if is_local else dict(options), create=False)
            try:
                registry.register(folder, store)
            except ValueError as error:
                raise StoreConfigError("url", "an address of a server", describe(folder)) from error
        return registry

    @override
    def resolve(self, url: str) -> tuple[Any, str]:
        store, _ = super().resolve(url)
        scheme, _, rest = url.partition("://")
        path = rest.partition("/")[2]
        key = key_in(store, unquote(path) if scheme.lower() in ENCODED_SCHEMES else path)
        if key is None:
            raise ValueError(f"no registered store covers {hide_in_url(url)!r}")
        return store, key


def folder_of(url: str) -> str:
    """Return the URL of the folder that a file is in, with '/' at its end."""
    return f"{url.partition('?')[0].rpartition('/')[0]}/"


def fewest_folders(folders: Iterable[str]) -> list[str]:
    """Return folders that contain these folders, without those that another one contains. All end with '/'."""
    by_host: dict[str, list[str]] = {}
    for folder in sorted(set(folders)):
        kept = by_host.setdefault("/".join(folder.split("/")[:3]), [])
        # In this order, a folder is behind one that contains it, and only such folders can be between them.
        if not kept or not folder.startswith(kept[-1]):
            kept.append(folder)
    return [each for kept in by_host.values() for each in (kept if len(kept) <= _MAX_FOLDERS else [_common(kept)])]


def _common(folders: list[str]) -> str:
    """Return the folder that contains all of these folders of one host."""
    segments = zip(*(each.split("/")[:-1] for each in folders), strict=False)
    return "/".join([same[0] for same in takewhile(lambda each: len(set(each)) == 1, segments)]) + "/"
