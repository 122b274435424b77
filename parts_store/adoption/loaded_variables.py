"""Join the values of variables that are loaded: coordinates, and times, which each file may count from another day."""

import dataclasses
import warnings
from collections.abc import Hashable, Sequence
from typing import Final

import xarray as xr
from xarray.conventions import decode_cf_variable, encode_cf_variable

from parts_store.adoption.join_checks import FileDataset, is_loaded
from parts_store.adoption.loading import Origin, load_variables
from parts_store.adoption.virtual_dataset import decode

# The members of an encoding that say how times are stored.
_TIME_ENCODING: Final = ("units", "calendar", "dtype")


def load_times(files: Sequence[FileDataset]) -> Sequence[FileDataset]:
    """Return files in which virtual times are loaded and decoded, if the files count them from different days."""
    names = [name for name in files[0].dataset.variables if _has_other_units(files, name)]
    if not names:
        return files
    loaded = {name: load_from_files(files, name) for name in names}
    changed = []
    for number, file in enumerate(files):
        decoded = decode(file.location, {str(name): loaded[name][number] for name in names}, mask_and_scale=False)
        changed.append(dataclasses.replace(file, dataset=file.dataset.assign(decoded)))
    return changed


def load_from_files(files: Sequence[FileDataset], name: Hashable) -> list[xr.Variable]:
    """Return a variable of each file, with its stored values. All values are read at the same time."""
    origins = [Origin(file.location, str(name)) for file in files]
    return load_variables([file.dataset.variables[name] for file in files], origins)


def _has_other_units(files: Sequence[FileDataset], name: Hashable) -> bool:
    variables = [file.dataset.variables.get(name) for file in files]
    known = [each for each in variables if each is not None]
    units = [str(each.attrs.get("units", "")) for each in known]
    is_time = all(" since " in each for each in units)
    return is_time and len(set(units)) > 1 and not any(map(is_loaded, known))


def join_loaded(variables: Sequence[xr.Variable], dim: str) -> xr.Variable:
    """Return variables with values in memory, one after the other; times with an encoding that keeps all of them."""
    plain = [each.to_base_variable() for each in variables]
    joined: xr.Variable = plain[0]
    if len(plain) > 1:
        joined = xr.Variable.concat(plain, dim)  # type: ignore[no-untyped-call]
    joined.attrs, joined.encoding = dict(plain[0].attrs), dict(plain[0].encoding)
    is_same = all(_time_encoding(each) == _time_encoding(plain[0]) for each in plain)
    if "units" in joined.encoding and not is_same and not _keeps_values(joined):
        # xarray then finds units in which all values are integers.
        for member in ("units", "dtype"):
            joined.encoding.pop(member, None)
    return joined


def _time_encoding(variable: xr.Variable) -> list[str]:
    return [str(variable.encoding.get(member)) for member in _TIME_ENCODING]


def _keeps_values(variable: xr.Variable) -> bool:
    """Return whether times are the same after they were encoded and decoded."""
    with warnings.catch_warnings():
        # xarray warns if it has to choose other units.
        warnings.simplefilter("error")
        try:
            stored = decode_cf_variable("times", encode_cf_variable(variable), decode_timedelta=False)
        except (UserWarning, ValueError, OverflowError):
            return False
    return bool((stored.values == variable.values).all())
