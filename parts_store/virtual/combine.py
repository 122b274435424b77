"""Combine the virtual datasets of many files: along a dimension that is named, or as their coordinates say.

First it is checked that the files belong together: every error names the file, the variable, what the first file has,
and what was found. `xarray.concat` joins chunks as they are. Here chunks are joined as they are where their length
divides the lengths of the files; arrays that are not compressed are cut into rows first; other variables are loaded,
refused if they are large, or joined on a rectilinear grid. Variables without the dimension are compared, and stay
references.
"""

import dataclasses
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.conventions import decode_cf_variable, encode_cf_variable

from parts_store.errors import AdoptionError, StoreConfigError, describe
from parts_store.redaction import hide_in_url
from parts_store.virtual.description import plain_chunk_shape
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.meaning import find_difference
from parts_store.virtual.manifests.operations import (
    can_concatenate_uneven,
    can_cut_rows,
    concatenate_uneven,
    contiguous_range,
    cut_range,
    cut_rows,
    fill_value_of,
    refer_to_same_bytes,
)
from parts_store.virtual.manifests.references import References, is_rectilinear
from parts_store.virtual.ome_zarr import join_attributes
from parts_store.virtual.options import AdoptOptions
from parts_store.virtual.store_access import join
from parts_store.virtual.virtual_dataset import bounds_of, compose, decode, first_difference, is_loaded, load_variables

# Chunks with fewer bytes are stored: a reference takes about as much space, and a request of its own to read.
SMALL_CHUNK: Final = 1 << 10
# The members of an encoding that say how times are stored.
_TIME_ENCODING: Final = ("units", "calendar", "dtype")


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
        return join(self.path, str(name))

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


# --- files that belong together ---------------------------------------------------------------------------------------


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


# --- combined files ---------------------------------------------------------------------------------------------------

type FileTree = Mapping[str, FileGroup]
"""The groups of a file, or of several files together, by their paths."""


def combine_files(trees: Sequence[FileTree], options: AdoptOptions) -> FileTree:
    """Return files as one: one after the other along a dimension, or as the coordinates of their root groups say."""
    if options.dim is not None:
        return _join_trees(trees, options.dim, options)
    if options.combine == "nested":
        raise StoreConfigError("combine", "'by_coords', or `concat_dim` for 'nested'", "'nested'")
    return _combine_by_coords(trees, options)


def to_source(tree: FileTree) -> xr.Dataset | xr.DataTree:
    """Return the groups of a file as what can be written to a session."""
    if list(tree) == [""]:
        return tree[""].dataset
    try:
        return xr.DataTree.from_dict({f"/{path}": group.dataset for path, group in tree.items()})
    except ValueError as error:
        problem = f"a group has other coordinates than the group above it: {str(error).splitlines()[0]}"
        raise AdoptionError(tree[""].location, (("the groups", problem),)) from error


# --- along a dimension ------------------------------------------------------------------------------------------------


def _join_trees(trees: Sequence[FileTree], dim: str, options: AdoptOptions) -> FileTree:
    """Return files one after the other along a dimension; if none of them has it, each is one step of it."""
    is_step = not any(dim in group.dataset.dims for tree in trees for group in tree.values())
    paths = dict.fromkeys(path for tree in trees for path in tree)
    joined = {}
    for path in paths:
        groups = [_group_in(tree, path) for tree in trees]
        if is_step:
            groups = [dataclasses.replace(group, dataset=_with_dimension(group.dataset, dim)) for group in groups]
        joined[path] = _join(groups, dim, options, is_step=is_step)
    return joined


def _group_in(tree: FileTree, path: str) -> FileGroup:
    """Return a group of a file; an empty one if the file has no such group."""
    root = tree[""]
    return tree.get(path, FileGroup(root.location, path, xr.Dataset(), root.skipped))


