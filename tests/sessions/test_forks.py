"""Forks of a session: every fork's writes are merged, and open stores see them."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import IcechunkError
from icechunk import Repository as Icechunk
from zarr.core.sync import sync

import parts_store as ps
from tests.sessions.histories import (
    CHUNK,
    KINDS,
    MARKS,
    OPERATIONS,
    PLAIN,
    Kind,
    Scene,
    Writer,
    commit,
    look,
    marked,
    pairs,
    raw,
    raw_chunks,
    repository,
)
from tests.sessions.steps import (
    FILL,
    USE_OURS,
    USE_THEIRS,
    at,
    begin,
    by_kind,
    by_split,
    elsewhere,
    is_clean,
    started,
    values,
    write_chunk,
)

pytestmark = pytest.mark.slow


@by_kind
def test_forks_that_write_different_chunks_all_count(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session = repo.writable_session("main")
    forks = []
    for number in range(4):
        store = elsewhere(ps.PartsStore.from_session(elsewhere(session.fork())))
        write_chunk(store, number, 1000 * (number + 1))
        forks.append(elsewhere(store.session))
    session.merge(*forks)
    expected = np.concatenate([marked(1000 * (number + 1)) for number in range(4)]).tolist()
    assert values(session) == expected
    snapshot = commit(session)
    assert values(at(repo, snapshot)) == expected
    assert is_clean(at(repo, snapshot))


@by_kind
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_last_merged_fork_wins_the_whole_chunk(kind: Kind, order: tuple[int, ...], repo: Icechunk) -> None:
    started(kind, repo)
    session = repo.writable_session("main")
    forks = [elsewhere(session.fork()) for _ in range(3)]
    stores = [ps.PartsStore.from_session(fork) for fork in forks]
    write_chunk(stores[0], 0, 1000)
    zarr.open_array(stores[1], path="a")[0:CHUNK:2] = marked(2000)[::2]
    sync(stores[2].delete("a/c/0"))
    session.merge(*(elsewhere(forks[each]) for each in order))
    partly = marked(0)
    partly[::2] = marked(2000)[::2]
    expected = [marked(1000), partly, FILL][order[-1]]
    snapshot = commit(session)
    assert values(at(repo, snapshot))[:CHUNK] == expected.tolist()
    stored = raw_chunks(at(repo, snapshot), kind).get(0)
    assert (b"".join(part or b"" for part in stored) if stored else None) == (
        None if order[-1] == 2 else expected.tobytes()
    )
    assert is_clean(at(repo, snapshot))


@pytest.mark.slow
@by_split
def test_every_two_operations_in_forks_end_as_without_parts(kind: Kind, tmp_path: Path) -> None:
    scenes = [Scene(each, repository(files=tmp_path), tmp_path) for each in (PLAIN, kind)]
    for first, second in pairs(list(OPERATIONS)):
        plain, found = [_merged(scene, first, second) for scene in scenes]
        assert found == plain, (first, second)


def _merged(scene: Scene, first: str, second: str) -> object:
    """Merge two forks one after the other, and return the result."""
    scene.repo.reset_branch("main", scene.start)
    session = scene.repo.writable_session("main")
    forks = {who: session.fork() for who in MARKS}
    for (who, fork), operation in zip(forks.items(), (first, second), strict=True):
        OPERATIONS[operation](Writer(scene.kind, fork, scene.kind.store(fork), MARKS[who], scene.urls[who]))
    try:
        session.merge(*forks.values())
        snapshot = commit(session)
    except IcechunkError as error:
        return type(error), error.kind
    done = at(scene.repo, snapshot)
    if raw(done, "a/zarr.json") is None:
        return None
    return values(done), dict(look(done).attrs), sorted(raw_chunks(done, scene.kind))


@by_kind
def test_a_store_that_is_open_sees_what_is_merged_into_its_session(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session, store = begin(repo)
    array = zarr.open_array(store, path="a")
    assert array[0] == 0
    fork = elsewhere(session.fork())
    forked = ps.PartsStore.from_session(fork)
    write_chunk(forked, 0, 1000)
    kind.create(forked, "b")[:] = 7
    session.merge(elsewhere(fork))
    assert np.array_equal(array[:CHUNK], marked(1000))
    assert zarr.open_array(store, path="b", mode="r")[5] == 7
    commit(session)
    assert np.array_equal(array[:CHUNK], marked(1000))


@by_kind
def test_open_store_sees_an_array_that_a_fork_overwrote(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    for then in (PLAIN, *KINDS.values()):
        session, store = begin(repo)
        assert zarr.open_array(store, path="a").shape == (32,)
        fork = elsewhere(session.fork())
        then.create(ps.PartsStore.from_session(fork), overwrite=True, shape=(40,))[:] = marked(100, 40)
        session.merge(elsewhere(fork))
        array = zarr.open_array(store, path="a")
        assert np.array_equal(array[:], marked(100, 40))
        array[3:5] = [1, 2]
        array.resize((32,))
        snapshot = commit(session)
        assert values(at(repo, snapshot)) == [100, 101, 102, 1, 2, *range(105, 132)]
        assert is_clean(at(repo, snapshot))


SHARDED = (ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX))


def create_sharded(store: ps.PartsStore, *, split: bool, **more: Any) -> zarr.Array[Any]:
    """Two shards of four inner chunks each, compressed, so that where they are depends on what is in them."""
    arguments: dict[str, Any] = {"shape": (2048,), "chunks": (256,), "shards": (1024,), "dtype": "int32"} | more
    return ps.create_array(store, "s", parts=SHARDED, split=split, fill_value=-1, **arguments)


def noise(seed: int, count: int = 1024) -> Any:
    """Return random values whose compressed size depends on the seed."""
    return np.random.default_rng(seed).integers(0, 4 ** (seed + 1), count, dtype="int32")


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("has_holes", [False, True])
@pytest.mark.parametrize("how", ["rebase onto theirs", "rebase onto ours", "discard", "merge", "commit", "amend"])
def test_an_open_store_reads_shards_of_where_its_session_is_now(
    split: bool, has_holes: bool, how: str, repo: Icechunk
) -> None:
    length = 512 if has_holes else 1024
    session, store = begin(repo)
    create_sharded(store, split=split)[:length] = noise(1, length)
    commit(session)
    session, store = begin(repo)
    array = zarr.open_array(store, path="s")
    assert np.array_equal(array[:length:100], noise(1, length)[::100])
    expected = noise(6)
    match how:
        case "rebase onto theirs" | "rebase onto ours":
            other, other_store = begin(repo)
            zarr.open_array(other_store, path="s")[:1024] = noise(4)
            commit(other)
            array[:1024] = noise(6)
            assert np.array_equal(array[:300], noise(6)[:300])
            session.rebase(USE_THEIRS if how.endswith("theirs") else USE_OURS)
            expected = noise(4) if how.endswith("theirs") else noise(6)
        case "discard":
            array[:1024] = noise(6)
            assert np.array_equal(array[:300], noise(6)[:300])
            session.discard_changes()
            expected = np.full(1024, -1, "int32")
            expected[:length] = noise(1, length)
        case "merge":
            fork = elsewhere(session.fork())
            zarr.open_array(ps.PartsStore.from_session(fork), path="s")[:1024] = noise(6)
            session.merge(elsewhere(fork))
        case "commit" | "amend":
            array[:1024] = noise(6)
            assert np.array_equal(array[:300], noise(6)[:300])
            (session.commit if how == "commit" else session.amend)("by a test")
    for position in range(0, 1024, 100):
        assert array[position] == expected[position]
    assert np.array_equal(array[:1024], expected)
