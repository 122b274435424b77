"""Verifying and repairing all chunks below a prefix: one listing, then what it does not tell, in batches.

Decides what is looked at together, and how old something must be to be nobody's any more. Knows of the store only how
steps are carried out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from parts_store.engine.backend import Means
from parts_store.engine.stats import Progress
from parts_store.engine.steps import Entry, Found, Get, Head, List, Listed, Put, Steps, content, remove
from parts_store.errors import (
    ConcurrentWriteError,
    PartsStoreError,
    SessionError,
    StorageError,
    StoreConfigError,
    describe,
)
from parts_store.format import metadata
from parts_store.format.keys import (
    DOCUMENT,
    PROTOCOL_FOLDER,
    is_node_key,
    is_probe_key,
    is_protocol_key,
    join,
    parse_node_key,
    split,
)
from parts_store.format.metadata import ArrayRecord
from parts_store.maintenance import repair as repair_steps
from parts_store.maintenance.repair import Finding, Listing, Problem, RepairOptions, Survey
from parts_store.maintenance.report import Report
from parts_store.transactions.read_attempt import ReadSettings
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.writer import MAX_STALL

# How many chunks are looked at together: enough to keep a store busy.
_BATCH = 1000
# How many are put right at once.
_MENDERS = 16
# Less than this is refused, in seconds: a writer that stalls begins again with a new copy before its commit, and the
# request that is the commit may take ten minutes.
LEAST_AGE = MAX_STALL + 600.0
# How often the clock is looked at: another repair may take the object that it is read from for a leftover.
_MAX_LOOKS = 3


class Runner(Protocol):
    """What carries out steps; a worker process gets a copy of it."""

    def carry_out[T](self, steps: Steps[T]) -> T:
        """Carry out steps to their end."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is below a prefix: the arrays with parts, and what a listing shows of their chunks."""

    arrays: Mapping[str, ArrayRecord]
    survey: Survey
    # The paths of arrays that could not be looked at, and why.
    not_understood: tuple[tuple[str, str], ...]
    # The documents of nodes of parts whose array is gone or another.
    stray_nodes: tuple[str, ...] = ()
    # The paths of arrays that plain readers would misread, and are not told to refuse.
    unmarked: tuple[str, ...] = ()

    def report(self, findings: Sequence[Finding]) -> Report:
        """The report on all of it."""
        ordered = tuple(sorted(findings, key=lambda each: (each.chunk_key, each.problem.value)))
        survey = self.survey
        return Report(ordered, len(self.arrays), len(survey.chunks), survey.objects, self.not_understood)


def look(runner: Runner, prefix: str, *, in_session: bool = False) -> Scope:
    """One listing of everything below a prefix, and the documents of the arrays there: as they are now.

    A prefix may be inside an array: then what is beside its chunks takes a second listing.
    """
    folder = prefix.strip("/")
    if is_protocol_key(folder) or (in_session and is_node_key(folder)):
        raise StoreConfigError("prefix", "the path of a group, of an array, or of chunks", describe(prefix))
    entries = runner.carry_out(_list(folder))
    paths = {split(key)[0] for key in _documents(entries) if not (in_session and is_node_key(key))}
    above = folder.split("/")
    paths |= {"/".join(above[:count]) for count in range(len(above) + 1)}
    arrays, not_understood = runner.carry_out(_read_documents(sorted(paths), in_session=in_session))
    outer = [path for path in arrays if path != folder and folder.startswith(join(path, ""))]
    for path in outer:
        entries += runner.carry_out(_list(join(path, "" if in_session else PROTOCOL_FOLDER).rstrip("/")))
    strays = runner.carry_out(_stray_nodes(entries)) if in_session else ()
    nodes = tuple(key.removesuffix(DOCUMENT) for key in strays)
    found = repair_steps.survey([entry for entry in entries if not entry.key.startswith(nodes)], arrays)
    # What is beside chunks elsewhere in that array is not asked for, nor are these.
    beside = {at: of_folder for at, of_folder in found.strays.items() if at[0] not in outer}
    chunks = {key: each for key, each in found.chunks.items() if not outer or f"{key}/".startswith(f"{folder}/")}
    unmarked = tuple(path for path, record in arrays.items() if path not in outer and not record.is_safe_for_others)
    return Scope(arrays, replace(found, strays=beside, chunks=chunks), tuple(not_understood), strays, unmarked)


