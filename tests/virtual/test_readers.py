"""What is adopted by default is read by zarr, xarray and icechunk, where this package does not exist."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import z5py
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.virtual.report import Adoption
from tests.interoperability.installed import environment
from tests.virtual.adopting import settle
from tests.virtual.months import read, write_months

# Reads all arrays of a repository. The package must not be found: neither imported, nor by the names that it registers.
READER = """
import os, sys, warnings
from importlib import metadata
sys.modules["parts_store"] = None
found = metadata.distributions
metadata.distributions = lambda **names: (each for each in found(**names) if each.name != "parts_store")
warnings.simplefilter("ignore")
import icechunk, numpy, xarray, zarr
url, out, *settings = sys.argv[1:]
storage = icechunk.local_filesystem_storage(url)
places = icechunk.Repository.open(storage).config.virtual_chunk_containers
access = icechunk.containers_credentials(dict.fromkeys(places))
store = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access).readonly_session("main").store
with zarr.config.set(dict.fromkeys(settings, True)):
    for name in sys.stdin.read().split():
        try:
            numpy.save(f"{out}/{name}.npy", zarr.open_array(store, path=name, mode="r")[...])
        except Exception as error:
            print(f"{name}: {str(error).splitlines()[0]}")
    try:
        dataset = xarray.open_zarr(store, consolidated=False).load()
        dataset.to_netcdf(f"{out}/dataset.nc", engine="h5netcdf")
    except Exception as error:
        print(f"dataset: {str(error).splitlines()[0]}")
