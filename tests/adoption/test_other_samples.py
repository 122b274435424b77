"""Public sample files of every format but HDF5: every array is equal to that of the format's own library, or reported.

Values that differ fail a test at once. A test also counts the arrays, so that it cannot pass without samples.
"""

import functools
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import fsspec
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from astropy.io import fits
from gribberish.virtualizarr import GribberishParser
from kerchunk.df import refs_to_dataframe
from kerchunk.hdf import SingleHdf5ToZarr
from numpy.typing import NDArray
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from pyhdf.SD import SD
from scipy.io import netcdf_file
from virtualizarr.parsers import DMRPPParser, KerchunkJSONParser
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

import parts_store as ps
from parts_store.adoption import Adoption
from tests.adoption.adopting import array, bits, repository, settle
from tests.adoption.eccodes_messages import Field, field_of, positions
from tests.package_sources import sources

pytestmark = [
    pytest.mark.slow,
    # Characters, fixed-length strings and structures have no stable type in Zarr v3.
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Object at:zarr.errors.ZarrUserWarning"),
]


@dataclass
class Samples:
    """What became of the samples of a format."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def adopt(self, path: Path, **options: Any) -> tuple[Adoption, ps.PartsStore] | None:
        """Adopt a file into a repository of its own; count it as refused if that raises an error of parts_store."""
        self.counts["files"] += 1
        session = repository(path.parent).writable_session("main")
        try:
            report = ps.adopt(path, into=session, **options)
        except ps.PartsStoreError as error:
            self.counts["refused"] += 1
            self.reasons[str(error).rpartition("nothing was written: ")[2][:90]] += 1
            return None
        assert all(each.reason for each in report.skipped)
        return report, ps.PartsStore.from_session(session)

    def skip(self, report: Adoption, name: str) -> None:
        """Count an array that was not adopted: the report has to name it."""
        reason = next(each.reason for each in report.skipped if each.name == name)
        self.counts["skipped"] += 1
        self.reasons[reason[:90]] += 1

    def require_equal(self, found: NDArray[Any], expected: NDArray[Any], name: object) -> None:
        assert found.shape == expected.shape, name
        if expected.dtype.kind in "OT":
            assert (found == expected).all(), name
        else:
            assert bits(found, expected.dtype) == bits(expected, expected.dtype), name
        self.counts["equal"] += 1

    def require(self, **least: int) -> None:
        print(dict(self.counts), *self.reasons.most_common(), sep="\n")
        assert all(self.counts[name] >= number for name, number in least.items()), least


def files_of(packages: list[str], is_sample: Callable[[bytes], bool]) -> Iterator[Path]:
    """The files of packages whose first bytes are those of a format, each content once."""
    known = set()
    for path in sorted(each for package in packages for each in sources(package).rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                head = file.read(8)
            if is_sample(head) and (content := hashlib.sha256(path.read_bytes()).digest()) not in known:
                known.add(content)
                yield path


def test_netcdf3_samples_are_equal() -> None:
    samples = Samples()
    for path in files_of(["netCDF4", "xarray", "pyfive", "cf-python"], lambda head: head[:3] == b"CDF"):
        report, store = samples.adopt(path) or pytest.fail(str(path))
        assert report.is_complete
        with netcdf_file(path, mmap=False) as file:
            assert {each.path for each in report.arrays} == set(file.variables)
            for name, variable in file.variables.items():
                samples.require_equal(array(store, name)[...], np.asarray(variable.data), (path, name))
        # The unpacked values and times, too. In one file, the only time was never written.
        times = path.name != "CRM032_test1.nc"
        decoded = xr.open_zarr(store, consolidated=False, chunks=None, decode_times=times)
        with xr.open_dataset(path, engine="scipy", decode_times=times) as expected:
            xr.testing.assert_equal(decoded, expected)
    samples.require(files=9, equal=91)


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyWarning")
def test_fits_samples_are_equal_or_reported() -> None:
    samples = Samples()
    for path in files_of(["astropy", "fitsio"], lambda head: head == b"SIMPLE  "):
        result = samples.adopt(path)
        if result is None:
            continue
        report, store = result
        adopted, names = {each.path for each in report.arrays}, []
        with fits.open(path, do_not_scale_image_data=True) as units:
            for number, unit in enumerate(units):
                name = unit.name or str(number)
                names.append(f"{name}_{number}" if name in names else name)
                if names[-1] in adopted:
                    require_equal_unit(samples, store, names[-1], unit)
                elif unit.header.get("NAXIS") or unit.header.get("SIMPLE") is False:
                    samples.skip(report, names[-1])
        assert adopted <= set(names)
    samples.require(files=100, equal=32, skipped=41)


def require_equal_unit(samples: Samples, store: ps.PartsStore, name: str, unit: Any) -> None:
    """A table is equal in every column; an image is equal as physical values, with NaN where it has no value."""
    values = array(store, name)[...]
    if isinstance(unit, fits.TableHDU):
        for column in unit.columns.names:
            samples.require_equal(values[column], np.asarray(unit.data[column]), (unit, column))
        return
    header, stored = unit.header, unit.data
    if not {"BSCALE", "BZERO"} & set(header):
        samples.require_equal(values, stored, unit)
        expected = stored
    else:
        expected = stored * float(header.get("BSCALE", 1)) + float(header.get("BZERO", 0))
        assert values.dtype == np.float64
        # The codec divides by the reciprocal of BSCALE: it rounds once more.
        np.testing.assert_allclose(values, expected, rtol=4e-16, atol=0)
        samples.counts["equal"] += 1
    if "BLANK" in header:
        decoded = xr.open_zarr(store, consolidated=False, chunks=None)[name].values
        assert np.array_equal(np.isnan(decoded), stored == header["BLANK"])


def test_hdf4_samples_are_equal() -> None:
    samples = Samples()
    for path in files_of(["virtualizarr"], lambda head: head[:4] == b"\x0e\x03\x13\x01"):
        report, store = samples.adopt(path) or pytest.fail(str(path))
        assert report.is_complete
        file = SD(str(path))
        assert {each.path for each in report.arrays} == set(file.datasets())
        for name, (_, shape, *_) in file.datasets().items():
            found = array(store, name)[...]
            # pyhdf cannot read arrays without values.
            expected = file.select(name)[:] if np.prod(shape) else np.empty(shape, found.dtype)
            samples.require_equal(found, expected, (path, name))
    samples.require(files=2, equal=32)


def zarr_arrays(store: Any) -> dict[str, zarr.Array[Any]]:
    node = zarr.open_group(store, mode="r")
    return {name: each for name, each in node.members(max_depth=None) if isinstance(each, zarr.Array)}


def test_zarr_samples_are_equal_or_refused() -> None:
    samples = Samples()
    second = next(sources("zarr", "2.18.7").glob("*/fixture"))
    others = [each for pattern in ("*.zarr2", "*.zarr3") for each in sources("cfdm").rglob(pattern)]
    microscopy = sources("yaozarrs").glob("*/tests/data/*/*.zarr")
    zipped = [*sources("anndata").rglob("*.zarr.zip"), *sources("zarr", "2.18.7").rglob("store.zip")]
    roots = [*(each for each in second.iterdir() if each.is_dir()), *others, *microscopy, *zipped]
    for path in sorted(roots):
        result = samples.adopt(path)
        if result is None:
            continue
        report, store = result
        assert report.is_complete
        expected = zarr_arrays(path)
        assert {each.path for each in report.arrays} == set(expected)
        for name, each in expected.items():
            samples.require_equal(array(store, name)[...], np.asarray(each[...]), (path, name))
            samples.counts[f"Zarr {each.metadata.zarr_format}"] += 1
    samples.require(**{"files": 56, "equal": 166, "Zarr 2": 160, "Zarr 3": 6})


# --- references -------------------------------------------------------------------------------------------------------


def test_kerchunk_samples_are_equal(tmp_path: Path) -> None:
    """The references that cfdm publishes, beside the netCDF4 file that they refer to."""
    samples = Samples()
    path = next(sources("cfdm").rglob("example_field_0.kerchunk"))
    report, store = samples.adopt(path, parser=KerchunkJSONParser(fs_root=path.parent.as_uri() + "/")) or pytest.fail(
        path.name
    )
    assert report.is_complete
    with h5py.File(path.with_suffix(".nc")) as file:
        for each in report.arrays:
            samples.require_equal(array(store, each.path)[...], file[each.path][()], each.path)
    # Without the folder that relative names are in, and without the file.
    assert samples.adopt(path) is None
    assert samples.adopt(next(sources("xarray").rglob("user-guide/combined.json"))) is None
    samples.require(equal=6, refused=2)


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_references_of_kerchunk_to_public_samples_are_equal(tmp_path: Path, kind: str) -> None:
    """What kerchunk writes for HDF5 samples, compared with what zarr reads through fsspec."""
    samples = Samples()
    for number, path in enumerate(files_of(["netCDF4", "cfdm", "h5py"], lambda head: head == b"\x89HDF\r\n\x1a\n")):
        try:
            references = SingleHdf5ToZarr(str(path), inline_threshold=0, error="raise").translate()
        # kerchunk raises any error for what it does not support.
        except Exception:
            samples.counts["kerchunk failed"] += 1
            continue
        # A folder of its own, because a repository refers to the files of one folder.
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(path, folder / path.name)
        settle(folder / path.name)
        moved = json.loads(json.dumps(references).replace(str(path), str(folder / path.name)))
        target = folder / f"references.{kind}"
        if kind == "json":
            target.write_text(json.dumps(moved))
        else:
            refs_to_dataframe(moved, str(target))
        for written in [target, *target.rglob("*")]:
            settle(written)
        result = samples.adopt(target)
        if result is None:
            continue
        report, store = result
        expected = zarr_arrays(read_through_fsspec(moved))
        assert {each.path for each in report.arrays} | {each.name for each in report.skipped} == set(expected)
        for each in report.arrays:
            samples.require_equal(array(store, each.path)[...], np.asarray(expected[each.path][...]), (path, each.path))
    samples.require(files=10, equal=36)


def read_through_fsspec(references: dict[str, Any]) -> MemoryStore:
    """A Zarr store with what fsspec, whose format these references are, reads for every key."""
    files = fsspec.filesystem("reference", fo=references)
    return MemoryStore({key: Buffer.from_bytes(files.cat_file(key)) for key in references["refs"]})


DAP_TYPES = {"Float32": "<f4", "Float64": "<f8", "Int16": "<i2", "Int32": "<i4", "Int64": "<i8", "Byte": "u1"}
DAP, DMRPP = "{http://xml.opendap.org/ns/DAP/4.0#}", "{http://xml.opendap.org/dap/dmrpp/1.0.0#}"


@pytest.mark.filterwarnings("ignore:This DMRpp contains a nested attribute")
def test_dmrpp_samples_are_equal_or_reported(tmp_path: Path) -> None:
    """The files of pydap describe data that is not public: random bytes of the same size stand for it."""
    samples = Samples()
    for sample in sorted(sources("pydap").rglob("*.dmrpp")):
        root = ET.fromstring(sample.read_text())
        chunks = list(root.iter(f"{DMRPP}chunk"))
        # The data of this file is in several others.
        size = max((int(each.attrib["offset"]) + int(each.attrib["nBytes"]) for each in chunks), default=1)
        data = np.random.default_rng(1).bytes(size if size < 1 << 24 else 1)
        path = tmp_path / sample.name
        shutil.copy(sample, path)
        path.with_suffix("").write_bytes(data)
        settle(path)
        settle(path.with_suffix(""))
        groups = [("", root), *dap_groups(root, "")]
        for name, group in groups:
            report, store = samples.adopt(path, parser=DMRPPParser(group=name) if name else None) or pytest.fail(name)
            adopted = {each.path for each in report.arrays}
            variables = [each for each in group if each.tag.removeprefix(DAP) in DAP_TYPES]
            for variable in variables:
                if variable.attrib["name"] not in adopted:
                    samples.skip(report, variable.attrib["name"])
                    continue
                found = array(store, variable.attrib["name"])[...]
                samples.require_equal(found.reshape(-1), expected_values(variable, data), (path, name))
    samples.require(files=10, equal=17, skipped=5)


def dap_groups(parent: ET.Element, path: str) -> Iterator[tuple[str, ET.Element]]:
    for group in parent.findall(f"{DAP}Group"):
        here = f"{path}/{group.attrib['name']}".strip("/")
        yield here, group
        yield from dap_groups(group, here)


def expected_values(variable: ET.Element, data: bytes) -> NDArray[Any]:
    """The values of a variable that is not compressed, and has one chunk, or none and a fill value."""
    dtype = np.dtype(DAP_TYPES[variable.tag.removeprefix(DAP)])
    chunks = variable.find(f"{DMRPP}chunks")
    assert chunks is not None
    if not (found := chunks.findall(f"{DMRPP}chunk")):
        return np.array([chunks.attrib["fillValue"]]).astype(dtype)
    (chunk,) = found
    start = int(chunk.attrib["offset"])
    return np.frombuffer(data[start : start + int(chunk.attrib["nBytes"])], dtype)


# --- GRIB -------------------------------------------------------------------------------------------------------------


def test_grib_samples_are_equal_or_reported() -> None:
    samples = Samples()
    packages = ["cfgrib", "gribberish", "pygrib", "xarray", "virtualizarr"]
    for path in files_of(packages, lambda head: head[:4] == b"GRIB" and head[7] in (1, 2)):
        result = samples.adopt(path)
        if result is None:
            continue
        report, store = result
        data = path.read_bytes()
        messages = dict(positions(data))
        fields = {start: field_of(data[start:stop]) for start, stop in messages.items()}
        read = functools.cache(functools.partial(array_and_values, store))
        used, adopted = set(), {each.path for each in report.arrays}
        for name, places in message_places(path).items():
            used |= set(places.values())
            if name not in adopted:
                samples.skip(report, name)
                continue
            require_equal_fields(samples, read, name, {place: fields[start] for place, start in places.items()})
        # Every other message is named, and so is one with more fields than the first.
        named = [each for each in report.skipped if each.name.startswith("the message at byte ")]
        skipped = {int(each.name.rpartition(" ")[2]): each.reason for each in named}
        for reason in skipped.values():
            samples.counts["messages skipped"] += 1
            samples.reasons[reason] += 1
        several = {start for start, stop in messages.items() if fields_in(data[start:stop]) > 1}
        assert skipped.keys() == several | (messages.keys() - used)
    samples.require(**{"files": 53, "equal": 1236, "equal but for rounding": 116, "messages skipped": 144})


def fields_in(message: bytes) -> int:
    """The number of data sections of a message."""
    if message[7] == 1:
        return 1
    at, count = 16, 0
    while message[at : at + 4] != b"7777":
        count += message[at + 4] == 7
        at += int.from_bytes(message[at : at + 4])
    return count


def message_places(path: Path) -> dict[str, dict[tuple[int, ...], int]]:
    """Where the message of every place of every array starts, as the parser says it."""
    store = GribberishParser()(url=path.as_uri(), registry=ObjectStoreRegistry({"file://": LocalStore()}))
    found: dict[str, dict[tuple[int, ...], int]] = {}

    def visit(group: Any, prefix: str) -> None:
        for name, each in group.arrays.items():
            if name not in {"latitude", "longitude"} and "gribberish" in str(each.metadata.codecs).lower():
                entries = each.manifest.dict()
                places = {tuple(map(int, key.split(".")))[:-2]: entry["offset"] for key, entry in entries.items()}
                found[prefix + name] = places
        for name, each in group.groups.items():
            visit(each, f"{prefix}{name}/")

    visit(store._group, "")
    return found


def array_and_values(store: ps.PartsStore, name: str) -> tuple[Any, NDArray[Any]]:
    found = array(store, name)
    return found, found[...]


def require_equal_fields(
    samples: Samples,
    read: Callable[[str], tuple[Any, NDArray[Any]]],
    name: str,
    expected: dict[tuple[int, ...], Field],
) -> None:
    """The values and the coordinates at every place of an array are those of the message."""
    found, values = read(name)
    group = name.rpartition("/")[0]
    axes = [read(f"{group}/{each}") for each in found.metadata.dimension_names[:-2]]
    for place, each in expected.items():
        require_equal_values(samples, values[place].reshape(-1), each.values, (name, place))
        for (axis, coordinates), at in zip(axes, place, strict=True):
            wanted = {"T": each.valid_at, "Z": each.level, "E": each.member}[axis.attrs.get("axis", "Z")]
            assert coordinates[at] == pytest.approx(wanted, rel=1e-12), (name, place, axis.path)
    (_, latitudes), (_, longitudes) = read(f"{group}/latitude"), read(f"{group}/longitude")
    if latitudes.ndim == 1:
        latitudes, longitudes = np.meshgrid(latitudes, longitudes, indexing="ij")
    # All messages of an array have the same grid. Its steps are stored with three or six digits.
    first = next(iter(expected.values()))
    assert np.abs(latitudes.reshape(-1) - first.points[0]).max() < 2e-3, name
    assert np.abs((longitudes.reshape(-1) - first.points[1] + 180) % 360 - 180).max() < 2e-3, name


def require_equal_values(samples: Samples, found: NDArray[Any], expected: NDArray[Any], name: object) -> None:
    assert np.array_equal(np.isnan(found), np.isnan(expected)), name
    if np.array_equal(found, expected, equal_nan=True):
        samples.counts["equal"] += 1
    else:
        # gribberish scales in another order than eccodes, which computes powers of ten by multiplication.
        assert np.nanmax(np.abs(found - expected)) <= 4 * np.spacing(np.nanmax(np.abs(expected))), name
        samples.counts["equal but for rounding"] += 1
