"""Datasets of arrays of references behave in xarray like datasets that are not loaded yet."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import ManifestError
from parts_store.manifests import PartsArray, PartsGroup

FILES = {"file://": LocalStore("/")}
NAMES = ("packed", "gaps", "time", "x", "flag")


def decoded(year: int = 2000, months: int = 12) -> xr.Dataset:
    """A dataset as a user sees it: packed numbers and floating-point numbers with gaps, booleans and times."""
    values = np.arange(months * 4, dtype="f8").reshape(months, 4)
    packed, gaps = values * 0.5 + 1, values.astype("f4")
    packed[3, 1] = gaps[4, 2] = np.nan
    return xr.Dataset(
        {
            "packed": (("time", "x"), packed, {"units": "K"}),
            "gaps": (("time", "x"), gaps, {"long_name": f"of {year}"}),
            "flag": ("x", np.array([True, False, True, True])),
        },
        coords={
            "time": np.arange(f"{year}-01", months, dtype="M8[M]").astype("M8[ns]"),
            "x": np.arange(4.0),
        },
        attrs={"title": "test"},
    )


def stored(folder: Path, year: int = 2000, months: int = 12, **packing: Any) -> ps.PartsStore:
    """Write the dataset with xarray alone; return the store of it."""
    since = {"units": "days since 2000-01-01", "calendar": "standard", "dtype": "i4"}
    scale = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -99}
    encoding = {
        "packed": {**scale, "chunks": (3, 4), **packing},
        "gaps": {"_FillValue": -1e30, "chunks": (3, 2)},
        "time": {**since, "chunks": (3,)},
    }
    decoded(year, months).to_zarr(folder, encoding=encoding, consolidated=False)
    return ps.PartsStore.from_url(folder, read_only=True)


def virtual(store: ps.PartsStore, names: tuple[str, ...] = NAMES) -> xr.Dataset:
    """The same dataset as references, without indexes: nothing is loaded."""
    group = PartsGroup({name: store.manifest(name) for name in names}).with_registry(FILES)
    variables = {name: group.arrays[name].to_virtual_variable() for name in names}
    coordinates = {name: variables.pop(name) for name in ("time", "x") if name in variables}
    return xr.Dataset(variables, xr.Coordinates(coordinates, indexes={}), {"title": "test"})


@pytest.fixture
def store(tmp_path: Path) -> ps.PartsStore:
    return stored(tmp_path / "a.zarr")


def opened(folder: Path, *, decode: bool) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(folder, consolidated=False, decode_cf=decode, chunks=None)
    return dataset.load()


def assert_virtual(dataset: xr.Dataset) -> None:
    assert {type(each.data) for each in dataset.variables.values()} == {PartsArray}


def assert_loaded(dataset: xr.Dataset) -> None:
    assert {type(each.data) for each in dataset.variables.values()} == {np.ndarray}


def assert_same_as_file(loaded: xr.Dataset, folder: Path) -> None:
    """The values as they are stored, and as they are decoded, are those that xarray reads from the files."""
    assert_loaded(loaded)
    raw = opened(folder, decode=False)
    xr.testing.assert_identical(loaded, raw.drop_indexes(["time", "x"]))
    indexed = xr.decode_cf(loaded).set_xindex("time").set_xindex("x")
    xr.testing.assert_identical(indexed, opened(folder, decode=True))
    xr.testing.assert_identical(indexed, decoded())


def test_load_and_compute_return_the_values_of_the_files(store: ps.PartsStore, tmp_path: Path) -> None:
    folder = tmp_path / "a.zarr"
    dataset = virtual(store)
    assert_virtual(dataset)
    assert_same_as_file(dataset.compute(), folder)
    assert_virtual(dataset)
    assert dataset.load() is dataset
    assert_same_as_file(dataset, folder)


async def test_load_async_returns_the_values_in_a_running_loop(store: ps.PartsStore, tmp_path: Path) -> None:
    assert_same_as_file(await virtual(store).load_async(), tmp_path / "a.zarr")
    # Also without await: a notebook has a running loop.
    assert_same_as_file(virtual(store).load(), tmp_path / "a.zarr")


def test_values_of_one_variable_are_loaded_without_changing_it(store: ps.PartsStore, tmp_path: Path) -> None:
    dataset, raw = virtual(store), opened(tmp_path / "a.zarr", decode=False)
    for name in NAMES:
        for values in (dataset[name].values, dataset[name].to_numpy(), np.asarray(dataset[name])):
            assert values.dtype == raw[name].dtype
            np.testing.assert_array_equal(values, raw[name].values)
    assert_virtual(dataset)
    np.testing.assert_array_equal(dataset.packed.astype("f4").values, raw.packed.values.astype("f4"))


@pytest.fixture(params=["default", "fused", "ours"])
def pipeline(request: pytest.FixtureRequest) -> Iterator[None]:
    fused = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}
    with ps.fast() if request.param == "ours" else zarr.config.set(fused if request.param == "fused" else {}):
        yield


@pytest.mark.sampled(9)
@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("chunks", [None, (3, 4), (5, 3)])
def test_to_zarr_writes_the_values(store: ps.PartsStore, tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    encoding = {} if chunks is None else {"packed": {"chunks": chunks}, "gaps": {"chunks": chunks, "shards": (10, 6)}}
    if chunks == (3, 4):
        encoding["gaps"].pop("shards")
    dataset = virtual(store)
    dataset.to_zarr(tmp_path / "b.zarr", encoding=encoding, consolidated=False)
    assert_virtual(dataset)
    assert_same_as_file(opened(tmp_path / "b.zarr", decode=False).drop_indexes(["time", "x"]), tmp_path / "a.zarr")


def test_to_zarr_appends_and_writes_regions(store: ps.PartsStore, tmp_path: Path) -> None:
    array = store.manifest("packed")
    values = opened(tmp_path / "a.zarr", decode=False).packed.values
    dataset = xr.Dataset({"v": (("time", "x"), array)})
    dataset.to_zarr(tmp_path / "b.zarr", encoding={"v": {"chunks": (5, 3)}}, consolidated=False)
    dataset.to_zarr(tmp_path / "b.zarr", append_dim="time", consolidated=False)
    some = dataset.isel(time=slice(3, 9))
    some.to_zarr(tmp_path / "b.zarr", region={"time": slice(14, 20)}, consolidated=False, safe_chunks=False)
    expected = np.concatenate([values, values])
    expected[14:20] = values[3:9]
    np.testing.assert_array_equal(opened(tmp_path / "b.zarr", decode=False).v.values, expected)


def test_to_netcdf_writes_references_loaded_and_dask_variables(store: ps.PartsStore, tmp_path: Path) -> None:
    dataset = virtual(store)
    others = xr.Dataset({"loaded": ("x", np.arange(4)), "lazy": xr.DataArray(np.arange(12), dims="time").chunk(time=5)})
    dataset.assign(others).to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    assert_virtual(dataset)
    with xr.open_dataset(tmp_path / "b.nc", engine="h5netcdf") as found:
        xr.testing.assert_identical(found.load(), decoded().assign(others.compute()))


def test_selections_at_chunk_borders_stay_references(store: ps.PartsStore) -> None:
    dataset = virtual(store)
    assert_virtual(dataset.transpose("time", "x"))
    selected = dataset.isel(time=slice(3, 9))
    assert_virtual(selected)
    assert selected.sizes == {"time": 6, "x": 4}
    expected = decoded().isel(time=slice(3, 9))
    xr.testing.assert_identical(
        xr.decode_cf(selected.load()).drop_vars(["time", "x"]), expected.drop_vars(["time", "x"])
    )
    for refused in (slice(3, 8), [3, 4], 5):
        with pytest.raises(ManifestError, match="index"):
            dataset.isel(time=refused)
    with pytest.raises(ManifestError, match="load the values"):
        dataset.packed.transpose("x", "time")


def test_repr_names_the_references_and_reads_nothing(tmp_path: Path) -> None:
    store = stored(tmp_path / "a.zarr")
    dataset = virtual(store)
    for chunk in tmp_path.rglob("c/*"):
        if chunk.is_file():
            chunk.unlink()
    assert "PartsArray<shape=(12, 4), dtype=int16, chunk_shape=(3, 4), parts=1>" in repr(dataset.packed)
    assert "PartsArray" in repr(dataset)
    assert "PartsArray" in dataset._repr_html_()
    # Files that are gone are an error, not fill values.
    with pytest.raises(ps.errors.LocationError):
        dataset.load()


def test_copies_and_pickles_stay_references_and_can_be_loaded(store: ps.PartsStore, tmp_path: Path) -> None:
    dataset = virtual(store)
    copies = (dataset.copy(), dataset.copy(deep=True), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset)))
    for each in copies:
        assert_virtual(each)
        assert_same_as_file(each.load(), tmp_path / "a.zarr")
    assert_virtual(dataset)


def test_concat_and_combine_by_coords_join_references(tmp_path: Path) -> None:
    stores = [stored(tmp_path / f"{year}.zarr", year) for year in (2000, 2001)]
    datasets = [virtual(each).drop_vars("flag") for each in stores]
    expected = xr.concat([decoded(year).drop_vars("flag") for year in (2000, 2001)], dim="time")
    joined = xr.concat(datasets, dim="time", coords="minimal")
    assert_virtual(joined)
    found = xr.decode_cf(joined.load()).set_xindex("time").set_xindex("x")
    xr.testing.assert_identical(found, expected)
    # With loaded coordinates, as datasets have that are opened by a parser.
    loaded = [xr.decode_cf(each[["time", "x"]].load()).set_xindex("time").set_xindex("x") for each in datasets]
    ordered = [
        each.drop_vars(["time", "x"]).assign_coords(known.coords) for each, known in zip(datasets, loaded, strict=True)
    ]
    combined = xr.combine_by_coords([ordered[1], ordered[0]], combine_attrs="override")
    assert isinstance(combined, xr.Dataset)
    assert_virtual(combined[["packed", "gaps"]].drop_vars(["time", "x"]))
    xr.testing.assert_identical(xr.decode_cf(combined.load()), expected)
    stacked = xr.concat([each.drop_vars(["time", "x"]) for each in datasets], dim="run")
    assert_virtual(stacked)
    assert stacked.load().packed.shape == (2, 12, 4)


@pytest.mark.parametrize(
    ("attribute", "expected", "found"),
    [("scale_factor", 0.5, 0.25), ("add_offset", 1.0, 2.0), ("_FillValue", -99, -98)],
)
def test_concat_refuses_another_meaning_by_name(tmp_path: Path, attribute: str, expected: Any, found: Any) -> None:
    one, other = stored(tmp_path / "a.zarr"), stored(tmp_path / "b.zarr", 2001, **{attribute: found})
    file = r"array 1 'packed' of 'file://.*/b\.zarr/packed/c/0/0'"
    message = rf"{file}, attribute '{attribute}': expected {expected} as in the first, found {found}$"
    with pytest.raises(ManifestError, match=message):
        xr.concat([virtual(one, ("packed",)), virtual(other, ("packed",))], dim="time")
    for function in (np.concatenate, np.stack):
        with pytest.raises(ManifestError, match=message):
            function([one.manifest("packed"), other.manifest("packed")])


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "bcd", ""]),
        np.array(["a", "bcd", "ä"], np.dtypes.StringDType()),
        np.array(["2000-01-01", "2000-01-03"], "M8[ns]"),
    ],
)
def test_text_and_times_are_joined_and_written(tmp_path: Path, values: Any) -> None:
    store = ps.PartsStore.from_url(tmp_path / "a.zarr")
    zarr.create_array(store, name="s", data=values, chunks=(1,), dimension_names=["x"])
    dataset = xr.Dataset({"s": store.manifest("s").to_virtual_variable()})
    for joined in (xr.concat([dataset, dataset], dim="x"), xr.concat([dataset, dataset], dim="run")):
        assert_virtual(joined)
        assert joined.load().s.values.ravel().tolist() == [*values.tolist(), *values.tolist()]
    dataset.to_zarr(tmp_path / "b.zarr", consolidated=False)
    assert opened(tmp_path / "b.zarr", decode=True).s.values.tolist() == values.tolist()
    dataset.to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "b.nc", engine="h5netcdf") as found:
        assert found.s.values.tolist() == values.tolist()


def test_text_of_another_length_is_refused(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "a.zarr")
    for name, text in (("s", ["a", "bcd"]), ("t", ["a", "bcde"])):
        zarr.create_array(store, name=name, data=np.array(text), chunks=(1,), dimension_names=["x"])
    datasets = [xr.Dataset({"s": store.manifest(name).to_virtual_variable()}) for name in "st"]
    with pytest.raises(ManifestError, match=r"<U3.*<U4"):
        xr.concat(datasets, dim="x")


def test_a_variable_needs_dimension_names_and_a_valid_fill_value(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "a.zarr")
    zarr.create_array(store, name="a", data=np.zeros(2))
    with pytest.raises(ManifestError, match="dimension names: expected 1 names"):
        store.manifest("a").to_virtual_variable()
    attributes: dict[str, Any] = {"_FillValue": "not base64"}
    zarr.create_array(store, name="b", data=np.zeros(2), dimension_names=["x"], attributes=attributes)
    with pytest.raises(ManifestError, match=r"'_FillValue'.*'not base64'"):
        store.manifest("b").to_virtual_variable()


def test_open_zarr_of_references_does_not_ask_for_consolidated_metadata(store: ps.PartsStore) -> None:
    group = PartsGroup({name: store.manifest(name) for name in NAMES}, attributes={"title": "test"})
    references = group.to_store(FILES)
    assert not references.supports_consolidated_metadata
    with xr.open_zarr(references, chunks=None) as found:
        xr.testing.assert_identical(found.load(), decoded())


@pytest.mark.slow
def test_nothing_needs_dask(store: ps.PartsStore, tmp_path: Path) -> None:
    array = store.manifest("packed")
    program = """
import pickle, sys
sys.modules["dask"] = sys.modules["distributed"] = None
import warnings
warnings.simplefilter("error")
import xarray as xr
dataset = xr.Dataset({"v": (("y", "x"), pickle.load(sys.stdin.buffer))})
dataset.to_zarr(sys.argv[1], consolidated=False)
with xr.open_zarr(sys.argv[1], consolidated=False) as found:
    assert found.equals(dataset.load())
print(int(dataset.v.sum()))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "b.zarr")]
    found = subprocess.run(command, input=pickle.dumps(array), capture_output=True, check=False)
    raw = opened(tmp_path / "a.zarr", decode=False).packed
    assert found.stdout.decode().strip() == str(int(raw.sum())), found.stderr.decode()
