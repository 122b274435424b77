"""Values of N5 datasets, adopted into a session and in place, compared with z5py, tensorstore and what was written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

import parts_store as ps
from tests.virtual.adopting import adopted
from tests.virtual.parsers.n5.containers import (
    COMPRESSIONS,
    DTYPES,
    JAVA,
    numbers,
    open_tensorstore,
    read_z5py,
    settle,
    write_java,
    write_root,
    write_z5py,
)


def require_both_ways(folder: Path, name: str, expected: NDArray[Any]) -> None:
    """The values are equal in a session, with the axes of z5py, and in place, with those of N5."""
    report, store = adopted(folder)
    assert report.is_complete
    assert report.nbytes_copied == 0
    found: Any = zarr.open_array(store, path=name, mode="r")
    assert found.dtype == expected.dtype
    assert found[...].tobytes() == expected.tobytes()
    assert ps.adopt_in_place(folder).is_complete
    local = ps.PartsStore.from_url(folder, read_only=True)
    arrays: list[Any] = [zarr.open_array(local, path=name, mode="r"), ps.open_array(local, name)]
    for array in arrays:
        assert array.dtype == expected.dtype
        assert np.ascontiguousarray(array[...].T).tobytes() == expected.tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("compression", "dtype"), [*((each, "uint16") for each in COMPRESSIONS), *(("gzip", each) for each in DTYPES)]
)
def test_datasets_of_z5py_have_the_same_values(tmp_path: Path, compression: str, dtype: str) -> None:
    folder = tmp_path / "a.n5"
    write_z5py(folder, "x", numbers((7, 5, 9), dtype), (4, 3, 4), compression)
    require_both_ways(folder, "x", read_z5py(folder, "x"))


@pytest.mark.parametrize("compression", sorted(JAVA))
def test_blocks_of_the_java_library_have_the_same_values(tmp_path: Path, compression: str) -> None:
    # The larger blocks of LZ4 have several parts, and some of them cannot be compressed.
    values = numbers((70, 200), "int64")
    values[:20] = 7
    write_java(tmp_path / "a.n5/x", values, (64, 190), compression)
    write_root(tmp_path / "a.n5")
    require_both_ways(tmp_path / "a.n5", "x", values)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compression", ["raw", "gzip", "zstd", "blosc", "bzip2", "xz"])
def test_datasets_of_tensorstore_have_the_same_values(tmp_path: Path, compression: str) -> None:
    config = {"type": compression}
    if compression == "blosc":
        config |= {"cname": "lz4", "clevel": 5, "shuffle": 1}  # type: ignore[dict-item]
    metadata = {"dimensions": [9, 7, 5], "blockSize": [4, 4, 2], "dataType": "float32", "compression": config}
    values = numbers((9, 7, 5), "float32")
    open_tensorstore(tmp_path / "x", metadata)[...] = values
    settle(tmp_path)
    # The blocks at the edge are filled up, and nothing says that the folder is a container.
    report, store = adopted(tmp_path / "x")
    assert "cut" not in report.arrays[0].plan
    np.testing.assert_array_equal(zarr.open_array(store, path="x", mode="r")[...], values.T)
    ps.adopt_in_place(tmp_path / "x")
    local = ps.PartsStore.from_url(tmp_path / "x", read_only=True)
    np.testing.assert_array_equal(zarr.open_array(local, mode="r")[...], values)
    np.testing.assert_array_equal(open_tensorstore(tmp_path / "x").read().result(), values)


@given(data=st.data())
def test_any_shape_is_read_as_tensorstore_reads_it(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    ndim = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 7)) for _ in range(ndim))
    blocks = tuple(data.draw(st.integers(1, 8)) for _ in range(ndim))
    compression = data.draw(st.sampled_from(["raw", "gzip", "bzip2", "xz"]))
    folder = tmp_path_factory.mktemp("n5") / "a.n5"
    write_java(folder / "x", numbers(shape, "int32"), blocks, compression)
    write_root(folder)
    # Blocks that do not exist are zeros.
    files = sorted(each for each in (folder / "x").rglob("*") if each.name.isdigit() and each.is_file())
    for file in data.draw(st.lists(st.sampled_from(files), unique=True, max_size=2)):
        file.unlink()
    settle(folder)
    expected = open_tensorstore(folder / "x").read().result()
    report, store = adopted(folder)
    np.testing.assert_array_equal(zarr.open_array(store, path="x", mode="r")[...], expected.T)
    assert report.arrays[0].references == len([each for each in files if each.exists()])
    ps.adopt_in_place(folder)
    local = ps.PartsStore.from_url(folder, read_only=True)
    np.testing.assert_array_equal(ps.open_array(local, "x")[...], expected)


def test_smaller_blocks_inside_are_completed_with_zeros_as_z5py_does_it(tmp_path: Path) -> None:
    folder = tmp_path / "a.n5"
    write_java(folder / "x", numbers((8, 8), "uint8"), (4, 4))
    write_root(folder)
    smaller = numbers((2, 4), "uint8")
    (folder / "x/0/0").write_bytes(bytes([0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2]) + smaller.tobytes())
    settle(folder)
    expected = read_z5py(folder, "x")
    assert expected[:4, :4].tolist() == [*smaller.tolist(), [0] * 4, [0] * 4]
    require_both_ways(folder, "x", expected)


def test_xarray_opens_an_adopted_container(tmp_path: Path) -> None:
    folder = tmp_path / "a.n5"
    values = numbers((6, 5, 4), "float64")
    write_java(folder / "raw", values, (4, 4, 4), "gzip", axes=["x", "y", "z"], pixelResolution={"unit": "nm"})
    write_root(folder, title="a volume")
    _, store = adopted(folder)
    dataset = xr.open_zarr(store, consolidated=False)
    assert dataset.attrs == {"title": "a volume"}
    assert dataset["raw"].dims == ("z", "y", "x")
    assert dataset["raw"].attrs == {"axes": ["x", "y", "z"], "pixelResolution": {"unit": "nm"}}
    np.testing.assert_array_equal(dataset["raw"], values)
    virtual = ps.open_virtual_dataset(folder)
    np.testing.assert_array_equal(virtual["raw"].load(), values)
    ps.adopt_in_place(folder)
    local = ps.PartsStore.from_url(folder, read_only=True)
    with pytest.warns(ZarrUserWarning, match=r"attributes\.json is not recognized"):
        in_place = xr.open_zarr(local, consolidated=False)
    assert in_place["raw"].dims == ("x", "y", "z")
    xr.testing.assert_identical(in_place["raw"].transpose("z", "y", "x").load(), dataset["raw"].load())


def test_zarr_json_is_that_of_the_registered_codec(tmp_path: Path) -> None:
    write_java(tmp_path / "x", numbers((6, 5), "uint16"), (4, 4), "gzip")
    ps.adopt_in_place(tmp_path / "x")
    document = json.loads((tmp_path / "x/zarr.json").read_text())
    assert document["shape"] == [5, 6]
    assert document["chunk_key_encoding"] == {"name": "v2", "configuration": {"separator": "/"}}
    assert document["codecs"] == [
        {
            "name": "n5_default",
            "configuration": {
                "codecs": [
                    {"name": "transpose", "configuration": {"order": [1, 0]}},
                    {"name": "bytes", "configuration": {"endian": "big"}},
                    {"name": "gzip", "configuration": {"level": 5}},
                ]
            },
        }
    ]
