"""Virtual datasets of xarray: made from a group of references, and read to be written to a session.

The coordinates are loaded, and the other variables are references. An error names the file and the variable that cannot
be read. Nothing is written here.
"""

import dataclasses
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore
from xarray.conventions import decode_cf_variable

from parts_store._compat.virtualizarr import group_of
from parts_store._compat.xarray import FillValueCoder, encode_zarr_attr_value
from parts_store.errors import AdoptionError, PartsStoreError, StoreConfigError, describe, raise_translated
from parts_store.virtual.attribute_types import BYTES, types_in, with_types
from parts_store.virtual.description import why_invalid
from parts_store.virtual.existing_files import first_line
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.reading import ReferenceReadSettings, carry_out, load_all
from parts_store.virtual.registries import parse_registry

_COORDINATES: Final = "coordinates"
# Members of a variable's encoding that xarray stores as attributes.
_ENCODED: Final = ("_FillValue", "missing_value", "scale_factor", "add_offset")
_BOUNDS: Final = "bounds"
# What a variable with bounds of times has from its times, if it does not have them itself.
_INHERITED: Final = ("units", "calendar")


def dataset_of(
    location: str,
    group: PartsGroup,
    loadable_variables: Iterable[str] | None = None,
    *,
    decode_times: bool = True,
    mask_and_scale: bool = True,
) -> xr.Dataset:
    """Return the arrays of a group of a file as a dataset. They must be bound to registries that cover what is loaded.

    By default dimension coordinates and their bounds are loaded. Without `mask_and_scale` the values of loaded
    variables are those that are stored, except for times. Raises `AdoptionError` if values cannot be read, or times
    cannot be decoded.
    """
    names = names_to_load(group, loadable_variables)
    wanted = [virtual_variable(group.arrays[name]) for name in names]
    stored = dict(zip(names, load_variables(wanted, [(location, name) for name in names]), strict=True))
    virtual = {name: virtual_variable(each) for name, each in group.arrays.items() if name not in stored}
    loaded = decode(location, stored, decode_times=decode_times, mask_and_scale=mask_and_scale, others=virtual)
    attributes = group.attributes
    coordinates = _listed(attributes.pop(_COORDINATES, ""))
    for variable in virtual.values():
        coordinates |= _listed(variable.attrs.get(_COORDINATES))
    for variable in loaded.values():
        # As `xarray.open_dataset` does it.
        if (listed := variable.attrs.pop(_COORDINATES, None)) is not None:
            variable.encoding[_COORDINATES] = listed
            coordinates |= _listed(listed)
    # In the order of the file.
    made = virtual | loaded
    return compose({name: made[name] for name in group.arrays}, coordinates, attributes)


def compose(
    variables: Mapping[Any, xr.Variable], coordinates: Collection[Hashable], attributes: Mapping[Any, Any]
) -> xr.Dataset:
    """Return a dataset of variables. Those that are named, or have the name of their dimension, are coordinates."""
    is_coordinate = {name: name in coordinates or each.dims == (name,) for name, each in variables.items()}
    # Without indexes: xarray would load the values of a virtual coordinate for one.
    virtual = {
        name: each for name, each in variables.items() if is_coordinate[name] and isinstance(each.data, PartsArray)
    }
    loaded = {name: each for name, each in variables.items() if is_coordinate[name] and name not in virtual}
    dataset = xr.Dataset(
        {name: each for name, each in variables.items() if not is_coordinate[name]},
        xr.Coordinates(virtual, indexes={}),
        attributes,
    )
    return dataset.assign_coords(loaded)


def bind(dataset: xr.Dataset, registry: Any) -> xr.Dataset:
    """Return a dataset whose arrays are bound to a registry: those from other processes are bound to copies of it."""
    registries = (parse_registry(registry),)
    changed: dict[Hashable, xr.Variable] = {
        name: xr.Variable(variable.dims, variable.data.with_registry(registry), variable.attrs, variable.encoding)
        for name, variable in dataset.variables.items()
        if isinstance(variable.data, PartsArray) and variable.data.registries != registries
    }
    if not changed:
        return dataset
    return compose({**dataset.variables, **changed}, set(dataset.coords), dataset.attrs)


def _listed(names: Any) -> set[str]:
    return set(names.split()) if isinstance(names, str) else set()


def names_to_load(group: PartsGroup, loadable_variables: Iterable[str] | None) -> list[str]:
    """Return the names of the arrays in a group that are loaded: those that are named, or the default ones."""
    if loadable_variables is None:
        return default_names(group)
    names = list(loadable_variables)
    if missing := [name for name in names if name not in group.arrays]:
        expected = f"names of variables: {', '.join(sorted(group.arrays))}"
        raise StoreConfigError("loadable_variables", expected, describe(missing[0]))
    return names


def default_names(group: PartsGroup) -> list[str]:
    """Return the names of the dimension coordinates in a group, and of their bounds.

    Bounds of times have no units of their own, so that they are decoded with their times.
    """
    arrays = group.arrays
    names = [name for name, each in arrays.items() if each.metadata.dimension_names == (name,)]
    bounds = [bounds_of(arrays[name].metadata.attributes) for name in names]
    return list(dict.fromkeys([*names, *(each for each in bounds if each in arrays)]))


def bounds_of(attributes: Mapping[Any, Any]) -> str:
    """Return the name of the variable with the bounds of another one; an empty text if its attribute is no name."""
    name = attributes.get(_BOUNDS)
    return name if isinstance(name, str) else ""


