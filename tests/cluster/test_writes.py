"""Dask arrays are written to a session with one commit, and two tasks never write one chunk."""

import itertools
from collections.abc import Sequence
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from icechunk import Repository, local_filesystem_storage

import parts_store as ps
from parts_store.cluster import write_array
from parts_store.errors import StoreConfigError
from tests.cluster.arrays import (
    KINDS,
    VALUES,
    begin,
    begin_with,
    by_kind,
    chunked,
    committed,
    create,
    messages,
)
from tests.effort import examples

pytestmark = pytest.mark.slow


@by_kind
def test_write_array_makes_one_commit(repo: Repository, kind: str) -> None:
    session, store = begin(repo)
    array = create(store, kind)
    snapshot = write_array(chunked(VALUES, (4, 5)), array, message="written", metadata={"by": "a cluster"})
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    (newest, _) = repo.ancestry(branch="main")
    assert (newest.id, newest.message, newest.metadata) == (snapshot, "written", {"by": "a cluster"})
    assert not session.has_uncommitted_changes
    parts, _ = KINDS[kind]
    assert (committed(repo).store.parts_of("a") is None) == (parts is None)  # type: ignore[attr-defined] # a PartsStore


@by_kind
def test_earlier_changes_of_the_session_are_in_the_same_commit(repo: Repository, kind: str) -> None:
    _, array = begin_with(repo, kind)
    array[:4] = 7
    write_array(chunked(VALUES[4:], (4, 10)), array, region=np.s_[4:, :], message="written")
    expected = VALUES.copy()
    expected[:4] = 7
    np.testing.assert_array_equal(committed(repo)[...], expected)
    assert messages(repo) == ["written", "an array"]


@by_kind
@pytest.mark.parametrize("region", [np.s_[4:8, 5:10], np.s_[-4:, :], np.s_[4:4, :]])
def test_write_array_writes_the_region_only(repo: Repository, kind: str, region: tuple[slice, ...]) -> None:
    _, array = begin_with(repo, kind, fill_value=-1)
    expected = np.full((8, 10), -1, "int32")
    expected[region] = VALUES[region]
    write_array(chunked(VALUES[region], (4, 5)), array, region=region, message="written")
    np.testing.assert_array_equal(committed(repo)[...], expected)


@pytest.mark.parametrize("parts", [None, [ps.Part("", size=4), ps.Part(".tail")]])
def test_write_array_without_dimensions(repo: Repository, parts: list[ps.Part] | None) -> None:
    _, store = begin(repo)
    arguments: dict[str, Any] = {"shape": (), "dtype": "int64"}
    if parts is None:
        array = zarr.create_array(store, name="a", **arguments)
    else:
        array = ps.create_array(store, "a", parts=parts, **arguments)
    write_array(dask.array.asarray(np.int64(7)), array, message="written")
    assert committed(repo)[()] == 7


@pytest.mark.parametrize("chunks", [(4, 5), (1, 3)])
def test_write_array_without_elements_makes_a_commit(repo: Repository, chunks: tuple[int, int]) -> None:
    _, array = begin_with(repo, "split", shape=(0, 10))
    write_array(dask.array.zeros((0, 10), chunks=chunks), array, message="nothing", align_chunks=True)
    assert np.asarray(committed(repo)[...]).shape == (0, 10)
    assert messages(repo) == ["nothing", "an array"]


def test_write_array_with_rectilinear_chunks(repo: Repository) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        _, array = begin_with(repo, chunks=[[3, 1, 4], [4, 6]], shards=None)
        with pytest.raises(StoreConfigError, match="align_chunks"):
            write_array(chunked(VALUES, (4, 5)), array, message="not this")
        write_array(chunked(VALUES, ((4, 4), (4, 6))), array, message="written")
        np.testing.assert_array_equal(committed(repo)[...], VALUES)
        session, store = begin(repo)
        again = zarr.open_array(store, path="a")
        write_array(chunked(VALUES + 1, (2, 5)), again, message="aligned", align_chunks=True)
        np.testing.assert_array_equal(committed(repo)[...], VALUES + 1)
        assert not session.has_uncommitted_changes


def test_padding_functions_are_sent_to_the_workers(repo: Repository) -> None:
    # A lambda, which `pickle` alone cannot serialize.
    codec = ps.codecs.pad_codec(nbytes=4, padding_func=lambda chunk: len(chunk).to_bytes(4, "little"))
    _, store = begin(repo)
    array = create(store, compressors=[codec], shards=None, chunks=(4, 5))
    write_array(chunked(VALUES, (4, 5)), array, message="written")
    np.testing.assert_array_equal(committed(repo)[...], VALUES)


@pytest.mark.parametrize("chunks", [(2, 5), (3, 5), (4, 4), ((4, 1, 3), (5, 5)), ((4, 4), (5, 1, 4))])
def test_misaligned_chunks_are_refused_or_aligned(repo: Repository, chunks: Any) -> None:
    session, array = begin_with(repo)
    with pytest.raises(StoreConfigError, match="align_chunks"):
        write_array(chunked(VALUES, chunks), array, message="not this")
    assert not session.has_uncommitted_changes
    write_array(chunked(VALUES, chunks), array, message="aligned", align_chunks=True)
    np.testing.assert_array_equal(committed(repo)[...], VALUES)
    assert messages(repo) == ["aligned", "an array"]


def test_region_that_cuts_chunks_is_refused(repo: Repository) -> None:
    _, array = begin_with(repo)
    for region in (np.s_[1:5, :], np.s_[:, 0:9], np.s_[:2, :]):
        with pytest.raises(StoreConfigError, match="region of 'a'"):
            write_array(chunked(VALUES[region], -1), array, region=region, message="not this", align_chunks=True)
    assert messages(repo) == ["an array"]


sizes_of = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


def touches_twice(sizes: Sequence[int], step: int) -> bool:
    """Return whether two dask chunks have elements in the same chunk of `step` elements."""
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    return any(len(set(owners[start : start + step])) > 1 for start in range(0, len(owners), step))


@pytest.fixture(scope="module")
def shared_repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository.create(local_filesystem_storage(str(tmp_path_factory.mktemp("shared"))))


names = (f"a{number}" for number in itertools.count())


@settings(max_examples=examples(20))
@given(rows=sizes_of, columns=sizes_of, steps=st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_any_chunks_are_written_unchanged_or_aligned(
    shared_repo: Repository, rows: list[int], columns: list[int], steps: tuple[int, int]
) -> None:
    _, store = begin(shared_repo)
    name, shape = next(names), (sum(rows), sum(columns))
    values = np.arange(1, 1 + shape[0] * shape[1]).reshape(shape)
    array = zarr.create_array(store, name=name, shape=shape, chunks=steps, dtype=values.dtype)
    source = chunked(values, (tuple(rows), tuple(columns)))
    if touches_twice(rows, steps[0]) or touches_twice(columns, steps[1]):
        with pytest.raises(StoreConfigError, match="align_chunks"):
            write_array(source, array, message="not this")
        counts: list[int] = []
        write_array(source, array, message="aligned", align_chunks=True, progress=lambda _, total: counts.append(total))
        # Aligning merges chunks, but not more than necessary.
        assert counts[0] <= len(rows) * len(columns)
    else:
        write_array(source, array, message="as it is")
    np.testing.assert_array_equal(committed(shared_repo, name)[...], values)


def test_progress_is_called_once_per_task(repo: Repository) -> None:
    _, array = begin_with(repo)
    told: list[tuple[int, int]] = []
    write_array(chunked(VALUES, (4, 5)), array, message="written", progress=lambda *each: told.append(each))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
