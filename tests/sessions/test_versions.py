"""Old snapshots, branches and tags, and sessions that are amended, discarded or rebased."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import ChunkType, local_filesystem_storage
from icechunk import Repository as Icechunk
from zarr.core.sync import sync

import parts_store as ps
from tests.sessions.failing import fail_at
from tests.sessions.histories import (
    CHUNK,
    KINDS,
    PLAIN,
    THREE,
    Kind,
    commit,
    listing,
    marked,
    open_repository,
    part_keys,
    raw,
    repository,
)
from tests.sessions.steps import (
    FILL,
    IN_THREE,
    USE_OURS,
    at,
    begin,
    by_kind,
    by_split,
    is_clean,
    started,
    values,
    write_chunk,
)

pytestmark = pytest.mark.slow
# How the same array was kept in each of its versions: parts, whether they are split, shape and chunks.
VERSIONS: list[tuple[tuple[ps.Part, ...] | None, bool, int, int]] = [
    (THREE, True, 32, 8),
    ((ps.Part(""), ps.Part(".index", size=4)), True, 40, 10),
    (THREE, False, 24, 12),
    (None, False, 30, 6),
    ((ps.Part(".index", size=16), ps.Part("")), True, 20, 10),
]


@pytest.fixture
def versions(repo: Icechunk) -> list[str]:
    """Return the snapshots of an array that was overwritten four times, each time with another layout."""
    snapshots = []
    for number, (parts, split, length, chunk) in enumerate(VERSIONS):
        session, store = begin(repo)
        arguments: dict[str, Any] = {"shape": (length,), "chunks": (chunk,)}
        Kind(parts, split=split).create(store, overwrite=True, **arguments)[:] = marked(1000 * number, length)
        snapshots.append(commit(session, f"version {number}"))
        repo.create_tag(f"v{number}", snapshots[-1])
        repo.create_branch(f"b{number}", snapshots[-1])
    return snapshots


def test_every_version_is_there_by_its_snapshot_tag_and_branch(repo: Icechunk, versions: list[str]) -> None:
    for number, (parts, split, length, chunk) in enumerate(VERSIONS):
        ways: list[dict[str, Any]] = [
            {"snapshot_id": versions[number]},
            {"tag": f"v{number}"},
            {"branch": f"b{number}"},
        ]
        for way in ways:
            session = repo.readonly_session(**way)
            store = ps.PartsStore.from_session(session)
            array = zarr.open_array(store, path="a", mode="r")
            assert (array.shape, array.chunks) == ((length,), (chunk,))
            assert np.array_equal(array[:], marked(1000 * number, length))
            found = store.parts_of("a")
            assert (None if found is None else tuple(found.parts)) == parts
            hidden = {part.key_suffix for part in parts or () if part.key_suffix} if split else set()
            nodes = {key.split("/")[2] for key in listing(session) if key.startswith("a/__parts__/")}
            assert nodes == hidden
            assert store.verify().is_clean


def test_a_difference_shows_the_chunks_of_every_part(repo: Icechunk) -> None:
    before = started(IN_THREE, repo)
    session, store = begin(repo)
    write_chunk(store, 1, 1000)
    after = commit(session)
    changed = repo.diff(from_snapshot_id=before, to_snapshot_id=after).updated_chunks
    assert {path: [list(index) for index in chunks] for path, chunks in changed.items()} == {
        "/a": [[1]],
        "/a/__parts__/.header": [[1]],
        "/a/__parts__/.index": [[1]],
    }


@by_kind
def test_branches_do_not_see_each_other(kind: Kind, repo: Icechunk) -> None:
    start = started(kind, repo)
    for number in range(3):
        repo.create_branch(f"branch {number}", start)
        session, store = begin(repo, f"branch {number}")
        write_chunk(store, number, 1000 * (number + 1))
        if number == 2:
            zarr.open_array(store, path="a").resize((40,))
        commit(session)
    assert values(repo.readonly_session("main")) == [*range(24), *FILL]
    for number in range(3):
        expected = [*range(24), *FILL, *(FILL if number == 2 else [])]
        expected[number * CHUNK : (number + 1) * CHUNK] = marked(1000 * (number + 1)).tolist()
        session = repo.readonly_session(f"branch {number}")
        assert values(session) == expected
        assert is_clean(session)


@by_kind
def test_an_old_snapshot_has_the_shape_and_the_parts_of_its_time(kind: Kind, repo: Icechunk) -> None:
    snapshots = [started(kind, repo)]
    expected = [[*range(24), *FILL]]
    for length in (16, 40, 8, 32):
        session, store = begin(repo)
        array = zarr.open_array(store, path="a")
        array.resize((length,))
        array[length - CHUNK :] = marked(length * 100)
        snapshots.append(commit(session))
        kept = expected[-1][:length]
        kept += [-1] * (length - len(kept))
        expected.append([*kept[:-CHUNK], *marked(length * 100).tolist()])
    session, store = begin(repo)
    sync(store.delete_dir("a"))
    PLAIN.create(store)[:] = 5
    snapshots.append(commit(session))
    expected.append([5] * 32)
    for snapshot, then in zip(snapshots, expected, strict=True):
        session = at(repo, snapshot)
        assert values(session) == then
        assert is_clean(session)
        has_nodes = any(key.startswith("a/__parts__") for key in listing(session))
        assert has_nodes == (kind.split and snapshot != snapshots[-1])


def test_garbage_collection_keeps_exactly_the_reachable_parts(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    repo = open_repository(local_filesystem_storage(str(folder)), inline_chunk_threshold_bytes=0)

    def count() -> int:
        return sum(1 for each in (folder / "chunks").rglob("*") if each.is_file())

    snapshots = []
    for mark in (1000, 2000, 3000):
        session, store = begin(repo)
        if mark == 1000:
            IN_THREE.create(store)
        zarr.open_array(store, path="a")[: 2 * CHUNK] = marked(mark, 2 * CHUNK)
        snapshots.append(commit(session))
    repo.create_tag("kept", snapshots[0])
    # Two chunks of three parts, three times; and a session that came to nothing.
    lost, store = begin(repo)
    write_chunk(store, 0, 4000)
    lost.discard_changes()
    assert count() == 3 * 6 + 3
    later = datetime.now(UTC) + timedelta(days=1)
    expired = repo.expire_snapshots(older_than=later)
    assert snapshots[1] in expired
    repo.garbage_collect(later)
    assert count() == 2 * 6
    reopened = Icechunk.open(local_filesystem_storage(str(folder)))
    for session, mark in (
        (reopened.readonly_session(tag="kept"), 1000),
        (reopened.readonly_session("main"), 3000),
    ):
        assert values(session)[: 2 * CHUNK] == marked(mark, 2 * CHUNK).tolist()
        assert is_clean(session)


@by_kind
def test_an_amended_commit_has_the_chunks_of_both(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session, store = begin(repo)
    write_chunk(store, 0, 1000)
    first = commit(session)
    session, store = begin(repo)
    write_chunk(store, 1, 2000)
    sync(store.delete("a/c/2"))
    amended = session.amend("amended")
    expected = [*marked(1000).tolist(), *marked(2000).tolist(), *FILL, *FILL]
    assert values(repo.readonly_session("main")) == expected
    assert zarr.open_array(store, path="a", mode="r")[CHUNK] == 2000
    assert first not in [each.id for each in repo.ancestry(branch="main")]
    assert is_clean(at(repo, amended))


@by_kind
@pytest.mark.parametrize("then", [PLAIN, *KINDS.values()], ids=["plain", *KINDS])
def test_what_was_discarded_is_forgotten(kind: Kind, then: Kind, repo: Icechunk) -> None:
    session, store = begin(repo)
    zarr.open_group(store, mode="w")
    commit(session)
    session, store = begin(repo)
    kind.create(store)[:] = 1
    session.discard_changes()
    assert store.parts_of("a") is None
    assert not asyncio.run(store.exists("a/c/0"))
    # Without a look before it, by a store that knew the array as another one.
    arguments: dict[str, Any] = {"shape": (16,), "chunks": (4,), "dtype": "int32", "compressors": None, "filters": None}
    if then.parts is None:
        array = zarr.create_array(store, name="a", **arguments)
    else:
        array = ps.create_array(store, "a", parts=then.parts[-2:], split=then.split, **arguments)
    array[:] = marked(0, 16)
    parts = store.parts_of("a")
    assert (None if parts is None else tuple(parts.parts)) == (None if then.parts is None else then.parts[-2:])
    snapshot = commit(session)
    assert values(at(repo, snapshot)) == list(range(16))
    assert is_clean(at(repo, snapshot))


@by_split
def test_a_failed_write_that_is_discarded_leaves_the_chunk_as_it_was(kind: Kind) -> None:
    repo = repository()
    started(kind, repo)
    for failing in itertools.count():
        session, store = begin(repo)
        if not fail_at(store, failing, partial(write_chunk, number=0, mark=1000)):
            break
        session.discard_changes()
        assert np.array_equal(zarr.open_array(store, path="a")[:CHUNK], marked(0))
        write_chunk(store, 1, 2000)
        assert np.array_equal(zarr.open_array(store, path="a")[: 2 * CHUNK], [*marked(0), *marked(2000)])
    assert failing >= 3


@by_kind
def test_an_open_store_follows_a_rebase_to_an_array_that_was_overwritten(kind: Kind, repo: Icechunk) -> None:
    """Check a store that had opened the array and changed another one before the rebase."""
    started(kind, repo)
    for then in (PLAIN, *KINDS.values()):
        session, store = begin(repo)
        assert zarr.open_array(store, path="a").shape == (32,)
        zarr.open_group(store, mode="r+").attrs["by"] = "me"
        other, other_store = begin(repo)
        then.create(other_store, overwrite=True, shape=(40,))[:] = marked(100, 40)
        commit(other)
        session.rebase(USE_OURS)
        array = zarr.open_array(store, path="a")
        assert np.array_equal(array[:], marked(100, 40))
        array[3:5] = [1, 2]
        snapshot = commit(session)
        assert values(at(repo, snapshot)) == [100, 101, 102, 1, 2, *range(105, 140)]
        assert is_clean(at(repo, snapshot))
        session, store = begin(repo)
        kind.create(store, overwrite=True)[: 3 * CHUNK] = marked(0, 3 * CHUNK)
        commit(session)


@by_kind
@pytest.mark.parametrize("threshold", [0, 512, 65535])
def test_parts_are_kept_inline_by_their_own_size_and_read_the_same(kind: Kind, threshold: int) -> None:
    repo = repository(inline_chunk_threshold_bytes=threshold)
    session, store = begin(repo)
    expected = marked(0, 1024)
    kind.create(store, shape=(1024,), chunks=(512,))[:] = expected
    snapshot = commit(session)
    session = at(repo, snapshot)
    assert values(session) == expected.tolist()
    for key in part_keys(kind, 1):
        stored = raw(session, key)
        assert stored is not None
        is_inline = 0 < len(stored) <= threshold
        node = key.removesuffix("/c/1")
        assert session.chunk_type(f"/{node}", [1]) == (ChunkType.inline if is_inline else ChunkType.native)
    assert is_clean(session)
