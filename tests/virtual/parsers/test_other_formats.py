"""Files of formats that parsers of VirtualiZarr read, compared with the library that wrote them."""

import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.reference import LazyReferenceMapper
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.manifests import ManifestStore
from virtualizarr.parsers import NetCDF3Parser

import parts_store as ps
from parts_store.errors import AdoptionError
from parts_store.manifests import PartsArray
from parts_store.virtual.parsed_file import TIFF, ParsedFile, find_parser
from tests.virtual.adopting import repository, settle

VALUES = np.random.default_rng(1).random((40, 20, 30), "f4")
DATASET = xr.Dataset({"v": (("t", "y", "x"), VALUES)}, {"t": np.arange(40)})


def adopted(path: Path, name: str, group: str = "", **options: Any) -> Any:
    """The values of an array of a file, as a reader of the session finds them."""
    session = repository(path.parent).writable_session("main")
    report = ps.adopt(path, into=session, **options)
    assert report.is_complete
    store = ps.PartsStore.from_session(session)
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None)[name].values


def netcdf3(folder: Path) -> Path:
    DATASET.to_netcdf(folder / "a.nc", engine="scipy", unlimited_dims=["t"])
    return folder / "a.nc"


def zarr2(folder: Path) -> Path:
    DATASET.to_zarr(folder / "a.zarr", zarr_format=2, encoding={"v": {"chunks": (1, 20, 30)}})
    return folder / "a.zarr"


def zarr3(folder: Path) -> Path:
    DATASET.to_zarr(folder / "a.zarr", zarr_format=3, encoding={"v": {"chunks": (1, 20, 30)}}, consolidated=False)
    return folder / "a.zarr"


def zipped(folder: Path) -> Path:
    source = zarr3(folder)
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for each in sorted(source.rglob("*")):
            if each.is_file():
                archive.write(each, each.relative_to(source))
    return folder / "a.zip"


def references(folder: Path) -> dict[str, Any]:
    """References of kerchunk to a flat file."""
    (folder / "a.raw").write_bytes(b"header" + VALUES.tobytes())
    settle(folder / "a.raw")
    array = {"shape": VALUES.shape, "chunks": (1, 20, 30), "dtype": "<f4", "fill_value": 0, "order": "C"}
    document = json.dumps({**array, "compressor": None, "filters": None, "zarr_format": 2})
    places = {f"v/{at}.0.0": [str(folder / "a.raw"), 6 + 2400 * at, 2400] for at in range(40)}
    names = json.dumps({"_ARRAY_DIMENSIONS": ["t", "y", "x"]})
    return {".zgroup": '{"zarr_format": 2}', "v/.zarray": document, "v/.zattrs": names, **places}


def kerchunk_json(folder: Path) -> Path:
    (folder / "a.json").write_text(json.dumps({"version": 1, "refs": references(folder)}))
    return folder / "a.json"


def kerchunk_parquet(folder: Path) -> Path:
    (folder / "a.parquet").mkdir()
    mapper = LazyReferenceMapper.create(str(folder / "a.parquet"), fs=fsspec.filesystem("file"), record_size=100)
    for key, value in references(folder).items():
        mapper[key] = value.encode() if isinstance(value, str) else value
    mapper.flush()
    return folder / "a.parquet"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "netCDF3": netcdf3,
    "Zarr 2": zarr2,
    "Zarr 3": zarr3,
    "zip": zipped,
    "kerchunk JSON": kerchunk_json,
    "kerchunk Parquet": kerchunk_parquet,
}


# pandas deprecates the library that fsspec reads Parquet files with.
@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_format_is_recognised_and_its_values_are_equal(tmp_path: Path, kind: str) -> None:
    path = MAKERS[kind](tmp_path)
    for each in [path, *path.rglob("*")]:
        settle(each)
    assert np.array_equal(adopted(path, "v"), VALUES)


