"""Verify and repair all chunks of a survey: in batches, on threads or other workers, with progress."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol, Self, cast

import zarr
from zarr.abc.store import RangeByteRequest

from parts_store.engine.concurrency import run_tasks_sync
from parts_store.engine.stats import Progress
from parts_store.engine.steps import Entry, Failed, Get, Put, Steps, Trial, get_all, remove
from parts_store.errors import (
    ConcurrentWriteError,
    LocalPathError,
    PartsStoreError,
    SessionError,
    StorageError,
    StoreConfigError,
    describe,
)
from parts_store.executors import ExecutorLike, open_workers
from parts_store.format.keys import (
    ARRAY_V2,
    DOCUMENT,
    PROTOCOL_FOLDER,
    Chunk,
    ancestors,
    is_probe_key,
    join,
    parse_node_key,
    split,
)
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts
from parts_store.maintenance.decoding import encoding_of, why_not_decoded
from parts_store.maintenance.diagnosis import diagnose_chunk, diagnose_chunks, leftovers_beside
from parts_store.maintenance.repair import (
    UNKNOWN_JOURNAL,
    RepairOptions,
    discard_leftovers,
    find_chunk_beside,
    mark_array,
    not_repaired,
    objects_of_writer,
    repair_chunk,
)
from parts_store.maintenance.report import Finding, Problem, Report
from parts_store.maintenance.survey import ListedChunk, Survey, list_entries, survey_prefix
from parts_store.progress import ProgressLike, report_progress
from parts_store.transactions.journaled import is_journal
from parts_store.transactions.locking import remove_unused_locks
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import ReadSettings
from parts_store.transactions.rules import Rules
from parts_store.transactions.staging import MAX_STALL

# Where older versions noted, in objects beside an array, which of its chunks they wrote together.
_BATCHES: Final = f"{PROTOCOL_FOLDER}/batches"
# How many chunks are checked together: enough for many requests at once.
_BATCH = 1000
# How many chunks a task decodes, and how many of them at once, because their values are in memory.
_DECODED_BATCH = 64
_MAX_DECODED = 4
# How many chunks are repaired at once.
_MAX_THREADS = 16
# A smaller `min_age`, in seconds, is refused. A writer that stalls stages a new copy before it commits, and the request
# that commits may take ten minutes.
LEAST_AGE = MAX_STALL + 600.0
_TOO_YOUNG: Final = "younger than min_age"
_CHANGED: Final = "it has changed since it was found, or is in use"
# How often the clock of the store is read: another repair may remove the object that it is read from.
_MAX_CLOCK_READS = 3


class MaintainedStore(Protocol):
    """A store that is verified or repaired; dask workers get a copy of it."""

    @property
    def protocol(self) -> ChunkProtocol:
        """The protocol that makes chunks atomic."""

    @property
    def read_settings(self) -> ReadSettings:
        """The way in which reads are merged and repeated."""

    @property
    def must_understand(self) -> bool:
        """Whether arrays have to tell software that would misread them to refuse them."""

    def carry_out[T](self, steps: Steps[T]) -> T:
        """Carry out steps, and return their result."""

    def for_workers(self) -> Self:
        """Return a store on the same objects that can be pickled for other processes, if its objects allow that."""

    def with_own_catalog(self) -> Self:
        """Return a store on the same objects that knows no arrays yet."""

    def chunks_of_files(self, path: str) -> Mapping[str, str]:
        """Return the files that a plain array of a session refers to, each with the key of one of its chunks."""

    def require_server(self, path: str, parts: ConcatParts) -> None:
        """Raise `ServerFeatureError` unless the server supports writing an array with these parts."""


# --- verify -------------------------------------------------------------------------------------------------------


def verify(
    store: MaintainedStore,
    prefix: str,
    *,
    checksums: bool,
    decode: bool = False,
    executor: ExecutorLike,
    progress: ProgressLike,
) -> Report:
    """Return a report on everything below a prefix. `PartsStore.verify` explains the parameters."""
    with report_progress(progress, "verify", "chunks") as update:
        survey = store.carry_out(survey_prefix(prefix, store.protocol))
        unmarked = survey.unmarked if store.must_understand else ()
        findings = _find_problems(store, survey, unmarked, checksums=checksums, executor=executor, progress=update)
    if decode:
        with report_progress(progress, "decode", "chunks") as update:
            found, others, wrong = _decode(store, survey, prefix.strip("/"), findings, executor, update)
        survey = replace(survey, not_understood=(*survey.not_understood, *wrong))
        return survey.report(findings + found, others)
    paths = survey.plain if store.protocol.has_part_nodes else ()
    referred = [files for path in paths if (files := store.chunks_of_files(path))]
    for files in referred if checksums else ():
        findings += store.carry_out(_look_at_files(files))
    return survey.report(findings, [len(files) for files in referred])


def _decode(
    store: MaintainedStore,
    survey: Survey,
    folder: str,
    findings: Sequence[Finding],
    executor: ExecutorLike,
    progress: Progress | None,
) -> tuple[list[Finding], list[int], list[tuple[str, str]]]:
    """Decode all chunks that are not damaged, and return those that fail.

    Also returns the numbers of chunks of arrays without parts, and the paths of those that zarr cannot open, with the
    reasons.
    """
    skipped = {finding.chunk_key for finding in findings if finding.problem.is_damage}
    not_understood = {path for path, _ in survey.not_understood}
    keys: dict[str, list[str]] = {}
    for key, listed in survey.listed.chunks.items():
        if listed.chunk.parts.anchor in listed.parts and listed.chunk.array not in not_understood:
            keys.setdefault(listed.chunk.array, []).append(key)
    others: dict[str, list[str]] = {}
    wrong: list[tuple[str, str]] = []
    for path in (*survey.plain, *_arrays_above(store, folder)):
        try:
            others[path] = _chunks_of(store, path, folder)
        except StorageError:
            raise
        # zarr raises many kinds of errors for a document that it cannot read.
        except Exception as error:
            wrong.append((path, f"zarr cannot open it: {type(error).__name__}: {error}"))
    keys |= others
    batches = [
        (path, [key for key in of_array[at : at + _DECODED_BATCH] if key not in skipped])
        for path, of_array in keys.items()
        for at in range(0, len(of_array), _DECODED_BATCH)
    ]
    found: list[Finding] = []
    done, total = 0, sum(len(batch) for _, batch in batches)
    decode = partial(_decode_batch, _for_tasks(store, executor))
    with open_workers(executor) as workers:
        for (_, batch), failures in zip(batches, workers.run_in_order(decode, batches), strict=True):
            for key, why in failures:
                chunk = survey.listed.chunks.get(key)
                of_chunk = (key,) if chunk is None else tuple(chunk.chunk.part_keys)
                found.append(Finding(Problem.UNDECODABLE, key, of_chunk, why))
            done += len(batch)
            if progress is not None:
                progress(done, total)
    return found, [len(of_array) for of_array in others.values()], wrong


def _for_tasks(store: MaintainedStore, executor: ExecutorLike) -> MaintainedStore:
    """Return the store of the tasks. It is pickled for each task, without the arrays that this process knows."""
    return store if executor is None else store.for_workers().with_own_catalog()


def _open(store: MaintainedStore, path: str) -> zarr.Array[Any]:
    opened: Any = zarr.open_array(cast("Any", store), path=path, mode="r")
    return cast("zarr.Array[Any]", opened)


def _arrays_above(store: MaintainedStore, folder: str) -> list[str]:
    """Return the paths of the arrays of Zarr v2 that a folder is in; a survey reads their documents only below it."""
    found = store.carry_out(get_all([join(path, ARRAY_V2) for path in ancestors(folder)], "an array of Zarr v2"))
    return [split(key)[0] for key, document in found.items() if document is not None]


def _chunks_of(store: MaintainedStore, path: str, folder: str) -> list[str]:
    """Return the keys of the chunks of an array without parts, if they are below the folder."""
    encoding, prefix = encoding_of(_open(store, path)), join(path, "")
    inner = folder if folder.startswith(prefix) else path
    if inner != path and encoding.is_chunk_key(inner.removeprefix(prefix)):
        entries = [each for each in store.carry_out(list_entries(split(inner)[0])) if each.key == inner]
    else:
        entries = [*store.carry_out(list_entries(inner))]
    return [entry.key for entry in entries if encoding.is_chunk_key(entry.key.removeprefix(prefix))]


def _decode_batch(store: MaintainedStore, batch: tuple[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Decode chunks of an array in threads, and return the keys of those that fail, and why."""
    path, keys = batch
    array = _open(store, path)
    encoding, prefix = encoding_of(array), join(path, "")
    tasks = [partial(why_not_decoded, array, encoding.coordinates(key.removeprefix(prefix))) for key in keys]
    results = run_tasks_sync(tasks, _MAX_DECODED)
    return [(key, why) for key, why in zip(keys, results, strict=True) if why is not None]


