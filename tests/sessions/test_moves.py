"""Arrays that are moved keep their parts."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import zarr
from icechunk import IcechunkError
from icechunk import Repository as Icechunk

import parts_store as ps
from tests.sessions.histories import (
    CHUNK,
    MARKS,
    OPERATIONS,
    PLAIN,
    SOLVERS,
    Kind,
    Scene,
    Writer,
    commit,
    listing,
    marked,
    part_keys,
    raw,
    repository,
)
from tests.sessions.steps import FEW_SOLVERS, FILL, IN_THREE, at, begin, by_kind, by_split, is_clean, started, values

pytestmark = pytest.mark.slow


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
    assert is_clean(at(repo, after))
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
    """Move the array beside an operation on its old path, and return the result."""
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
    assert is_clean(done)
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


@by_kind
def test_chunks_are_shifted_if_every_node_of_their_parts_is(kind: Kind, repo: Icechunk) -> None:
    started(kind, repo)
    session = repo.writable_session("main")
    # Icechunk does not know that these belong together.
    for key in part_keys(kind, 0):
        session.shift_array(f"/{key.removesuffix('/c/0')}", [1])
    snapshot = commit(session)
    assert values(at(repo, snapshot)) == [*FILL, *range(24)]
    assert is_clean(at(repo, snapshot))
