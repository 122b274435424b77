"""Write numbers to stored arrays as they are in the files: values that were not decoded are not encoded.

xarray decodes what it appends, and encodes it again: an int64 with a fill value becomes a float64, and loses digits.
It cannot append characters, because it makes texts of them when it opens the stored array.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr

from parts_store.errors import ManifestError
from parts_store.format.keys import join
from parts_store.manifests.meaning import require_same_meaning
from parts_store.store import PartsStore

# Attributes that xarray moves from the attributes of a variable to its encoding when it decodes the values.
_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")

_CHARACTER: Final = np.dtype("S1")


@dataclass(frozen=True, slots=True, eq=False)
class ChangedNumbers:
    """Numbers for a part of a stored array, which may become longer."""

    store: PartsStore
    path: str
    variable: xr.Variable
    shape: tuple[int, ...]
    place: tuple[slice, ...]

    def write(self) -> None:
        """Write the numbers."""
        array = zarr.open_array(self.store, path=self.path, mode="r+", zarr_format=3)
        if array.shape != self.shape:
            array.resize(self.shape)
        array[self.place] = np.asarray(self.variable.values)


def not_decoded(dataset: xr.Dataset) -> dict[Hashable, xr.Variable]:
    """Return the variables of packed or masked values, as their attributes say, or of characters; but no times."""
    return {
        name: each
        for name, each in dataset.variables.items()
        if each.dtype == _CHARACTER
        or (any(key in each.attrs for key in _PACKING) and " since " not in str(each.attrs.get("units", "")))
    }


def plan_numbers(
    store: PartsStore,
    path: str,
    variables: Mapping[Hashable, xr.Variable],
    stored: xr.Dataset,
    *,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
) -> tuple[ChangedNumbers, ...]:
    """Return how variables that were not decoded change stored arrays; raise `ManifestError` if they do not fit.

    `stored` has the numbers of the stored arrays, not decoded. Variables along no dimension that changes must have the
    numbers that are stored.
    """
    changes = []
    free = [append_dim] if append_dim is not None else list(region or {})
    for name, variable in variables.items():
        where, old = join(path, str(name)), stored.variables[name]
        require_same_meaning(where, old.attrs, variable.attrs)
        if variable.dtype.newbyteorder("=") != old.dtype.newbyteorder("="):
            raise ManifestError(f"array {where!r}", f"the data type {old.dtype}", str(variable.dtype))
        if variable.dims != old.dims:
            raise ManifestError(f"array {where!r}", f"the dimensions {old.dims}", str(variable.dims))
        place, shape = _place_of(variable, old, append_dim, region)
        lengths = [part.stop - part.start for part in place]
        if lengths != list(variable.shape):
            expected = f"the shape {dict(zip(old.dims, lengths, strict=True))}"
            raise ManifestError(f"array {where!r}", expected, str(dict(variable.sizes)))
        if any(dim in variable.dims for dim in free):
            changes.append(ChangedNumbers(store, where, variable, shape, place))
        elif not _is_same(old.values, variable.values):
            raise ManifestError(f"array {where!r}", "the values that are stored", "others")
    return tuple(changes)


def _place_of(
    variable: xr.Variable, stored: xr.Variable, append_dim: str | None, region: Mapping[str, slice] | None
) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return where the values are written, and the shape of the array after it."""
    place, shape = [], []
    for dim, length in zip(stored.dims, stored.shape, strict=True):
        if dim == append_dim:
            place.append(slice(length, length + variable.sizes[dim]))
            shape.append(length + variable.sizes[dim])
        else:
            start, stop, _ = (region or {}).get(str(dim), slice(None)).indices(length)
            place.append(slice(start, stop))
            shape.append(length)
    return tuple(place), tuple(shape)


def _is_same(one: Any, other: Any) -> bool:
    return bool(np.all((one == other) | ((one != one) & (other != other))))  # noqa: PLR0124
