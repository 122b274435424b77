"""Read what can be written to a session into one form: for each group its references, loaded variables and attributes.

Nothing is written here. Variables that are neither references nor in memory are loaded.
"""

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import xarray as xr
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore

from parts_store._compat.virtualizarr import group_of
from parts_store._compat.xarray import FillValueCoder, encode_zarr_attr_value
from parts_store.errors import StoreConfigError, describe
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References
from parts_store.virtual.store_access import DOCUMENT, NODES_FOLDER

type VirtualSource = xr.Dataset | xr.DataTree | ManifestGroup | ManifestStore | PartsGroup
"""What can be written to a session."""

# Members of a variable's encoding that xarray stores as attributes.
_ENCODED: Final = ("_FillValue", "missing_value", "scale_factor", "add_offset")
_COORDINATES: Final = "coordinates"
# Names that a Zarr node cannot have.
_INVALID_NAMES: Final = ("", ".", "..", NODES_FOLDER, DOCUMENT)


@dataclass(frozen=True, slots=True, eq=False)
class SourceGroup:
    """What is in a group, except for other groups."""

    # Arrays of references, with the attributes and the dimension names that they will have.
    arrays: Mapping[str, PartsArray]
    # The variables whose values are stored, not referred to.
    loaded: xr.Dataset
    attributes: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        """The names of all arrays."""
        return {*self.arrays, *map(str, self.loaded.variables)}

    @property
    def dimensions(self) -> set[str]:
        """The names of all dimensions."""
        names = {name for array in self.arrays.values() for name in array.metadata.dimension_names or ()}
        return {*filter(None, names), *map(str, self.loaded.dims)}


def read_tree(source: VirtualSource) -> dict[str, SourceGroup]:
    """Return all groups of a source by their paths, each before the groups in it; the path of the source is empty."""
    match source:
        case xr.Dataset():
            groups = {"": _of_dataset(source)}
        case xr.DataTree():
            # Coordinates that a group inherits are stored once, in the group that has them.
            groups = {
                "" if node is source else str(node.relative_to(source)): _of_dataset(
                    node.to_dataset(inherit=node is source)
                )
                for node in source.subtree
            }
        case PartsGroup():
            groups = _of_group(source)
        case ManifestGroup():
            groups = _of_group(PartsGroup.from_manifest_group(source))
        case ManifestStore():
            groups = _of_group(PartsGroup.from_manifest_group(group_of(source)))
        case _:
            expected = "a dataset or a tree of xarray, a ManifestGroup, a ManifestStore or a PartsGroup"
            raise StoreConfigError("source", expected, describe(source))
    for path, group in groups.items():
        for name in [*([path.rpartition("/")[2]] if path else []), *group.names]:
            if name in _INVALID_NAMES or "/" in name or "\\" in name:
                raise StoreConfigError("source", "names that a node of Zarr can have", describe(name))
    return groups


def _of_group(root: PartsGroup) -> dict[str, SourceGroup]:
    return {
        path: SourceGroup(node.arrays, xr.Dataset(), node.attributes)
        for path, node in root.nodes()
        if isinstance(node, PartsGroup)
    }


def _of_dataset(dataset: xr.Dataset) -> SourceGroup:
    arrays: dict[str, PartsArray] = {}
    loaded: dict[Hashable, xr.Variable] = {}
    for key, variable in dataset.variables.items():
        name = _text(key)
        # This reads a variable that is not in memory, once.
        data = variable.data
        if isinstance(data, ManifestArray):
            data = PartsArray.from_manifest_array(data)
        if isinstance(data, PartsArray):
            arrays[name] = _described(data, name, variable)
        else:
            loaded[name] = xr.Variable(variable.dims, data, variable.attrs, variable.encoding)
    attributes = _as_json(dataset.attrs)
    # With the names of coordinates, so that xarray knows them again. A name with a space cannot be in a list of names.
    if coordinates := [name for name in map(_text, dataset.coords) if " " not in name]:
        attributes[_COORDINATES] = " ".join(coordinates)
    return SourceGroup(arrays, xr.Dataset(loaded), attributes)


def _described(array: PartsArray, name: str, variable: xr.Variable) -> PartsArray:
    """Return an array with the dimensions and the attributes of its variable."""
    metadata = dataclasses.replace(
        array.metadata,
        dimension_names=tuple(map(_text, variable.dims)),
        attributes=_attributes_of_variable(name, variable),
    )
    references = array.references
    return array.derive(References(metadata, references.manifests, references.checksums), array.declared_parts)


def _attributes_of_variable(name: str, variable: xr.Variable) -> dict[str, Any]:
    """Return the attributes of a variable as xarray would store them."""
    encoded = {key: variable.encoding[key] for key in _ENCODED if variable.encoding.get(key) is not None}
    attributes = _as_json({**variable.attrs, **encoded})
    # Parsers of VirtualiZarr encode this attribute. A number has to be encoded, because xarray decodes it.
    fill_value = attributes.get("_FillValue")
    if fill_value is not None and not isinstance(fill_value, str | list):
        try:
            attributes["_FillValue"] = FillValueCoder.encode(fill_value, variable.dtype)
        except (TypeError, ValueError) as error:
            expected = f"a value of the type {variable.dtype}"
            raise StoreConfigError(f"_FillValue of {name!r}", expected, describe(fill_value)) from error
    return attributes


def _as_json(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    return {_text(key): encode_zarr_attr_value(value) for key, value in attributes.items()}  # type: ignore[no-untyped-call]


def _text(name: Hashable) -> str:
    if not isinstance(name, str):
        raise StoreConfigError("source", "names that are text", describe(name))
    return name


def merged_attributes(stored: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a group that gets more of them; the names of coordinates are added to those stored."""
    merged = {**stored, **new}
    if isinstance(stored.get(_COORDINATES), str) and isinstance(new.get(_COORDINATES), str):
        names = dict.fromkeys([*stored[_COORDINATES].split(), *new[_COORDINATES].split()])
        merged[_COORDINATES] = " ".join(names)
    return merged