def _join(files: Sequence[FileGroup], dim: str, options: AdoptOptions, *, is_step: bool) -> FileGroup:
    """Return a group of all files along a dimension. Variables without it are kept from the first file.

    `is_step` says whether the dimension is in none of the files.

    Raises `AdoptionError` for files that do not belong together, and for a variable that has to be loaded and is too
    large.
    """
    files = _load_times(files)
    require_together(files, dim)
    # A file without steps adds nothing, and may have other chunks.
    with_steps = [file for file in files if has_steps(file, dim)] or files[:1]
    first = files[0]
    notes: dict[str, str] = {}
    joined: dict[Hashable, xr.Variable] = {}
    for name, variable in first.dataset.variables.items():
        if dim in variable.dims:
            joined[name], note = _join_variable(with_steps, name, dim, options)
        else:
            joined[name], note = variable, _compare(files, name, options)
        if note is not None:
            notes[first.path_of(name)] = note
    attributes = join_attributes([file.dataset.attrs for file in files], dim, is_new=is_step)
    dataset = compose(joined, set(first.dataset.coords), attributes)
    return dataclasses.replace(first, dataset=dataset, notes={**first.notes, **notes})


def _with_dimension(dataset: xr.Dataset, dim: str) -> xr.Dataset:
    """Return a dataset in which all data variables have one more dimension of length 1, the first one.

    A coordinate that is a single value and has the name of the dimension becomes its coordinate.
    """
    changed: dict[Hashable, xr.Variable] = {
        name: xr.Variable((dim, *variable.dims), variable.data[np.newaxis], variable.attrs, variable.encoding)
        for name, variable in dataset.variables.items()
        if name in dataset.data_vars or (name == dim and not variable.dims)
    }
    return compose({**dataset.variables, **changed}, set(dataset.coords) | ({dim} & set(changed)), dataset.attrs)


# --- variables along the dimension ------------------------------------------------------------------------------------


def _join_variable(
    files: Sequence[FileGroup], name: Hashable, dim: str, options: AdoptOptions
) -> tuple[xr.Variable, str | None]:
    """Return a variable of all files, and why it was loaded; None if it is virtual, or was loaded before."""
    variables = [file.dataset.variables[name] for file in files]
    if all(map(is_loaded, variables)):
        return _join_loaded(variables, dim), None
    nbytes: int = sum(variable.size * variable.dtype.itemsize for variable in variables)
    reason: str | None = "it is loaded in some of the files"
    or_refer = ""
    if not any(map(is_loaded, variables)):
        arrays: list[PartsArray] = [variable.data for variable in variables]
        _require_codecs(files, name, arrays)
        axis = variables[0].dims.index(dim)
        continued = options.stored_lengths.get(files[0].path_of(name), ())
        stored = [array.references for array in arrays]
        references, reason = _aligned(stored, axis, continued, is_large=nbytes > options.max_loaded_nbytes)
        if reason is not None and _is_uneven(stored, axis):
            can_refer = can_concatenate_uneven(stored, axis)
            or_refer = ", `uneven='rectilinear'` to refer to them" if can_refer else ""
            if options.uneven == "rectilinear" and can_refer:
                references, reason = [concatenate_uneven(stored, axis)], None
            elif options.uneven == "refuse":
                problem = f"{reason}; pass `uneven='load'` to copy its values{or_refer}, or `variables` without it"
                raise refused(files[0], files[0].named(name), problem)
        if reason is None:
            aligned = [array.derive(each) for array, each in zip(arrays, references, strict=False)]
            joined = aligned[0] if len(aligned) == 1 else np.concatenate(aligned, axis)
            return xr.Variable(variables[0].dims, joined, variables[0].attrs), None
    if nbytes > options.max_loaded_nbytes:
        problem = (
            f"{reason}, and its {nbytes:,} bytes are too many to be loaded "
            f"(max_loaded_nbytes={options.max_loaded_nbytes:,}); write the files with chunks whose length divides "
            f"those of the files, such as 1, or pass a larger `max_loaded_nbytes`{or_refer}, `loadable_variables` with "
            f"{str(name)!r}, or `variables` without it"
        )
        raise refused(files[0], files[0].named(name), problem)
    return _join_loaded(_load(files, name), dim), f"loaded, because {reason}"


def _require_codecs(files: Sequence[FileGroup], name: Hashable, arrays: Sequence[PartsArray]) -> None:
    first, expected_fill_value = arrays[0].metadata, fill_value_of(arrays[0].references)
    for file, array in zip(files, arrays, strict=True):
        if array.metadata.codecs != first.codecs:
            expected, found = (", ".join(map(str, each.codecs)) for each in (first, array.metadata))
            advice = f"{_other_codecs(first.codecs, array.metadata.codecs)}pass `loadable_variables` with {str(name)!r}"
            raise differs(file, file.named(name), files[0], f"the codecs {expected}", f"{found}; {advice}")
        fill_value = fill_value_of(array.references)
        if fill_value != expected_fill_value and array.references.is_missing().any():
            expected = f"the fill value {expected_fill_value}"
            raise differs(file, file.named(name), files[0], expected, str(fill_value))


