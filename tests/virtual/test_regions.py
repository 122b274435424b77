"""Regions of stored arrays that virtual datasets are written to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parts_store as ps
from parts_store.errors import ManifestError, StoreConfigError
from tests.virtual import raw_files
from tests.virtual.adopting import repository, stored


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shard_chunks", [1, 7, 4095], ids=["references", "small shards", "shards"])
@pytest.mark.parametrize("auto", [False, True], ids=["slices", "auto"])
def test_region_is_replaced(shard_chunks: int, auto: bool, tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    values = np.arange(40 * 8).reshape(40, 8).astype("<i4")
    whole = raw_files.dataset(raw_files.write(tmp_path, "0.raw", values, (1, 2)))
    whole = whole.assign(u=("time", np.arange(40.0)), place=("x", np.arange(8)))
    ps.to_icechunk(whole, session, shard_chunks=shard_chunks)
    part = -values[10:15]
    new = raw_files.dataset(raw_files.write(tmp_path, "1.raw", part, (1, 2)), first=10)
    new = new.assign(u=("time", np.full(5, -1.0)), place=("x", np.arange(8)))
    region: Any = "auto" if auto else {"time": slice(10, 15)}
    ps.to_icechunk(new, session, region=region, shard_chunks=shard_chunks)
    values[10:15] = part
    found = stored(session)
    assert np.array_equal(found.t.values, values)
    assert found.u.values.tolist() == [*range(10), *[-1] * 5, *range(15, 40)]
    assert ps.PartsStore.from_session(session).verify().is_clean


def test_missing_chunks_of_a_region_are_removed(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    values = np.arange(1, 41).reshape(5, 8).astype("<i4")
    ps.to_icechunk(raw_files.dataset(raw_files.write(tmp_path, "0.raw", values, (1, 2))), session, shard_chunks=1)
    array = raw_files.write(tmp_path, "1.raw", -values[1:2], (1, 2))
    manifest = {str(key): entry for key, entry in array.manifests[0].dict().items() if key != "0.2"}
    sparse = ps.manifests.PartsArray(array.metadata, [manifest])
    ps.to_icechunk(raw_files.dataset(sparse, first=1), session, region={"time": slice(1, 2)})
    values[1] = -values[1]
    values[1, 4:6] = 0
    found = stored(session)
    assert np.array_equal(found.t.values, values)


@pytest.mark.parametrize(
    ("region", "error", "text"),
    [
        ({"time": slice(1, 5)}, ManifestError, "a slice on the boundaries of chunks of length 2, found 1:5"),
        ({"time": slice(0, 5)}, ManifestError, "a slice of the length 4, as the source has"),
        ({"time": slice(0, 8, 2)}, StoreConfigError, r"a slice with the step 1, found slice\(0, 8, 2\)"),
    ],
    ids=["not aligned", "another length", "a step"],
)
def test_region_has_whole_chunks(region: Any, error: type[Exception], text: str, tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    values = np.arange(80).reshape(10, 8).astype("<i4")
    ps.to_icechunk(raw_files.dataset(raw_files.write(tmp_path, "0.raw", values, (2, 2))).drop_vars("time"), session)
    new = raw_files.dataset(raw_files.write(tmp_path, "1.raw", values[:4], (2, 2))).drop_vars("time")
    with pytest.raises(error, match=text):
        ps.to_icechunk(new, session, region=region)


def test_coordinates_that_are_not_stored_have_no_region(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    values = np.arange(80).reshape(10, 8).astype("<i4")
    array = raw_files.write(tmp_path, "0.raw", values, (1, 2))
    ps.to_icechunk(raw_files.dataset(array), session)
    with pytest.raises(ManifestError, match="coordinate 'time': expected values that are stored, one after the other"):
        ps.to_icechunk(raw_files.dataset(array, first=5), session, region="auto")
    with pytest.raises(ManifestError, match="array 'time': expected the values that are stored, found others"):
        ps.to_icechunk(raw_files.dataset(array, first=5), session, region={"time": slice(0, 10)})
