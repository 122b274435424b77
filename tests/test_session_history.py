"""Icechunk's guarantees, for arrays in parts: conflicts, forks, time travel, moves, references, and failed writes."""

import asyncio
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import (
    BasicConflictSolver,
    ChunkType,
    ConflictError,
    IcechunkError,
    RebaseFailedError,
    RepositoryConfig,
    Session,
    VersionSelection,
    VirtualChunkContainer,
    containers_credentials,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
)
from icechunk import Repository as Icechunk
from icechunk.credentials import LocalFileSystemAccess
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.engine.executor import run
from parts_store.errors import (
    ChunkSizeError,
    IncompleteChunkError,
    PartsConfigError,
    SessionError,
    StoreConfigError,
)
from tests.histories import (
    CHUNK,
    INTERLEAVINGS,
    KINDS,
    MARKS,
    OPERATIONS,
    PLAIN,
    SOLVERS,
    SPLIT,
    THREE,
    Kind,
    Result,
    Scene,
    Writer,
    commit,
    listing,
    look,
    marked,
    open_repository,
    pairs,
    part_keys,
    raw,
    raw_chunks,
    repository,
)

pytestmark = pytest.mark.slow

IN_THREE = KINDS["split, 3 parts"]
USE_OURS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
USE_THEIRS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
FILL = np.full(CHUNK, -1, "int32")
REBASE_FAILED = "RebaseFailedError, rebase-failed"
FIRST = INTERLEAVINGS[0]
# Those that say something about who wins; the others differ only in what they refuse.
FEW_SOLVERS = ("none", "UseOurs, delete", "UseTheirs, delete")
OVERWRITE_ARRAY, DELETE_ARRAY = "overwrite the array", "delete the array"

by_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
by_split = pytest.mark.parametrize("kind", SPLIT.values(), ids=SPLIT)


def begin(repo: Icechunk, branch: str = "main") -> tuple[Session, ps.PartsStore]:
    """A writable session, and the store on it."""
    session = repo.writable_session(branch)
    return session, ps.PartsStore.from_session(session)


def started(kind: Kind, repo: Icechunk) -> str:
    """The snapshot of a repository with an array `a` of which the last of four chunks is not there."""
    session, store = begin(repo)
    zarr.open_group(store, mode="w")
    kind.create(store)[: 3 * CHUNK] = marked(0, 3 * CHUNK)
    return commit(session)


def at(repo: Icechunk, snapshot: str) -> Session:
    return repo.readonly_session(snapshot_id=snapshot)


def values(session: Session, name: str = "a") -> list[int]:
    found: Any = look(session, name)[:]
    numbers: list[int] = found.tolist()
    return numbers


def is_tidy(session: Session) -> bool:
    return ps.PartsStore.from_session(session).verify().is_tidy


# --- conflicts ------------------------------------------------------------------------------------------------------


class Stage:
    """A scene for each kind, and for an array without parts, to which the others are held."""

    def __init__(self, files: Path) -> None:
        self.files = files
        self.scenes: dict[Kind, Scene] = {}
        self.expected: dict[tuple[str, ...], Result] = {}

    def scene(self, kind: Kind) -> Scene:
        if kind not in self.scenes:
            self.scenes[kind] = Scene(kind, repository(files=self.files), self.files)
        return self.scenes[kind]

    def require_as_plain(self, kind: Kind, first: str, second: str, solver: str, interleaving: str) -> None:
        case = (first, second, solver, interleaving)
        if case not in self.expected:
            self.expected[case] = self.scene(PLAIN).play(first, second, SOLVERS[solver], interleaving)
        plain = self.expected[case]
        found = self.scene(kind).play(first, second, SOLVERS[solver], interleaving)
        before, last = (first, second) if interleaving.endswith("cB") else (second, first)
        is_below = before != DELETE_ARRAY and last == OVERWRITE_ARRAY
        if kind.split and is_below and plain.ends[1] == "committed":
            # Icechunk puts no new nodes below what is an array in the commit before: nothing is lost, but refused.
            assert found.ends == ("committed", REBASE_FAILED), case
            return
        assert found == plain, case


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("files"))


def test_conflicts_within_a_chunk_end_as_without_parts_and_never_in_a_mixture(stage: Stage) -> None:
    some = ("overwrite a chunk", "write a part of a chunk", "delete a chunk", "refer to a file", "delete the array")
    for (first, second), solver in itertools.product(pairs(some), FEW_SOLVERS):
        stage.require_as_plain(IN_THREE, first, second, solver, FIRST)
    assert stage.scene(IN_THREE).cases >= 75


