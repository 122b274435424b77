"""Arrays use our pipeline: by `ps.fast()`, or because `ps` opened them."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from parts_store.errors import StoreConfigError
from parts_store.pipeline.codec_pipeline import PartsCodecPipeline
from tests.conftest import PIPELINES


def pipeline_of(array: Any) -> type[object]:
    return type(array.async_array.codec_pipeline)


def test_fast_sets_zarrs_configuration_until_it_is_changed() -> None:
    before = zarr.config.get("codec_pipeline.path")
    try:
        ps.fast(max_workers=5)
        assert zarr.config.get("codec_pipeline.max_workers") == 5
        array = zarr.create_array(ps.PartsStore(MemoryStore()), shape=4, chunks=2, dtype="i4")
        assert pipeline_of(array) is PartsCodecPipeline
    finally:
        zarr.config.set({"codec_pipeline.path": before, "codec_pipeline.max_workers": None, "async.concurrency": 10})


def test_fast_restores_the_configuration_at_the_end_of_a_block() -> None:
    before = zarr.config.get("codec_pipeline")
    concurrency = zarr.config.get("async.concurrency")
    with ps.fast():
        assert zarr.config.get("codec_pipeline.path") == "parts_store.pipeline.codec_pipeline.PartsCodecPipeline"
    assert zarr.config.get("codec_pipeline") == before
    assert zarr.config.get("async.concurrency") == concurrency


@pytest.mark.parametrize("max_workers", [0, -1, 2.5, "4"])
def test_fast_refuses_a_number_of_threads_with_which_zarr_would_wait_forever(max_workers: Any) -> None:
    before = zarr.config.get("async.concurrency")
    with pytest.raises(StoreConfigError, match="max_workers: expected an integer from 1"):
        ps.fast(max_workers=max_workers)
    assert zarr.config.get("async.concurrency") == before


def test_fast_leaves_the_number_of_threads_to_the_pipeline_unless_it_is_given() -> None:
    for max_workers in ({}, {"max_workers": None}):
        with zarr.config.set({"codec_pipeline.max_workers": None}), ps.fast(**max_workers):
            assert zarr.config.get("codec_pipeline.max_workers") is None


def test_arrays_on_other_stores_work_while_fast() -> None:
    with ps.fast():
        array = zarr.create_array(zarr.storage.MemoryStore(), shape=(6, 6), chunks=(2, 2), shards=(4, 4), dtype="i4")
        array[...] = np.arange(36).reshape(6, 6)
        np.testing.assert_array_equal(array[1:5, ::2], np.arange(36).reshape(6, 6)[1:5, ::2])


@pytest.fixture
def array(tmp_path: Path) -> zarr.Array[Any]:
    """Return an array in parts that was opened."""
    store = ps.PartsStore(LocalStore(tmp_path), fast=False)
    created = ps.create_array(store, "a", parts=["", ps.Part(".t", size=1)], shape=4, chunks=2, dtype="i4")
    assert pipeline_of(created) is PartsCodecPipeline
    opened = ps.open_array(store, "a", mode="r+")
    opened[...] = [1, 2, 3, 4]
    np.testing.assert_array_equal(created[...], [1, 2, 3, 4])
    assert pipeline_of(zarr.open_array(store, path="a")) is not PartsCodecPipeline
    return opened


MEMBERS: dict[str, Callable[[Any], Any]] = {
    "item": lambda group: group["a"],
    "nested item": lambda group: group["inner/b"],
    "item of an item": lambda group: group["inner"]["b"],
    "get": lambda group: group.get("a"),
    "get_array": lambda group: group.get_array("a"),
    "members": lambda group: dict(group.members(max_depth=None))["inner/b"],
    "arrays": lambda group: dict(group.arrays())["a"],
    "array_values": lambda group: next(group.array_values()),
    "groups": lambda group: dict(group.groups())["inner"]["b"],
    "group_values": lambda group: next(group.group_values())["b"],
    "create_array": lambda group: group.create_array("c", shape=4, chunks=2, dtype="i4"),
    "create_group": lambda group: group.create_group("d").create_array("c", shape=4, chunks=2, dtype="i4"),
    "require_group": lambda group: group.require_group("inner")["b"],
    "zeros": lambda group: group.zeros(name="e", shape=(4,)),
    "after new attributes": lambda group: group.update_attributes({"x": 1})["a"],
    "pickled": lambda group: pickle.loads(pickle.dumps(group))["a"],
}


@pytest.mark.parametrize("member", MEMBERS)
def test_members_of_an_opened_group_use_the_pipeline(member: str, tmp_path: Any) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    zarr.create_array(store, name="a", shape=4, chunks=2, dtype="i4")
    zarr.create_array(store, name="inner/b", shape=4, chunks=2, dtype="i4")
    group = ps.open_group(store, mode="r+")
    assert isinstance(group, zarr.Group)
    array = MEMBERS[member](group)
    assert pipeline_of(array) is PartsCodecPipeline
    array[...] = 7
    np.testing.assert_array_equal(array[...], [7, 7, 7, 7])


def test_an_array_keeps_the_pipeline_when_it_is_resized_or_pickled(array: zarr.Array[Any]) -> None:
    array.append(np.array([1, 2, 3], "i4"))
    assert pipeline_of(array) is pipeline_of(pickle.loads(pickle.dumps(array))) is PartsCodecPipeline
    np.testing.assert_array_equal(array[...], [1, 2, 3, 4, 1, 2, 3])


def test_an_array_keeps_the_pipeline_with_another_configuration(array: zarr.Array[Any]) -> None:
    changed = array.with_config({"write_empty_chunks": True})
    assert pipeline_of(changed) is pipeline_of(changed.with_config({})) is PartsCodecPipeline
    changed[...] = 0
    assert changed.nchunks_initialized == 2
    array[...] = 0
    assert array.nchunks_initialized == 0


@pytest.fixture
def usual_configuration() -> Iterator[None]:
    """Begin with zarr's default pipeline."""
    with zarr.config.set({"codec_pipeline.path": DEFAULT}):
        yield


