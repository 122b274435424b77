"""Compare variables that several files have, and of which one is kept: by their references, or by their values."""

from collections.abc import Hashable, Sequence

import xarray as xr

from parts_store.adoption.join_checks import FileDataset, is_loaded, require_same_values
from parts_store.adoption.loaded_variables import load_from_files
from parts_store.manifests.same_bytes import refer_to_same_bytes


def compare_shared(files: Sequence[FileDataset], name: Hashable, max_loaded: int) -> int:
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
    expected, *found = load_from_files(compared, name)
    for file, variable in zip(others, found, strict=True):
        require_same_values(file, name, files[0], variable.values, expected.values)
    return 0


def _is_same(one: xr.Variable, other: xr.Variable) -> bool:
    """Return whether variables have the same values, which need not be read to know it."""
    if is_loaded(one) or is_loaded(other):
        return False
    return refer_to_same_bytes(one.data.references, other.data.references)
