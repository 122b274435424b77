"""Public sample files of netCDF3, Zarr and kerchunk: arrays equal those of the format's library.

Values that differ fail a test at once. A test also counts the arrays, so that it cannot pass without samples.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from kerchunk.df import refs_to_dataframe
from kerchunk.hdf import SingleHdf5ToZarr
from numpy.typing import NDArray
from scipy.io import netcdf_file
from virtualizarr.parsers import KerchunkJSONParser
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

import parts_store as ps
from parts_store.virtual.report import Adoption
from tests.package_sources import sources
from tests.virtual.adopting import array, bits, repository, settle

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