def _other_codecs(first: Sequence[object], other: Sequence[object]) -> str:
    """Return why codecs may differ: HDF5 leaves filters out of chunks that they would make larger."""
    few, many = sorted((first, other), key=len)
    is_left_out = len(few) < len(many) and all(each in many for each in few)
    return "filters may be left out of its chunks in one of the files; " if is_left_out else ""


def _aligned(
    arrays: Sequence[References], axis: int, continued: Sequence[int], *, is_large: bool
) -> tuple[Sequence[References], str | None]:
    """Return arrays whose chunks can be joined along an axis; or why they cannot be joined without loading them.

    Uncompressed arrays are cut into chunks whose length divides the lengths of all of them. If they continue a stored
    array, `continued` has the length of its chunks and its own, which it divides, too. Small rows are joined if they
    are too large to load.
    """
    if any(is_rectilinear(each.metadata) for each in arrays):
        return arrays, "its chunks have several lengths along another dimension"
    can_cut = all(can_cut_rows(each, axis) for each in arrays)
    merged = [_merged(each, axis) for each in arrays] if can_cut else []
    is_contiguous = can_cut and None not in merged
    if is_contiguous:
        arrays = [each for each in merged if each is not None]
    first = arrays[0].chunk_shape
    if any(_without(each.chunk_shape, axis) != _without(first, axis) for each in arrays):
        other = next(each.chunk_shape for each in arrays if _without(each.chunk_shape, axis) != _without(first, axis))
        return arrays, f"its chunks have different shapes, {first} and {other}"
    lengths = [each.metadata.shape[axis] for each in arrays]
    length, row_nbytes = first[axis], math.prod(_without(first, axis)) * arrays[0].dtype.itemsize
    is_regular = _is_regular(arrays, axis)
    if can_cut and (continued or is_contiguous or not is_regular):
        common = math.gcd(*continued, *lengths, *(each.chunk_shape[axis] for each in arrays))
        is_as_stored = common in continued[:1]
        if row_nbytes < SMALL_CHUNK and not is_large and not is_as_stored:
            return arrays, "its rows are small"
        rows = common if is_as_stored else plain_chunk_shape((common, row_nbytes), 1)[0]
        if rows * row_nbytes < SMALL_CHUNK and not is_as_stored:
            where = "of the files and of stored chunks" if continued else "of the files"
            return arrays, f"its rows are small, the lengths {where} have no common divisor above {common:,}"
        return [cut_rows(each, axis, rows) for each in arrays], None
    if not is_regular:
        shown = ", ".join(map(str, sorted(set(lengths))[:3]))
        return arrays, f"its compressed chunks are not on one grid, in files of the lengths {shown}"
    return arrays, "its chunks are small" if row_nbytes * length < SMALL_CHUNK else None


def _merged(array: References, axis: int) -> References | None:
    """Return an array as one chunk along an axis; None if its chunks are single rows, or no range of one file."""
    if array.chunk_shape[axis] == 1 or (found := contiguous_range(array)) is None:
        return None
    shape = list(array.chunk_shape)
    shape[axis] = array.metadata.shape[axis]
    return cut_range(array, found, tuple(shape))


def _is_regular(arrays: Sequence[References], axis: int) -> bool:
    """Return whether the chunks of arrays, one after the other along an axis, are on one regular grid."""
    shape = arrays[0].chunk_shape
    return all(each.chunk_shape == shape for each in arrays) and all(
        each.metadata.shape[axis] % shape[axis] == 0 for each in arrays[:-1]
    )


def _is_uneven(arrays: Sequence[References], axis: int) -> bool:
    """Return whether arrays have chunks that cannot be cut, are not small, and do not make up a regular grid."""
    if any(is_rectilinear(each.metadata) for each in arrays):
        return True
    is_small = max(each.nbytes_of_plain_chunk for each in arrays) < SMALL_CHUNK
    return not is_small and not _is_regular(arrays, axis) and not all(can_cut_rows(each, axis) for each in arrays)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


