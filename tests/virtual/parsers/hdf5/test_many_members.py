"""The time to describe a file grows with its number of members, and not faster. Calls are counted, not seconds."""

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest

from parts_store.virtual.description import Description
from parts_store.virtual.parsers.hdf5 import reader

# What searches groups, opens objects or reads attributes.
_COUNTED = (
    (h5py.h5i, ("get_name",)),
    (h5py.h5g, ("get_objinfo", "open")),
    (h5py.h5o, ("open", "get_info", "visit")),
    (h5py.h5r, ("dereference", "get_name")),
    (h5py.h5a, ("open",)),
)


def _with_shared_scales(file: h5py.File, count: int) -> None:
    """Write variables along two dimensions, with references to each other, to the root group and to regions."""
    for name, length in (("x", 2), ("y", 3)):
        file.create_dataset(name, data=np.arange(length), maxshape=(None,), chunks=(4,)).make_scale(name)
    for number in range(count):
        variable = file.create_dataset(f"v{number}", data=np.full((2, 3), number))
        for axis, name in enumerate(("x", "y")):
            variable.dims[axis].attach_scale(file[name])
        variable.attrs["other"] = file[f"v{number // 2}"].ref
        variable.attrs["above"] = np.array([file.ref, variable.ref], h5py.ref_dtype)
        variable.attrs["region"] = variable.regionref[:1]


def _with_own_scales(file: h5py.File, count: int) -> None:
    for number in range(count):
        file[f"x{number}"] = np.arange(3)
        file[f"x{number}"].make_scale()
        file[f"v{number}"] = np.arange(3)
        file[f"v{number}"].dims[0].attach_scale(file[f"x{number}"])


def _with_coordinates_in_groups(file: h5py.File, count: int) -> None:
    """Write groups with a coordinate of two dimensions, which netCDF numbers, and which the root group has."""
    for number in range(count):
        file[f"x{number}"] = np.arange(3)
        file[f"x{number}"].make_scale()
        file[f"x{number}"].attrs["_Netcdf4Dimid"] = number
        file[f"g{number}/y"] = np.zeros((3, 3))
        file[f"g{number}/y"].make_scale()
        file[f"g{number}/y"].attrs["_Netcdf4Coordinates"] = [0, number]


def _with_references(file: h5py.File, count: int) -> None:
    for number in range(count):
        file[f"g{number}/v"] = number
    found = [file[f"g{number}/v"].ref for number in range(count)]
    file.create_dataset("values", data=np.array(found, h5py.ref_dtype))
    file.attrs["values"] = np.array(found, h5py.ref_dtype)


_KINDS = (_with_shared_scales, _with_own_scales, _with_coordinates_in_groups, _with_references)


def _described(write: Callable[[h5py.File, int], None], count: int) -> Description:
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        write(made, count)
    return reader.describe(file, len(file.getvalue()))


@pytest.mark.parametrize("write", _KINDS)
def test_calls_of_the_hdf5_library_grow_with_the_members_alone(
    write: Callable[[h5py.File, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return call

    def calls(count: int) -> Counter[str]:
        file = io.BytesIO()
        with h5py.File(file, "w") as made:
            write(made, count)
        counts.clear()
        reader.describe(file, len(file.getvalue()))
        return counts.copy()

    for module, names in _COUNTED:
        for name in names:
            monkeypatch.setattr(module, name, counted(f"{module.__name__}.{name}", getattr(module, name)))
    few, more, most = calls(8), calls(16), calls(32)
    assert few.total() > 8
    for name in most:
        assert most[name] - more[name] == 2 * (more[name] - few[name]), name


@pytest.mark.parametrize("write", _KINDS)
def test_no_name_is_searched_for_an_object_behind_a_reference(
    write: Callable[[h5py.File, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The HDF5 library searches the whole file for the name of such an object, and only of such a one.
    referred = set[int]()
    dereference, get_name = h5py.h5r.dereference, h5py.h5i.get_name

    def remember(*arguments: Any) -> Any:
        found = dereference(*arguments)
        referred.add(0 if found is None else found.id)
        return found

    def require_other(identifier: Any) -> Any:
        assert identifier.id not in referred
        return get_name(identifier)

    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        write(made, 8)
    monkeypatch.setattr(h5py.h5r, "dereference", remember)
    monkeypatch.setattr(h5py.h5i, "get_name", require_other)
    described = reader.describe(file, len(file.getvalue()))
    assert all("@region" in each.name for each in described.skipped), described.skipped


def test_dimensions_have_the_names_of_scales_behind_references() -> None:
    shared = {each.header.name: each.header.dimension_names for each in _described(_with_shared_scales, 3).arrays}
    assert shared == {"x": ("x",), "y": ("y",), **{f"v{number}": ("x", "y") for number in range(3)}}
    own = {each.header.name: each.header.dimension_names for each in _described(_with_own_scales, 3).arrays}
    assert own == {f"{name}{number}": (f"x{number}",) for number in range(3) for name in "vx"}
    numbered = {
        each.header.name: each.header.dimension_names for each in _described(_with_coordinates_in_groups, 3).arrays
    }
    assert {name: found for name, found in numbered.items() if "/" in name} == {
        f"g{number}/y": ("x0", f"x{number}") for number in range(3)
    }
    described = _described(_with_references, 3)
    assert described.groups[""]["values"] == ["/g0/v", "/g1/v", "/g2/v"]
