"""Combine the groups of many files: along a dimension that is named, or as their coordinates say."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from parts_store.adoption.join_checks import (
    FileDataset,
    differs,
    refused,
    require_comparable,
    require_same_grid,
    require_same_meaning,
)
from parts_store.adoption.joining import JoinOptions, join
from parts_store.adoption.shared_variables import compare_shared
from parts_store.errors import AdoptionError, StoreConfigError
from parts_store.redaction import hide_in_url


@dataclass(frozen=True, slots=True, eq=False)
class FileTree:
    """The virtual datasets of the groups of a file, or of several files together, by their paths.

    The path of the root group is "". The location of several files is that of the first.
    """

    location: str
    groups: Mapping[str, xr.Dataset]
    # Why variables of the file are not in a dataset, by their paths.
    skipped: Mapping[str, str] = field(default_factory=dict)
    # Why variables were loaded or not compared when files were joined, by their paths.
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> xr.Dataset:
        """Return the dataset of the root group."""
        return self.groups[""]

    def in_group(self, path: str) -> FileDataset:
        """Return the dataset of a group; an empty one if the file has no such group."""
        below = f"{path}/" if path else ""
        skipped = {name[len(below) :]: why for name, why in self.skipped.items() if name.startswith(below)}
        return FileDataset(self.location, self.groups.get(path, xr.Dataset()), skipped, path)

    def to_source(self) -> xr.Dataset | xr.DataTree:
        """Return the groups as what can be written to a session."""
        if list(self.groups) == [""]:
            return self.root
        try:
            return xr.DataTree.from_dict({f"/{path}": dataset for path, dataset in self.groups.items()})
        except ValueError as error:
            problem = f"a group has other coordinates than the group above it: {str(error).splitlines()[0]}"
            raise AdoptionError(self.location, (("the groups", problem),)) from error


def join_trees(trees: Sequence[FileTree], dim: str, how: JoinOptions) -> FileTree:
    """Return files one after the other along a dimension; if none of them has it, each is one step of it."""
    is_step = not any(dim in dataset.dims for tree in trees for dataset in tree.groups.values())
    paths = dict.fromkeys(path for tree in trees for path in tree.groups)
    groups, notes = {}, dict(trees[0].notes)
    for path in paths:
        joined = join([tree.in_group(path) for tree in trees], dim, how, is_step=is_step)
        groups[path] = joined.dataset
        notes |= {f"{path}/{name}" if path else name: note for name, note in joined.notes.items()}
    return FileTree(trees[0].location, groups, trees[0].skipped, notes)


# --- by coordinates ---------------------------------------------------------------------------------------------------


def combine_by_coords(trees: Sequence[FileTree], how: JoinOptions) -> FileTree:
    """Return files in the order and along the dimensions that the coordinates of their root groups say.

    Files with other variables are combined by themselves, and then merged: they must have the same coordinates.
    """
    by_variables: dict[Hashable, list[FileTree]] = {}
    for tree in trees:
        names = frozenset((path, name) for path, each in tree.groups.items() for name in each.data_vars)
        by_variables.setdefault(names, []).append(tree)
    merged: FileTree | None = None
    for alike in by_variables.values():
        combined = _combine(alike, _differing(alike), how)
        merged = combined if merged is None else _merge(merged, combined, how)
    if merged is None:
        raise TypeError("no files")
    return merged


def _differing(trees: Sequence[FileTree]) -> list[str]:
    """Return the dimensions whose coordinates are loaded and differ between files."""
    first = trees[0].root
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
    variable = tree.root.variables.get(dim)
    if variable is None:
        return None
    values = np.asarray(variable.values)
    return tuple(values.tolist()) if values.dtype.kind == "O" else (values.dtype.str, values.tobytes())


def _combine(trees: Sequence[FileTree], dims: Sequence[str], how: JoinOptions) -> FileTree:
    """Return files joined along the last dimension, then along the others."""
    if not dims:
        return trees[0]
    *others, dim = dims
    rows: dict[Hashable, list[FileTree]] = {}
    for tree in trees:
        rows.setdefault(tuple(_key(tree, each) for each in others), []).append(tree)
    joined = [join_trees(_ordered(row, dim), dim, how) for row in rows.values()]
    return _combine(joined, others, how)


def _ordered(trees: Sequence[FileTree], dim: str) -> list[FileTree]:
    """Return files in the order of their coordinates, increasing unless they decrease within the files.

    Files without steps are the last ones.
    """
    values = [np.asarray(tree.root.variables[dim].values) for tree in trees]
    decreases = any(len(each) > 1 and each[-1] < each[0] for each in values)
    with_steps = [number for number, each in enumerate(values) if len(each)]
    order = sorted(with_steps, key=lambda number: values[number][0], reverse=decreases)
    return [
        *(trees[number] for number in order),
        *(tree for tree, each in zip(trees, values, strict=True) if not len(each)),
    ]


def _merge(one: FileTree, other: FileTree, how: JoinOptions) -> FileTree:
    """Return the variables of two files in one tree; raise `AdoptionError` if what both have differs."""
    groups = dict(one.groups)
    for path, dataset in other.groups.items():
        known = groups.get(path)
        if known is None:
            groups[path] = dataset
            continue
        _require_same(one.in_group(path), other.in_group(path), how)
        added = {name: each for name, each in dataset.variables.items() if name not in known.variables}
        coordinates = [name for name in dataset.coords if name in added]
        groups[path] = known.assign(added).set_coords(coordinates)
    return FileTree(one.location, groups, {**other.skipped, **one.skipped}, {**other.notes, **one.notes})


def _require_same(first: FileDataset, file: FileDataset, how: JoinOptions) -> None:
    """Raise `AdoptionError` unless what two files have in common is the same: variables, and lengths of dimensions."""
    known, dataset = first.dataset, file.dataset
    for name in [name for name in known.variables if name in dataset.variables]:
        require_same_grid(file, name, first)
        require_comparable(file, name, first)
        require_same_meaning(file, name, first)
        if how.compares and (nbytes := compare_shared([first, file], name, how.max_loaded)):
            problem = (
                f"{hide_in_url(first.location)!r} has it too, and {nbytes:,} bytes are too many to be compared "
                f"(max_loaded_nbytes={how.max_loaded:,}); pass a larger `max_loaded_nbytes`, or `variables`"
            )
            raise refused(file, file.named(name), problem)
    for dim, length in known.sizes.items():
        if dataset.sizes.get(dim, length) != length:
            raise differs(file, f"dimension {dim!r}", first, f"the length {length}", dataset.sizes[dim])
