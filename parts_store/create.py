"""Arrays created with parts."""

import dataclasses
from typing import Any

import zarr
from zarr.storage import StorePath

from parts_store._compat.zarr import normalize_path
from parts_store.errors import PartsConfigError, StoreConfigError
from parts_store.format.parts import PartsLike
from parts_store.store import PartsStore


def create_array(
    store: PartsStore,
    name: str | None = None,
    *,
    parts: PartsLike,
    overwrite: bool = False,
    split: bool = False,
    must_understand: bool | None = None,
    **arguments: Any,
) -> zarr.Array[Any]:
    """Create an array whose chunks are stored in parts.

    Parameters
    ----------
    store
        Where.
    name
        The path of the array in the store; the root if None.
    parts
        The parts of every chunk, in order: `Part`s, the specification's objects, or suffixes. The size `SHARD_INDEX`
        becomes the size of this array's shard index.
    overwrite
        Whether what is at that path is deleted first.
    split
        In an Icechunk session, whether each part is a chunk by itself, so that it may be a reference into an existing
        file; otherwise all parts of a chunk are kept as one.
    must_understand
        Whether software without concat-parts, which would misread the array, is told to refuse it; if None, what the
        store was opened with.
    arguments
        Those of `zarr.create_array`.
    """
    if not isinstance(store, PartsStore):
        raise StoreConfigError("store", "a PartsStore", f"an object of type {type(store).__name__}")
    path = normalize_path(name)
    if arguments.get("zarr_format", 3) not in (3, None):
        raise PartsConfigError("zarr_format", "3, for Zarr v2 has no storage transformers", "2", path)
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
    creating = store.with_parts({escaped: parts}, split=split, must_understand=must_understand)
    # Before zarr creates the groups above the array: a server that ignores conditions would replace their documents.
    creating.require_server(path, parts)
    array = zarr.create_array(creating, name=path or None, overwrite=overwrite, **arguments)
    inner = dataclasses.replace(array.async_array, store_path=StorePath(store, path))
    return type(array)(inner)
