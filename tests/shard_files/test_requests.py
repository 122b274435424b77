"""How many requests shards that are files and single objects need, and how many bytes a reader asks for."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from tests.shard_files import forms, readers

# One shard of 512 KiB with 256 inner chunks, and 16 of them; larger than what is read whole for its index.
LAYOUT: dict[str, Any] = {"shape": (2048, 2048), "chunks": (32, 32), "shards": (512, 512), "dtype": "uint16"}
VALUES = np.random.default_rng(0).integers(1, 60000, (2048, 2048)).astype("uint16")


def create(form: str, shard_file: str, **arguments: Any) -> Any:
    """Return a new array in memory, opened by a store that knows nothing yet."""
    store = ps.PartsStore(MemoryStore())
    forms.create(store, "a", form, shard_file, **LAYOUT, **arguments)
    return ps.open_array(ps.PartsStore(store.store), "a", mode="r+")


@contextmanager
def counted(array: Any) -> Iterator[dict[str, int]]:
    """Yield the number of requests of each kind that are sent until the end of the block."""
    array.store.stats.reset()
    found = dict[str, int]()
    yield found
    found |= {kind: count for kind, count in array.store.stats.calls.items() if count}


@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_first_write_and_full_read_are_one_request_for_each_shard(shard_file: str) -> None:
    array = create("object", shard_file)
    with counted(array) as found:
        array[...] = VALUES
    assert found == {"put": 16}
    with counted(array) as found:
        np.testing.assert_array_equal(array[...], VALUES)
    assert found == {"get": 16}


@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
@pytest.mark.parametrize("compressors", ["auto", None])
def test_partial_read_is_two_requests_then_one(shard_file: str, compressors: Any) -> None:
    array = create("object", shard_file, compressors=compressors)
    array[...] = VALUES
    for row, expected in ((0, 2), (40, 1), (80, 1)):
        with counted(array) as found:
            np.testing.assert_array_equal(array[row : row + 5, :5], VALUES[row : row + 5, :5])
        assert found == {"get": expected}


@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_partial_write_is_two_requests(shard_file: str) -> None:
    array = create("object", shard_file)
    array[...] = VALUES
    with counted(array) as found:
        array[3:5, 3:5] = 7
    assert found == {"get": 1, "put": 1}


@pytest.mark.parametrize(
    ("shard_file", "compressors", "sealed"),
    [("tiff", "auto", 8 * 256 + 4096), ("tiff", None, 8 * 256), ("hdf5", None, 0)],
)
def test_seal_costs_the_first_read_of_a_shard_a_few_bytes(shard_file: str, compressors: Any, sealed: int) -> None:
    array = create("object", shard_file, compressors=compressors)
    array[...] = VALUES
    store = ps.PartsStore(array.store.store)
    opened = ps.open_array(store, "a")
    store.stats.reset()
    assert opened[0, 0] == VALUES[0, 0]
    read = store.stats.bytes_read
    store.stats.reset()
    assert opened[1, 1] == VALUES[1, 1]
    # The index, the seal, and, of a TIFF file, the directory with few tags, and room for a fill tile.
    assert 0 <= read - store.stats.bytes_read - (16 * 256 + 4) - 32 - sealed < 200


@pytest.mark.slow
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_python_process_without_this_package_reads_and_changes_the_array(tmp_path: Path, shard_file: str) -> None:
    layout: dict[str, Any] = {**LAYOUT, "shape": (600, 600)}
    forms.create(ps.PartsStore.from_url(str(tmp_path)), "a", "object", shard_file, **layout)[...] = VALUES[:600, :600]
    np.save(tmp_path / "values.npy", VALUES[:600, :600])
    program = (
        "import importlib.metadata as metadata, sys, numpy\n"
        # As if the package were not installed: zarr loads the entry points of all packages.
        "others = [each for each in metadata.entry_points() if not each.value.startswith('parts_store')]\n"
        "metadata.entry_points = lambda **group: metadata.EntryPoints(others).select(**group)\n"
        "import zarr\n"
        "array = zarr.open_group(sys.argv[1], mode='r+')['a']\n"
        "assert (array[...] == numpy.load(sys.argv[1] + '/values.npy')).all()\n"
        "array.attrs['units'] = 'K'\n"
        "array.resize((560, 600))\n"
        "array[0, 0] = 1\n"
        "assert 'parts_store' not in sys.modules\n"
    )
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    # Outside of the folder of this package, which Python would find there.
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True, cwd=tmp_path)
    expected = VALUES[:560, :600].copy()
    expected[0, 0] = 1
    array = zarr.open_array(ps.PartsStore.from_url(str(tmp_path)), path="a", mode="r+")
    array[500:520, 500:520] = expected[500:520, 500:520] = 2
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(readers.read_file(tmp_path / "a" / "c" / "1" / "1"), expected[512:, 512:])
    if shard_file == "hdf5":
        assert readers.read_h5py(tmp_path / "a" / "c" / "1" / "1")[2] == {"units": "K"}
