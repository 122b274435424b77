"""Make a virtual dataset of xarray from a group of references: its coordinates are loaded, and the rest is not."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

import xarray as xr
from numpy.typing import NDArray
from xarray.conventions import decode_cf_variable

from parts_store._compat.xarray import FillValueCoder
from parts_store.errors import StoreConfigError, describe
from parts_store.manifests.array import PartsArray
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.reading import ReadSettings, carry_out, load_all

_COORDINATES: Final = "coordinates"
_BOUNDS: Final = "bounds"
# What a variable with bounds of times has from its times, if it does not have them itself.
_INHERITED: Final = ("units", "calendar")


def dataset_of(
    group: PartsGroup,
    loadable_variables: Iterable[str] | None = None,
    *,
    decode_times: bool = True,
    mask_and_scale: bool = True,
) -> xr.Dataset:
    """Return the arrays of a group as a dataset. Arrays must be bound to registries that cover what is loaded.

    By default dimension coordinates and their bounds are loaded. Without `mask_and_scale` the values of loaded
    variables are those that are stored, except for times.
    """
    names = names_to_load(group, loadable_variables)
    stored = load_variables({name: group.arrays[name] for name in names})
    virtual = {name: virtual_variable(each) for name, each in group.arrays.items() if name not in stored}
    loaded = decode(stored, decode_times=decode_times, mask_and_scale=mask_and_scale)
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


def _listed(names: Any) -> set[str]:
    return set(names.split()) if isinstance(names, str) else set()


def names_to_load(group: PartsGroup, loadable_variables: Iterable[str] | None) -> list[str]:
    """Return the names of the arrays in a group that are loaded: those that are named, or the default ones."""
    if loadable_variables is None:
        return default_names(group)
    names = [loadable_variables] if isinstance(loadable_variables, str) else list(loadable_variables)
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
    bounds = [arrays[name].metadata.attributes.get(_BOUNDS) for name in names]
    return list(dict.fromkeys([*names, *(each for each in bounds if each in arrays)]))


def virtual_variable(array: PartsArray) -> xr.Variable:
    """Return a variable whose data are references."""
    names = array.metadata.dimension_names or [None] * array.ndim
    dims = [f"dim_{axis}" if name is None else name for axis, name in enumerate(names)]
    return xr.Variable(dims, array, dict(array.metadata.attributes))


def load_variables(arrays: Mapping[str, PartsArray]) -> dict[str, xr.Variable]:
    """Return variables with the stored values of arrays, all of which are read at the same time."""
    return dict(zip(arrays, load_all_variables([virtual_variable(each) for each in arrays.values()]), strict=True))


def load_all_variables(variables: Sequence[xr.Variable]) -> list[xr.Variable]:
    """Return variables with their stored values. The values of all that are virtual are read at the same time."""
    arrays = [each.data for each in variables if isinstance(each.data, PartsArray)]
    registries = tuple({id(each): each for array in arrays for each in array.registries_for(None)}.values())
    values = iter(carry_out(load_all([each.references for each in arrays], registries, ReadSettings())))
    return [_with_values(each, next(values)) if isinstance(each.data, PartsArray) else each for each in variables]


def _with_values(variable: xr.Variable, values: NDArray[Any]) -> xr.Variable:
    attributes = dict(variable.attrs)
    if isinstance(attributes.get("_FillValue"), str | list) and values.dtype.kind in "fc":
        attributes["_FillValue"] = FillValueCoder.decode(attributes["_FillValue"], str(values.dtype))
    return xr.Variable(variable.dims, values, attributes, variable.encoding)


def decode(
    variables: Mapping[str, xr.Variable], *, decode_times: bool = True, mask_and_scale: bool = True
) -> dict[str, xr.Variable]:
    """Return variables with decoded times, and with `mask_and_scale` also without packing and fill values."""
    found: dict[str, xr.Variable] = {}
    inherited = _inherited_units(variables)
    for name, variable in variables.items():
        own = variable.copy(deep=False)
        own.attrs = {**inherited.get(name, {}), **variable.attrs}
        is_time = decode_times and " since " in str(own.attrs.get("units", ""))
        if is_time or mask_and_scale:
            own = _decode(name, own, is_time=is_time)
        found[name] = own
    return found


def _decode(name: str, variable: xr.Variable, *, is_time: bool) -> xr.Variable:
    try:
        decoded: xr.Variable = decode_cf_variable(name, variable, decode_times=is_time, decode_timedelta=False)
    except ValueError as error:
        if not is_time or find_spec("cftime") is not None:
            raise StoreConfigError(f"variable {name!r}", "values that xarray can decode", str(error)) from error
        calendar = variable.attrs.get("calendar")
        problem = f"times in the calendar {calendar!r} need cftime: pip install cftime"
        raise ImportError(problem, name="cftime") from error
    return decoded


def _inherited_units(variables: Mapping[str, xr.Variable]) -> dict[str, dict[str, Any]]:
    """Return the units that bounds of times have from their times."""
    return {
        variable.attrs[_BOUNDS]: {key: variable.attrs[key] for key in _INHERITED if key in variable.attrs}
        for variable in variables.values()
        if variable.attrs.get(_BOUNDS) in variables and " since " in str(variable.attrs.get("units", ""))
    }
