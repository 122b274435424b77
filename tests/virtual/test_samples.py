"""The sample files of pyfive, h5py and netCDF4: every dataset is equal to that of h5py, or reported."""

import math
from collections import Counter
from pathlib import Path

import h5py
import pytest

import parts_store as ps
from parts_store.virtual.report import AdoptedArray
from tests.package_sources import sources
from tests.virtual.adopting import adopted_samples, array, bits, datasets, flat

PACKAGES = ["pyfive", "h5py", "netCDF4"]
SIGNATURE = b"\x89HDF\r\n\x1a\n"
LEAST_CHUNKED = 69
# References to regions, for which Zarr has no type.
MOST_LOST = 2


def is_hdf5(path: Path) -> bool:
    data = path.read_bytes()[:65536] if path.is_file() and not path.is_symlink() else b""
    return any(data[offset : offset + 8] == SIGNATURE for offset in (0, 512, 1024, 2048, 4096))


def can_be_opened(path: Path) -> bool:
    try:
        h5py.File(path).close()
    except OSError:
        return False
    return True


def is_equal(dataset: h5py.Dataset, store: ps.PartsStore, each: AdoptedArray) -> bool:
    found = array(store, each.path)[...]
    if dataset.shape is None:
        return bool(found.shape == (0,))
    if found.shape[: len(dataset.shape)] != dataset.shape:
        # Readers of netCDF extend variables to the length of an unlimited dimension.
        found = found[tuple(map(slice, dataset.shape))]
    if dataset.dtype.kind in "biufc":
        return bits(found, dataset.dtype) == bits(dataset[()], dataset.dtype)
    return flat(found) == flat(dataset[()], dataset.file) and found.size == math.prod(dataset[()].shape or (1,))


@pytest.mark.slow
def test_datasets_of_public_samples_are_equal_or_reported() -> None:
    counts = Counter[str]()
    reasons = Counter[str]()
    paths = [each for package in PACKAGES for each in sources(package).rglob("*") if is_hdf5(each)]
    for path, report, store in adopted_samples(paths, can_be_opened, counts):
        adopted = {each.path: each for each in report.arrays}
        skipped = {each.name: each.reason for each in report.skipped}
        lost = {each.name for each in report.skipped if each.has_values}
        assert all(skipped.values())
        with h5py.File(path) as file:
            for dataset in datasets(file):
                name = dataset.name.strip("/")
                known = name.replace("_nc4_non_coord_", "")
                assert known in adopted or name in skipped, (path, name)
                if name in skipped:
                    # Others are dimensions of netCDF without a variable.
                    counts["lost" if name in lost else "skipped"] += 1
                    reasons[skipped[name][:50]] += 1
                    continue
                assert is_equal(dataset, store, adopted[known]), (path, name)
                counts["chunked" if dataset.chunks else "not chunked"] += 1
    print(dict(counts), *reasons.most_common(), sep="\n")
    assert counts["chunked"] >= LEAST_CHUNKED
    assert counts["lost"] <= MOST_LOST
