"""The engine of xarray: adopted files are decoded as xarray decodes the files themselves."""

import itertools
import json
import math
import pickle
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from xarray.backends import ZarrBackendEntrypoint

import parts_store as ps
from parts_store.virtual.xarray_engine import PartsStoreEntrypoint, preferred_chunks
from tests.virtual.adopting import adopted, repository, settle

# The name in the entry point is tested once: other tests do not need an installed package.
ENGINE: Any = PartsStoreEntrypoint
FEW = ("i2",)
ALL = ("i1", "u2", "i4", "i8", "f4", "f8")


def packed(path: Path, types: tuple[str, ...] = FEW, *, first: int = 0, step: int = 2, **options: Any) -> Path:
    """Every combination of the types that decide about the type of decoded values, in two groups."""
    combinations = itertools.product(types, (None, "f4", "f8", "i4"), (None, "f4", "f8"), (None, "f4"))
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 3 * step}
        file.attrs["_NCPROPERTIES"] = "shown by xarray"
        below = file.create_group("below")
        for number, (dtype, scale, offset, masked) in enumerate(combinations):
            # xarray cannot decode missing values of integers that it decodes as integers.
            missing = None if scale == "i4" else masked
            group = below if number % 4 == 0 else file
            values = np.arange(first, first + 3 * step).astype(dtype)
            name = f"v{number}"
            fill = (
                {"fillvalue": np.array(3, dtype)[()]} if missing is None and scale != "i4" and number % 3 == 0 else {}
            )
            variable = group.create_variable(name, ("x",), dtype, data=values, chunks=(step,), **fill, **options)
            numbers = (("scale_factor", scale, 2.1), ("add_offset", offset, 1.3), ("missing_value", missing, 1))
            for key, kind, value in numbers:
                if kind is not None:
                    variable.attrs[key] = np.array(value).astype(kind)[()]
            variable.attrs["valid_range"] = np.array([0, 5], dtype)
    settle(path)
    return path


