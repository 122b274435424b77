"""Decide whether a path of a store is free to be written, and clear it: for copies, adopted files and references."""

from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

from zarr.abc.store import Store
from zarr.storage import LocalStore

from parts_store._compat.zarr import sync, unwrap
from parts_store.backends.addresses import THIS_MACHINE, address_of
from parts_store.engine.steps import get_all
from parts_store.errors import StoreConfigError, describe
from parts_store.format.keys import ARRAY_V2, DOCUMENT, GROUP_V2, ancestors, join
from parts_store.format.metadata import describes_array
from parts_store.store.store import PartsStore

type Documents = Mapping[str, bytes]
"""Metadata documents that make a path a node, by their names."""


def read_nodes(store: PartsStore, paths: Collection[str]) -> dict[str, Documents]:
    """Return the metadata documents at each path; a path that is not a node has none."""
    names = (DOCUMENT,) if store.session is not None else (DOCUMENT, ARRAY_V2, GROUP_V2)
    found = store.carry_out(get_all([join(path, name) for path in paths for name in names], "node at the destination"))
    return {path: {name: data for name in names if (data := found[join(path, name)]) is not None} for path in paths}


def read_ancestors(store: PartsStore, path: str) -> dict[str, Documents]:
    """Return the metadata documents at each path above a path, the root first."""
    return read_nodes(store, ancestors(path))


def is_array(documents: Documents) -> bool:
    """Return whether the documents at a path are those of an array."""
    return any(describes_array(name, data) for name, data in documents.items())


def require_outside_arrays(ancestors: Mapping[str, Documents], path: str, option: str) -> None:
    """Raise `StoreConfigError` if one of the ancestors of a path is an array."""
    for ancestor, documents in ancestors.items():
        if is_array(documents):
            raise StoreConfigError(option, f"a path that is not in an array, as {ancestor!r} is", describe(path))


def are_apart(store: Store, path: str, other: Store, other_path: str) -> bool:
    """Return whether neither of two paths is at or below the other, whichever stores lead there.

    Only obstore, local paths and Icechunk sessions tell where their objects are, also inside wrappers of zarr. Other
    stores are taken to be apart.
    """
    (place, first), (other_place, second) = _address(store, path), _address(other, other_path)
    contains = not first or not second or f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")
    return place != other_place or not contains


def _address(store: Store, path: str) -> tuple[object, str]:
    """Return the place of a store, and the path there, without symbolic links."""
    store = unwrap(store)
    if isinstance(store, LocalStore):
        return THIS_MACHINE, (store.root / path).resolve().as_posix().strip("/")
    # The store of obstore, or the session of Icechunk, that a store is on.
    place, folder = address_of(getattr(store, "store", None) or getattr(store, "session", store))
    whole = join(folder, path)
    return place, (Path("/", whole).resolve().as_posix() if place == THIS_MACHINE else whole).strip("/")


def find_key(store: PartsStore, path: str, *, ignored: Collection[str] = ()) -> str | None:
    """Return a key at or below a path, None if there is none other than those that are ignored."""
    return sync(_first(store.list_prefix(path), ignored))


def require_empty(store: PartsStore, path: str, option: str, *, ignored: Collection[str] = ()) -> None:
    """Raise `StoreConfigError` if there is a key at or below a path, other than those that are ignored."""
    if (key := find_key(store, path, ignored=ignored)) is not None:
        raise not_empty(option, key)


def not_empty(option: str, found: str) -> StoreConfigError:
    """Return the error for a path at which something is stored."""
    return StoreConfigError(option, "a path with nothing there, or `overwrite=True` (`--overwrite`)", describe(found))


def clear(store: PartsStore, path: str) -> None:
    """Delete everything at and below a path."""
    sync(store.delete_dir(path))


async def _first(keys: AsyncIterator[str], ignored: Collection[str]) -> str | None:
    async for key in keys:
        if key not in ignored:
            return key
    return None