def _documents(entries: Sequence[Entry]) -> list[str]:
    return [entry.key for entry in entries if split(entry.key)[1] == DOCUMENT]


def _list(folder: str) -> Steps[tuple[Entry, ...]]:
    (outcome,) = yield (List(folder, "everything below"),)
    if not isinstance(outcome, Listed):
        raise TypeError(f"a listing was answered with {outcome}")
    return outcome.entries


def _stray_nodes(entries: Sequence[Entry]) -> Steps[tuple[str, ...]]:
    """The documents of nodes of parts that a session lists, and says of that they are not there."""
    documents = [key for key in _documents(entries) if is_node_key(key)]
    outcomes = (yield tuple(Head(key, "whose parts these are") for key in documents)) if documents else ()
    return tuple(key for key, outcome in zip(documents, outcomes, strict=True) if not isinstance(outcome, Found))


def _read_documents(
    paths: Iterable[str], *, in_session: bool
) -> Steps[tuple[dict[str, ArrayRecord], list[tuple[str, str]]]]:
    """The arrays with parts at these paths, and what is wrong with the documents that say nothing."""
    arrays: dict[str, ArrayRecord] = {}
    not_understood = []
    known = list(paths)
    outcomes = yield tuple(Get(join(path, DOCUMENT), None, "which parts the array has") for path in known)
    for path, outcome in zip(known, outcomes, strict=True):
        stored = content(outcome)
        parsed = None if stored is None else metadata.parse(stored)
        if stored is not None and parsed is None:
            not_understood.append((path, f"{join(path, DOCUMENT)!r} is no JSON object"))
        if stored is None or parsed is None or metadata.is_group(parsed):
            continue
        try:
            record = metadata.read_array(parsed, path, in_session=in_session) if metadata.is_array(parsed) else None
        except PartsStoreError as error:
            not_understood.append((path, str(error)))
            continue
        if record is not None:
            arrays[path] = record
        problem = metadata.why_not_opened(metadata.complete(parsed) if metadata.is_array(parsed) else parsed)
        if problem is not None:
            not_understood.append((path, problem))
    return arrays, not_understood


