"""Check that the virtual datasets of files belong together, before they are combined.

Every error names the file, the variable, what the first file has, and what was found.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from parts_store.errors import AdoptionError, describe
from parts_store.redaction import hide_in_url
from parts_store.virtual.manifests.meaning import find_difference
from parts_store.virtual.virtual_dataset import first_difference, is_loaded


@dataclass(frozen=True, slots=True, eq=False)
class FileGroup:
    """A group of a file, or of several files that were combined, as a virtual dataset.

    The location of several files is that of the first. The path of the root group is empty.
    """

    location: str
    path: str
    dataset: xr.Dataset
    # Why variables of the file are not in a dataset, by their paths.
    skipped: Mapping[str, str] = field(default_factory=dict)
    # Why variables were loaded or not compared when files were combined, by their paths.
    notes: Mapping[str, str] = field(default_factory=dict)

    def path_of(self, name: Hashable) -> str:
        """Return the path of a variable in the file."""
        return f"{self.path}/{name}" if self.path else str(name)

    def named(self, name: Hashable) -> str:
        """Return the name of a variable in messages."""
        return f"variable {self.path_of(name)!r}"


def refused(file: FileGroup, subject: str, problem: str) -> AdoptionError:
    """Return the error for a file that cannot be joined with the others."""
    return AdoptionError(file.location, ((subject, problem),))


def differs(file: FileGroup, subject: str, first: FileGroup, expected: object, found: object) -> AdoptionError:
    """Return the error for a file that differs from the first one."""
    problem = f"expected {expected}, as in {hide_in_url(first.location)!r}, found {found}"
    return refused(file, subject, problem)


def require_together(files: Sequence[FileGroup], dim: str) -> None:
    """Raise `AdoptionError` unless files have the same variables, of the same types and meanings, on the same grid.

    The lengths of `dim` may differ, but not overlap. Values are compared for loaded coordinates of other dimensions.
    The data types of a file without steps do not matter.
    """
    first = next((file for file in files if has_steps(file, dim)), files[0])
    for file in files:
        if file is not first:
            _require_names(file, first)
            for name in file.dataset.variables:
                _require_variable(file, name, first, dim)
    _require_ordered(files, dim)


def has_steps(file: FileGroup, dim: str) -> bool:
    """Return whether a file has values along a dimension, or does not have the dimension."""
    return bool(file.dataset.sizes.get(dim) != 0)


def _require_names(file: FileGroup, first: FileGroup) -> None:
    expected, found = first.dataset.variables.keys(), file.dataset.variables.keys()
    if expected == found:
        return
    for name in expected - found:
        reason = file.skipped.get(file.path_of(name))
        problem = "nothing" if reason is None else f"one that cannot be adopted: {reason}"
        raise differs(file, file.named(name), first, "the variable", problem)
    for name in found - expected:
        reason = first.skipped.get(first.path_of(name))
        problem = "none" if reason is None else f"none that can be adopted ({reason})"
        raise differs(file, file.named(name), first, problem, "the variable")


def _require_variable(file: FileGroup, name: Hashable, first: FileGroup, dim: str) -> None:
    expected, variable = first.dataset.variables[name], file.dataset.variables[name]
    require_same_grid(file, name, first, free=dim)
    is_empty = dim in variable.dims and not has_steps(file, dim)
    if not is_empty and kind_of(variable) != kind_of(expected):
        raise differs(file, file.named(name), first, f"the data type {kind_of(expected)}", kind_of(variable))
    require_same_meaning(file, name, first)
    if dim not in variable.dims and is_loaded(variable) and name in file.dataset.indexes:
        require_same_values(file, name, first, variable.values, expected.values)


def require_same_grid(file: FileGroup, name: Hashable, first: FileGroup, *, free: str | None = None) -> None:
    """Raise `AdoptionError` unless a variable has the dimensions that it has in the first file.

    The length of the dimension that is free may differ.
    """
    expected, variable = first.dataset.variables[name], file.dataset.variables[name]
    subject = file.named(name)
    if variable.dims != expected.dims:
        raise differs(file, subject, first, f"the dimensions {expected.dims}", f"{variable.dims}")
    for along, length, found in zip(expected.dims, expected.shape, variable.shape, strict=True):
        if length != found and along != free:
            raise differs(file, subject, first, f"the length {length} of {along!r}", found)


def require_same_meaning(file: FileGroup, name: Hashable, first: FileGroup) -> None:
    """Raise `AdoptionError` if attributes give the numbers of a variable another meaning than in the first file."""
    expected, variable = first.dataset.variables[name], file.dataset.variables[name]
    if (difference := find_difference(expected.attrs, variable.attrs)) is not None:
        attribute = f"{file.named(name)}, attribute {difference.attribute!r}"
        raise differs(file, attribute, first, difference.expected, difference.found)


def require_comparable(file: FileGroup, name: Hashable, first: FileGroup) -> None:
    """Raise `AdoptionError` if values of a variable cannot be equal to those in the first file, such as times."""
    expected, variable = first.dataset.variables[name], file.dataset.variables[name]
    are_numbers = all(each.dtype.kind in "biufc" for each in (expected, variable))
    if not are_numbers and kind_of(variable) != kind_of(expected):
        raise differs(file, file.named(name), first, f"the data type {kind_of(expected)}", kind_of(variable))


def kind_of(variable: xr.Variable) -> str:
    """Return the data type of a variable for comparison; of times, whether and how they are decoded."""
    if variable.dtype.kind in "Mm":
        return "datetime64" if variable.dtype.kind == "M" else "timedelta64"
    if variable.dtype.kind == "O" and variable.size and is_loaded(variable):
        one = np.asarray(variable.data).reshape(-1)[0]
        return f"{type(one).__name__}, {getattr(one, 'calendar', '')}".rstrip(", ")
    return str(variable.dtype)


def require_same_values(
    file: FileGroup, name: Hashable, first: FileGroup, found: NDArray[Any], expected: NDArray[Any]
) -> None:
    """Raise `AdoptionError` unless a variable of a file has the values that the first file has. NaN equals NaN."""
    if (at := first_difference(expected, found)) is not None:
        where = f"{file.named(name)}, at {list(at)}" if at else file.named(name)
        raise differs(file, where, first, _shown(expected[at]), _shown(found[at]))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, np.datetime64) else describe(getattr(value, "item", lambda: value)())


def _require_ordered(files: Sequence[FileGroup], dim: str) -> None:
    """Raise `AdoptionError` unless the coordinate of a dimension is ordered over all files, without overlaps."""
    known = [file for file in files if _has_coordinate(file, dim) and file.dataset.sizes[dim]]
    sign = _direction([_coordinate(file, dim) for file in known])
    for file in known:
        values = _coordinate(file, dim)
        wrong = np.flatnonzero(~(values[1:] > values[:-1] if sign > 0 else values[1:] < values[:-1]))
        if len(wrong):
            at = int(wrong[0])
            problem = f"expected ordered values, found {_shown(values[at])} before {_shown(values[at + 1])}"
            raise refused(file, file.named(dim), problem)
    for before, file in pairwise(known):
        last, begins = _coordinate(before, dim)[-1], _coordinate(file, dim)[0]
        if not (begins > last if sign > 0 else begins < last):
            problem = (
                f"expected values {'after' if sign > 0 else 'before'} {_shown(last)}, the last one of "
                f"{hide_in_url(before.location)!r}, found {_shown(begins)}; the files overlap, or are not in order"
            )
            raise refused(file, file.named(dim), problem)


def _has_coordinate(file: FileGroup, dim: str) -> bool:
    """Return whether the values of a dimension are in memory and can be ordered."""
    variable = file.dataset.variables.get(dim)
    return variable is not None and variable.dims == (dim,) and is_loaded(variable) and variable.dtype.kind != "S"


def _coordinate(file: FileGroup, dim: str) -> NDArray[Any]:
    return np.asarray(file.dataset.variables[dim].values)


def _direction(all_values: Sequence[NDArray[Any]]) -> int:
    """Return 1 if values increase from the first to the last, -1 if they decrease."""
    if not all_values:
        return 1
    inside = next((values for values in all_values if len(values) > 1), None)
    begin, end = (all_values[0][0], all_values[-1][-1]) if inside is None else (inside[0], inside[-1])
    return -1 if end < begin else 1