@pytest.mark.slow
@by_kind
def test_every_two_operations_end_as_without_parts_and_never_in_a_mixture(stage: Stage, kind: Kind) -> None:
    """Every two operations by every solver, and, since there are more solvers, in every interleaving too."""
    before = stage.scene(kind).cases
    # A chunk of two parts is one of three with less to go wrong, and one that is kept whole cannot be mixed.
    solvers = tuple(SOLVERS) if kind == IN_THREE else FEW_SOLVERS
    for number, (first, second) in enumerate(pairs(list(OPERATIONS))):
        for solver in solvers:
            interleaving = INTERLEAVINGS[(number + list(SOLVERS).index(solver)) % len(INTERLEAVINGS)]
            stage.require_as_plain(kind, first, second, solver, interleaving)
    assert stage.scene(kind).cases - before == len(OPERATIONS) ** 2 * len(solvers)


@by_split
def test_a_session_that_overwrote_a_split_array_cannot_be_rebased_and_says_so(kind: Kind) -> None:
    repo = repository()
    started(kind, repo)
    session, store = begin(repo)
    kind.create(store, overwrite=True)[:] = marked(1000, 32)
    other, other_store = begin(repo)
    zarr.create_array(other_store, name="unrelated", shape=(1,), dtype="int8")
    commit(other)
    with pytest.raises(RebaseFailedError):
        session.commit("late", rebase_with=USE_OURS)
    assert values(repo.readonly_session("main"))[: 3 * CHUNK] == list(range(24))
    again, store = begin(repo)
    kind.create(store, overwrite=True)[:] = marked(1000, 32)
    commit(again)
    assert values(repo.readonly_session("main")) == marked(1000, 32).tolist()


@by_kind
def test_two_who_create_the_same_array_conflict(kind: Kind) -> None:
    repo = repository()
    started(kind, repo)
    (one, one_store), (other, other_store) = begin(repo), begin(repo)
    kind.create(one_store, "n")[:] = 1
    kind.create(other_store, "n")[:] = 2
    commit(one)
    with pytest.raises(RebaseFailedError):
        other.commit("late", rebase_with=USE_OURS)
    assert values(repo.readonly_session("main"), "n") == [1] * 32


@by_split
def test_a_failed_write_that_is_committed_does_not_mix_with_another_session(kind: Kind) -> None:
    """For a chunk that is there and one that is not, a failure at each call, each order of commits, and each solver."""
    repo = repository()
    start = started(kind, repo)
    cases = 0
    for number, solver, is_first in itertools.product((0, 3), (USE_OURS, USE_THEIRS), (True, False)):
        for failing in itertools.count():
            repo.reset_branch("main", start)
            (failed, failed_store), (other, other_store) = begin(repo), begin(repo)
            if not fail_at(failed_store, failing, partial(_write, number=number, mark=1000)):
                break
            _write(other_store, number, 2000)
            states = {raw_chunks(each, kind).get(number) for each in (at(repo, start), failed, other)}
            order = (failed, other) if is_first else (other, failed)
            for session in order:
                if session.has_uncommitted_changes:
                    _commit_as_far_as_possible(session, solver)
            stored = raw_chunks(repo.readonly_session("main"), kind).get(number)
            _require_one_writers(repo.readonly_session("main"), number, stored, states)
            cases += 1
    assert cases >= 24


def _write(store: ps.PartsStore, number: int, mark: int) -> None:
    zarr.open_array(store, path="a")[number * CHUNK : (number + 1) * CHUNK] = marked(mark)


def _commit_as_far_as_possible(session: Session, solver: BasicConflictSolver) -> None:
    try:
        session.commit("by a test", rebase_with=solver)
    except IcechunkError as error:
        # A solver may leave nothing of a session.
        if error.kind != "no-changes-to-commit":
            raise


def _require_one_writers(
    session: Session, number: int, stored: tuple[bytes | None, ...] | None, states: set[Any]
) -> None:
    """A chunk is absent, incomplete, or that of one writer."""
    span = slice(number * CHUNK, (number + 1) * CHUNK)
    try:
        found: Any = look(session)[span]
    except IncompleteChunkError:
        return
    if (found == FILL).all():
        return
    assert stored in states, stored
    assert found.tobytes() == b"".join(part or b"" for part in stored or ())


# --- forks ----------------------------------------------------------------------------------------------------------


