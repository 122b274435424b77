"""Read datasets, trees and groups into one form: for each group its references, loaded variables and attributes.

Nothing is written here. Variables that are neither references nor in memory are loaded.
"""

import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import xarray as xr
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore

from parts_store._compat.virtualizarr import group_of
from parts_store._compat.xarray import FillValueCoder, encode_zarr_attr_value
from parts_store.backends.registered_files import Registries
from parts_store.errors import StoreConfigError, describe
from parts_store.format.keys import DOCUMENT, NODES_FOLDER
from parts_store.format.parts import ConcatParts
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References
from parts_store.manifests.group import PartsGroup

type Source = xr.Dataset | xr.DataTree | ManifestGroup | ManifestStore | PartsGroup
"""What can be written to a session."""

# Members of a variable's encoding that xarray stores as attributes.
_ENCODED: Final = ("_FillValue", "missing_value", "scale_factor", "add_offset")
_COORDINATES: Final = "coordinates"
# Names that a Zarr node cannot have.
_INVALID_NAMES: Final = ("", ".", "..", NODES_FOLDER, DOCUMENT)


@dataclass(frozen=True, slots=True, eq=False)
class SourceArray:
    """An array of references, with the attributes and the dimension names that it will have."""

    references: References
    # The parts that the array declares, None if its chunks have one part.
    parts: ConcatParts | None
    # The registries that the values can be read with, if there are any.
    registries: Registries = ()

    @property
    def nbytes(self) -> int:
        """The number of bytes of the values in memory."""
        return math.prod(self.references.metadata.shape) * self.references.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class SourceGroup:
    """What is in a group, except for other groups."""

    arrays: Mapping[str, SourceArray]
    # The variables whose values are stored, not referred to.
    loaded: xr.Dataset
    attributes: Mapping[str, Any]

    @property
    def dimensions(self) -> set[str]:
        """The names of all dimensions."""
        names = {name for each in self.arrays.values() for name in each.references.metadata.dimension_names or ()}
        return {*filter(None, names), *map(str, self.loaded.dims)}


def read_tree(source: Source) -> dict[str, SourceGroup]:
    """Return all groups of a source by their paths, each before the groups in it; the path of the source is empty."""
    match source:
        case xr.Dataset():
            groups = {"": _of_dataset(source)}
        case xr.DataTree():
            groups = dict(_of_tree(source))
        case PartsGroup():
            groups = dict(_of_group(source))
        case ManifestGroup():
            groups = dict(_of_group(PartsGroup.from_manifest_group(source)))
        case ManifestStore():
            groups = dict(_of_group(PartsGroup.from_manifest_group(group_of(source))))
        case _:
            expected = "a dataset or a tree of xarray, a ManifestGroup, a ManifestStore or a PartsGroup"
            raise StoreConfigError("source", expected, describe(source))
    _require_names(groups)
    return groups


def _of_tree(tree: xr.DataTree) -> Iterator[tuple[str, SourceGroup]]:
    """Yield the groups of a tree. Coordinates that a group inherits are stored once, in the group that has them."""
    for node in tree.subtree:
        is_root = node is tree
        yield "" if is_root else str(node.relative_to(tree)), _of_dataset(node.to_dataset(inherit=is_root))


def _of_group(root: PartsGroup) -> Iterator[tuple[str, SourceGroup]]:
    for path, node in root.nodes():
        if isinstance(node, PartsGroup):
            arrays = {
                name: SourceArray(each.references, each.declared_parts, each.registries)
                for name, each in node.arrays.items()
            }
            yield path, SourceGroup(arrays, xr.Dataset(), node.attributes)


def _of_dataset(dataset: xr.Dataset) -> SourceGroup:
    arrays: dict[str, SourceArray] = {}
    loaded: dict[Hashable, xr.Variable] = {}
    for name, variable in dataset.variables.items():
        # This reads a variable that is not in memory, once.
        data = variable.data
        if isinstance(data, ManifestArray | PartsArray):
            arrays[_text(name)] = _of_variable(_text(name), variable, data)
        else:
            loaded[_text(name)] = xr.Variable(variable.dims, data, variable.attrs, variable.encoding)
    return SourceGroup(arrays, xr.Dataset(loaded), _attributes_of_group(dataset))


def _of_variable(name: str, variable: xr.Variable, data: ManifestArray | PartsArray) -> SourceArray:
    array = PartsArray.from_manifest_array(data) if isinstance(data, ManifestArray) else data
    metadata = dataclasses.replace(
        array.metadata,
        dimension_names=tuple(map(_text, variable.dims)),
        attributes=_attributes_of_variable(name, variable),
    )
    references = array.references
    described = References(metadata, references.manifests, references.checksums)
    return SourceArray(described, array.declared_parts, array.registries)


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


def _attributes_of_group(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the attributes of a dataset, with the names of its coordinates, so that xarray knows them again."""
    attributes = _as_json(dataset.attrs)
    # A name with a space cannot be in a list of names.
    names = [_text(name) for name in dataset.coords if " " not in _text(name)]
    return {**attributes, _COORDINATES: " ".join(names)} if names else attributes


def _as_json(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    return {_text(key): encode_zarr_attr_value(value) for key, value in attributes.items()}  # type: ignore[no-untyped-call]


def _text(name: Hashable) -> str:
    if not isinstance(name, str):
        raise StoreConfigError("source", "names that are text", describe(name))
    return name


def _require_names(groups: Mapping[str, SourceGroup]) -> None:
    """Raise unless every name can be that of a Zarr node."""
    paths = [path for path in groups if path]
    names = [*(path.rpartition("/")[2] for path in paths), *(name for each in groups.values() for name in each.arrays)]
    names += [str(name) for each in groups.values() for name in each.loaded.variables]
    for name in names:
        if name in _INVALID_NAMES or "/" in name or "\\" in name:
            raise StoreConfigError("source", "names that a node of Zarr can have", describe(name))


def merged_attributes(stored: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a group that gets more of them; the names of coordinates are added to those stored."""
    merged = {**stored, **new}
    if isinstance(stored.get(_COORDINATES), str) and isinstance(new.get(_COORDINATES), str):
        names = dict.fromkeys([*stored[_COORDINATES].split(), *new[_COORDINATES].split()])
        merged[_COORDINATES] = " ".join(names)
    return merged