assert not [name for name, module in sys.modules.items() if name.startswith("parts_store") and module is not None]
# All is read and written. Without this package, the process may crash at its end: docs/limits.md says why.
sys.stdout.flush()
os._exit(0)
"""


def adopt(folder: Path, files: Any, **options: Any) -> Adoption:
    repository = ps.open_repository(folder / "repository", virtual=[folder])
    session = repository.writable_session("main")
    report = ps.adopt(files, into=session, **options)
    session.commit("adopted")
    return report


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    session = ps.open_repository(folder / "repository", virtual=[folder]).readonly_session("main")
    group = zarr.open_group(session.store, mode="r")
    return {name: json.loads(json.dumps(each.metadata.to_dict(), default=str)) for name, each in group.arrays()}


def read_elsewhere(folder: Path, report: Adoption, *settings: str) -> tuple[Path, list[str]]:
    """Return the folder with what another process has read, and what it could not read."""
    out = folder / "read"
    out.mkdir()
    command = [sys.executable, "-P", "-c", READER, str(folder / "repository"), str(out), *settings]
    names = "\n".join(each.path for each in report.arrays)
    ran = subprocess.run(
        command, input=names, env=environment(), cwd=out, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return out, ran.stdout.splitlines()


def require_plain(folder: Path, report: Adoption) -> None:
    """Check that arrays have only what other readers know, or may ignore."""
    for name, document in documents(folder).items():
        assert "parts_store" not in document, name
        assert not document.get("storage_transformers"), name
        assert document["chunk_grid"]["name"] == "regular"
        extra = {key: value for key, value in document.items() if key.startswith("parts_store")}
        assert all(value["must_understand"] is False for value in extra.values()), name
    assert {each.form for each in report.arrays} <= {"plain", "values"}


def test_netcdf_files(tmp_path: Path) -> None:
    files = write_months(tmp_path / "files", "day", "2003-01", 3)
    report = adopt(tmp_path, files, concat_dim="time")
    require_plain(tmp_path, report)
    forms = {each.path: each for each in report.arrays}
    # 90 chunks, which were a shard before.
    assert (forms["t"].form, forms["t"].references) == ("plain", 90)
    assert forms["t"].readers == ("zarr", "icechunk")
    out, refused = read_elsewhere(tmp_path, report)
    assert refused == []
    found, expected = read([out / "dataset.nc"]), read(files)
    for name in expected.variables:
        assert np.array_equal(found[name].values, expected[name].values, equal_nan=expected[name].dtype.kind == "f")


def hdf5(folder: Path, values: NDArray[Any]) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        kinds: dict[str, Any] = {
            "plain": {},
            "chunked": {"chunks": (3, 4)},
            "deflate": {"chunks": (3, 4), "compression": "gzip", "shuffle": True},
            "checked": {"chunks": (3, 4), "fletcher32": True},
        }
        for name, kind in kinds.items():
            file.create_dataset(name, data=values, **kind)
        file.create_dataset("big", data=values.astype(">i4"), chunks=(3, 4), compression="gzip")
    settle(folder / "a.h5")
    return folder / "a.h5"


@pytest.mark.slow
def test_hdf5_files(tmp_path: Path) -> None:
    values = np.arange(31 * 42, dtype="i4").reshape(31, 42)
    report = adopt(tmp_path, hdf5(tmp_path, values))
    require_plain(tmp_path, report)
    assert all(each.references >= 1 for each in report.arrays)
    out, refused = read_elsewhere(tmp_path, report)
    assert not [each for each in refused if not each.startswith("dataset")]
    for each in report.arrays:
        assert np.array_equal(np.load(out / f"{each.path}.npy"), values), each.path


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["zlib", "lzw"])
def test_tiff_files(tmp_path: Path, compression: str) -> None:
    values = np.arange(100 * 150, dtype="u2").reshape(100, 150)
    tifffile.imwrite(tmp_path / "a.tif", values, tile=(16, 16), compression=compression)
    settle(tmp_path / "a.tif")
    report = adopt(tmp_path, tmp_path / "a.tif")
    require_plain(tmp_path, report)
    # 7 rows of 10 tiles.
    assert report.references == 70
    assert report.arrays[0].needs == (() if compression == "zlib" else ("imagecodecs-zarr",))
    out, refused = read_elsewhere(tmp_path, report)
    assert refused == []
    assert np.array_equal(np.load(out / "data.npy"), values)


def n5(folder: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    values = np.arange(np.prod(shape), dtype="u2").reshape(shape)
    z5py.File(str(folder / "a.n5"), "a", use_zarr_format=False).create_dataset(
        "x", data=values, chunks=(10, 12), compression="gzip"
    )
    for file in (folder / "a.n5").rglob("*"):
        settle(file)
    return values


@pytest.mark.slow
def test_n5_containers_of_whole_blocks(tmp_path: Path) -> None:
    values = n5(tmp_path, (40, 48))
    report = adopt(tmp_path, tmp_path / "a.n5")
    require_plain(tmp_path, report)
    assert report.arrays[0].needs == ()
    out, refused = read_elsewhere(tmp_path, report)
    assert refused == []
    assert np.array_equal(np.load(out / "x.npy"), values)


@pytest.mark.slow
def test_n5_containers_with_cut_blocks_name_the_package_of_their_codec(tmp_path: Path) -> None:
    n5(tmp_path, (41, 48))
    report = adopt(tmp_path, tmp_path / "a.n5")
    require_plain(tmp_path, report)
    assert report.arrays[0].readers == ("zarr", "icechunk", "parts_store")
    _, refused = read_elsewhere(tmp_path, report)
    assert any("n5_default" in each for each in refused)


@pytest.mark.slow
def test_shards_are_for_this_package_alone_and_the_report_says_so(tmp_path: Path) -> None:
    values = np.arange(31 * 42, dtype="i4").reshape(31, 42)
    report = adopt(tmp_path, hdf5(tmp_path, values), shard_chunks=1000)
    sharded = {each.path for each in report.arrays if each.form == "shards"}
    assert sharded == {"chunked", "deflate", "checked", "big"}
    assert {each.readers for each in report.arrays if each.path in sharded} == {("parts_store",)}
    _, refused = read_elsewhere(tmp_path, report)
    assert any("parts_store" in each for each in refused)
