"""Make a virtual dataset of xarray from a group of references: its coordinates are loaded, and the rest is not."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import xarray as xr
from xarray.conventions import decode_cf_variable

from parts_store.adoption.loading import Origin, load_variables
from parts_store.errors import AdoptionError, StoreConfigError, describe
from parts_store.manifests.array import PartsArray
from parts_store.manifests.group import PartsGroup

_COORDINATES: Final = "coordinates"
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
    stored = dict(zip(names, load_variables(wanted, [Origin(location, name) for name in names]), strict=True))
    virtual = {name: virtual_variable(each) for name, each in group.arrays.items() if name not in stored}
    loaded = decode(location, stored, decode_times=decode_times, mask_and_scale=mask_and_scale)
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


def decode(
    location: str, variables: Mapping[str, xr.Variable], *, decode_times: bool = True, mask_and_scale: bool = True
) -> dict[str, xr.Variable]:
    """Return variables of a file with decoded times, and with `mask_and_scale` also without packing and fill values."""
    found: dict[str, xr.Variable] = {}
    inherited = _inherited_units(variables)
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
        variable.attrs[_BOUNDS]: {key: variable.attrs[key] for key in _INHERITED if key in variable.attrs}
        for variable in variables.values()
        if variable.attrs.get(_BOUNDS) in variables and " since " in str(variable.attrs.get("units", ""))
    }