def verify(
    runner: Runner,
    scope: Scope,
    settings: ReadSettings,
    *,
    checksums: bool = False,
    must_understand: bool = True,
    client: Any = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """What is wrong with the chunks; a `client` of dask looks at them on its workers.

    With `must_understand`, also which arrays do not tell software that would misread them to refuse them.
    """
    batches = list(_batches(scope))
    total = len(scope.survey.chunks)
    done = 0
    findings: list[Finding] = []
    arguments = [(runner, listings, scope.arrays[path], settings, checksums) for path, listings in batches]
    results = _on_workers(client, arguments) if client is not None else (_check(*each) for each in arguments)
    for (_, listings), found in zip(batches, results, strict=True):
        findings += found
        done += len(listings)
        if progress is not None:
            progress(done, total)
    for key in scope.stray_nodes:
        place = parse_node_key(key)
        array = "" if place is None else place.array
        findings.append(Finding(Problem.STRAY_NODES, array, (key,), "the array of these parts is gone, or another"))
    for path in scope.unmarked if must_understand else ():
        detail = "software without concat-parts would misread the array, and its document does not tell it to refuse"
        findings.append(Finding(Problem.UNMARKED, path, (join(path, DOCUMENT),), detail))
    for (_, folder), entries in scope.survey.strays.items():
        keys = tuple(entry.key for entry in entries)
        detail = "beside a chunk of which nothing else is there"
        if is_probe_key(folder):
            detail = "the server was asked what it supports"
        findings.append(Finding(Problem.LEFTOVERS, folder, keys, detail))
    return findings


def _check(
    runner: Runner, listings: Sequence[Listing], record: ArrayRecord, settings: ReadSettings, checksums: bool
) -> list[Finding]:
    try:
        return runner.carry_out(repair_steps.check(listings, record, settings, with_bytes=checksums))
    except SessionError as error:
        # One of them, which is looked for: the others can be looked at nevertheless.
        if len(listings) == 1:
            chunk = listings[0].chunk
            return [Finding(Problem.UNREADABLE, chunk.chunk_key, (error.key,), error.problem)]
        half = len(listings) // 2
        halves = (listings[:half], listings[half:])
        return [finding for each in halves for finding in _check(runner, each, record, settings, checksums)]


def _on_workers(client: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[list[Finding]]:
    futures = client.map(_check, *zip(*arguments, strict=True), pure=False) if arguments else []
    for future in futures:
        yield future.result()


def _batches(scope: Scope) -> Iterator[tuple[str, list[Listing]]]:
    """The chunks of one array at a time, so many of them together."""
    of_arrays: dict[str, list[Listing]] = {}
    for listing in scope.survey.chunks.values():
        of_arrays.setdefault(listing.chunk.array, []).append(listing)
    for path, listings in of_arrays.items():
        for at in range(0, len(listings), _BATCH):
            yield path, listings[at : at + _BATCH]


def repair(
    runner: Runner,
    scope: Scope,
    findings: Sequence[Finding],
    rules: Rules,
    *,
    min_age: timedelta | float,
    options: RepairOptions,
    progress: Progress | None = None,
) -> list[Finding]:
    """The same findings, put right as far as they may be."""
    seconds = min_age.total_seconds() if isinstance(min_age, timedelta) else min_age
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise StoreConfigError("min_age", "a timedelta or seconds, not negative", describe(min_age))
    # A kernel's lock tells whether a writer lives, whatever its age; and nothing is younger than nothing, whatever the
    # clocks say: a local disk has two, some milliseconds apart.
    # In a session there is nobody else.
    knows_the_dead = rules.means is Means.LOCKS and rules.level is not Level.EXCLUSIVE
    needs_age = seconds > 0 and not knows_the_dead and rules.means is not Means.SESSION
    if needs_age and seconds < LEAST_AGE:
        expected = f"0, which says that nobody is writing, or at least {LEAST_AGE:.0f} s, since a writer may stall"
        raise StoreConfigError("min_age", expected, describe(min_age))
    is_work = any(options.are_about(each.problem) for each in findings)
    now = runner.carry_out(_clock(min(scope.arrays, default=""), rules)) if needs_age and is_work else None
    mender = _Mender(runner, scope, rules, options, now, seconds)
    of_chunks: dict[str, list[Finding]] = {}
    for finding in findings:
        of_chunks.setdefault(finding.chunk_key, []).append(finding)
    mended: list[Finding] = []
    with ThreadPoolExecutor(_MENDERS, thread_name_prefix="parts_store_repair") as menders:
        for of_chunk in menders.map(mender.mend_chunk, of_chunks.values()):
            mended += of_chunk
            if progress is not None:
                progress(len(mended), len(findings))
    return mended


def _clock(array: str, rules: Rules) -> Steps[datetime]:
    """The time by the store's own clock, from an object that is written for it."""
    folder = join(array, PROTOCOL_FOLDER)
    for _ in range(_MAX_LOOKS):
        key = join(folder, f"{rules.new_generation()}.clock")
        yield (Put(key, b"", None, None, "the store's clock"),)
        entries = yield from _list(folder)
        yield from remove((key,), "the store's clock")
        for entry in entries:
            if entry.key == key:
                return entry.modified
    raise ConcurrentWriteError(folder, "another repair removes what the store's clock is read from")


@dataclass(frozen=True, slots=True)
class _Mender:
    """Puts right what was found, of one chunk at a time."""

    runner: Runner
    scope: Scope
    rules: Rules
    options: RepairOptions
    # By the store's clock; None if ages do not matter.
    now: datetime | None
    min_age: float
    # The arrays of what is beside chunks that nothing else is there of, by the folder.
    arrays: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays.update({folder: array for array, folder in self.scope.survey.strays})

    def mend_chunk(self, findings: Sequence[Finding]) -> list[Finding]:
        """What was found of one chunk, one after the other: it is about the same objects."""
        mended: list[Finding] = []
        for finding in sorted(findings, key=lambda each: each.problem is Problem.LEFTOVERS):
            stays = any(each.problem.is_damage and not each.is_mended for each in mended)
            if finding.problem is Problem.LEFTOVERS and stays:
                # They may be all that there is of what is missing.
                mended.append(_explained(finding, "the chunk is damaged"))
            else:
                mended.append(self._mend(finding))
        return mended

    def _mend(self, finding: Finding) -> Finding:
        if not self.options.are_about(finding.problem):
            return finding
        try:
            if finding.problem is Problem.STRAY_NODES:
                self.runner.carry_out(remove(finding.keys, "stray nodes"))
                return replace(finding, is_mended=True)
            if finding.problem is Problem.UNMARKED:
                return self._mark(finding)
            listing = self.scope.survey.chunks.get(finding.chunk_key)
            if listing is None:
                return self._mend_stray(finding)
            is_beside = finding.problem in (Problem.LEFTOVERS, Problem.INTERRUPTED)
            if self._is_young([*listing.beside, *([] if is_beside else listing.parts.values())]):
                return _explained(finding, "younger than min_age")
            if finding.problem is Problem.ORPHANS and self.now is not None and not self.rules.can_collect:
                return _explained(finding, "somebody may write just now; min_age=0 says that nobody does")
            return self._mend_listed(listing, finding)
        except StorageError:
            # The others would fail as well.
            raise
        except PartsStoreError as error:
            # Somebody is at work there: the rest can be put right nevertheless.
            return _explained(finding, str(error))

    def _mark(self, finding: Finding) -> Finding:
        if self.runner.carry_out(repair_steps.mark(finding.chunk_key, self.rules)):
            return replace(finding, is_mended=True)
        return _explained(finding, "its document was changed meanwhile")

    def _mend_listed(self, listing: Listing, finding: Finding) -> Finding:
        record = self.scope.arrays[listing.chunk.array]
        mended = self.runner.carry_out(repair_steps.mend(listing, finding, record, self.rules, self.options))
        if mended.is_mended or mended.detail != finding.detail:
            return mended
        return _explained(mended, "not as it was when it was found, or still in use")

    def _mend_stray(self, finding: Finding) -> Finding:
        """What is beside a chunk of which nothing else is there."""
        array = self.arrays[finding.chunk_key]
        entries = self.scope.survey.strays[array, finding.chunk_key]
        if self._is_young(entries):
            return _explained(finding, "younger than min_age")
        for entry in entries if not is_probe_key(finding.chunk_key) else ():
            chunk = self.runner.carry_out(repair_steps.chunk_beside(entry, array, self.scope.arrays[array]))
            if chunk is not None and chunk.side_folder == finding.chunk_key:
                return self._mend_listed(Listing(chunk, beside=entries), finding)
        is_mended = self.runner.carry_out(repair_steps.discard(finding.chunk_key, finding.keys, self.rules))
        return replace(finding, is_mended=is_mended)

    def _is_young(self, entries: Sequence[Entry]) -> bool:
        if self.now is None:
            return False
        return any((self.now - entry.modified).total_seconds() < self.min_age for entry in entries)


def _explained(finding: Finding, why: str) -> Finding:
    """The same finding, and why it was left alone."""
    return replace(finding, detail=f"{finding.detail}; left alone: {why}")
