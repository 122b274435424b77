"""The stores that a caller registered for the URLs of files: find the store of a file, and open stores for folders.

Only files that a registered store covers can be read. Any store with obspec's methods can be registered.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, override
from urllib.parse import quote, unquote, urlsplit

from obspec_utils.registry import ObjectStoreRegistry

from parts_store.errors import LocationError, StoreConfigError, describe, raise_translated
from parts_store.redaction import hide_in_url
from parts_store.virtual.store_access import ENCODED_SCHEMES, open_url, without_redirects

type Registries = tuple[ObjectStoreRegistry[Any], ...]


def parse_registry(registry: object) -> ObjectStoreRegistry[Any]:
    """Return a registry, which the caller may give as a mapping from URLs to stores."""
    if isinstance(registry, ObjectStoreRegistry):
        return registry
    if not isinstance(registry, Mapping):
        found = f"an object of type {type(registry).__name__}"
        raise StoreConfigError("registry", "an ObjectStoreRegistry, or a mapping from URLs to stores", found)
    try:
        return ObjectStoreRegistry({url: without_redirects(store) for url, store in registry.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise_translated(StoreConfigError("registry", "a mapping from URLs to stores", "other keys or values"), error)


def find_store(location: str, registries: Registries) -> tuple[Any, str]:
    """Return the registered store that covers a URL, and the key of the file there.

    Raises `LocationError` if no registered store covers the URL, or if several different ones do.
    """
    urls, path = _parse_location(location)
    found = [place for registry in registries if (place := _find_in_registry(registry, urls, path)) is not None]
    if not found:
        known = sorted({f"{key.scheme}://{key.netloc}" for registry in registries for key in registry.map})
        problem = f"no registered store covers this URL (registered: {', '.join(map(hide_in_url, known)) or 'none'})"
        raise LocationError(hide_in_url(location), problem)
    # Arrays that were combined may be bound to registries in which one URL means different files.
    first = found[0][0]
    if any(store is not first and store != first for store, _ in found):
        problem = "several registered stores cover this URL; bind the array to one registry with `with_registry`"
        raise LocationError(hide_in_url(location), problem)
    return found[0]


def _parse_location(location: str) -> tuple[list[str], str]:
    """Return the URLs to look up in a registry, and the decoded path; raise if the URL could lead elsewhere."""
    scheme, _, rest = location.partition("://")
    host, _, path = rest.partition("/")
    if scheme.lower() in ("http", "https") and ("?" in path or "#" in path):
        raise LocationError(hide_in_url(location), "expected a URL without '?' and '#', which object stores cannot use")
    decoded = unquote(path) if scheme.lower() in ENCODED_SCHEMES else path
    if any(segment in (".", "..") for segment in [*decoded.split("/"), *unquote(decoded).split("/")]):
        raise LocationError(hide_in_url(location), "expected a path without the segments '.' and '..'")
    spellings = dict.fromkeys((path, decoded))
    return [f"{scheme}://{host}/{quote(spelling, safe='/%:@ ')}" for spelling in spellings], decoded


def _find_in_registry(registry: ObjectStoreRegistry[Any], urls: Sequence[str], path: str) -> tuple[Any, str] | None:
    """Return the store that a registry has for one of these URLs, and the key of the file there; None without one."""
    for url in urls:
        try:
            store, _ = registry.resolve(url)
        except ValueError:
            continue
        if (key := key_in(store, path)) is not None:
            return store, key
    return None


def key_in(store: Any, path: str) -> str | None:
    """Return the key of a file in a store, None if the file is outside the store's prefix.

    The registry does not check the prefix.
    """
    prefix = getattr(store, "prefix", None)
    if isinstance(prefix, Path):
        prefix = prefix.absolute()
    elif not prefix and hasattr(store, "url"):
        prefix = unquote(urlsplit(str(store.url)).path)
    above = [segment for segment in str(prefix or "").split("/") if segment]
    segments = path.split("/")
    return "/".join(segments[len(above) :]) if segments[: len(above)] == above and len(segments) > len(above) else None


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
            # With '/' at the end of the URL of a web server, obstore would ask for `folder//file`.
            place = folder.rstrip("/") if folder.startswith(("http://", "https://")) else folder
            store = open_url(place, {} if is_local else dict(options), create=False)
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
