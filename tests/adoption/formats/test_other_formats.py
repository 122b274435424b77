"""Files of every format that VirtualiZarr has a parser for, compared with the library that wrote them."""

import json
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
from astropy.io import fits
from fsspec.implementations.reference import LazyReferenceMapper
from pyhdf.SD import SD, SDC
from virtualizarr.parsers import NetCDF3Parser

import parts_store as ps
from parts_store.adoption import recognition
from parts_store.adoption.parsers import find_parser
from parts_store.errors import AdoptionError
from tests.adoption.adopting import repository, settle
from tests.adoption.formats.grib_messages import message

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


def dmrpp(folder: Path) -> Path:
    chunks: list[Any] = []
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("v", data=VALUES, chunks=(1, 20, 30)).id.chunk_iter(chunks.append)
    settle(folder / "a.h5")
    sizes = "".join(f'<Dimension name="{name}" size="{size}"/>' for name, size in zip("tyx", VALUES.shape, strict=True))
    places = "".join(
        f'<dmrpp:chunk offset="{each.byte_offset}" nBytes="{each.size}" '
        f'chunkPositionInArray="[{each.chunk_offset[0]},0,0]"/>'
        for each in chunks
    )
    (folder / "a.h5.dmrpp").write_text(
        '<?xml version="1.0"?><Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" '
        'xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dapVersion="4.0" dmrVersion="1.0" name="a.h5">'
        f'{sizes}<Float32 name="v"><Dim name="/t"/><Dim name="/y"/><Dim name="/x"/><dmrpp:chunks byteOrder="LE">'
        f"<dmrpp:chunkDimensionSizes>1 20 30</dmrpp:chunkDimensionSizes>{places}</dmrpp:chunks></Float32></Dataset>"
    )
    return folder / "a.h5.dmrpp"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "netCDF3": netcdf3,
    "Zarr 2": zarr2,
    "Zarr 3": zarr3,
    "zip": zipped,
    "kerchunk JSON": kerchunk_json,
    "kerchunk Parquet": kerchunk_parquet,
    "DMR++": dmrpp,
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


def test_fits_images_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "a.fits"
    counts = np.arange(600, dtype="u2").reshape(20, 30) + 40_000
    fits.HDUList([fits.PrimaryHDU(VALUES), fits.ImageHDU(counts, name="COUNTS")]).writeto(path)
    settle(path)
    assert np.array_equal(adopted(path, "PRIMARY"), fits.getdata(path, 0))
    assert np.array_equal(adopted(path, "COUNTS"), fits.getdata(path, 1))


def test_grib_messages_are_equal(tmp_path: Path) -> None:
    fields = np.random.default_rng(1).integers(200, 300, (4, 20, 30)).astype("f8")
    for at in range(2):
        both = (message(fields[2 * at + each], 6 * (2 * at + each)) for each in range(2))
        (tmp_path / f"{at}.grib2").write_bytes(b"".join(both))
        settle(tmp_path / f"{at}.grib2")
    assert np.array_equal(adopted(tmp_path / "0.grib2", "tmp", "hag/instant"), fields[:2])
    session = repository(tmp_path).writable_session("main")
    ps.adopt(tmp_path / "*.grib2", into=session, concat_dim="time")
    store = ps.PartsStore.from_session(session)
    joined = xr.open_zarr(store, group="hag/instant", consolidated=False, chunks=None)
    assert np.array_equal(joined["tmp"], fields)
    assert joined["time"].values.astype("M8[h]").tolist() == [
        np.datetime64(f"2026-01-01T{hour:02}", "h").item() for hour in (0, 6, 12, 18)
    ]


HDF4_TYPES = {"f4": SDC.FLOAT32, "f8": SDC.FLOAT64, "i2": SDC.INT16, "u1": SDC.UINT8, "i4": SDC.INT32}


def write_hdf4(path: Path, dtype: str) -> Path:
    values = (np.arange(600).reshape(20, 30) % 200).astype(dtype)
    file = SD(str(path), SDC.WRITE | SDC.CREATE)
    dataset = file.create("v", HDF4_TYPES[dtype], values.shape)
    dataset.setcompress(SDC.COMP_DEFLATE, value=6)
    dataset[:] = values
    dataset.endaccess()
    file.end()
    settle(path)
    return path


@pytest.mark.parametrize("dtype", HDF4_TYPES)
def test_hdf4_arrays_are_equal(tmp_path: Path, dtype: str) -> None:
    path = write_hdf4(tmp_path / "a.hdf", dtype)
    assert np.array_equal(adopted(path, "v"), SD(str(path)).select("v")[:])


def test_hdf4_files_with_another_byte_order_are_refused(tmp_path: Path) -> None:
    path = write_hdf4(tmp_path / "a.hdf", "f4")
    # A number type: its version, the type float32 of 32 bits, and its class, which is 4 for little-endian.
    data = path.read_bytes()
    assert data.count(bytes([1, 5, 32, 1])) == 1
    path.write_bytes(data.replace(bytes([1, 5, 32, 1]), bytes([1, 5, 32, 4])))
    with pytest.raises(AdoptionError, match="its numbers are not big-endian"):
        adopted(path, "v")


def test_any_parser_of_virtualizarr_can_be_passed(tmp_path: Path) -> None:
    path = netcdf3(tmp_path)
    settle(path)
    assert np.array_equal(adopted(path, "v", parser=NetCDF3Parser()), VALUES)
    (tmp_path / "text").write_text("text")
    with pytest.raises(
        AdoptionError, match=r"text' cannot be adopted.*NetCDF3Parser failed: ValueError: not a netCDF3"
    ):
        adopted(tmp_path / "text", "v", parser=NetCDF3Parser())


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


@pytest.mark.parametrize("kind", ["netCDF3", "FITS"])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "FITS":
        fits.PrimaryHDU(VALUES).writeto(path, output_verify="silentfix")
    else:
        DATASET.to_netcdf(path, engine="scipy")
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
    monkeypatch.setitem(sys.modules, "gribberish.virtualizarr", None)
    with pytest.raises(ImportError, match=r"GRIB files need gribberish.*: pip install 'virtualizarr\[grib\]'"):
        find_parser(recognition.GRIB)
