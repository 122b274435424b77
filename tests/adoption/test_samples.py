"""The sample files of pyfive, h5py and netCDF4: every numeric dataset is equal to that of h5py, or reported."""

import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import pytest
from pip._internal.models.index import PyPI

import parts_store as ps
from parts_store.adoption import AdoptedArray, adopt
from tests.adoption.adopting import array, bits, datasets, repository, settle

PACKAGES = ["pyfive", "h5py", "netCDF4"]
SIGNATURE = b"\x89HDF\r\n\x1a\n"
LEAST_CHUNKED = 69
TEXT: dict[str, Any] = {"capture_output": True, "text": True}


def download(package: str, folder: Path) -> Path:
    """The newest sources of a package, from the index that pip uses: pip itself would have to build them."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], check=False, **TEXT)
    index: str = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip() or PyPI.simple_url
    headers = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}
    page = f"{index.rstrip('/')}/{package.lower()}/"
    with urllib.request.urlopen(urllib.request.Request(page, headers=headers), timeout=30) as answer:
        links = re.findall(r"""["']([^"'<> ]+/)?([^"'/<> ]+\.tar\.gz)(#[^"']*)?["']""", answer.read().decode())
    versions: dict[str, str] = {
        name: where for where, name, _ in links if where and name.lower().startswith(f"{package.lower()}-")
    }
    newest = max(versions, key=lambda name: [int(each) for each in re.findall(r"\d+", name.split("-", 1)[1])])
    address = urllib.parse.urljoin(page, versions[newest] + newest)
    with urllib.request.urlopen(address, timeout=120) as answer:
        (folder / newest).write_bytes(answer.read())
    return folder / str(newest)


def sources() -> Path:
    """The unpacked sources of the packages, kept between runs where caches are."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "parts-store" / "samples"
    base.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if (base / package).exists():
            continue
        try:
            archive = download(package, base)
        except (OSError, ValueError) as error:
            pytest.skip(f"no package index is reachable for the sources of {package}: {type(error).__name__}")
        with tarfile.open(archive) as packed:
            packed.extractall(base / f"{package}.new", filter="data")
        (base / f"{package}.new").rename(base / package)
        archive.unlink()
    return base


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
    return bits(array(store, each.path)[...], dataset.dtype) == bits(dataset[()], dataset.dtype)


@pytest.mark.slow
def test_datasets_of_public_samples_are_equal_or_reported(tmp_path: Path) -> None:
    base, counts = sources(), Counter[str]()
    reasons = Counter[str]()
    for path in sorted(each for package in PACKAGES for each in (base / package).rglob("*") if is_hdf5(each)):
        counts["files"] += 1
        settle(path)
        session = repository(path.parent).writable_session("main")
        try:
            report = adopt(path, into=session)
        except ps.PartsStoreError:
            counts["files refused"] += 1
            assert not can_be_opened(path), path
            continue
        store = ps.PartsStore.from_session(session)
        adopted = {each.path: each for each in report.arrays}
        skipped = {each.name: each.reason for each in report.skipped}
        assert all(skipped.values())
        with h5py.File(path) as file:
            for dataset in datasets(file):
                name = dataset.name.strip("/")
                known = name.replace("_nc4_non_coord_", "")
                assert known in adopted or name in skipped, (path, name)
                if name in skipped:
                    counts["skipped"] += 1
                    reasons[skipped[name][:50]] += 1
                    continue
                assert is_equal(dataset, store, adopted[known]), (path, name)
                counts["chunked" if dataset.chunks else "not chunked"] += 1
    print(dict(counts), *reasons.most_common(), sep="\n")
    assert counts["chunked"] >= LEAST_CHUNKED
