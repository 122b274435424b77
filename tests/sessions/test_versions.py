"""Old snapshots, branches and tags, and sessions that are amended, discarded or rebased."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import ChunkType, local_filesystem_storage
from icechunk import Repository as Icechunk

import parts_store as ps
from tests.sessions.histories import (
    CHUNK,
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
    IN_THREE,
    at,
    begin,
    by_kind,
    is_clean,
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