# --- variables that are loaded ----------------------------------------------------------------------------------------


def _load_times(files: Sequence[FileGroup]) -> Sequence[FileGroup]:
    """Return files in which virtual times are loaded and decoded, if the files count them from different days."""
    names = [name for name in files[0].dataset.variables if _has_other_units(files, name)]
    return decode_times(files, names) if names else files


def decode_times(files: Sequence[FileGroup], times: Sequence[Hashable]) -> list[FileGroup]:
    """Return files in which times are loaded and decoded, and their bounds, which have the units of the times."""
    first = files[0].dataset.variables
    bounds = [bounds_of(first[name].attrs) for name in times]
    names = [name for name in dict.fromkeys([*times, *bounds]) if all(_is_number(file, name) for file in files)]
    loaded = {name: _load(files, name) for name in names}
    changed = []
    for number, file in enumerate(files):
        variables = {str(name): loaded[name][number] for name in names}
        decoded = decode(file.location, variables, mask_and_scale=False)
        changed.append(dataclasses.replace(file, dataset=file.dataset.assign(decoded)))
    return changed


def _is_number(file: FileGroup, name: Hashable) -> bool:
    """Return whether a file has a variable with numbers, not with decoded times."""
    variable = file.dataset.variables.get(name)
    return variable is not None and variable.dtype.kind in "iuf"


def _load(files: Sequence[FileGroup], name: Hashable) -> list[xr.Variable]:
    """Return a variable of each file, with its stored values. All values are read at the same time."""
    origins = [(file.location, str(name)) for file in files]
    return load_variables([file.dataset.variables[name] for file in files], origins)


def _has_other_units(files: Sequence[FileGroup], name: Hashable) -> bool:
    variables = [file.dataset.variables.get(name) for file in files]
    known = [each for each in variables if each is not None]
    units = [str(each.attrs.get("units", "")) for each in known]
    is_time = all(" since " in each for each in units)
    return is_time and len(set(units)) > 1 and not any(map(is_loaded, known))


def _join_loaded(variables: Sequence[xr.Variable], dim: str) -> xr.Variable:
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


# --- variables without the dimension ----------------------------------------------------------------------------------


def _compare(files: Sequence[FileGroup], name: Hashable, options: AdoptOptions) -> str | None:
    """Raise `AdoptionError` unless a variable is the same in all files; return a note if it is too large to compare."""
    # Values of indexes are compared before.
    if name in files[0].dataset.indexes or not options.compares:
        return None
    nbytes = _compare_values(files, name, options.max_loaded_nbytes)
    return f"taken from the first file, and not compared with the others: {nbytes:,} bytes" if nbytes else None


def _compare_values(files: Sequence[FileGroup], name: Hashable, max_loaded: int) -> int:
    """Raise `AdoptionError` unless a variable has the same values in all files.

    Values are read where references differ. If that were more than `max_loaded` bytes, nothing is read, and their
    number is returned; otherwise 0.
    """
    first = files[0].dataset.variables[name]
    others = [file for file in files[1:] if not _is_same(first, file.dataset.variables[name])]
    if not others:
        return 0
    compared = [files[0], *others]
    variables = [file.dataset.variables[name] for file in compared]
    nbytes: int = sum(each.size * each.dtype.itemsize for each in variables if not is_loaded(each))
    if nbytes > max_loaded:
        return nbytes
    expected, *found = _load(compared, name)
    for file, variable in zip(others, found, strict=True):
        require_same_values(file, name, files[0], variable.values, expected.values)
    return 0


def _is_same(one: xr.Variable, other: xr.Variable) -> bool:
    """Return whether variables have the same values, which need not be read to know it."""
    if is_loaded(one) or is_loaded(other):
        return False
    return refer_to_same_bytes(one.data.references, other.data.references)


# --- by coordinates ---------------------------------------------------------------------------------------------------


