"""Flat files with a header of a fixed size, as `ps.parsers.Raw` describes them."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtualizarr
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import AdoptionError, StoreConfigError
from tests.virtual.adopting import adopted, joined, settle, stored

VALUES = np.random.default_rng(1).integers(-1000, 1000, (6, 40, 50)).astype("i2")


def write(path: Path, values: Any, header: bytes = b"", order: Any = "C") -> Path:
    path.write_bytes(header + values.tobytes(order=order))
    settle(path)
    return path


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f8", ">f4", "u1", "<c8", "?"])
@pytest.mark.parametrize("shape", [(6, 40, 50), (240, 50), (12_000,)])
def test_values_are_those_that_numpy_reads(tmp_path: Path, order: Any, dtype: str, shape: tuple[int, ...]) -> None:
    path = write(tmp_path / "a.raw", VALUES.reshape(shape).astype(dtype), b"x" * 352, order)
    expected = np.memmap(path, dtype, "r", 352, shape, order)
    parser = ps.parsers.Raw(offset=352, shape=shape, dtype=dtype, order=order, name="v")
    found = ps.open_virtual_dataset(path, parser=parser)["v"].load().values
    assert np.array_equal(found, expected)


def test_nifti_images_are_adopted_with_their_axes(tmp_path: Path) -> None:
    header = bytearray(352)
    struct.pack_into("<i8h", header, 0, 348, *([0] * 8))
    path = write(tmp_path / "a.nii", VALUES, bytes(header), "F")
    parser = ps.parsers.Raw(
        offset=352, shape=VALUES.shape, dtype="<i2", order="F", dimension_names=("i", "j", "k"), attributes={"a": 1}
    )
    _, store = adopted(path, parser=parser)
    found = xr.open_zarr(store, consolidated=False, chunks=None)["data"]
    assert np.array_equal(found, VALUES)
    assert (found.dims, found.attrs) == (("i", "j", "k"), {"a": 1})


def test_files_of_different_lengths_are_joined(tmp_path: Path) -> None:
    parser = ps.parsers.Raw(offset=4, shape=(-1, 40, 50), dtype="<i2", dimension_names=("t", "y", "x"))
    lengths = [(0, 1), (1, 4), (4, 6)]
    files = [write(tmp_path / f"{start}.raw", VALUES[start:stop], b"head") for start, stop in lengths]
    found = stored(joined(files, "t", at_once=2, parser=parser))
    assert np.array_equal(found["data"], VALUES)


@pytest.mark.parametrize(("shape", "difference"), [((6, 40, 50), -1), ((6, 40, 50), 1), ((-1, 40, 50), 7)])
def test_a_file_of_the_wrong_size_is_refused(tmp_path: Path, shape: tuple[int, ...], difference: int) -> None:
    path = write(tmp_path / "a.raw", VALUES, b"head")
    data = path.read_bytes()
    path.write_bytes(data[:difference] if difference < 0 else data + bytes(difference))
    parser = ps.parsers.Raw(offset=4, shape=shape, dtype="<i2")
    with pytest.raises(AdoptionError, match=rf"expected 4 bytes and .*, found {24004 + difference} bytes in all"):
        ps.open_virtual_dataset(path, parser=parser)


def test_virtualizarr_takes_the_parser(tmp_path: Path) -> None:
    path = write(tmp_path / "a.raw", VALUES)
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    parser = ps.parsers.Raw(offset=0, shape=VALUES.shape, dtype="<i2")
    found = virtualizarr.open_virtual_dataset(path.as_uri(), registry, parser, loadable_variables=["data"])
    assert np.array_equal(found["data"], VALUES)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"offset": -1}, "offset"),
        ({"shape": (-1, -1)}, "shape"),
        ({"shape": (0, 3)}, "shape"),
        ({"dtype": "U3"}, "dtype"),
        ({"dtype": "nonsense"}, "dtype"),
        ({"order": "K"}, "order"),
        ({"dimension_names": ("x",)}, "dimension_names"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(StoreConfigError, match=problem):
        ps.parsers.Raw(**{"offset": 0, "shape": (2, 3), "dtype": "<i2", **arguments})
