"""Datasets of files that were never written have no chunks, and read as their fill value."""

import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.manifests import ChunkManifest, ManifestArray
from virtualizarr.parsers import HDFParser

import parts_store as ps
from parts_store.errors import ManifestError
from parts_store.manifests import PartsArray, PartsGroup
from tests.virtual.manifests.making import entry, metadata

REGISTRY: Any = ObjectStoreRegistry({"file://": LocalStore("/")})


@pytest.fixture(scope="module")
def file() -> str:
    path = Path(tempfile.mkdtemp()) / "a.h5"
    with h5py.File(path, "w") as opened:
        opened.create_dataset("chunked", shape=(4, 6), chunks=(2, 3), dtype="i4", fillvalue=7)
        opened.create_dataset("contiguous", shape=(4, 6), dtype="i4", fillvalue=7)
        opened.create_dataset("scalar", shape=(), dtype="f4", fillvalue=7)
        opened.create_dataset("empty", shape=(0, 6), maxshape=(None, 6), chunks=(2, 3), dtype="i4")
        opened.create_dataset("no_axis", shape=(0,), dtype="f4")
        opened.create_dataset("partly", shape=(4, 6), chunks=(2, 3), dtype="i4", fillvalue=7)[:2, :3] = 1
        opened.create_dataset("later", shape=(4,), dtype="i4", data=np.arange(4))
    return str(path)


@pytest.fixture
def converted(file: str) -> PartsGroup:
    return PartsGroup.from_manifest_group(HDFParser()(f"file://{file}", REGISTRY)._group).with_registry(REGISTRY)


@pytest.fixture
def values(file: str) -> dict[str, Any]:
    with h5py.File(file) as opened:
        return {name: dataset[...] for name, dataset in opened.items()}


def test_groups_of_virtualizarr_are_converted(converted: PartsGroup, values: dict[str, Any]) -> None:
    assert set(converted) == set(values)
    for name, array in converted.arrays.items():
        np.testing.assert_array_equal(array.load(), values[name])
        assert array.is_same(PartsArray.from_json(array.to_json()))
    assert {name for name, array in converted.arrays.items() if not array.dict()} == {
        *("chunked", "contiguous", "scalar", "empty", "no_axis"),
    }


def test_they_are_read_through_a_store_and_a_session(
    converted: PartsGroup, values: dict[str, Any], file: str, tmp_path: Path
) -> None:
    repository = ps.open_repository(tmp_path / "repository", virtual=[Path(file).parent])
    session = repository.writable_session("main")
    converted.to_icechunk(session)
    session.commit("never written")
    committed = repository.readonly_session("main")
    for store in (converted.to_store(REGISTRY), ps.PartsStore.from_session(committed), committed.store):
        root = zarr.open_group(store, mode="r")
        for name, expected in values.items():
            np.testing.assert_array_equal(root[name][...], expected)  # type: ignore[index]


def test_they_are_joined_with_arrays_that_were_written(converted: PartsGroup, values: dict[str, Any]) -> None:
    datasets = [xr.Dataset({"v": (("y", "x"), converted.arrays[name])}) for name in ("chunked", "partly")]
    joined = xr.concat(datasets, dim="y").load()
    np.testing.assert_array_equal(joined.v, np.concatenate([values["chunked"], values["partly"]]))


@pytest.mark.parametrize("grid", [(), (0,), (7,), (4, 6)])
def test_a_manifest_without_chunks_may_have_any_grid(grid: tuple[int, ...]) -> None:
    array = ManifestArray(metadata=metadata(fill_value=3), chunkmanifest=ChunkManifest({}, shape=grid))
    assert PartsArray.from_manifest_array(array).load({}).tolist() == [3, 3, 3, 3]


def test_a_manifest_with_chunks_on_another_grid_is_refused() -> None:
    array = ManifestArray(metadata=metadata(), chunkmanifest=ChunkManifest({"0": entry()}))
    with pytest.raises(ManifestError, match=r"a grid of \(2,\) chunks"):
        PartsArray.from_manifest_array(array)
