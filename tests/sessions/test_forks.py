"""Forks of a session: every fork's writes are merged, and open stores see them."""

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
)

pytestmark = pytest.mark.slow


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
@pytest.mark.parametrize("how", ["merge", "rebase"])
def test_open_store_follows_its_session_to_an_array_of_another_kind(kind: Kind, how: str, repo: Icechunk) -> None:
    start = started(kind, repo)
    for then in (PLAIN, *KINDS.values()):
        repo.reset_branch("main", start)
        session, store = begin(repo)
        assert zarr.open_array(store, path="a").shape == (32,)
        other: Any = elsewhere(session.fork()) if how == "merge" else repo.writable_session("main")
        then.create(ps.PartsStore.from_session(other), overwrite=True, shape=(40,))[:] = marked(100, 40)
        if how == "merge":
            session.merge(elsewhere(other))
        else:
            zarr.open_group(store, mode="r+").attrs["by"] = "me"
            commit(other)
            session.rebase(USE_OURS)
        array = zarr.open_array(store, path="a")
        assert np.array_equal(array[:], marked(100, 40))
        array[3:5] = [1, 2]
        array.resize((32,))
        snapshot = commit(session)
        assert values(at(repo, snapshot)) == [100, 101, 102, 1, 2, *range(105, 132)]
        assert is_clean(at(repo, snapshot))


@by_kind
def test_what_was_discarded_is_forgotten(kind: Kind) -> None:
    repo = repository()
    session, store = begin(repo)
    zarr.open_group(store, mode="w")
    start = commit(session)
    for then in (PLAIN, *KINDS.values()):
        repo.reset_branch("main", start)
        session, store = begin(repo)
        kind.create(store)[:] = 1
        session.discard_changes()
        assert store.parts_of("a") is None
        assert not sync(store.exists("a/c/0"))
        # Without a look before it, by a store that knew the array as another one.
        parts = then.parts and then.parts[-2:]
        Kind(parts, split=then.split).create(store, shape=(16,), chunks=(4,))[:] = marked(0, 16)
        found = store.parts_of("a")
        assert (found and tuple(found.parts)) == parts
        snapshot = commit(session)
        assert values(at(repo, snapshot)) == list(range(16))
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
@pytest.mark.parametrize(
    "how", ["rebase onto theirs", "rebase onto ours", "discard", "merge", "merge twice", "commit", "amend"]
)
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
        case "merge" | "merge twice":
            # The second time, the session has changes.
            for seed in (6,) if how == "merge" else (4, 6):
                fork = elsewhere(session.fork())
                zarr.open_array(ps.PartsStore.from_session(fork), path="s")[:1024] = noise(seed)
                session.merge(elsewhere(fork))
                assert array[300] == noise(seed)[300]
        case "commit" | "amend":
            array[:1024] = noise(6)
            assert np.array_equal(array[:300], noise(6)[:300])
            (session.commit if how == "commit" else session.amend)("by a test")
    for position in range(0, 1024, 100):
        assert array[position] == expected[position]
    assert np.array_equal(array[:1024], expected)
