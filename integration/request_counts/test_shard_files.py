"""What reads of shards that are files cost: the same as those of shards in plain parts."""

from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.request_counts.counting import SHARDED, VALUES, counted
from parts_store import SHARD_INDEX, Part, PartsStore

EXTENSIONS = {"tiff": ".tif", "hdf5": ".h5"}


def create_both(store: PartsStore, shard_file: Any, values: NDArray[Any]) -> tuple[zarr.Array[Any], zarr.Array[Any]]:
    """Return two arrays with these values, read by a store that knows nothing yet: with files, and with plain parts."""
    parts = [Part(EXTENSIONS[shard_file]), Part(".index", size=SHARD_INDEX)]
    ps.create_array(store, "file", shard_file=shard_file, **SHARDED)[...] = values
    compressors = zarr.codecs.numcodecs.Zlib(level=6)
    ps.create_array(store, "plain", parts=parts, compressors=compressors, **SHARDED)[...] = values
    fresh = PartsStore(store.store)
    return zarr.open_array(fresh, path="file"), zarr.open_array(fresh, path="plain")


def requests_of(proxy: CountingProxy, array: zarr.Array[Any], selection: Any, expected: NDArray[Any]) -> list[Any]:
    """Read a selection; return the kinds and the keys of the requests."""
    store: Any = array.store
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[selection], expected[selection])
    return sorted((each.kind, (each.key or "").partition("/")[2]) for each in seen)


@pytest.mark.parametrize("shard_file", EXTENSIONS)
def test_inner_read_of_a_file_is_one_request_once_the_index_is_known(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, shard_file: str
) -> None:
    file, plain = create_both(store, shard_file, VALUES)
    first = requests_of(proxy, file, np.s_[3:5, 3:5], VALUES)
    assert first == requests_of(proxy, plain, np.s_[3:5, 3:5], VALUES)
    assert first == sorted([("get", "c/0/0.index"), ("get", f"c/0/0{EXTENSIONS[shard_file]}")])
    rng = np.random.default_rng(0)
    for row, column in rng.integers(0, 64, (10, 2)):
        selection = np.s_[row : row + 1, column : column + 1]
        assert requests_of(proxy, file, selection, VALUES) == [("get", f"c/0/0{EXTENSIONS[shard_file]}")]


@pytest.mark.parametrize("shard_file", EXTENSIONS)
@pytest.mark.parametrize(
    "selection", [np.s_[0:64, 0:64], np.s_[:, :], np.s_[5, :], np.s_[17:18, 17:18], np.s_[0:3, 0:3]], ids=str
)
def test_first_reads_of_files_cost_what_those_of_plain_parts_cost(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, shard_file: str, selection: Any
) -> None:
    values = VALUES.copy()
    values[16:32, 16:32] = 0
    file, plain = create_both(store, shard_file, values)
    for _ in range(2):
        assert requests_of(proxy, file, selection, values) == requests_of(proxy, plain, selection, values)