DEFAULT = zarr.config.defaults[0]["codec_pipeline"]["path"]
SIZE: Any = {"name": "a", "shape": (8,), "chunks": (2,), "shards": (4,), "dtype": "i4"}


@pytest.mark.usefixtures("usual_configuration")
def test_zarr_gives_arrays_on_a_parts_store_our_pipeline_and_others_its_own() -> None:
    other = zarr.storage.MemoryStore()
    before = pipeline_of(zarr.create_array(other, **SIZE))
    store = ps.PartsStore.from_url("memory://")
    assert pipeline_of(zarr.create_array(store, **SIZE)) is PartsCodecPipeline
    assert pipeline_of(zarr.open_array(store, path="a")) is PartsCodecPipeline
    assert pipeline_of(zarr.open_group(store)["a"]) is PartsCodecPipeline
    array: Any = zarr.open_group(other)["a"]
    array[:] = 5
    assert pipeline_of(array) is before
    assert array[:].tolist() == [5] * 8
    assert zarr.registry.get_pipeline_class().from_codecs(array.metadata.codecs).__class__ is before


@pytest.mark.usefixtures("usual_configuration")
def test_a_new_store_chooses_again_after_the_configuration_was_reset() -> None:
    store = ps.PartsStore.from_url("memory://")
    zarr.create_array(store, **SIZE)
    with zarr.config.set({"codec_pipeline.path": DEFAULT}):
        assert pipeline_of(zarr.open_array(store, path="a")) is not PartsCodecPipeline
        assert pipeline_of(zarr.open_array(store.with_read_only(True), path="a")) is PartsCodecPipeline


@pytest.mark.usefixtures("usual_configuration")
@pytest.mark.parametrize("by", ["option", "environment", "another pipeline"])
def test_the_configuration_is_left_alone_on_request(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "environment":
        monkeypatch.setenv("PARTS_STORE_FAST", "0")
    chosen = PIPELINES["fused"] if by == "another pipeline" else DEFAULT
    with zarr.config.set({"codec_pipeline.path": chosen}):
        store = ps.PartsStore.from_url("memory://", **({"fast": False} if by == "option" else {}))
        assert pipeline_of(zarr.create_array(store, **SIZE)).__name__ == chosen.rpartition(".")[2]


PROGRAM = """
import pickle, sys, zarr
store = pickle.load(sys.stdin.buffer)
print(type(zarr.open_array(store, path="a").async_array.codec_pipeline).__name__)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("usual_configuration")
def test_a_process_that_unpickles_a_store_chooses_our_pipeline(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    zarr.create_array(store, **SIZE)
    call = [sys.executable, "-c", PROGRAM]
    printed = subprocess.run(call, input=pickle.dumps(store), capture_output=True, check=True).stdout
    assert printed.decode().strip() == "PartsCodecPipeline"


@pytest.mark.usefixtures("usual_configuration")
def test_xarray_reads_a_parts_store_with_our_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ps.PartsStore.from_url("memory://")
    xr.Dataset({"t": ("x", np.arange(8))}).to_zarr(store, consolidated=False, zarr_format=3)
    read: list[object] = []
    original = PartsCodecPipeline.read

    async def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(self)
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(PartsCodecPipeline, "read", note)
    assert xr.open_zarr(store, consolidated=False)["t"].load().to_numpy().tolist() == list(range(8))
    assert read
