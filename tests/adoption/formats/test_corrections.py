"""What the parsers of other packages read wrongly is skipped with a reason, or the file is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from astropy.io import fits
from gribberish.virtualizarr import GribberishParser
from scipy.io import netcdf_file
from virtualizarr.parsers import DMRPPParser, FITSParser

import parts_store as ps
from parts_store.adoption import Adoption
from parts_store.errors import AdoptionError
from tests.adoption.adopting import adopted, array
from tests.adoption.formats.grib_messages import message

IMAGE = np.arange(600, dtype="i2").reshape(20, 30)


def reasons(report: Adoption) -> dict[str, str]:
    return {each.name: each.reason for each in report.skipped}


# --- FITS -------------------------------------------------------------------------------------------------------------


def scaled(dtype: str, **cards: Any) -> fits.ImageHDU:
    """An image whose header says how its numbers are scaled."""
    unit = fits.ImageHDU(IMAGE.astype(dtype), name="X")
    unit.header.update(cards)
    return unit


def table(*columns: fits.Column) -> fits.TableHDU:
    return fits.TableHDU.from_columns(list(columns), name="X")


UNITS: dict[str, Callable[[], Any]] = {
    "a compressed image": lambda: fits.CompImageHDU(IMAGE, name="X", compression_type="RICE_1"),
    "a binary table": lambda: fits.BinTableHDU.from_columns([fits.Column("a", "J", array=IMAGE[0])], name="X"),
    "64-bit integers": lambda: fits.ImageHDU(IMAGE.astype("u8"), name="X"),
    "floating-point numbers with BSCALE": lambda: scaled("f4", BSCALE=0.1),
    "missing values": lambda: scaled("i2", BSCALE=0.1, BLANK=3),
    "a table with TNULL": lambda: table(fits.Column("a", "I4", null="****", array=IMAGE[0])),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reason", UNITS)
def test_units_of_fits_files_are_skipped_and_the_others_adopted(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "a.fits"
    fits.HDUList([fits.PrimaryHDU(IMAGE), UNITS[reason]()]).writeto(path)
    report, store = adopted(path)
    assert [each.path for each in report.arrays] == ["PRIMARY"]
    assert np.array_equal(array(store, "PRIMARY")[...], IMAGE)
    assert reasons(report)["X"].startswith(reason)
    # A unit that the caller leaves out is not reported.
    assert adopted(path, parser=FITSParser(skip_variables=["X"]))[0].is_complete


def test_blank_fields_of_fits_tables_are_not_read_as_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.fits"
    fits.HDUList([fits.PrimaryHDU(), table(fits.Column("a", "E15.7", array=np.ones(3)))]).writeto(path)
    assert adopted(path)[0].is_complete
    data = path.read_bytes()
    start = data.rindex(b"1.0000000E+00")
    path.write_bytes(data[:start] + b" " * 13 + data[start + 13 :])
    assert reasons(adopted(path)[0]) == {"X": "a table with blank fields"}


# --- GRIB -------------------------------------------------------------------------------------------------------------

FIELD = np.arange(600.0).reshape(20, 30)
# Where the grid section is in a message, after those of 16 and 21 bytes.
GRID = 37


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize(
    ("at", "new", "problem"),
    [
        (30, b"\xff\xff\xff\xff", "a reduced grid"),
        (71, b"\x20", "in columns, or from east to west"),
        (63, b"\xff\xff\xff\xff", "do not lead from the first point to the last"),
        (38, b"\x00\x00\x00\x01\x00\x00\x03\xe8", "angles in other units"),
    ],
)
def test_grids_that_are_read_wrongly_are_refused(tmp_path: Path, at: int, new: bytes, problem: str) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(message(FIELD, 0) + changed(message(FIELD, 6), GRID + at, new))
    with pytest.raises(AdoptionError, match=f"the message at byte {len(message(FIELD, 0))}: .*{problem}"):
        adopted(path)


def test_messages_of_several_grids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(message(FIELD, 0) + message(FIELD[:, :20], 6))
    with pytest.raises(AdoptionError, match="several grids"):
        adopted(path)


def test_damaged_messages_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(message(FIELD, 0) + message(FIELD, 6)[:-1])
    with pytest.raises(AdoptionError, match="it is damaged"):
        adopted(path)


def test_other_fields_of_a_message_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    first, second = message(FIELD, 0), message(FIELD + 1, 0)
    product = GRID + 72
    both = first[:-4] + second[product:]
    path.write_bytes(changed(both, 8, len(both).to_bytes(8)))
    report, store = adopted(path)
    assert np.array_equal(array(store, "hag/instant/tmp")[0], FIELD)
    assert reasons(report) == {"the message at byte 0": "it has 2 fields, and only the first one is read"}


def test_messages_that_gribberish_leaves_out_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    # A grid definition that gribberish does not know.
    path.write_bytes(message(FIELD, 0) + changed(message(FIELD, 6), GRID + 12, (32769).to_bytes(2)))
    report, store = adopted(path)
    assert np.array_equal(array(store, "hag/instant/tmp")[0], FIELD)
    assert list(reasons(report)) == [f"the message at byte {len(message(FIELD, 0))}"]
    with pytest.raises(AdoptionError, match="gribberish does not read it"):
        adopted(path, strict=True)
    # Variables that the caller leaves out are not reported.
    assert adopted(path, parser=GribberishParser(only_variables=["tmp"]))[0].is_complete


def test_levels_that_gribberish_rounds_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    # The scale and the value of the first level: 0.000002 and 0.00002.
    level = GRID + 72 + 23
    for digits, is_skipped in ((6, True), (5, False)):
        path.write_bytes(changed(message(FIELD, 0), level, bytes([digits]) + (2).to_bytes(4)))
        report, _ = adopted(path)
        assert reasons(report) == (
            {"hag/instant/tmp": "in a group with levels that gribberish rounds"} if is_skipped else {}
        )
        assert bool(report.arrays) != is_skipped


def test_panics_of_parsers_are_translated(tmp_path: Path) -> None:
    """A panic of Rust code is no `Exception`, and would end a thread without a word."""
    path = tmp_path / "a.grib2"
    # A Lambert grid on an ellipsoid of unknown size.
    sample = message(FIELD, 0)
    grid = sample[GRID : GRID + 72]
    lambert = (81).to_bytes(4) + grid[4:12] + (30).to_bytes(2) + b"\x07" + grid[15:38] + bytes(43)
    path.write_bytes(changed(sample[:GRID] + lambert + sample[GRID + 72 :], 8, (len(sample) + 9).to_bytes(8)))
    with pytest.raises(ps.PartsStoreError, match="GribberishParser failed: PanicException"):
        adopted(path)


# --- DMR++ ------------------------------------------------------------------------------------------------------------

CHUNK = '<dmrpp:chunk offset="0" nBytes="80"/>'
DIMENSION = '<Dim size="20"/>'


def dmrpp(path: Path, body: str) -> Path:
    path.with_suffix("").write_bytes(np.arange(20, dtype="<f4").tobytes())
    path.write_text(
        '<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" name="a" '
        f'xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#">{body}</Dataset>'
    )
    return path


def variable(name: str, chunks: str = CHUNK, dimensions: str = DIMENSION, **attributes: str) -> str:
    text = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<Float32 name="{name}">{dimensions}<dmrpp:chunks{text}>{chunks}</dmrpp:chunks></Float32>'


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (variable("x", CHUNK.replace("/>", ' href="b.h5"/>')), "chunks in other files"),
        (variable("x", byteOrder="BE"), "big-endian"),
        (variable("x", compressionType="shuffle fletcher32"), "filters that VirtualiZarr does not apply: fletcher32"),
        (variable("x", CHUNK.replace("80", "4"), ""), "a single value"),
        (variable("x", dimensions='<Dim name="/y"/><Dim name="/g/y"/>'), "two dimensions of the same name"),
        (variable("x", CHUNK.replace("/>", ' fm="1"/>')), "a filter mask"),
        ('<Structure name="x"/>', "VirtualiZarr does not read its type"),
    ],
)
def test_variables_of_dmrpp_files_are_skipped_and_the_others_adopted(tmp_path: Path, wrong: str, reason: str) -> None:
    report, store = adopted(dmrpp(tmp_path / "a.h5.dmrpp", variable("v") + wrong))
    assert np.array_equal(array(store, "v")[...], np.arange(20))
    assert list(reasons(report)) == ["x"]
    assert reason in reasons(report)["x"]


@pytest.mark.slow
def test_groups_of_dmrpp_files_are_reported_and_can_be_adopted(tmp_path: Path) -> None:
    path = dmrpp(tmp_path / "a.h5.dmrpp", variable("v") + f'<Group name="g">{variable("w")}</Group>')
    assert list(reasons(adopted(path)[0])) == ["g/w"]
    report, store = adopted(path, parser=DMRPPParser(group="g"))
    assert report.is_complete
    assert np.array_equal(array(store, "w")[...], np.arange(20))


def test_a_dmrpp_file_with_another_name_is_refused(tmp_path: Path) -> None:
    # VirtualiZarr would take the file itself for the data.
    path = dmrpp(tmp_path / "a.h5.dmrpp", variable("v") + " " * 100).rename(tmp_path / "a.xml")
    with pytest.raises(AdoptionError, match=r"expected a name that ends with '\.dmrpp'"):
        adopted(path)


# --- netCDF3 ----------------------------------------------------------------------------------------------------------


def both(path: Path, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
    """What xarray reads of a netCDF3 file, and of the arrays that refer to it."""
    _, adopted_store = adopted(path)
    store: Any = adopted_store
    with xr.open_dataset(path, engine="scipy") as file:
        return file.load(), xr.open_dataset(store, consolidated=False, **options).load()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dtype", ["b", "h", "i"])
@pytest.mark.parametrize("attributes", [{"scale_factor": "f4"}, {"scale_factor": "f4", "add_offset": "f4"}, {}])
def test_packed_netcdf3_variables_are_decoded_as_from_the_file(
    tmp_path: Path, version: int, dtype: str, attributes: dict[str, str]
) -> None:
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w", version=version) as file:
        file.createDimension("t", None)
        file.createDimension("x", 4)
        file.title = b"title"
        # Attributes before and after those in question, in the file and in other variables.
        for name, kinds in (("first", {"scale_factor": "f8"}), ("v", attributes), ("last", {"scale_factor": "f4"})):
            made = file.createVariable(name, dtype, ("t", "x") if name == "v" else ("x",))
            made[:] = [[1, 2, 3, -9]] if name == "v" else [1, 2, 3, -9]
            made._FillValue = np.array(-9, dtype)
            for key, kind in kinds.items():
                setattr(made, key, np.array(0.1, kind)[()])
            made.units = b"odd"
    file_side, found = both(path, engine="parts_store")
    xr.testing.assert_identical(found, file_side)
    assert {name: each.dtype for name, each in found.variables.items()} == {
        name: each.dtype for name, each in file_side.variables.items()
    }


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_netcdf3_characters_with_a_missing_value_can_be_opened(tmp_path: Path, name: str) -> None:
    """Xarray refuses to open characters of a Zarr array that have the attribute `_FillValue`."""
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w") as file:
        file.createDimension("x", 3)
        file.createDimension("n", 2)
        for each, shape in (("code", ("x",)), ("text", ("x", "n"))):
            made = file.createVariable(each, "c", shape)
            made[:] = (
                np.array(list("a-b"), "S1") if len(shape) == 1 else np.array([*map(list, ("ab", "--", "c-"))], "S1")
            )
            setattr(made, name, b"-")
    file_side, found = both(path, engine="parts_store")
    for each in ("code", "text"):
        assert found[each].dtype == file_side[each].dtype
        xr.testing.assert_equal(found[each], file_side[each])
    assert int(found["code"].isnull().sum()) == (name == "_FillValue")
    plain = both(path, engine="zarr")[1]
    assert plain["code"].values.tolist() == [b"a", b"-", b"b"]
    report, _ = adopted(path, strict=True)
    assert sorted(reasons(report)) == (["code@_FillValue", "text@_FillValue"] if name == "_FillValue" else [])


def test_netcdf3_names_end_before_nul_as_in_the_libraries(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netcdf_file(path, "w") as file:
        file.createDimension("x\0", 3)
        file.createVariable("v\0\0", "i", ("x\0",))[:] = [1, 2, 3]
        file.createVariable("w", "i", ("x\0",))[:] = [4, 5, 6]
        setattr(file.variables["w"], "a\0", b"b")
        setattr(file, "c\0", b"d")
    file_side, found = both(path, engine="parts_store")
    assert list(file_side["v"].dims) == ["x"]
    assert file_side["w"].attrs == {"a": "b"}
    xr.testing.assert_identical(found, file_side)
