"""Datasets and data arrays are written as xarray writes them."""

from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from icechunk import Repository

import parts_store as ps
from parts_store.cluster import write_dataset
from parts_store.errors import ClusterWriteError, StoreConfigError
from tests.cluster.arrays import VALUES, begin, committed, create, failing, messages
from tests.cluster.datasets import ENCODING, assert_same, dataset, reference

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "group"), [("no parts", None), ("whole", "some/where"), ("split", None)])
def test_write_dataset_equals_to_zarr(repo: Repository, kind: str, group: str | None) -> None:
    parts, split = (None, False) if kind == "no parts" else ((ps.Part("", size=4), ps.Part(".tail")), kind == "split")
    session, store = begin(repo)
    if parts is not None:
        store = store.with_parts({"*packed": parts, "*seen": parts, "*total": parts}, split=split)
    data = dataset()
    write_dataset(data, store, message="written", group=group, encoding=ENCODING, metadata={"n": 1})
    plain: Any = {"encoding": ENCODING, "group": group, "consolidated": False}
    assert_same(repo, reference(lambda each: data.to_zarr(each, **plain)), group)
    assert messages(repo) == ["written"]
    assert next(iter(repo.ancestry(branch="main"))).metadata == {"n": 1}
    reading = ps.PartsStore.from_session(repo.readonly_session("main"))
    folder = "" if group is None else f"{group}/"
    with_parts = {name for name in data.variables if reading.parts_of(f"{folder}{name}") is not None}
    assert with_parts == (set() if parts is None else {"packed", "seen", "total"})
    assert not session.has_uncommitted_changes


def test_write_dataset_appends_along_a_dimension(repo: Repository) -> None:
    first, second = dataset(), dataset(5, "2026-01-07").drop_vars(["flag", "total", "place"])
    _, store = begin(repo)
    write_dataset(first, store, message="first", encoding=ENCODING)
    _, store = begin(repo)
    write_dataset(second, store, message="second", append_dim="time")

    def append(store: Any) -> Any:
        return second.to_zarr(store, append_dim="time", consolidated=False)

    assert_same(repo, reference(lambda each: first.to_zarr(each, encoding=ENCODING, consolidated=False), append))
    assert messages(repo) == ["second", "first"]


@pytest.mark.parametrize("region", [{"time": slice(3, 6)}, "auto", {"time": "auto", "x": slice(0, 10)}])
def test_write_dataset_writes_a_region(repo: Repository, region: Any) -> None:
    first = dataset()
    second = (first.isel(time=slice(3, 6))[["packed"]] + 1).drop_vars("place")
    if region != "auto":
        second = second.drop_vars("x")
    if isinstance(region, dict) and region["time"] != "auto":
        second = second.drop_vars("time")
    _, store = begin(repo)
    write_dataset(first, store, message="first", encoding=ENCODING)
    _, store = begin(repo)
    write_dataset(second, store, message="second", region=region)

    def update(store: Any) -> Any:
        return second.to_zarr(store, region=region, consolidated=False)

    assert_same(repo, reference(lambda each: first.to_zarr(each, encoding=ENCODING, consolidated=False), update))


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_write_dataset_replaces_a_dataset(repo: Repository, mode: Any) -> None:
    first, second = dataset(), dataset()
    second["packed"] = second["packed"] + 2
    if mode != "r+":
        second["more"] = second["packed"].mean("x")
    _, store = begin(repo)
    write_dataset(first, store, message="first", encoding=ENCODING)
    session, store = begin(repo)
    with pytest.raises(FileExistsError):
        write_dataset(second, store, message="not this")
    assert not session.has_uncommitted_changes
    write_dataset(second, store, message="second", mode=mode)

    def write(store: Any) -> Any:
        return second.to_zarr(store, mode=mode, consolidated=False)

    assert_same(repo, reference(lambda each: first.to_zarr(each, encoding=ENCODING, consolidated=False), write))
    assert messages(repo) == ["second", "first"]


@pytest.mark.parametrize("name", [None, "given", "x"])
def test_write_dataset_of_a_data_array(repo: Repository, name: str | None) -> None:
    array = xarray.DataArray(VALUES, dims=("y", "x"), coords={"x": np.arange(10)}, name=name, attrs={"units": "m"})
    _, store = begin(repo)
    write_dataset(array.chunk(y=4), store, message="written")
    reading = ps.PartsStore.from_session(repo.readonly_session("main"))
    arguments: dict[str, Any] = {"engine": "zarr", "consolidated": False}
    with xarray.open_dataarray(reading, **arguments) as opened:  # type: ignore[arg-type] # a store, as zarr takes it
        xarray.testing.assert_identical(opened.load(), array)


def test_misaligned_dataset_is_refused_or_aligned(repo: Repository) -> None:
    data = dataset().chunk(time=2)
    session, store = begin(repo)
    with pytest.raises(StoreConfigError, match="align_chunks"):
        write_dataset(data, store, message="not this", encoding=ENCODING)
    assert not session.has_uncommitted_changes
    write_dataset(data, store, message="aligned", encoding=ENCODING, align_chunks=True)
    plain: Any = {"encoding": ENCODING, "consolidated": False, "align_chunks": True}
    assert_same(repo, reference(lambda each: data.to_zarr(each, **plain)))


@pytest.mark.parametrize("split", [False, True])
def test_failed_dataset_leaves_the_session_unchanged(repo: Repository, *, split: bool) -> None:
    first = dataset()
    parts = (ps.Part("", size=4), ps.Part(".tail"))
    session, store = begin(repo)
    write_dataset(first, store.with_parts({"packed": parts}, split=split), message="first", encoding=ENCODING)
    session, store = begin(repo)
    broken = first.copy()
    broken["packed"] = (("time", "x"), failing(first["packed"].values, (3, 5), lambda block: block.shape == (3, 5)))
    with pytest.raises(ClusterWriteError) as caught:
        write_dataset(broken, store, message="not this", mode="w", encoding=ENCODING)
    failed = ["packed[0:3, 0:5]", "packed[0:3, 5:10]", "packed[3:6, 0:5]", "packed[3:6, 5:10]"]
    assert [region for region, _ in caught.value.failed] == failed
    assert not session.has_uncommitted_changes
    assert messages(repo) == ["first"]
    # The store shows the committed state again, and can be written to.
    with xarray.open_zarr(store, consolidated=False, chunks=None) as opened:
        assert (opened["packed"].shape, store.parts_of("packed")) == ((6, 10), ps.ConcatParts(parts))
    write_dataset(first, store, message="second", mode="w", encoding=ENCODING)
    assert store.parts_of("packed") is None
    assert messages(repo) == ["second", "first"]


def test_failed_dataset_keeps_earlier_changes(repo: Repository) -> None:
    _, store = begin(repo)
    create(store)[...] = VALUES
    broken = dataset()
    broken["packed"] = (("time", "x"), failing(broken["packed"].values, (3, 5), lambda block: block.shape == (3, 5)))
    with pytest.raises(ClusterWriteError):
        write_dataset(broken, store, message="not this", group="data")
    assert messages(repo) == []
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[...], VALUES)
    write_dataset(dataset(), store, message="written", group="data", mode="w", encoding=ENCODING)
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    plain: Any = {"encoding": ENCODING, "group": "data", "consolidated": False}
    assert_same(repo, reference(lambda each: dataset().to_zarr(each, **plain)), "data")
