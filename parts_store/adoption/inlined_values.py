"""Replace references by the values that they refer to: the values become part of the manifest."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption.loading import Origin, load_arrays
from parts_store.adoption.virtual_dataset import default_names
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References, document_of
from parts_store.manifests.entries import Columns
from parts_store.manifests.group import PartsGroup


def with_values(location: str, group: PartsGroup, names: Iterable[str]) -> PartsGroup:
    """Return the root group of a file in which coordinates and named variables have their values.

    A variable in another group is named by its path. All values are read at the same time. Raises `AdoptionError` if
    values cannot be read.
    """
    wanted = {path: node for path, node in _arrays_to_load(group, set(names)).items() if _is_plain(node)}
    values = load_arrays(list(wanted.values()), [Origin(location, path) for path in wanted])
    inlined = {path: _inlined(node, each) for (path, node), each in zip(wanted.items(), values, strict=True)}
    return _rebuilt(group, inlined, "")


def _arrays_to_load(group: PartsGroup, names: set[str]) -> dict[str, PartsArray]:
    found: dict[str, PartsArray] = {}
    for path, node in group.nodes():
        if isinstance(node, PartsGroup):
            below = f"{path}/" if path else ""
            default = default_names(node)
            found |= {
                f"{below}{name}": each
                for name, each in node.arrays.items()
                if name in default or f"{below}{name}" in names
            }
    return found


def _is_plain(array: PartsArray) -> bool:
    """Return whether the values can be written as bytes: numbers, and texts of a fixed length."""
    return array.dtype.kind in "biufcSV" and array.dtype.names is None and array.size > 0


def _inlined(array: PartsArray, values: NDArray[Any]) -> PartsArray:
    """Return the array as one chunk that the manifest holds itself."""
    document = document_of(array.metadata)
    little = values.dtype.newbyteorder("<")
    endian = (
        {"configuration": {"endian": "little"}} if values.dtype.itemsize > 1 and values.dtype.kind in "iufc" else {}
    )
    document["codecs"] = [{"name": "bytes", **endian}]
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(array.shape)}}
    columns = Columns.empty((1,) * array.ndim)
    columns.put((0,) * array.ndim, np.ascontiguousarray(values, little).tobytes())
    return PartsArray.of(References.checked(ArrayV3Metadata.from_dict(document), [columns.manifest()], {}), None, ())


def _rebuilt(group: PartsGroup, inlined: dict[str, PartsArray], path: str) -> PartsGroup:
    below = f"{path}/" if path else ""
    arrays = {name: inlined.get(f"{below}{name}", each) for name, each in group.arrays.items()}
    groups = {name: _rebuilt(each, inlined, f"{below}{name}") for name, each in group.groups.items()}
    return PartsGroup(arrays, groups, group.attributes)
