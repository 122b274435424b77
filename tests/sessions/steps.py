"""Steps that tests of sessions share: open, write, commit, and read what was committed."""

import pickle
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import BasicConflictSolver, Session, VersionSelection
from icechunk import Repository as Icechunk

import parts_store as ps
from tests.sessions.histories import CHUNK, KINDS, SPLIT, Kind, commit, look, marked

IN_THREE = KINDS["split, 3 parts"]
USE_OURS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
USE_THEIRS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
FILL = np.full(CHUNK, -1, "int32")
REBASE_FAILED = "RebaseFailedError, rebase-failed"
# The solvers that decide which session wins. The other solvers differ only in what they refuse.
FEW_SOLVERS = ("none", "UseOurs, delete", "UseTheirs, delete")
by_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
by_split = pytest.mark.parametrize("kind", SPLIT.values(), ids=SPLIT)


def begin(repo: Icechunk, branch: str = "main") -> tuple[Session, ps.PartsStore]:
    """Return a writable session, and a store on it."""
    session = repo.writable_session(branch)
    return session, ps.PartsStore.from_session(session)


def started(kind: Kind, repo: Icechunk) -> str:
    """Commit an array `a` of four chunks without the last chunk, and return the snapshot."""
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


def is_clean(session: Session) -> bool:
    return ps.PartsStore.from_session(session).verify().is_clean


def write_chunk(store: ps.PartsStore, number: int, mark: int) -> None:
    zarr.open_array(store, path="a")[number * CHUNK : (number + 1) * CHUNK] = marked(mark)


def elsewhere[T](value: T) -> T:
    """Return a copy by way of pickle, like in another process."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy
