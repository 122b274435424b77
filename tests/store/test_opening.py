"""Stores that are opened by URL, compared, printed and pickled."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ConcurrentWriteError, PartsConfigError, StoreConfigError
from tests.store.arrays import PROTOTYPE, SELECTIONS, VALUES, create_sharded


@pytest.mark.slow
def test_a_pickled_store_carries_what_it_has_learnt(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path), parts={"*": ["", ps.Part(".t", size=1)]})
    create_sharded(store)[...] = VALUES
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy.parts_of("a") == store.parts_of("a")
    assert copy.stats.get == 0
    program = "import pickle, sys; array = pickle.load(sys.stdin.buffer); print(int(array[40, 3]))"
    array = zarr.open_array(store, path="a")
    ran = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(array), capture_output=True, check=True)
    assert int(ran.stdout) == VALUES[40, 3]


def test_from_url_opens_paths_and_urls(tmp_path: Path) -> None:
    for url in (tmp_path / "p", str(tmp_path / "p"), f"file://{tmp_path}/p", "memory://", "memory:///"):
        store = ps.PartsStore.from_url(url)
        create_sharded(store, name="x")[...] = VALUES
        sync(store.clear())
    assert "bucket" in repr(ps.PartsStore.from_url("s3://bucket/data", region="us-east-1", read_only=True))
    assert "read_only=True" in repr(ps.PartsStore.from_url("s3://bucket/data", region="us-east-1", read_only=True))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/x", {}),
        ("foo://user:hunter2@host/x", {}),
        ("s3://bucket", {"nonsense": "hunter2"}),
        ("s3://bucket", {"secret_access_key": "hunter2", "nonsense": 1}),
        ("memory://", {"secret_access_key": "hunter2"}),
        ("/tmp", {"secret_access_key": "hunter2"}),
    ],
)
def test_an_unknown_scheme_or_option_is_refused_without_telling_secrets(url: str, options: Any) -> None:
    with pytest.raises(StoreConfigError) as caught:
        ps.PartsStore.from_url(url, **options)
    told = str(caught.value) + repr(caught.value) + str(caught.value.__cause__)
    assert "hunter2" not in told


def test_something_that_is_no_obstore_store_is_refused() -> None:
    with pytest.raises(StoreConfigError, match="expected an obstore store"):
        ps.PartsStore({})  # type: ignore[arg-type] # it is refused


@pytest.mark.sampled(3)
def test_explain_predicts_the_requests_that_stats_count(pipeline: str) -> None:
    store = ps.PartsStore(MemoryStore())
    create_sharded(store)
    array = zarr.open_array(store, path="a")
    store.stats.reset()
    array[...] = VALUES
    assert (store.stats.put, store.stats.get, store.stats.head) == (12, 0, 0)
    for selection in SELECTIONS:
        store.stats.reset()
        told = store.explain("a", selection)
        assert store.stats.calls == dict.fromkeys(store.stats.calls, 0)
        np.testing.assert_array_equal(array[selection], VALUES[selection])
        assert store.stats.get == len(told)
        assert all(each.kind == "get" and each.key.startswith("a/c/") for each in told)
    # One inner chunk of a dense shard: the index, and one range.
    (index, data) = store.explain("a", np.s_[40, 40])
    assert (index.key, index.start, index.stop) == ("a/c/1/1.index", 0, 260)
    assert (data.key, data.stop and data.start is not None and data.stop - data.start) == ("a/c/1/1", 128)
    assert "get=" in repr(store.stats)
    with pytest.raises(AttributeError):
        store.stats.nonsense  # noqa: B018 - that it raises is the point


def test_a_context_never_carries_an_index_into_another_read(pipeline: str) -> None:
    store = ps.PartsStore(MemoryStore())
    create_sharded(store)[...] = VALUES
    array = zarr.open_array(store, path="a")
    index = SuffixByteRequest(260)
    assert store.get_sync("a/c/0/0", byte_range=index) is not None
    other = ps.PartsStore(store.store)
    zarr.open_array(other, path="a")[:32, :32] = VALUES[:32, :32] + 1
    # The data is of another write than the index that this context has seen.
    with pytest.raises(ConcurrentWriteError, match="its data does not belong to the same write as its index"):
        store.get_ranges_sync("a/c/0/0", [RangeByteRequest(100, 110)], prototype=PROTOTYPE)
    # And once it was told, it is forgotten.
    assert store.get_ranges_sync("a/c/0/0", [RangeByteRequest(100, 110)], prototype=PROTOTYPE)
    np.testing.assert_array_equal(array[:9, :9], VALUES[:9, :9] + 1)


def test_the_longest_suffix_is_written_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path, durable=True)
    layout: dict[str, Any] = {"shape": (2,) * 4, "chunks": (1,) * 4, "dtype": "i4", "compressors": None}
    names: Any = {"name": "v2", "separator": "."}
    array = ps.create_array(store, "a", parts=["", ps.Part("x" * 128, size=1)], chunk_key_encoding=names, **layout)
    for value in (1, 2):
        array[:] = value
    assert (np.asarray(ps.open_array(ps.PartsStore.from_url(tmp_path), "a")[:]) == 2).all()
    assert not store.verify().findings
    with pytest.raises(PartsConfigError, match="at most 128 bytes"):
        ps.create_array(store, "b", parts=["", ps.Part("x" * 129, size=1)], **layout)
    assert not (tmp_path / "b").exists()
    # An array that was created before there was a limit.
    document = tmp_path / "a" / "zarr.json"
    document.write_text(document.read_text().replace("x" * 128, "x" * 300))
    fresh = ps.PartsStore.from_url(tmp_path)
    for call in (lambda: ps.open_array(fresh, "a"), lambda: fresh.get_sync("a/0.0.0.0")):
        with pytest.raises(PartsConfigError, match=r"at most 128 bytes, .*, found 300 bytes"):
            call()
    assert [path for path, why in fresh.verify().not_understood if "300 bytes" in why] == ["a"]


@pytest.mark.parametrize("given", ["s3://bucket/data", Path("data")])
def test_a_url_in_place_of_a_store_is_refused_with_the_call_that_opens_it(given: object) -> None:
    with pytest.raises(StoreConfigError, match=r"`PartsStore\.from_url` opens URLs and paths"):
        ps.PartsStore(given)  # type: ignore[arg-type] # it is refused


def test_parts_that_cannot_be_written_are_refused_before_the_array_is_created() -> None:
    store = ps.PartsStore.from_url("memory://")
    with pytest.raises(PartsConfigError, match=r"at most one part without 'size' for writing, found '.x', '.y'"):
        ps.create_array(store, "a", parts=[".x", ".y"], shape=(8,), chunks=(4,), dtype="i4")
    assert store.store.list().collect() == []


def test_parts_that_do_not_fit_an_array_are_refused_before_the_array_there_is_deleted() -> None:
    store = ps.PartsStore.from_url("memory://")
    ps.create_array(store, "a", parts=[""], shape=(8,), chunks=(4,), dtype="u1")[:] = 7
    parts = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    with pytest.raises(PartsConfigError, match="expected an array whose only codec is `sharding_indexed`"):
        ps.create_array(store, "a", parts=parts, shape=(8,), chunks=(4,), dtype="u1", overwrite=True)
    assert np.array_equal(zarr.open_array(store, path="a")[:], [7] * 8)