def _look_at_files(chunks: Mapping[str, str]) -> Steps[list[Finding]]:
    """Return what is wrong with the files that an array refers to, given the key of a chunk in each of them."""
    keys = tuple(chunks.values())
    outcomes = yield tuple(Trial(Get(key, RangeByteRequest(0, 1), "whether its file is as it was")) for key in keys)
    return [
        Finding(Problem.UNREADABLE, key, (key,), str(outcome.error))
        for key, outcome in zip(keys, outcomes, strict=True)
        if isinstance(outcome, Failed)
    ]


def _find_problems(
    store: MaintainedStore,
    survey: Survey,
    unmarked: Sequence[str] = (),
    *,
    checksums: bool = False,
    executor: ExecutorLike = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Return what is wrong with the chunks of a survey, and the arrays at the paths `unmarked`."""
    batches = [(listed, survey.arrays[path]) for path, listed in _batches(survey)]
    diagnose = partial(_diagnose_batch, _for_tasks(store, executor), checksums)
    findings: list[Finding] = []
    done = 0
    with open_workers(executor) as workers:
        for (listed, _), found in zip(batches, workers.run_in_order(diagnose, batches), strict=True):
            findings += found
            done += len(listed)
            if progress is not None:
                progress(done, len(survey.listed.chunks))
    named = {key for finding in findings for key in finding.keys}
    return [*findings, *_problems_without_chunks(survey, unmarked, named)]


def _problems_without_chunks(survey: Survey, unmarked: Sequence[str], named: Container[str]) -> Iterator[Finding]:
    """Yield what a survey shows besides its chunks, except files that are already `named` by a finding."""
    chunks: dict[str, str] = {}
    if survey.unreadable:
        chunks = {entry.key: key for key, each in survey.listed.chunks.items() for entry in each.parts.values()}
    for key, why in survey.unreadable.items():
        if key not in named:
            yield Finding(Problem.UNREADABLE, chunks.get(key, key), (key,), why)
    for key in survey.stray_nodes:
        node = parse_node_key(key)
        detail = "the array of these parts does not exist, or was replaced"
        yield Finding(Problem.STRAY_NODES, "" if node is None else node.array, (key,), detail)
    for path in unmarked:
        detail = "software without concat-parts would misread the array, and its document does not tell it to refuse"
        yield Finding(Problem.UNMARKED, path, (join(path, DOCUMENT),), detail)
    for folder, (array, entries) in survey.listed.strays.items():
        detail = "beside a chunk that has no parts"
        if is_probe_key(folder):
            detail = "from a probe of the server"
        elif folder == join(array, _BATCHES):
            detail = "from chunks that an older version wrote together"
        yield Finding(Problem.LEFTOVERS, folder, tuple(entry.key for entry in entries), detail)
    for key in survey.unfinished:
        yield Finding(Problem.LEFTOVERS, key.rpartition("#")[0], (key,), "a file that a writer has not finished")


def _batches(survey: Survey) -> Iterator[tuple[str, list[ListedChunk]]]:
    """Yield the path of an array and a batch of its chunks, until all chunks are in a batch."""
    of_arrays: dict[str, list[ListedChunk]] = {}
    for listed in survey.listed.chunks.values():
        of_arrays.setdefault(listed.chunk.array, []).append(listed)
    for path, of_array in of_arrays.items():
        for at in range(0, len(of_array), _BATCH):
            yield path, of_array[at : at + _BATCH]


def _diagnose_batch(
    store: MaintainedStore, checksums: bool, batch: tuple[Sequence[ListedChunk], ArrayRecord]
) -> list[Finding]:
    """Return what is wrong with chunks of an array; halve the batch to find a chunk that cannot be read."""
    listed, record = batch
    steps = diagnose_chunks(listed, record, store.protocol, store.read_settings, with_bytes=checksums)
    try:
        return store.carry_out(steps)
    except (SessionError, LocalPathError, StorageError) as error:
        if isinstance(error, StorageError) and not _is_about_one_file(error):
            raise
        if len(listed) == 1:
            problem = error.message if isinstance(error, StorageError) else error.problem
            return [Finding(Problem.UNREADABLE, listed[0].chunk.chunk_key, (error.key,), problem)]
        half = len(listed) // 2
        halves = (listed[:half], listed[half:])
        return [finding for each in halves for finding in _diagnose_batch(store, checksums, (each, record))]


def _is_about_one_file(error: StorageError) -> bool:
    """Return whether other files of a local disk may be accessible. The responses of a server have other codes."""
    return error.code == PermissionError.__name__


# --- repair -------------------------------------------------------------------------------------------------------


def repair(
    store: MaintainedStore,
    prefix: str,
    *,
    min_age: timedelta | float,
    options: RepairOptions,
    executor: ExecutorLike,
    progress: ProgressLike,
) -> Report:
    """Repair everything below a prefix. `PartsStore.repair` explains the parameters."""
    with report_progress(progress, "repair", "findings") as update:
        survey = store.carry_out(survey_prefix(prefix, store.protocol))
        # Arrays without parts need no more of a server than in any other store.
        if in_parts := {path: each.parts for path, each in survey.arrays.items() if each.layout is not None}:
            store.require_server(min(in_parts), max(in_parts.values(), key=lambda parts: len(parts.parts)))
        return survey.report(repair_chunks(store, survey, min_age, options, update, executor))


def repair_chunks(
    store: MaintainedStore,
    survey: Survey,
    min_age: timedelta | float,
    options: RepairOptions,
    progress: Progress | None = None,
    executor: ExecutorLike = None,
) -> list[Finding]:
    """Find what is wrong with the chunks of a survey, repair it if possible, and return the findings with the results.

    Objects that are at least `min_age` old, by the clock of the store, are taken for those of dead writers. Committed
    writes are completed at any age.
    """
    unmarked = survey.unmarked if options.marks or store.must_understand else ()
    findings = _find_problems(store, survey, unmarked, executor=executor)
    seconds = _parse_age(min_age)
    needs_age = seconds > 0 and not store.protocol.knows_dead_writers
    if needs_age and seconds < LEAST_AGE:
        expected = f"0 if no client is writing, or at least {LEAST_AGE:.0f} s, since a writer may stall"
        raise StoreConfigError("min_age", expected, describe(min_age))
    needs_clock = needs_age and any(
        options.handles(each.problem) for each in findings if each.problem is not Problem.NO_FILE
    )
    needs_clock |= seconds > 0 and bool(survey.unfinished)
    array = min(survey.arrays, default="")
    now = store.carry_out(_read_clock(array, store.protocol.rules)) if needs_clock else None
    repairer = _Repairer(store, survey, options, now, seconds, needs_age=needs_age)
    of_chunks: dict[str, list[Finding]] = {}
    for finding in findings:
        of_chunks.setdefault(finding.chunk_key, []).append(finding)
    counting = Lock()
    repaired = 0

    def repair_findings(of_chunk: Sequence[Finding]) -> list[Finding]:
        nonlocal repaired
        found = repairer.repair_findings(of_chunk)
        with counting:
            repaired += len(found)
            if progress is not None:
                progress(min(repaired, len(findings)), len(findings))
        return found

    tasks = [partial(repair_findings, of_chunk) for of_chunk in of_chunks.values()]
    results = [finding for found in run_tasks_sync(tasks, _MAX_THREADS) for finding in found]
    for path in survey.locked:
        store.carry_out(remove_unused_locks(path))
    return results


def _parse_age(min_age: timedelta | float) -> float:
    seconds = min_age.total_seconds() if isinstance(min_age, timedelta) else min_age
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise StoreConfigError("min_age", "a timedelta or seconds, not negative", describe(min_age))
    return seconds


def _read_clock(array: str, rules: Rules) -> Steps[datetime]:
    """Return the time by the clock of the store, from an object that is written for it and removed."""
    folder = join(array, PROTOCOL_FOLDER)
    for _ in range(_MAX_CLOCK_READS):
        key = join(folder, f"{rules.new_generation()}.clock")
        yield (Put(key, b"", None, None, "the store's clock"),)
        entries = yield from list_entries(folder)
        yield from remove((key,), "the store's clock")
        for entry in entries:
            if entry.key == key:
                return entry.modified
    raise ConcurrentWriteError(folder, "another repair removes the object that the store's clock is read from")


@dataclass(frozen=True, slots=True)
class _Repairer:
    """A worker that repairs chunks one at a time; several threads share it."""

    store: MaintainedStore
    survey: Survey
    options: RepairOptions
    # By the clock of the store; None if no age matters.
    now: datetime | None
    min_age: float
    # Whether the age of an object tells whether its writer is dead.
    needs_age: bool

    def repair_findings(self, findings: Sequence[Finding]) -> list[Finding]:
        """Repair the findings of one chunk in sequence, leftovers last."""
        results: list[Finding] = []
        for finding in sorted(findings, key=lambda each: each.problem is Problem.LEFTOVERS):
            is_damaged = any(each.problem.is_damage and not each.is_repaired for each in results)
            if finding.problem is Problem.LEFTOVERS and is_damaged:
                # The leftovers may have the only copy of the missing parts.
                results.append(not_repaired(finding, "the chunk is damaged"))
            else:
                results.append(self._repair(finding))
                results += self._leftovers_of_completed(results[-1])
        return results

    def _leftovers_of_completed(self, finding: Finding) -> list[Finding]:
        """Return what stays beside a chunk that was completed although its writer may still be active."""
        listed = self.survey.listed.chunks.get(finding.chunk_key)
        if listed is None or finding.problem is not Problem.INTERRUPTED or not finding.is_repaired:
            return []
        if not self._is_young(listed.beside):
            return []
        left = list(self.store.carry_out(list_entries(listed.chunk.side_folder)))
        return [not_repaired(leftovers_beside(replace(listed, beside=left)), _TOO_YOUNG)] if left else []

    def _repair(self, finding: Finding) -> Finding:
        # A permission, or the target of a symbolic link, may come back.
        may_become_readable = any(key in self.survey.unreadable for key in finding.keys)
        if finding.problem is Problem.UNREADABLE and may_become_readable:
            return finding
        if not self.options.handles(finding.problem):
            return finding
        try:
            return self._repair_handled(finding)
        except PartsStoreError as error:
            if isinstance(error, StorageError) and not _is_about_one_file(error):
                # All other repairs would fail as well.
                raise
            # Another client is writing this chunk, or a file cannot be accessed. Other chunks can be repaired.
            return not_repaired(finding, str(error))

    def _repair_handled(self, finding: Finding) -> Finding:
        if finding.problem is Problem.UNMARKED:
            is_marked = self.store.carry_out(mark_array(finding.chunk_key, self.store.protocol))
            is_changed = not_repaired(finding, "another client has changed the document")
            return replace(finding, is_repaired=True) if is_marked else is_changed
        unfinished = [self.survey.unfinished[key] for key in finding.keys if key in self.survey.unfinished]
        # The writers of unfinished files take no lock, so the age decides.
        if self._are_younger(unfinished, max(self.min_age, LEAST_AGE)):
            return not_repaired(finding, f"younger than min_age, or than {LEAST_AGE:.0f} s")
        if unfinished or finding.problem is Problem.STRAY_NODES:
            self.store.carry_out(remove(finding.keys, "unfinished files" if unfinished else "stray nodes"))
            return replace(finding, is_repaired=True)
        listed = self.survey.listed.chunks.get(finding.chunk_key)
        return self._repair_stray(finding) if listed is None else self._repair_listed(listed, finding)

    def _repair_listed(self, listed: ListedChunk, finding: Finding) -> Finding:
        # A file is made only of a shard that has not changed meanwhile, of whatever age.
        if finding.problem is not Problem.NO_FILE and self._is_young(objects_of_writer(listed, finding.problem)):
            if finding.problem is Problem.INTERRUPTED:
                return self._complete(listed, finding)
            return not_repaired(finding, _TOO_YOUNG)
        if finding.problem is Problem.ORPHANS and self.needs_age and not self.store.protocol.can_collect:
            return not_repaired(finding, "another client may be writing; use min_age=0 if none is")
        return self._repair_chunk(listed, finding)

    def _complete(self, listed: ListedChunk, finding: Finding) -> Finding:
        """Finish a committed write whose writer may still be active, and remove nothing."""
        protocol, chunk = self.store.protocol, listed.chunk
        if not protocol.can_finish_beside_writers(chunk):
            why = f"{_TOO_YOUNG}, and with concurrency='exclusive' its writer must have ended; use min_age=0 if it has"
            return not_repaired(finding, why)
        self.store.carry_out(protocol.finish_write(chunk, listed.parts, ()))
        index = self.survey.arrays[chunk.array].shard_index
        if self.store.carry_out(diagnose_chunk(chunk, index, protocol)) is None:
            return replace(finding, is_repaired=True)
        return not_repaired(finding, _CHANGED)

    def _repair_chunk(self, listed: ListedChunk, finding: Finding) -> Finding:
        record = self.survey.arrays[listed.chunk.array]
        result = self.store.carry_out(repair_chunk(listed, finding, record, self.store.protocol, self.options))
        if result.is_repaired or result.detail != finding.detail:
            return result
        if finding.problem is Problem.UNREADABLE:
            return not_repaired(result, "all parts are there; write the whole chunk again, or delete it")
        return not_repaired(result, _CHANGED)

    def _repair_stray(self, finding: Finding) -> Finding:
        """Repair what lies beside a chunk that has no parts."""
        array, entries = self.survey.listed.strays[finding.chunk_key]
        if self._is_young(entries):
            return not_repaired(finding, _TOO_YOUNG)
        for entry in entries if not is_probe_key(finding.chunk_key) else ():
            chunk = self.store.carry_out(find_chunk_beside(entry, array, self.survey.arrays[array]))
            if chunk is not None and chunk.side_folder == finding.chunk_key:
                listed = ListedChunk(chunk, beside=entries)
                if (damage := self._damage_of(chunk)) is None:
                    return self._repair_chunk(listed, finding)
                if not self.options.drops_incomplete:
                    return not_repaired(finding, "the chunk is damaged")
                self._repair_chunk(listed, damage)
        if not self.options.drops_incomplete and any(is_journal(entry.key) for entry in entries):
            return not_repaired(finding, UNKNOWN_JOURNAL)
        is_repaired = self.store.carry_out(discard_leftovers(finding.chunk_key, finding.keys, self.store.protocol))
        return replace(finding, is_repaired=is_repaired)

    def _damage_of(self, chunk: Chunk) -> Finding | None:
        """Return what is missing of a chunk that exists, because a journal says so; None if nothing is."""
        if not self.store.protocol.has_journal:
            return None
        index = self.survey.arrays[chunk.array].shard_index
        found = self.store.carry_out(diagnose_chunk(chunk, index, self.store.protocol))
        return found if found is not None and found.problem.is_damage else None

    def _is_young(self, entries: Sequence[Entry]) -> bool:
        return self.needs_age and self._are_younger(entries, self.min_age)

    def _are_younger(self, entries: Sequence[Entry], age: float) -> bool:
        now = self.now
        return now is not None and any((now - entry.modified).total_seconds() < age for entry in entries)