OTHERS = {
    "FITS": ("FITSParser", b"SIMPLE  =                    T"),
    "GRIB": ("GribberishParser", b"GRIB\0\0\0\2"),
    "HDF4": ("HDF4Parser", b"\x0e\x03\x13\x01"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_format_that_is_not_adopted_is_named_with_its_parser(tmp_path: Path, name: str) -> None:
    parser, content = OTHERS[name]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(
        AdoptionError, match=rf"found {name}; pass `parser=.*{parser}\(\)`, whose values are not checked"
    ):
        adopted(tmp_path / "file", "v")


def test_the_report_names_parsers_whose_values_are_not_checked(tmp_path: Path) -> None:
    class OtherParser(NetCDF3Parser):
        """A parser that parts_store does not know."""

    path = netcdf3(tmp_path)
    settle(path)
    for parser, unchecked in ((OtherParser(), ("OtherParser",)), (NetCDF3Parser(), ()), (None, ())):
        report = ps.adopt(path, into=repository(tmp_path).writable_session("main"), parser=parser, dry_run=True)
        assert report.unchecked == unchecked
        line = "not checked: compare some values of OtherParser with another library"
        assert (line in str(report)) == bool(unchecked)


def test_any_parser_of_virtualizarr_can_be_passed(tmp_path: Path) -> None:
    path = netcdf3(tmp_path)
    settle(path)
    assert np.array_equal(adopted(path, "v", parser=NetCDF3Parser()), VALUES)
    (tmp_path / "text").write_text("text")
    with pytest.raises(
        AdoptionError, match=r"text' cannot be adopted.*NetCDF3Parser failed: ValueError: not a netCDF3"
    ):
        adopted(tmp_path / "text", "v", parser=NetCDF3Parser())


def test_virtualizarr_and_adopt_get_the_same_from_a_parser(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=VALUES, chunks=(10, 20, 30), compression="gzip")
        file["texts"] = ["a", "bc"]
        file["skipped"] = np.longdouble(1)
    settle(path)
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    store = pickle.loads(pickle.dumps(ps.parsers.HDF5()(path.as_uri(), registry)))
    assert isinstance(store, ParsedFile)
    assert isinstance(store, ManifestStore)
    assert [skipped.name for skipped in store.skipped] == ["skipped"]
    assert store.loaded == {"texts": "texts of a variable length"}
    array = store.group["v"]
    assert isinstance(array, PartsArray)
    assert set(array.checksums) == {path.as_uri()}
    dataset = open_virtual_dataset(path.as_uri(), registry=registry, parser=ps.parsers.HDF5())
    assert dataset["v"].data.manifest.dict() == array.to_manifest_array().manifest.dict()

    def wrapped(url: str, registry: Any) -> ManifestStore:
        return ps.parsers.HDF5()(url, registry)

    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(path, into=session, parser=wrapped)
    assert (report.skipped, report.unchecked) == (store.skipped, ())
    with pytest.raises(AdoptionError, match="there is no such file"):
        ps.parsers.HDF5()((tmp_path / "b.h5").as_uri(), registry)


def test_attributes_that_are_not_finite_are_adopted(tmp_path: Path) -> None:
    """Icechunk refused them, after other arrays had been written to the session."""
    numbers = {"valid_min": np.nan, "valid_max": np.inf}
    dataset = xr.Dataset({"v": (("x",), np.arange(4.0), numbers), "w": (("x",), np.arange(4.0))}, attrs=numbers)
    dataset.to_netcdf(tmp_path / "a.nc", engine="scipy")
    settle(tmp_path / "a.nc")
    session = repository(tmp_path).writable_session("main")
    assert ps.adopt(tmp_path / "a.nc", into=session).is_complete
    found = xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False)
    # xarray takes null for NaN.
    assert found.attrs == found["v"].attrs == {"valid_min": None, "valid_max": np.inf}
    xr.testing.assert_identical(found, xr.open_dataset(tmp_path / "a.nc", engine="scipy"))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = netcdf3(tmp_path)
    path.write_bytes(path.read_bytes()[:-4000])
    settle(path)
    with pytest.raises(AdoptionError, match=r"chunks end at \d+, and the file at \d+|failed"):
        adopted(path, "v")


def test_references_to_files_that_are_missing_or_too_short_are_refused(tmp_path: Path) -> None:
    path = kerchunk_json(tmp_path)
    settle(path)
    (tmp_path / "a.raw").write_bytes(b"header" + VALUES.tobytes()[:-1])
    with pytest.raises(AdoptionError, match=r"a\.json.*a\.raw: its chunks end at 96006, and the file at 96005"):
        adopted(path, "v")
    (tmp_path / "a.raw").unlink()
    with pytest.raises(AdoptionError, match=r"a\.json.*a\.raw: there is no such file"):
        adopted(path, "v")


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "parts_store.virtual.parsers.file_parsers", None)
    with pytest.raises(ImportError, match=r"TIFF files need parts_store.*: pip install 'parts_store\[tiff\]'"):
        find_parser(TIFF)


def test_zarr_group_whose_dimensions_have_several_lengths_is_refused_by_name(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    for name, length in (("v", 4), ("w", 5)):
        array = group.create_array(name, shape=(length,), chunks=(2,), dtype="u1", dimension_names=["n"])
        array[:] = 1
    for path in (tmp_path / "a.zarr").rglob("*"):
        settle(path)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(
        AdoptionError, match=r"group '': expected variables that xarray can have in one dataset, found c"
    ):
        ps.adopt(tmp_path / "a.zarr", into=session, loadable_variables=["v"])
    assert not session.has_uncommitted_changes
    # As references, they need no dataset.
    report = ps.adopt(tmp_path / "a.zarr", into=session)
    assert {array.path for array in report.arrays} == {"v", "w"}