def virtual_variable(array: PartsArray) -> xr.Variable:
    """Return a variable whose data are references."""
    names = array.metadata.dimension_names or [None] * array.ndim
    dims = [f"dim_{axis}" if name is None else name for axis, name in enumerate(names)]
    return xr.Variable(dims, array, dict(array.metadata.attributes))


# --- values -----------------------------------------------------------------------------------------------------------


def is_loaded(variable: xr.Variable) -> bool:
    """Return whether the values of a variable are in memory, and not references."""
    return not isinstance(variable.data, PartsArray)


def first_difference(expected: NDArray[Any], found: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the index of the first values that are not the same, None if there are none. NaN equals NaN."""
    is_same = np.asarray((found == expected) | ((found != found) & (expected != expected)))  # noqa: PLR0124
    return None if is_same.all() else tuple(np.argwhere(~is_same)[0].tolist())


type Origin = tuple[str, str]
"""The URL of the file that a variable is from, and the name of the variable."""


def load_arrays(arrays: Sequence[PartsArray], origins: Sequence[Origin]) -> list[NDArray[Any]]:
    """Return the values of arrays, all of which are read at the same time.

    Raises `AdoptionError` for the first array whose values cannot be read.
    """
    try:
        return _load(arrays)
    except Exception:
        # Which of them cannot be read is only known after each was read by itself.
        return [_load_one(array, origin) for array, origin in zip(arrays, origins, strict=True)]


def _load(arrays: Sequence[PartsArray]) -> list[NDArray[Any]]:
    registries = tuple({id(each): each for array in arrays for each in array.registries_for(None)}.values())
    return carry_out(load_all([each.references for each in arrays], registries, ReferenceReadSettings()))


def _load_one(array: PartsArray, origin: Origin) -> NDArray[Any]:
    try:
        return _load([array])[0]
    except Exception as error:
        kind = "" if isinstance(error, PartsStoreError) else f"{type(error).__name__}: "
        problem = f"its values cannot be read: {kind}{first_line(error)}"
        location, name = origin
        raise_translated(AdoptionError(location, ((f"variable {name!r}", problem),)), error)


def load_variables(variables: Sequence[xr.Variable], origins: Sequence[Origin]) -> list[xr.Variable]:
    """Return variables with their stored values. The values of all that are virtual are read at the same time."""
    virtual = [number for number, each in enumerate(variables) if isinstance(each.data, PartsArray)]
    values = load_arrays([variables[number].data for number in virtual], [origins[number] for number in virtual])
    loaded = dict(zip(virtual, values, strict=True))
    return [_with_values(each, loaded[at]) if at in loaded else each for at, each in enumerate(variables)]


def _with_values(variable: xr.Variable, values: NDArray[Any]) -> xr.Variable:
    types = types_in(variable.data.metadata.extra_fields)
    # xarray cannot write bytes.
    attributes = with_types(variable.attrs, {key: name for key, name in types.items() if name != BYTES})
    if isinstance(attributes.get("_FillValue"), str | list) and values.dtype.kind in "fc":
        attributes["_FillValue"] = FillValueCoder.decode(attributes["_FillValue"], str(values.dtype))
    return xr.Variable(variable.dims, values, attributes, variable.encoding)


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode(
    location: str,
    variables: Mapping[str, xr.Variable],
    *,
    decode_times: bool = True,
    mask_and_scale: bool = True,
    others: Mapping[str, xr.Variable] | None = None,
) -> dict[str, xr.Variable]:
    """Return variables of a file with decoded times, and with `mask_and_scale` also without packing and fill values.

    The variables may be bounds of others in the file.
    """
    found: dict[str, xr.Variable] = {}
    inherited = _inherited_units({**(others or {}), **variables})
    for name, variable in variables.items():
        own = variable.copy(deep=False)
        own.attrs = {**inherited.get(name, {}), **variable.attrs}
        is_time = decode_times and " since " in str(own.attrs.get("units", ""))
        if is_time or mask_and_scale:
            own = _decode(location, name, own, is_time=is_time)
        found[name] = own
    return found


def _decode(location: str, name: str, variable: xr.Variable, *, is_time: bool) -> xr.Variable:
    try:
        decoded: xr.Variable = decode_cf_variable(name, variable, decode_times=is_time, decode_timedelta=False)
    # xarray raises OverflowError for times that are too far away.
    except (ValueError, OverflowError) as error:
        if not is_time or find_spec("cftime") is not None:
            said = str(error).strip().partition("\n")[0].partition(". Try opening")[0][:300]
            problem = f"expected values that xarray can decode, found {said}"
            raise AdoptionError(location, ((f"variable {name!r}", problem),)) from error
        calendar = variable.attrs.get("calendar")
        problem = f"times in the calendar {calendar!r} need cftime: pip install cftime"
        raise ImportError(problem, name="cftime") from error
    return decoded


def _inherited_units(variables: Mapping[str, xr.Variable]) -> dict[str, dict[str, Any]]:
    """Return the units that bounds of times have from their times."""
    return {
        name: {key: variable.attrs[key] for key in _INHERITED if key in variable.attrs}
        for variable in variables.values()
        if (name := bounds_of(variable.attrs)) in variables and " since " in str(variable.attrs.get("units", ""))
    }


# --- what can be written ----------------------------------------------------------------------------------------------

type VirtualSource = xr.Dataset | xr.DataTree | ManifestGroup | ManifestStore | PartsGroup
"""What can be written to a session."""


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
            if "/" in name or why_invalid(name) is not None:
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
    return array.derive(dataclasses.replace(array.references, metadata=metadata))


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