def elsewhere[T](value: T) -> T:
    """The same in another process, as far as it can tell."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


@pytest.fixture
def repo(tmp_path: Path) -> Icechunk:
    """A repository on disk, whose sessions can be sent to other processes."""
    return open_repository(local_filesystem_storage(str(tmp_path / "repo")))


@by_kind
def test_forks_that_write_different_chunks_all_count(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session = repo.writable_session("main")
    forks = []
    for number in range(4):
        store = elsewhere(ps.PartsStore.from_session(elsewhere(session.fork())))
        _write(store, number, 1000 * (number + 1))
        forks.append(elsewhere(store.session))
    session.merge(*forks)
    expected = np.concatenate([marked(1000 * (number + 1)) for number in range(4)]).tolist()
    assert values(session) == expected
    snapshot = commit(session)
    assert values(at(repo, snapshot)) == expected
    assert is_tidy(at(repo, snapshot))


@by_kind
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_forks_that_write_one_chunk_the_last_merged_counts_whole(
    kind: Kind, order: tuple[int, ...], repo: Icechunk
) -> None:
    started(kind, repo)
    session = repo.writable_session("main")
    forks = [elsewhere(session.fork()) for _ in range(3)]
    stores = [ps.PartsStore.from_session(fork) for fork in forks]
    _write(stores[0], 0, 1000)
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
    assert is_tidy(at(repo, snapshot))


@pytest.mark.slow
@by_split
def test_every_two_operations_in_forks_end_as_without_parts(kind: Kind, tmp_path: Path) -> None:
    scenes = [Scene(each, repository(files=tmp_path), tmp_path) for each in (PLAIN, kind)]
    for first, second in pairs(list(OPERATIONS)):
        plain, found = [_merged(scene, first, second) for scene in scenes]
        assert found == plain, (first, second)


def _merged(scene: Scene, first: str, second: str) -> object:
    """What becomes of two forks, merged one after the other."""
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
    _write(forked, 0, 1000)
    kind.create(forked, "b")[:] = 7
    session.merge(elsewhere(fork))
    assert np.array_equal(array[:CHUNK], marked(1000))
    assert zarr.open_array(store, path="b", mode="r")[5] == 7
    commit(session)
    assert np.array_equal(array[:CHUNK], marked(1000))


@by_kind
def test_a_store_that_is_open_sees_an_array_that_a_fork_overwrote_as_another_kind(kind: Kind, repo: Icechunk) -> None:
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
        assert is_tidy(at(repo, snapshot))


# --- shards: the cached index follows the snapshot ------------------------------------------------------------------

SHARDED = (ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX))


def create_sharded(store: ps.PartsStore, *, split: bool, **more: Any) -> zarr.Array[Any]:
    """Two shards of four inner chunks each, compressed, so that where they are depends on what is in them."""
    arguments: dict[str, Any] = {"shape": (2048,), "chunks": (256,), "shards": (1024,), "dtype": "int32"} | more
    return ps.create_array(store, "s", parts=SHARDED, split=split, fill_value=-1, **arguments)


def noise(seed: int, count: int = 1024) -> Any:
    """Values that take more or less room when compressed, by the seed."""
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


# --- time travel ----------------------------------------------------------------------------------------------------

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
    """The snapshots of an array that was overwritten four times, each time as another one."""
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
            assert store.verify().is_tidy


def test_a_difference_shows_the_chunks_of_every_part(repo: Icechunk) -> None:
    before = started(IN_THREE, repo)
    session, store = begin(repo)
    _write(store, 1, 1000)
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
        _write(store, number, 1000 * (number + 1))
        if number == 2:
            zarr.open_array(store, path="a").resize((40,))
        commit(session)
    assert values(repo.readonly_session("main")) == [*range(24), *FILL]
    for number in range(3):
        expected = [*range(24), *FILL, *(FILL if number == 2 else [])]
        expected[number * CHUNK : (number + 1) * CHUNK] = marked(1000 * (number + 1)).tolist()
        session = repo.readonly_session(f"branch {number}")
        assert values(session) == expected
        assert is_tidy(session)


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
        assert is_tidy(session)
        has_nodes = any(key.startswith("a/__parts__") for key in listing(session))
        assert has_nodes == (kind.split and snapshot != snapshots[-1])


# --- moves ----------------------------------------------------------------------------------------------------------


@by_kind
@pytest.mark.parametrize(
    ("source", "target", "array"),
    [("/g/a", "/g/renamed", "g/renamed"), ("/g/a", "/h/a", "h/a"), ("/g", "/k", "k/a"), ("/g", "/h/deep", "h/deep/a")],
)
def test_an_array_is_moved_with_its_parts(kind: Kind, source: str, target: str, array: str, repo: Icechunk) -> None:
    session, store = begin(repo)
    for name in ("", "g", "h"):
        zarr.open_group(store, path=name, mode="w")
    kind.create(store, "g/a")[: 3 * CHUNK] = marked(0, 3 * CHUNK)
    before = commit(session)
    repo.create_tag("before", before)
    moving = repo.rearrange_session("main")
    moving.move(source, target)
    commit(moving)
    session, store = begin(repo)
    moved = zarr.open_array(store, path=array)
    assert np.array_equal(moved[:], [*range(24), *FILL])
    moved[CHUNK + 1 : CHUNK + 3] = [77, 78]
    moved[3 * CHUNK :] = marked(500)
    moved.resize((40,))
    after = commit(session)
    expected = [*range(9), 77, 78, *range(11, 24), *marked(500).tolist(), *FILL]
    assert values(at(repo, after), array) == expected
    assert is_tidy(at(repo, after))
    assert values(repo.readonly_session(tag="before"), "g/a") == [*range(24), *FILL]
    assert not any(key.startswith("g/a/") for key in listing(at(repo, after)))
    # The old name is free, for an array of another kind as well.
    session, store = begin(repo)
    zarr.open_group(store, path="g", mode="a")
    PLAIN.create(store, "g/a")[:] = 3
    again = commit(session)
    assert values(at(repo, again), "g/a") == [3] * 32
    assert values(at(repo, again), array) == expected


@pytest.mark.slow
@by_split
def test_a_move_beside_every_operation_ends_as_without_parts(kind: Kind, tmp_path: Path) -> None:
    scenes = [Scene(each, repository(files=tmp_path), tmp_path) for each in (PLAIN, kind)]
    for operation, solver, is_first in itertools.product(OPERATIONS, FEW_SOLVERS, (True, False)):
        plain, found = [_moved_beside(scene, operation, solver, is_first) for scene in scenes]
        assert found == plain, (operation, solver, is_first)


def _moved_beside(scene: Scene, operation: str, solver: str, is_first: bool) -> object:
    """What becomes of a move of the array, and of something that is done to it at its old place."""
    scene.repo.reset_branch("main", scene.start)
    moving, session = scene.repo.rearrange_session("main"), scene.repo.writable_session("main")
    moving.move("/a", "/b")
    OPERATIONS[operation](Writer(scene.kind, session, scene.kind.store(session), MARKS["A"], scene.urls["A"]))
    ends: list[object] = []
    for each in (moving, session) if is_first else (session, moving):
        try:
            each.commit("by a test", rebase_with=SOLVERS[solver] if ends else None)
            ends.append("committed")
        except IcechunkError as error:
            ends.append(error.kind)
    done = scene.repo.readonly_session("main")
    assert is_tidy(done)
    return ends, {name: values(done, name) for name in ("a", "b") if raw(done, f"{name}/zarr.json") is not None}


def test_a_store_that_only_moves_shows_the_moved_array_at_once(repo: Icechunk) -> None:
    started(IN_THREE, repo)
    moving = repo.rearrange_session("main")
    store = ps.PartsStore.from_session(moving)
    assert zarr.open_array(store, path="a", mode="r")[3] == 3
    moving.move("/a", "/b")
    assert np.array_equal(zarr.open_array(store, path="b", mode="r")[: 3 * CHUNK], range(24))
    with pytest.raises(FileNotFoundError):
        zarr.open_array(store, path="a", mode="r")


def test_two_arrays_that_change_places_keep_their_own_parts(repo: Icechunk) -> None:
    session, store = begin(repo)
    IN_THREE.create(store, "a")[:] = 1
    KINDS["split, 2 parts"].create(store, "b")[:] = 2
    commit(session)
    moving = repo.rearrange_session("main")
    for source, target in (("/a", "/c"), ("/b", "/a"), ("/c", "/b")):
        moving.move(source, target)
    snapshot = commit(moving)
    assert (set(values(at(repo, snapshot), "a")), set(values(at(repo, snapshot), "b"))) == ({2}, {1})
    assert is_tidy(at(repo, snapshot))


@by_kind
def test_chunks_are_shifted_if_every_node_of_their_parts_is(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session = repo.writable_session("main")
    # Icechunk does not know that these belong together.
    for key in part_keys(kind, 0):
        session.shift_array(f"/{key.removesuffix('/c/0')}", [1])
    snapshot = commit(session)
    assert values(at(repo, snapshot)) == [*FILL, *range(24)]
    assert is_tidy(at(repo, snapshot))


# --- expiry, amending, discarding, rebasing -------------------------------------------------------------------------


def test_garbage_collection_keeps_every_part_that_can_be_reached_and_no_other(tmp_path: Path) -> None:
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
    _write(store, 0, 4000)
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
        assert is_tidy(session)


@by_kind
def test_an_amended_commit_has_the_chunks_of_both(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session, store = begin(repo)
    _write(store, 0, 1000)
    first = commit(session)
    session, store = begin(repo)
    _write(store, 1, 2000)
    sync(store.delete("a/c/2"))
    amended = session.amend("amended")
    expected = [*marked(1000).tolist(), *marked(2000).tolist(), *FILL, *FILL]
    assert values(repo.readonly_session("main")) == expected
    assert zarr.open_array(store, path="a", mode="r")[CHUNK] == 2000
    assert first not in [each.id for each in repo.ancestry(branch="main")]
    assert is_tidy(at(repo, amended))


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
    assert is_tidy(at(repo, snapshot))


@by_split
def test_a_failed_write_that_is_discarded_leaves_the_chunk_as_it_was(kind: Kind) -> None:
    repo = repository()
    started(kind, repo)
    for failing in itertools.count():
        session, store = begin(repo)
        if not fail_at(store, failing, partial(_write, number=0, mark=1000)):
            break
        session.discard_changes()
        assert np.array_equal(zarr.open_array(store, path="a")[:CHUNK], marked(0))
        _write(store, 1, 2000)
        assert np.array_equal(zarr.open_array(store, path="a")[: 2 * CHUNK], [*marked(0), *marked(2000)])
    assert failing >= 3


@by_kind
def test_an_open_store_follows_a_rebase_to_an_array_that_was_overwritten(kind: Kind, repo: Icechunk) -> None:
    """The one who rebases had changed something else, and knew the array as it was."""
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
        assert is_tidy(at(repo, snapshot))
        session, store = begin(repo)
        kind.create(store, overwrite=True)[: 3 * CHUNK] = marked(0, 3 * CHUNK)
        commit(session)


# --- references -----------------------------------------------------------------------------------------------------


class Referring:
    """A repository, and a file in which the main part of a chunk is, after some bytes of something else."""

    def __init__(self, folder: Path, kind: Kind = IN_THREE, *, start: int = 1000) -> None:
        self.file = folder / "some file.h5"
        self.repo = repository(files=folder)
        self.kind = kind
        self.data = marked(start).tobytes()
        sizes = [part.size if isinstance(part.size, int) else 0 for part in kind.parts or ()]
        self.before, self.after = sizes[0], sizes[-1]
        self.main = self.data[self.before : len(self.data) - self.after]
        self.rewrite(b"\x89HDF\r\n\x1a\n" + self.main + b"something after it", age=100)
        started(kind, self.repo)

    def rewrite(self, content: bytes, *, age: float) -> None:
        """Let the file be another one, written so many seconds ago."""
        self.file.write_bytes(content)
        modified = datetime.now(UTC).timestamp() - age
        os.utime(self.file, (modified, modified))

    def reference(self, **more: Any) -> ps.Reference:
        arguments: dict[str, Any] = {"location": f"file://{self.file}", "offset": 8, "length": len(self.main)}
        return ps.Reference(**arguments | more)

    def parts(self, **more: Any) -> list[bytes | ps.Reference]:
        """The chunk, with its main part in the file."""
        parts: dict[str, bytes | ps.Reference] = {".header": self.data[:8], ".index": self.data[-8:]}
        parts[""] = self.reference(**more)
        return [parts[part.key_suffix] for part in self.kind.parts or ()]

    def write(self, number: int = 0, **more: Any) -> str:
        session, store = begin(self.repo)
        store.set_parts(f"a/c/{number}", self.parts(**more))
        return commit(session)


@by_split
@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
def test_a_chunk_with_a_referred_part_reads_as_any_other(kind: Kind, number: int, tmp_path: Path) -> None:
    given = Referring(tmp_path, kind)
    session = at(given.repo, given.write(number))
    assert values(session)[number * CHUNK :][:CHUNK] == marked(1000).tolist()
    assert session.chunk_type("/a", [number]) == ChunkType.virtual
    store = ps.PartsStore.from_session(session)
    for start, stop in itertools.combinations(range(len(given.data) + 1), 2):
        found = sync(store.get(f"a/c/{number}", default_buffer_prototype(), RangeByteRequest(start, stop)))
        assert found is not None
        assert found.to_bytes() == given.data[start:stop]
    assert store.verify().is_tidy


def test_every_part_may_be_a_reference(tmp_path: Path) -> None:
    given = Referring(tmp_path)
    given.rewrite(given.data, age=100)
    session, store = begin(given.repo)
    spans = [(0, 8), (8, 16), (24, 8)]
    store.set_parts("a/c/3", [given.reference(offset=offset, length=length) for offset, length in spans])
    snapshot = commit(session)
    assert values(at(given.repo, snapshot)) == [*range(24), *marked(1000).tolist()]
    given.file.unlink()
    with pytest.raises(SessionError, match="not found"):
        look(at(given.repo, snapshot))[3 * CHUNK]


def test_a_location_may_name_its_container(tmp_path: Path) -> None:
    prefix, data = f"file://{tmp_path}/", marked(1000).tobytes()
    (tmp_path / "data").write_bytes(data)
    config = RepositoryConfig()
    local = local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local, name="mine"))
    allowed = containers_credentials({prefix: LocalFileSystemAccess})
    repo = Icechunk.create(in_memory_storage(), config=config, authorize_virtual_chunk_access=allowed)
    started(IN_THREE, repo)
    session, store = begin(repo)
    store.set_parts("a/c/0", [data[:8], ps.Reference("vcc://mine/data", 8, 16), data[-8:]])
    assert values(at(repo, commit(session)))[:CHUNK] == marked(1000).tolist()
    session, store = begin(repo)
    with pytest.raises(SessionError, match="container"):
        store.set_parts("a/c/0", [data[:8], ps.Reference("vcc://mined/data", 8, 16), data[-8:]])
    assert not session.has_uncommitted_changes


@by_split
def test_a_partial_write_over_a_reference_makes_it_a_chunk_of_its_own(kind: Kind, tmp_path: Path) -> None:
    given = Referring(tmp_path, kind)
    before = given.write()
    session, store = begin(given.repo)
    zarr.open_array(store, path="a")[1:7:2] = [5, 6, 7]
    snapshot = commit(session)
    given.file.unlink()
    expected = marked(1000)
    expected[1:7:2] = [5, 6, 7]
    assert values(at(given.repo, snapshot))[:CHUNK] == expected.tolist()
    assert at(given.repo, snapshot).chunk_type("/a", [0]) != ChunkType.virtual
    with pytest.raises(SessionError, match="not found"):
        values(at(given.repo, before))


DAMAGES: dict[str, Callable[[Referring], None]] = {
    "changed": lambda given: given.rewrite(given.file.read_bytes()[::-1], age=-100),
    "longer": lambda given: given.rewrite(bytes(1000), age=-100),
    "shorter": lambda given: given.rewrite(given.file.read_bytes()[:12], age=-100),
    "shorter, at the same time": lambda given: given.rewrite(given.file.read_bytes()[:12], age=1000),
    "empty": lambda given: given.rewrite(b"", age=1000),
    "deleted": lambda given: given.file.unlink(),
}
CHECKSUMS: dict[str, Callable[[Referring], str | datetime | None]] = {
    "none": lambda given: None,
    "time": lambda given: datetime.fromtimestamp(given.file.stat().st_mtime, UTC),
    # object_store puts the ETag of a local file into quotes, of which Icechunk takes one pair away.
    "etag": lambda given: f'""{_etag(given.file)}""',
}


def _etag(file: Path) -> str:
    found = file.stat()
    return f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_changed_is_an_error_and_never_values(damage: str, checksum: str, tmp_path: Path) -> None:
    given = Referring(tmp_path)
    snapshot = given.write(checksum=CHECKSUMS[checksum](given))
    assert values(at(given.repo, snapshot))[:CHUNK] == marked(1000).tolist()
    DAMAGES[damage](given)
    array = look(at(given.repo, snapshot))
    for span in (slice(0, CHUNK), slice(4, 5), slice(0, 32)):
        with pytest.raises(SessionError, match=r"checksum|not found|range"):
            array[span]
    # The others are not concerned, and a new write heals it.
    assert np.array_equal(array[CHUNK : 3 * CHUNK], range(8, 24))
    session, store = begin(given.repo)
    with pytest.raises(SessionError):
        zarr.open_array(store, path="a")[1:3] = 1
    _write(store, 0, 2000)
    assert values(at(given.repo, commit(session)))[:CHUNK] == marked(2000).tolist()


@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
@pytest.mark.parametrize(
    "location", ["s3://bucket/file", "file:///somewhere/else", "file://{folder}x/file", "vcc://no/f"]
)
def test_a_location_that_the_repository_does_not_know_is_refused_before_anything_is_written(
    location: str, number: int, tmp_path: Path
) -> None:
    given = Referring(tmp_path)
    session, store = begin(given.repo)
    before = listing(session), raw_chunks(session, given.kind)
    with pytest.raises(SessionError, match="container"):
        store.set_parts(f"a/c/{number}", given.parts(location=location.format(folder=tmp_path)))
    assert (listing(session), raw_chunks(session, given.kind)) == before
    assert not session.has_uncommitted_changes
    assert np.array_equal(zarr.open_array(store, path="a")[:], [*range(24), *FILL])


def test_a_reader_without_authorisation_gets_an_error_and_no_values(tmp_path: Path) -> None:
    files, storage = tmp_path / "files", str(tmp_path / "repo")
    files.mkdir()
    (files / "data").write_bytes(marked(1000).tobytes())
    repo = open_repository(local_filesystem_storage(storage), files=files)
    repo.save_config()
    started(IN_THREE, repo)
    session, store = begin(repo)
    data = marked(1000).tobytes()
    store.set_parts("a/c/0", [data[:8], ps.Reference(f"file://{files / 'data'}", 8, 16), data[-8:]])
    commit(session)
    assert values(repo.readonly_session("main"))[:CHUNK] == marked(1000).tolist()
    unauthorised = Icechunk.open(local_filesystem_storage(storage))
    array = look(unauthorised.readonly_session("main"))
    for span in (slice(0, CHUNK), slice(3, 4)):
        with pytest.raises(SessionError, match=r"authoriz|credential"):
            array[span]
    assert np.array_equal(array[CHUNK : 3 * CHUNK], range(8, 24))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"offset": -1}, StoreConfigError),
        ({"offset": 1.5}, StoreConfigError),
        ({"length": 0}, StoreConfigError),
        ({"length": True}, StoreConfigError),
        ({"checksum": datetime(2026, 1, 1)}, StoreConfigError),
        ({"checksum": 5}, StoreConfigError),
        ({"location": "/a/path"}, StoreConfigError),
        ({"location": b"file:///a"}, StoreConfigError),
    ],
)
def test_a_reference_that_cannot_be_is_refused(wrong: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        Referring(tmp_path).reference(**wrong)


@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
def test_parts_of_a_wrong_size_or_number_are_refused_before_anything_is_written(number: int, tmp_path: Path) -> None:
    given = Referring(tmp_path)
    header, main, index = given.parts()
    session, store = begin(given.repo)
    before = listing(session), raw_chunks(session, given.kind)
    cases: list[tuple[list[Any], type[Exception]]] = [
        ([b"short", main, index], ChunkSizeError),
        ([header, main, b""], ChunkSizeError),
        ([given.reference(length=9), main, index], ChunkSizeError),
        ([header, main], PartsConfigError),
        ([header, main, index, b""], PartsConfigError),
    ]
    for parts, error in cases:
        with pytest.raises(error):
            store.set_parts(f"a/c/{number}", parts)
    with pytest.raises(SessionError, match="split"):
        store.set_parts("b/c/0", [header, main, index])
    assert (listing(session), raw_chunks(session, given.kind)) == before
    assert not session.has_uncommitted_changes


def test_a_chunk_outside_the_array_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    given = Referring(tmp_path)
    session, store = begin(given.repo)
    before = listing(session), raw_chunks(session, given.kind)
    with pytest.raises(SessionError):
        store.set_parts("a/c/9", given.parts())
    assert (listing(session), raw_chunks(session, given.kind)) == before


# --- inline chunks --------------------------------------------------------------------------------------------------


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
    assert is_tidy(session)


# --- failed writes --------------------------------------------------------------------------------------------------


INJECTED = "injected"


class InjectedError(IcechunkError):
    """A fault that no real component can be made to show: one call of many fails."""


def fail_at(store: ps.PartsStore, failing: int, write: Callable[[ps.PartsStore], object]) -> bool:
    """Let the `failing`-th change that a write makes in a session fail; whether it made so many."""
    backend: Any = store._backend
    calls = itertools.count()
    inner = backend.icechunk

    class Failing:
        def __getattr__(self, name: str) -> Any:
            method = getattr(inner, name)
            if name not in ("set", "delete", "set_virtual_ref_async"):
                return method

            async def call(*arguments: Any, **named: Any) -> Any:
                if next(calls) == failing:
                    raise InjectedError(INJECTED)
                return await method(*arguments, **named)

            return call

    object.__setattr__(backend, "icechunk", Failing())
    try:
        write(store)
    except SessionError as error:
        # zarr takes its cause away from some.
        return error.problem == INJECTED
    finally:
        object.__setattr__(backend, "icechunk", inner)
    return False


def writes_of(number: int) -> dict[str, tuple[Callable[[ps.PartsStore], object], list[int]]]:
    """Ways to write a chunk, each with what it then holds."""
    span = slice(number * CHUNK, (number + 1) * CHUNK)
    partly = np.arange(number * CHUNK, (number + 1) * CHUNK) if number < 3 else FILL.copy()
    partly[::2] = marked(1000)[::2]
    data = marked(1000).tobytes()

    def write_partly(store: ps.PartsStore) -> None:
        zarr.open_array(store, path="a")[span.start : span.stop : 2] = marked(1000)[::2]

    return {
        "whole": (lambda store: _write(store, number, 1000), marked(1000).tolist()),
        "partly": (write_partly, partly.tolist()),
        "by parts": (
            lambda store: (
                store.set_parts(f"a/c/{number}", [data[:8], data[8:-8], data[-8:]][-len(_parts(store)) :])
                if len(_parts(store)) == 3
                else store.set_parts(f"a/c/{number}", [data[:-8], data[-8:]])
            ),
            marked(1000).tolist(),
        ),
        "deleted": (lambda store: sync(store.delete(f"a/c/{number}")), FILL.tolist()),
    }


def _parts(store: ps.PartsStore) -> tuple[ps.Part, ...]:
    found = store.parts_of("a")
    assert found is not None
    return tuple(found.parts)


@by_split
@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
@pytest.mark.parametrize("how", ["whole", "partly", "by parts", "deleted"])
def test_a_write_that_fails_at_any_call_and_is_committed_leaves_no_mixture(kind: Kind, number: int, how: str) -> None:
    write, new = writes_of(number)[how]
    repo = repository()
    start = started(kind, repo)
    old = values(at(repo, start))[number * CHUNK :][:CHUNK]
    for failing in itertools.count():
        repo.reset_branch("main", start)
        session, store = begin(repo)
        if not fail_at(store, failing, write):
            break
        _require_old_or_new(session, store, number, old, new)
        session.commit("nevertheless", allow_empty=True)
        done = repo.readonly_session("main")
        _require_old_or_new(done, ps.PartsStore.from_session(done), number, old, new)
        _require_healing(repo, number)
    assert failing >= (1 if how == "deleted" else 2)


def _require_old_or_new(session: Session, store: ps.PartsStore, number: int, old: list[int], new: list[int]) -> None:
    """The chunk is what it was or what it should be, or says that it is incomplete; and so is every range of it."""
    array = zarr.open_array(store, path="a", mode="r")
    try:
        found: Any = array[number * CHUNK : (number + 1) * CHUNK]
    except IncompleteChunkError:
        # In the main part, which does not need the others.
        with pytest.raises(IncompleteChunkError):
            array[number * CHUNK + 4]
        return
    assert found.tolist() in (old, new)


def _require_healing(repo: Icechunk, number: int) -> None:
    session, store = begin(repo)
    _write(store, number, 3000)
    done = at(repo, commit(session))
    assert values(done)[number * CHUNK :][:CHUNK] == marked(3000).tolist()
    assert is_tidy(done)


@by_split
@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
def test_a_write_that_is_cancelled_at_any_step_and_committed_leaves_no_mixture(kind: Kind, number: int) -> None:
    repo = repository()
    start = started(kind, repo)
    old = values(at(repo, start))[number * CHUNK :][:CHUNK]
    cancelled = 0
    for turns in itertools.count():
        repo.reset_branch("main", start)
        session, store = begin(repo)
        zarr.open_array(store, path="a")
        if not asyncio.run(_cancelled_after(turns, store, number)):
            break
        cancelled += 1
        _require_old_or_new(session, store, number, old, marked(1000).tolist())
        session.commit("nevertheless", allow_empty=True)
        done = repo.readonly_session("main")
        _require_old_or_new(done, ps.PartsStore.from_session(done), number, old, marked(1000).tolist())
        _require_healing(repo, number)
    assert cancelled >= 3


async def _cancelled_after(requests: int, store: ps.PartsStore, number: int) -> bool:
    """Write a chunk, and be cancelled while so many requests were begun; whether it made so many."""
    backend: Any = store._backend
    begun = itertools.count()

    class Counting:
        capabilities = backend.capabilities

        def lock(self, lock: Any) -> Any:
            return backend.lock(lock)

        async def perform(self, request: Any) -> Any:
            if next(begun) == requests:
                task.cancel()
                await asyncio.sleep(0)
            return await backend.perform(request)

    value = cpu.Buffer.from_bytes(marked(1000).tobytes())
    steps = store._operations.put(f"a/c/{number}", memoryview(value.to_bytes()), store._creation)
    counting: Any = Counting()
    task = asyncio.ensure_future(run(steps, counting, store.stats))
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@by_split
def test_a_failed_creation_or_resize_of_an_array_can_be_done_again(kind: Kind) -> None:
    repo = repository()
    start = started(kind, repo)
    for create in (True, False):
        for failing in itertools.count():
            repo.reset_branch("main", start)
            session, store = begin(repo)
            if not fail_at(store, failing, partial(_create_or_resize, kind=kind, create=create)):
                break
            session.commit("nevertheless", allow_empty=True)
            session, store = begin(repo)
            array = _create_or_resize(store, kind, create)
            array[:] = marked(500, array.shape[0])
            done = at(repo, commit(session))
            assert values(done, array.path) == marked(500, array.shape[0]).tolist()
            assert is_tidy(done)
        assert failing >= 2


def _create_or_resize(store: ps.PartsStore, kind: Kind, create: bool) -> zarr.Array[Any]:
    if create:
        return kind.create(store, "n", overwrite=True)
    array = zarr.open_array(store, path="a")
    array.resize((16,))
    array.resize((40,))
    return array


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Icechunk's warnings of conflicts, which are what is tested here, go nowhere."""
    from icechunk import set_logs_filter

    set_logs_filter("off")
    yield
    set_logs_filter(None)


def test_a_conflict_without_a_solver_is_an_error_of_icechunk(repo: Icechunk) -> None:
    started(IN_THREE, repo)
    (one, one_store), (other, other_store) = begin(repo), begin(repo)
    _write(one_store, 0, 1000)
    _write(other_store, 1, 2000)
    commit(one)
    with pytest.raises(ConflictError):
        commit(other)
    other.rebase(SOLVERS["detector"] or USE_OURS)
    commit(other)
    assert values(repo.readonly_session("main"))[: 2 * CHUNK] == [*marked(1000).tolist(), *marked(2000).tolist()]
