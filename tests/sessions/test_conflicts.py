"""Two sessions that change one array: they conflict like arrays without parts, and never mix their bytes."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from icechunk import BasicConflictSolver, IcechunkError, RebaseFailedError, Session

from parts_store.errors import IncompleteChunkError
from tests.effort import some
from tests.sessions.failing import fail_at
from tests.sessions.histories import (
    CHUNK,
    INTERLEAVINGS,
    KINDS,
    OPERATIONS,
    SOLVERS,
    Kind,
    commit,
    look,
    pairs,
    raw_chunks,
    repository,
)
from tests.sessions.stage import DELETE_ARRAY, OVERWRITE_ARRAY, Stage
from tests.sessions.steps import (
    FEW_SOLVERS,
    FILL,
    IN_THREE,
    USE_OURS,
    USE_THEIRS,
    at,
    begin,
    by_kind,
    by_split,
    started,
    values,
    write_chunk,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("files"), lambda files: repository(files=files))


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_two_operations_by_every_solver_end_as_without_parts(stage: Stage, solver: str) -> None:
    """Since there are more operations and solvers than interleavings, this is in every interleaving too."""
    names = pairs(list(OPERATIONS))
    if solver.endswith("fail on delete"):
        # Where no array is deleted, such a solver does what the solver without "fail" does.
        names = [pair for pair in names if {DELETE_ARRAY, OVERWRITE_ARRAY} & {*pair}]
    cases = [(*pair, solver) for pair in names]
    require_all_as_plain(stage, IN_THREE, some(cases, list(SOLVERS).index(solver)))


OTHERS = {name: kind for name, kind in KINDS.items() if kind != IN_THREE}


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
def test_every_two_operations_end_as_without_parts(stage: Stage, kind: Kind) -> None:
    """A chunk of two parts, or one that is kept whole, has less to go wrong: these kinds share the solvers."""
    solvers = itertools.cycle(FEW_SOLVERS)
    first = list(KINDS.values()).index(kind)
    for _ in range(first):
        next(solvers)
    require_all_as_plain(stage, kind, [(*pair, next(solvers)) for pair in some(pairs(list(OPERATIONS)), first)])


def require_all_as_plain(stage: Stage, kind: Kind, cases: Sequence[tuple[str, str, str]]) -> None:
    before = stage.scene(kind).cases
    for number, (first, second, solver) in enumerate(cases):
        interleaving = INTERLEAVINGS[(number + list(SOLVERS).index(solver)) % len(INTERLEAVINGS)]
        stage.require_as_plain(kind, first, second, solver, interleaving)
    assert stage.scene(kind).cases - before == len(cases) >= len(some(list(OPERATIONS)))


@by_kind
def test_two_sessions_that_create_the_same_array_conflict(kind: Kind) -> None:
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
def test_committed_failed_write_never_mixes_with_another_session(kind: Kind) -> None:
    """For a chunk that is there and one that is not, a failure at each call, each order of commits, and each solver."""
    repo = repository()
    start = started(kind, repo)
    cases = 0
    for number, solver, is_first in itertools.product((0, 3), (USE_OURS, USE_THEIRS), (True, False)):
        for failing in itertools.count():
            repo.reset_branch("main", start)
            (failed, failed_store), (other, other_store) = begin(repo), begin(repo)
            if not fail_at(failed_store, failing, partial(write_chunk, number=number, mark=1000)):
                break
            write_chunk(other_store, number, 2000)
            states = {raw_chunks(each, kind).get(number) for each in (at(repo, start), failed, other)}
            order = (failed, other) if is_first else (other, failed)
            for session in order:
                if session.has_uncommitted_changes:
                    _commit_as_far_as_possible(session, solver)
            stored = raw_chunks(repo.readonly_session("main"), kind).get(number)
            _require_one_writers(repo.readonly_session("main"), number, stored, states)
            cases += 1
    assert cases >= 24


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
    """Check that the chunk is absent, incomplete, or of one writer."""
    span = slice(number * CHUNK, (number + 1) * CHUNK)
    try:
        found: Any = look(session)[span]
    except IncompleteChunkError:
        return
    if (found == FILL).all():
        return
    assert stored in states, stored
    assert found.tobytes() == b"".join(part or b"" for part in stored or ())
