"""Load variables that are appended to arrays whose values are stored, because their chunks cannot be joined."""

from collections.abc import Hashable, Mapping
from typing import Any, Final

import xarray as xr

from parts_store._compat.zarr import normalize_path
from parts_store.adoption.appending import StoredArray, read_stored
from parts_store.adoption.loading import Origin, load_variables
from parts_store.adoption.source_tree import Source
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import chunk_shape_of
from parts_store.manifests.meaning import find_difference, require_same_meaning
from parts_store.store import PartsStore

_FILL: Final = "_FillValue"


def load_unlike(
    source: Source, store: PartsStore, path: str, dim: str, max_loaded: int
) -> tuple[Source, Mapping[str, str]]:
    """Return a source in which those variables are loaded, and why, by their paths.

    Variables of more than `max_loaded` bytes are not loaded. They are refused when they are appended. Raises
    `ManifestError` for a variable of another meaning than the stored one: values that are loaded would be encoded.
    """
    prefix = normalize_path(path)
    if isinstance(source, xr.DataTree):
        groups = {str(node.path).strip("/"): node.to_dataset(inherit=False) for node in source.subtree}
        loaded = {where: _loaded(each, store, _join(prefix, where), dim, max_loaded) for where, each in groups.items()}
        notes = {_join(where, name): note for where, (_, found) in loaded.items() for name, note in found.items()}
        return xr.DataTree.from_dict({f"/{where}": dataset for where, (dataset, _) in loaded.items()}), notes
    if isinstance(source, xr.Dataset):
        return _loaded(source, store, prefix, dim, max_loaded)
    return source, {}


def _join(*names: str) -> str:
    return "/".join(each for each in names if each)


def _loaded(
    dataset: xr.Dataset, store: PartsStore, path: str, dim: str, max_loaded: int
) -> tuple[xr.Dataset, Mapping[str, str]]:
    along: dict[Hashable, xr.Variable] = {name: each for name, each in dataset.variables.items() if dim in each.dims}
    stored = read_stored(store, [_join(path, str(name)) for name in along])
    for name, each in along.items():
        # Times are decoded. All others have the attributes of the file.
        if (known := stored.get(_join(path, str(name)))) is not None and each.dtype.kind not in "MO":
            require_same_meaning(known.path, _without_default(known.metadata.attributes, each.attrs), each.attrs)
    virtual = {
        name: each for name, each in along.items() if isinstance(each.data, PartsArray) and each.nbytes <= max_loaded
    }
    unlike = {
        name: each
        for name, each in virtual.items()
        if (known := stored.get(_join(path, str(name)))) is not None and _has_other_chunks(known, each.data)
    }
    origins = [Origin(_location(each.data), _join(path, str(name))) for name, each in unlike.items()]
    loaded = dict(zip(unlike, load_variables(list(unlike.values()), origins), strict=True))
    notes = {str(name): "loaded, because the values of the stored array are not in files" for name in loaded}
    return dataset.assign(loaded) if loaded else dataset, notes


def _without_default(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored attributes without the fill value NaN that xarray adds to floating-point numbers without one."""
    is_added = _FILL not in given and find_difference({_FILL: stored.get(_FILL)}, {_FILL: "NaN"}) is None
    return {key: value for key, value in stored.items() if key != _FILL or not is_added}


def _location(array: PartsArray) -> str:
    """Return the first file of an array in messages."""
    return next(iter(array.references.locations()), "no file")


def _has_other_chunks(stored: StoredArray, new: PartsArray) -> bool:
    """Return whether a stored array is not in parts, and has other chunks or codecs than the new one."""
    if stored.parts is not None:
        return False
    old = stored.chunk_metadata
    return chunk_shape_of(old) != chunk_shape_of(new.metadata) or old.codecs != new.metadata.codecs
