"""Join the virtual datasets of files along a dimension.

Chunks are joined as they are where their length divides the lengths of the files. Arrays that are not compressed are
cut into rows first. Other variables are loaded, or refused if they are large.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xarray as xr

from parts_store.adoption.described_group import count_of_chunks
from parts_store.adoption.join_checks import FileDataset, differs, has_steps, is_loaded, refused, require_together
from parts_store.adoption.loaded_variables import join_loaded, load_from_files, load_times
from parts_store.adoption.loading import DEFAULT_MAX_LOADED
from parts_store.adoption.shared_variables import compare_shared
from parts_store.adoption.virtual_dataset import compose
from parts_store.errors import AdoptionError
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References
from parts_store.manifests.combining import concatenate, fill_value_of
from parts_store.manifests.row_chunks import can_cut_rows, cut_rows

# Chunks with fewer bytes are stored: a reference takes about as much space, and a request of its own to read.
_SMALL_CHUNK: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How files are joined."""

    # Variables that have to be loaded have at most this number of bytes in all files.
    max_loaded: int = DEFAULT_MAX_LOADED
    # Whether variables without the dimension are compared by their values.
    compares: bool = True
    # The lengths of the chunks of stored arrays that variables are appended to, by the paths of variables.
    stored_lengths: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A virtual dataset of several files."""

    dataset: xr.Dataset
    # Why variables were loaded, or were not compared, by their names.
    notes: Mapping[str, str]


def join(files: Sequence[FileDataset], dim: str, how: JoinOptions, *, is_step: bool = False) -> Joined:
    """Return the datasets of files, one after the other along a dimension, as one virtual dataset.

    Variables without the dimension must be the same in all files; those of the first file are kept. With `is_step`, no
    file has the dimension, and each becomes one step of it. Raises `AdoptionError` for files that do not belong
    together, and for a variable that has to be loaded and is too large.
    """
    if is_step:
        files = [dataclasses.replace(file, dataset=_with_dimension(file.dataset, dim)) for file in files]
    files = load_times(files)
    require_together(files, dim)
    # A file without steps adds nothing, and may have other chunks.
    with_steps = [file for file in files if has_steps(file, dim)] or files[:1]
    notes: dict[str, str] = {}
    joined: dict[Hashable, xr.Variable] = {}
    for name, variable in files[0].dataset.variables.items():
        if dim in variable.dims:
            joined[name], note = _join_variable(with_steps, name, dim, how)
        else:
            joined[name], note = variable, _compare(files, name, how)
        if note is not None:
            notes[str(name)] = note
    first = files[0].dataset
    return Joined(compose(joined, set(first.coords), first.attrs), notes)


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
    files: Sequence[FileDataset], name: Hashable, dim: str, how: JoinOptions
) -> tuple[xr.Variable, str | None]:
    """Return a variable of all files, and why it was loaded; None if it is virtual, or was loaded before."""
    variables = [file.dataset.variables[name] for file in files]
    if all(map(is_loaded, variables)):
        return join_loaded(variables, dim), None
    nbytes: int = sum(each.size * each.dtype.itemsize for each in variables)
    reason = None
    if any(map(is_loaded, variables)):
        reason = "it is loaded in some of the files"
    else:
        arrays = [each.data for each in variables]
        _require_codecs(files, name, arrays)
        axis = variables[0].dims.index(dim)
        stored_length = how.stored_lengths.get(f"{files[0].path}/{name}".strip("/"), 0)
        references, reason = _aligned([each.references for each in arrays], axis, stored_length)
        if reason is not None and nbytes > how.max_loaded:
            references, reason = _in_blocks([each.references for each in arrays], axis, reason)
        if reason is None:
            return _concatenated(variables[0], references, arrays, axis), None
    if nbytes > how.max_loaded:
        raise _too_large(files, name, nbytes, how.max_loaded, reason)
    return join_loaded(load_from_files(files, name), dim), f"loaded, because {reason}"


def _require_codecs(files: Sequence[FileDataset], name: Hashable, arrays: Sequence[PartsArray]) -> None:
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


def _aligned(arrays: Sequence[References], axis: int, stored_length: int) -> tuple[Sequence[References], str | None]:
    """Return arrays whose chunks can be joined along an axis; or why they cannot be joined without loading them.

    They get the length of the chunks of the stored array that they are appended to, if there is one. An array that is
    one chunk along the axis, as long as its file, is cut into rows even if it could be joined: the next file may have
    another length.
    """
    first = arrays[0].chunk_shape
    if any(_without(each.chunk_shape, axis) != _without(first, axis) for each in arrays):
        other = next(each.chunk_shape for each in arrays if _without(each.chunk_shape, axis) != _without(first, axis))
        return arrays, f"its chunks have different shapes, {first} and {other}"
    can_cut = all(can_cut_rows(each, axis) for each in arrays)
    if can_cut and stored_length and _common_length(arrays, axis) % stored_length == 0:
        return [cut_rows(each, axis, stored_length) for each in arrays], None
    row_nbytes = math.prod(_without(first, axis)) * arrays[0].dtype.itemsize
    length = first[axis]
    is_regular = all(each.chunk_shape[axis] == length for each in arrays) and all(
        each.metadata.shape[axis] % length == 0 for each in arrays[:-1]
    )
    if can_cut and (not is_regular or all(_is_contiguous(each, axis) for each in arrays)):
        return [cut_rows(each, axis) for each in arrays], "its rows are small" if row_nbytes < _SMALL_CHUNK else None
    if not is_regular:
        lengths = ", ".join(str(each) for each in sorted({each.metadata.shape[axis] for each in arrays})[:3])
        return arrays, f"its compressed chunks are not on one grid, in files of the lengths {lengths}"
    return arrays, "its chunks are small" if row_nbytes * length < _SMALL_CHUNK else None


def _in_blocks(arrays: Sequence[References], axis: int, reason: str) -> tuple[Sequence[References], str | None]:
    """Return arrays whose rows are too small in chunks of as many rows as all chunks and lengths are multiples of.

    The chunks have up to 32 MiB. If they cannot be cut, or would be small, the reason is returned why.
    """
    shapes = {_without(each.chunk_shape, axis) for each in arrays}
    if len(shapes) > 1 or not all(can_cut_rows(each, axis) for each in arrays):
        return arrays, reason
    row_nbytes = math.prod(*shapes) * arrays[0].dtype.itemsize
    common = _common_length(arrays, axis)
    rows = common // count_of_chunks((common,), row_nbytes)
    if rows * row_nbytes < _SMALL_CHUNK:
        return arrays, f"{reason}, the lengths of the files have no common divisor above {common:,}"
    return [cut_rows(each, axis, rows) for each in arrays], None


def _common_length(arrays: Sequence[References], axis: int) -> int:
    """Return the largest length that divides the chunks and the lengths of all arrays along an axis."""
    return math.gcd(*(length for each in arrays for length in (each.chunk_shape[axis], each.metadata.shape[axis])))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _is_contiguous(array: References, axis: int) -> bool:
    """Return whether the chunks of an array follow each other in the file, along an axis with more than one row."""
    (columns,) = array.columns()
    offsets, lengths = columns.offsets.reshape(-1), columns.lengths.reshape(-1)
    is_one_row = array.chunk_shape[axis] == 1 or math.prod(_without(array.grid, axis)) != 1
    return not is_one_row and bool((offsets[:-1] + lengths[:-1] == offsets[1:]).all())


def _concatenated(
    first: xr.Variable, references: Sequence[References], arrays: Sequence[PartsArray], axis: int
) -> xr.Variable:
    registries = tuple({id(each): each for array in arrays for each in array.registries}.values())
    return xr.Variable(first.dims, PartsArray.of(concatenate(references, axis), None, registries), first.attrs)


def _too_large(
    files: Sequence[FileDataset], name: Hashable, nbytes: int, max_loaded: int, reason: str
) -> AdoptionError:
    problem = (
        f"{reason}, and its {nbytes:,} bytes are too many to be loaded (max_loaded_nbytes={max_loaded:,}); write the "
        f"files with chunks whose length divides those of the files, such as 1, or pass a larger `max_loaded_nbytes`, "
        f"`loadable_variables` with {str(name)!r}, or `variables` without it"
    )
    return refused(files[0], files[0].named(name), problem)


# --- variables without the dimension ----------------------------------------------------------------------------------


def _compare(files: Sequence[FileDataset], name: Hashable, how: JoinOptions) -> str | None:
    """Raise `AdoptionError` unless a variable is the same in all files; return a note if it is too large to compare."""
    # Values of indexes are compared before.
    if name in files[0].dataset.indexes or not how.compares:
        return None
    nbytes = compare_shared(files, name, how.max_loaded)
    return f"taken from the first file, and not compared with the others: {nbytes:,} bytes" if nbytes else None
