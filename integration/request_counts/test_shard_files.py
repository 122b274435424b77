"""What reads and writes of shards that are files cost: what those of other shards cost, in one object and in parts."""

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
from tests.shard_files import forms


def create_both(store: PartsStore, form: str, shard_file: Any, values: NDArray[Any]) -> tuple[Any, Any]:
    """Return two arrays with these values, opened by a store that knows nothing yet: with and without files."""
    compressors = zarr.codecs.numcodecs.Zlib(level=6)
    forms.create(store, "file", form, shard_file, compressors=compressors, **SHARDED)[...] = values
    if form == "parts":
        parts = [Part(forms.EXTENSIONS[shard_file]), Part(".index", size=SHARD_INDEX)]
        ps.create_array(store, "plain", parts=parts, compressors=compressors, **SHARDED)[...] = values
    else:
        zarr.create_array(store, name="plain", compressors=compressors, **SHARDED)[...] = values
    fresh = PartsStore(store.store)
    return ps.open_array(fresh, "file", mode="r+"), ps.open_array(fresh, "plain", mode="r+")


def requests_of(proxy: CountingProxy, array: zarr.Array[Any], selection: Any, expected: NDArray[Any]) -> list[Any]:
    """Read a selection; return the kinds and the keys of the requests."""
    store: Any = array.store
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[selection], expected[selection])
    return sorted((each.kind, (each.key or "").partition("/")[2]) for each in seen)


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_inner_read_of_a_file_is_one_request_once_the_index_is_known(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, form: str, shard_file: str
) -> None:
    file, plain = create_both(store, form, shard_file, VALUES)
    key = f"c/0/0{forms.extension(form, shard_file)}"
    first = requests_of(proxy, file, np.s_[3:5, 3:5], VALUES)
    assert first == requests_of(proxy, plain, np.s_[3:5, 3:5], VALUES)
    # A small shard without parts is read whole.
    assert first == sorted([("get", key), *([("get", "c/0/0.index")] if form == "parts" else [])])
    rng = np.random.default_rng(0)
    for row, column in rng.integers(0, 64, (10, 2)):
        selection = np.s_[row : row + 1, column : column + 1]
        assert requests_of(proxy, file, selection, VALUES) == [("get", key)]


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
@pytest.mark.parametrize(
    "selection", [np.s_[0:64, 0:64], np.s_[:, :], np.s_[5, :], np.s_[17:18, 17:18], np.s_[0:3, 0:3]], ids=str
)
def test_first_reads_of_files_cost_what_those_of_plain_shards_cost(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, form: str, shard_file: str, selection: Any
) -> None:
    values = VALUES.copy()
    values[16:32, 16:32] = 0
    file, plain = create_both(store, form, shard_file, values)
    for _ in range(2):
        assert requests_of(proxy, file, selection, values) == requests_of(proxy, plain, selection, values)


@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_writes_of_files_in_one_object_cost_what_those_of_plain_shards_cost(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, shard_file: str
) -> None:
    arrays = create_both(store, "object", shard_file, VALUES)
    for selection in (np.s_[:, :], np.s_[0:64, 0:64], np.s_[3:5, 3:5]):
        sent = []
        for array in arrays:
            with counted(proxy, array.store) as seen:
                array[selection] = VALUES[selection]
            sent.append(sorted((each.kind, (each.key or "").partition("/")[2]) for each in seen))
        assert sent[0] == sent[1]
        assert [kind for kind, _ in sent[0]].count("put") == len({key for _, key in sent[0]})
