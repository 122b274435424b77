"""xarray, dask and other pipelines on a PartsStore: the user's code stays as it is, and nothing goes past the store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray
import zarr
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import LocalStore

import parts_store as ps
from integration.conftest import Bucket
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.errors import IncompleteChunkError

PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "parts": "parts_store.pipeline.codec_pipeline.PartsCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
TAIL = [Part(""), Part(".tail", size=4)]
SHARD_PARTS = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
VALUES: NDArray[Any] = (np.arange(64 * 64) % 251 + 1).astype("uint16").reshape(64, 64)
FILL = 9


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def dataset() -> xarray.Dataset:
    random = np.random.default_rng(0)
    return xarray.Dataset(
        {
            "temperature": (("time", "x"), random.normal(size=(12, 20)), {"units": "K"}),
            "flag": (("x",), np.arange(20) % 2 == 0),
        },
        coords={"time": np.arange(12) * 10, "x": np.linspace(0, 1, 20)},
        attrs={"title": "a dataset"},
    )


def parts_in(bucket: Bucket, folder: str) -> set[str]:
    return {key.removeprefix(folder) for key in bucket.list_keys() if key.endswith(".tail")}


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("consolidated", [True, False])
def test_xarray_writes_and_reads_a_dataset_in_parts(bucket: Bucket, *, consolidated: bool) -> None:
    expected = dataset()
    store = PartsStore(bucket.store("data"), parts={"temperature": TAIL})
    encoding = {"temperature": {"chunks": (5, 20)}}
    expected.to_zarr(store, encoding=encoding, consolidated=consolidated)
    assert parts_in(bucket, "data/") == {f"temperature/c/{row}/0.tail" for row in range(3)}

    # Another program, which does not know parts.
    stranger = PartsStore(bucket.store("data"), read_only=True)
    with xarray.open_zarr(stranger, consolidated=consolidated, chunks=None) as opened:
        xarray.testing.assert_identical(opened.load(), expected)
    assert stranger.parts_of("temperature") == ps.ConcatParts(TAIL)
    assert stranger.parts_of("flag") is None


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("consolidated", [True, False])
def test_xarray_appends_and_overwrites_and_the_parts_stay(bucket: Bucket, *, consolidated: bool) -> None:
    first = dataset()
    second = first.assign_coords(time=first.time + 120)
    store = PartsStore(bucket.store(), parts={"temperature": TAIL})
    first.to_zarr(store, encoding={"temperature": {"chunks": (6, 20)}}, consolidated=consolidated)
    second.to_zarr(PartsStore(bucket.store()), append_dim="time", consolidated=consolidated)
    # `x` and `flag` have no time to be appended along.
    expected = xarray.concat(
        [first, second], dim="time", data_vars="minimal", coords="minimal", compat="equals", join="exact"
    )
    stranger = PartsStore(bucket.store())
    with xarray.open_zarr(stranger, consolidated=consolidated, chunks=None) as opened:
        xarray.testing.assert_identical(opened.load(), expected)
    assert parts_in(bucket, "") == {f"temperature/c/{row}/0.tail" for row in range(4)}

    first.to_zarr(PartsStore(bucket.store(), parts={"*": TAIL[:1]}), mode="w", consolidated=consolidated)
    assert parts_in(bucket, "") == set()
    with xarray.open_zarr(PartsStore(bucket.store()), consolidated=consolidated, chunks=None) as opened:
        xarray.testing.assert_identical(opened.load(), first)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning")
def test_xarray_writes_and_reads_from_worker_processes(bucket: Bucket, cluster: Any) -> None:
    expected = dataset()
    store = PartsStore(bucket.store("data"), parts={"temperature": TAIL})
    expected.chunk({"time": 3}).to_zarr(store)
    assert parts_in(bucket, "data/") == {f"temperature/c/{row}/0.tail" for row in range(4)}
    with xarray.open_zarr(PartsStore(bucket.store("data"))) as opened:
        assert isinstance(opened.temperature.data, dask.array.Array)
        xarray.testing.assert_identical(opened.compute(), expected)
        np.testing.assert_allclose(opened.temperature.mean("time").compute(), expected.temperature.mean("time"))


def test_dask_writes_and_reads_shards_from_worker_processes(bucket: Bucket, cluster: Any) -> None:
    store = PartsStore(bucket.store("data"))
    array = ps.create_array(
        store, "a", parts=SHARD_PARTS, shape=(64, 64), chunks=(8, 8), shards=(16, 32), dtype="uint16", compressors=None
    )
    dask.array.store(dask.array.from_array(VALUES, chunks=(16, 32)), array, lock=False)
    shards = {f"data/a/c/{row}/{column}" for row in range(4) for column in range(2)}
    assert bucket.list_keys() - {"data/zarr.json", "data/a/zarr.json"} == {
        key + part.key_suffix for key in shards for part in SHARD_PARTS
    }
    read = dask.array.from_zarr(zarr.open_array(PartsStore(bucket.store("data")), path="a", mode="r"))
    np.testing.assert_array_equal(read.compute(), VALUES)
    np.testing.assert_array_equal(read[3:40:5, 7:9].compute(), VALUES[3:40:5, 7:9])


def test_dask_creates_arrays_in_parts_by_the_patterns_of_the_store(bucket: Bucket, cluster: Any) -> None:
    store = PartsStore(bucket.store(), parts={"a": TAIL})
    dask.array.from_array(VALUES, chunks=(32, 64)).to_zarr(store, component="a")
    assert parts_in(bucket, "") == {"a/c/0/0.tail", "a/c/1/0.tail"}
    np.testing.assert_array_equal(dask.array.from_zarr(PartsStore(bucket.store()), component="a").compute(), VALUES)


def test_damage_reaches_the_user_from_a_worker_process(bucket: Bucket, cluster: Any) -> None:
    store = PartsStore(bucket.store())
    array = ps.create_array(store, "a", parts=TAIL, shape=(64, 64), chunks=(32, 64), dtype="uint16")
    array[...] = VALUES
    bucket.client.remove_object(bucket.name, "a/c/1/0.tail")
    read = dask.array.from_zarr(array)
    np.testing.assert_array_equal(read[:32].compute(), VALUES[:32])
    with pytest.raises(IncompleteChunkError) as caught:
        read.compute()
    assert caught.value.missing == ("a/c/1/0.tail",)


# --- pipelines ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=sorted(PIPELINES))
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
        yield name


KINDS: dict[str, tuple[list[Part], dict[str, Any]]] = {
    "chunks": (TAIL, {"chunks": (16, 32)}),
    "raw chunks": ([Part(".head", size=100), Part("")], {"chunks": (16, 32), "compressors": None}),
    "shards": (SHARD_PARTS, {"chunks": (8, 8), "shards": (16, 32), "compressors": None}),
    "compressed shards": (SHARD_PARTS[1:], {"chunks": (8, 8), "shards": (16, 32)}),
    "no anchor without suffix": ([Part(".a", size=4), Part(".b")], {"chunks": (16, 32)}),
}
SELECTIONS: list[Any] = [
    np.s_[...],
    np.s_[:5, :5],
    np.s_[10:50, 30:40],
    np.s_[::7, ::9],
    np.s_[63, 63],
    np.s_[:16, :32],
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pipeline_reads_what_any_other_wrote(bucket: Bucket, pipeline: str, kind: str) -> None:
    parts, arguments = KINDS[kind]
    expected = np.full((64, 64), FILL, "uint16")
    expected[:40, :40] = VALUES[:40, :40]
    for name, path in PIPELINES.items():
        with zarr.config.set({"codec_pipeline.path": path}):
            store = PartsStore(bucket.store())
            ps.create_array(
                store,
                name,
                parts=parts,
                shape=(64, 64),
                dtype="uint16",
                fill_value=FILL,
                **arguments,
            )
            # Some chunks whole, some in part, some not at all.
            zarr.open_array(store, path=name)[:40, :40] = VALUES[:40, :40]
        written = bucket.list_keys()
        assert {f"{name}/c/0/0{part.key_suffix}" for part in parts} <= written
        opened = zarr.open_array(PartsStore(bucket.store()), path=name)
        for selection in SELECTIONS:
            np.testing.assert_array_equal(opened[selection], expected[selection])


def test_no_pipeline_goes_past_the_store(bucket: Bucket, pipeline: str) -> None:
    store = PartsStore(bucket.store())
    ps.create_array(
        store, "a", parts=SHARD_PARTS, shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="uint16", fill_value=FILL
    )
    array = zarr.open_array(store, path="a")
    store.stats.reset()
    array[...] = VALUES
    assert store.stats.calls["put"] == 3 * 4
    store.stats.reset()
    np.testing.assert_array_equal(array[...], VALUES)
    assert store.stats.calls["get"] == 3 * 4
    # A reader that bypasses the store finds no header, and fill values where there is no object.
    bucket.client.remove_object(bucket.name, "a/c/0/0.header")
    bucket.client.remove_object(bucket.name, "a/c/0/1.index")
    for selection in (np.s_[...], np.s_[:32, :32], np.s_[:3, :3], np.s_[3:5, 40:41]):
        with pytest.raises(IncompleteChunkError):
            array[selection]


def test_zarrs_leaves_the_store_to_python(bucket: Bucket, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"name": "a", "shape": (64, 64), "chunks": (32, 64), "dtype": "uint16"}
    with zarr.config.set({"codec_pipeline.path": PIPELINES["zarrs"]}):
        theirs = zarr.create_array(LocalStore(tmp_path), **arguments)
        assert type(theirs.async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline"
        for parts in ({}, {"*": TAIL}):
            ours = zarr.create_array(PartsStore(bucket.store(), parts=parts), overwrite=True, **arguments)
            assert type(ours.async_array.codec_pipeline) is BatchedCodecPipeline