def require_identical(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Values, attributes and data types, and the types of the numbers that say how values are encoded."""
    xr.testing.assert_identical(found, expected)
    assert {name: each.dtype for name, each in found.variables.items()} == {
        name: each.dtype for name, each in expected.variables.items()
    }
    for name, each in expected.variables.items():
        for key in ("scale_factor", "add_offset", "missing_value", "_FillValue"):
            one, two = (np.asarray(each.encoding.get(key)) for each in (found[name], each))
            assert one.dtype == two.dtype, (name, key)
            assert np.array_equal(one, two)


def opened(source: Any, **options: Any) -> xr.Dataset:
    """A dataset, whose source xarray declares to be a path or a file."""
    return xr.open_dataset(source, **{"engine": ENGINE, **options})


def read(path: Path, **options: Any) -> xr.Dataset:
    with xr.open_dataset(path, engine="h5netcdf", **options) as dataset:
        return dataset.load()


@pytest.mark.slow
def test_packed_values_are_decoded_as_from_the_file(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.nc", ALL)
    report, store = adopted(file)
    assert report.is_complete
    expected = read(file)
    require_identical(opened(store), expected)
    require_identical(opened(store, group="below"), read(file, group="below"))
    # The engine `zarr` decodes others, and the report names all of them.
    plain = xr.open_zarr(store, consolidated=False)
    others = {f"{name}@scale_factor" for name in expected if plain[name].dtype != expected[name].dtype}
    assert others
    assert others <= {each.name for each in report.skipped if 'engine="parts_store"' in each.reason}


def test_attributes_of_a_plain_zarr_reader_are_those_of_the_file(tmp_path: Path) -> None:
    _, store = adopted(packed(tmp_path / "a.nc"))
    raw = xr.open_zarr(store, consolidated=False, decode_cf=False)
    expected = read(tmp_path / "a.nc", decode_cf=False)
    assert {name: set(each.attrs) for name, each in raw.items()} == {
        name: set(each.attrs) for name, each in expected.items()
    }


def test_other_readers_open_an_array_with_types(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 6}
        file.create_variable("v", ("x",), "i2", data=np.arange(6), chunks=(2,)).attrs["scale_factor"] = np.float32(2)
    settle(tmp_path / "a.nc")
    plain = ps.PartsStore.from_url(tmp_path / "plain.zarr")
    ps.adopt(tmp_path / "a.nc", into=plain, copy=True)
    ps.copy(plain, ps.PartsStore.from_url(tmp_path / "copy.zarr"))
    require_identical(opened(tmp_path / "plain.zarr", consolidated=False), read(tmp_path / "a.nc"))
    zarr.create_array(tmp_path / "whole.zarr", data=np.asarray(zarr.open_array(plain, path="v")[...]))
    document = (tmp_path / "whole.zarr/zarr.json").read_text().rstrip()[:-1]
    name = "parts_store.attribute_types"
    value = {"name": name, "must_understand": False, "configuration": {"types": {"scale_factor": "float32"}}}
    member = json.dumps({name: value})[1:-1]
    (tmp_path / "whole.zarr/zarr.json").write_text(f"{document}, {member}}}")
    found = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path / 'whole.zarr'}"}).result()
    assert np.array_equal(found.read().result(), np.arange(6))


@pytest.mark.slow
def test_all_groups_are_opened_as_a_tree(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.nc")
    _, store = adopted(file)
    source: Any = store
    with xr.open_datatree(file, engine="h5netcdf") as expected, xr.open_datatree(source, engine=ENGINE) as found:
        xr.testing.assert_identical(found.load(), expected.load())
        require_identical(found["below"].to_dataset(), expected["below"].to_dataset())
    with xr.open_datatree(source, engine=ENGINE, group="below") as below:
        require_identical(below.to_dataset(), read(file, group="below"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("group", [None, "", "/", "a", "/a/", "a/b"])
def test_groups_have_the_names_of_the_engine_zarr(tmp_path: Path, group: str | None) -> None:
    store: Any = ps.PartsStore.from_url(tmp_path)
    for path in ("", "a", "a/b", "a/b/c", "other"):
        xr.Dataset({"x": ("i", [len(path)])}).to_zarr(store, group=path, mode="a", consolidated=False)
    expected = xr.open_groups(store, engine="zarr", group=group, consolidated=False)
    found = xr.open_groups(store, engine=ENGINE, group=group, consolidated=False)
    assert found.keys() == expected.keys()
    for name, dataset in expected.items():
        xr.testing.assert_identical(found[name].load(), dataset.load())
    trees = [xr.open_datatree(store, engine=each, group=group, consolidated=False) for each in ("zarr", ENGINE)]
    xr.testing.assert_identical(trees[0].load(), trees[1].load())


@pytest.mark.slow
def test_session_group_and_path_are_opened(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.nc")
    made = ps.open_repository(tmp_path / "repository", virtual=[tmp_path])
    session = made.writable_session("main")
    ps.adopt(file, into=session, path="a")
    expected = read(file, group="below")
    require_identical(opened(session, group="a/below"), expected)
    group = zarr.open_group(ps.PartsStore.from_session(session), path="a", mode="r")
    require_identical(opened(group, group="below"), expected)
    require_identical(opened(group["below"]), expected)
    session.commit("adopted")
    options = {"virtual": [tmp_path], "branch": "main"}
    for path in (tmp_path / "repository", str(tmp_path / "repository")):
        found = opened(path, group="a/below", storage_options=options)
        require_identical(found, expected)


@pytest.mark.slow
def test_dask_arrays_are_lazy_and_can_be_pickled(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.nc")
    made = ps.open_repository(tmp_path / "repository", virtual=[tmp_path])
    session = made.writable_session("main")
    ps.adopt(file, into=session)
    session.commit("adopted")
    store = ps.PartsStore.from_session(made.readonly_session("main"))
    lazy = opened(store, chunks={})
    assert all(each.chunks == ((6,),) for each in lazy.values())
    require_identical(pickle.loads(pickle.dumps(lazy)).compute(), read(file))


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "gzip"], ids=["loaded", "references"])
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "appended"])
def test_joined_and_appended_files_keep_the_types(tmp_path: Path, joined: bool, compression: str | None) -> None:
    files = [packed(tmp_path / f"{first}.nc", first=first, step=1024, compression=compression) for first in (0, 3072)]
    session = repository(tmp_path).writable_session("main")
    if joined:
        ps.adopt(files, into=session, concat_dim="x")
    else:
        ps.adopt(files[0], into=session)
        ps.adopt(files[1], into=session, append_dim="x")
    with xr.open_mfdataset(files, engine="h5netcdf", combine="nested", concat_dim="x") as expected:
        require_identical(opened(session), expected.load())


def test_bytes_that_mean_missing_mask_the_same_values(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 4, "n": 2}
        texts = np.array([b"ab", b"xb", b"xx", b"b"], "S2")
        letters = texts.view("S1").reshape(4, 2)
        variable = file.create_variable("c", ("x", "n"), "S1", data=letters)
        variable._h5ds.attrs["missing_value"] = np.bytes_("x")
    _, store = adopted(tmp_path / "a.nc")
    options: dict[str, Any]
    for options in ({}, {"concat_characters": False}):
        require_identical(opened(store, **options), read(tmp_path / "a.nc", **options))


def test_flags_of_an_enumeration_are_shown_by_other_engines_only(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 3}
        clouds = file.create_enumtype(np.dtype("u1"), "clouds", {"clear": 0, "cumulus": 2, "missing": 255})
        file.create_variable("c", ("x",), clouds, data=np.array([0, 2, 255], "u1"), fillvalue=255)
    _, store = adopted(tmp_path / "a.nc")
    require_identical(opened(store), read(tmp_path / "a.nc"))
    plain = xr.open_zarr(store, consolidated=False)["c"]
    assert plain.attrs == {"flag_values": [0, 2, 255], "flag_meanings": "clear cumulus missing"}


def test_value_that_was_changed_later_is_used_as_it_is(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 2}
        file.create_variable("v", ("x",), "i2", data=[1, 2]).attrs["scale_factor"] = np.float32(0.5)
    _, store = adopted(tmp_path / "a.nc")
    zarr.open_array(store, path="v").attrs["scale_factor"] = 0.1
    assert opened(store)["v"].values.tolist() == [0.1, 0.2]


axis_lengths = st.tuples(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 40))


@given(st.lists(axis_lengths, min_size=1, max_size=3), st.integers(1, 16))
def test_chunks_of_dask_are_whole_chunks_and_worth_a_task(axes: list[tuple[int, int, int]], itemsize: int) -> None:
    shape, chunks, counts = (tuple(each) for each in zip(*axes, strict=True))
    shards = tuple(chunk * count for chunk, count in zip(chunks, counts, strict=True))
    found = preferred_chunks(shape, chunks, shards, itemsize)
    unit, shard = (math.prod(each) * itemsize for each in (chunks, shards))
    nbytes = math.prod(found) * itemsize
    for length, chunk, part in zip(shards, chunks, found, strict=True):
        # In one shard, or of whole shards.
        assert part % chunk == 0
        assert length % part == 0 or part % length == 0
    if shard <= 2**26:
        assert all(part % length == 0 for part, length in zip(found, shards, strict=True))
    assert nbytes <= max(2**26, unit)
    # Twice as many bytes would be too many, or there are not twice as many, along the first axis that is not full.
    if shard < 2**24:
        is_all = all(part >= length for part, length in zip(found, shape, strict=True))
        assert is_all or nbytes > 2**23


@pytest.mark.slow
@pytest.mark.parametrize("shard_chunks", [1, 4095])
def test_chunks_of_dask_are_fewer_than_the_chunks_of_the_files(shard_chunks: int, tmp_path: Path) -> None:
    data = np.arange(200 * 64 * 64, dtype="i4").reshape(200, 64, 64)
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"t": 200, "y": 64, "x": 64}
        file.create_variable("v", ("t", "y", "x"), "i4", data=data, chunks=(1, 32, 64), compression="gzip")
    settle(tmp_path / "a.nc")
    _, store = adopted(tmp_path / "a.nc", shard_chunks=shard_chunks)
    found = opened(store, chunks={})["v"]
    # 3 MB in all, in 400 chunks.
    assert found.chunks == ((200,), (64,), (64,))
    assert (found.values == data).all()


@pytest.mark.slow
def test_consolidated_metadata_keeps_the_types(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.nc")
    _, store = adopted(file)
    ps.copy(store, ps.PartsStore.from_url(tmp_path / "copy.zarr"))
    copied = ps.PartsStore.from_url(tmp_path / "copy.zarr")
    with pytest.warns(zarr.errors.ZarrUserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(copied)
    require_identical(opened(copied, consolidated=True), read(file))
    require_identical(opened(copied), read(file))


def test_engine_opens_no_store_of_another_engine(tmp_path: Path) -> None:
    engine = PartsStoreEntrypoint()
    for other in (tmp_path, "a.zarr", "a.nc", zarr.storage.MemoryStore(), zarr.storage.LocalStore(tmp_path), b"CDF"):
        assert not engine.guess_can_open(other)
    store: Any = ps.PartsStore.from_url(tmp_path)
    assert engine.guess_can_open(store)
    assert not ZarrBackendEntrypoint().guess_can_open(store)


@pytest.mark.slow
def test_entry_point_is_the_engine(tmp_path: Path) -> None:
    declared = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = declared["xarray.backends"]["parts_store"].partition(":")
    assert getattr(import_module(module), name) is PartsStoreEntrypoint
    file = packed(tmp_path / "a.nc")
    _, store = adopted(file)
    require_identical(opened(store, engine="parts_store"), read(file))
    # A store is recognised without the name of the engine.
    require_identical(opened(store, engine=None), read(file))