def _combine_by_coords(trees: Sequence[FileTree], options: AdoptOptions) -> FileTree:
    """Return files in the order and along the dimensions that the coordinates of their root groups say.

    Files with other variables are combined by themselves, and then merged: they must have the same coordinates.
    """
    by_variables: dict[Hashable, list[FileTree]] = {}
    for tree in trees:
        names = frozenset((path, name) for path, group in tree.items() for name in group.dataset.data_vars)
        by_variables.setdefault(names, []).append(tree)
    combined = [_combine(alike, _differing(alike), options) for alike in by_variables.values()]
    return reduce(lambda one, other: _merge(one, other, options), combined)


def _differing(trees: Sequence[FileTree]) -> list[str]:
    """Return the dimensions whose coordinates are loaded and differ between files."""
    first = trees[0][""].dataset
    found = [
        str(dim) for dim in first.indexes if any(_key(tree, str(dim)) != _key(trees[0], str(dim)) for tree in trees)
    ]
    if len(trees) > 1 and not found:
        known = ", ".join(repr(str(dim)) for dim in first.indexes) or "none"
        expected = "`concat_dim`, because the files do not differ in their coordinates"
        raise StoreConfigError("concat_dim", expected, f"None, and the coordinates {known}")
    return found


def _key(tree: FileTree, dim: str) -> Hashable:
    """Return a value by which the coordinates of a dimension in different files are compared."""
    variable = tree[""].dataset.variables.get(dim)
    if variable is None:
        return None
    values = np.asarray(variable.values)
    return tuple(values.tolist()) if values.dtype.kind == "O" else (values.dtype.str, values.tobytes())


def _combine(trees: Sequence[FileTree], dims: Sequence[str], options: AdoptOptions) -> FileTree:
    """Return files joined along the last dimension, then along the others."""
    if not dims:
        return trees[0]
    *others, dim = dims
    rows: dict[Hashable, list[FileTree]] = {}
    for tree in trees:
        rows.setdefault(tuple(_key(tree, each) for each in others), []).append(tree)
    joined = [_join_trees(_ordered(row, dim), dim, options) for row in rows.values()]
    return _combine(joined, others, options)


def _ordered(trees: Sequence[FileTree], dim: str) -> list[FileTree]:
    """Return files in the order of their coordinates, increasing unless they decrease within the files.

    Files without steps are the last ones.
    """
    values = [np.asarray(tree[""].dataset.variables[dim].values) for tree in trees]
    decreases = any(len(each) > 1 and each[-1] < each[0] for each in values)
    with_steps = [number for number, each in enumerate(values) if len(each)]
    order = sorted(with_steps, key=lambda number: values[number][0], reverse=decreases)
    return [
        *(trees[number] for number in order),
        *(tree for tree, each in zip(trees, values, strict=True) if not len(each)),
    ]


def _merge(one: FileTree, other: FileTree, options: AdoptOptions) -> FileTree:
    """Return the variables of two files in one tree; raise `AdoptionError` if what both have differs."""
    merged = dict(one)
    for path, group in other.items():
        if (known := one.get(path)) is None:
            merged[path] = group
            continue
        _require_same(known, group, options)
        variables, dataset = group.dataset.variables, known.dataset
        added = {name: variable for name, variable in variables.items() if name not in dataset.variables}
        dataset = dataset.assign(added).set_coords([name for name in group.dataset.coords if name in added])
        merged[path] = FileGroup(
            known.location, path, dataset, {**group.skipped, **known.skipped}, {**group.notes, **known.notes}
        )
    return merged


def _require_same(first: FileGroup, file: FileGroup, options: AdoptOptions) -> None:
    """Raise `AdoptionError` unless what two files have in common is the same: variables, and lengths of dimensions."""
    known, dataset = first.dataset, file.dataset
    for name in [name for name in known.variables if name in dataset.variables]:
        require_same_grid(file, name, first)
        require_comparable(file, name, first)
        require_same_meaning(file, name, first)
        if options.compares and (nbytes := _compare_values([first, file], name, options.max_loaded_nbytes)):
            problem = (
                f"{hide_in_url(first.location)!r} has it too, and {nbytes:,} bytes are too many to be compared "
                f"(max_loaded_nbytes={options.max_loaded_nbytes:,}); pass a larger `max_loaded_nbytes`, or `variables`"
            )
            raise refused(file, file.named(name), problem)
    for dim, length in known.sizes.items():
        if dataset.sizes.get(dim, length) != length:
            raise differs(file, f"dimension {dim!r}", first, f"the length {length}", dataset.sizes[dim])
