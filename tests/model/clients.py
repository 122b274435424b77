"""What the clients of the model do: the real steps of the plan, one operation after the other.

What a client keeps from one operation to the next is what `parts_store.store.operations` keeps.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zarr.abc.store import RangeByteRequest

from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, PartsStoreError
from tests.model.monitor import Effect
from tests.model.patched import Plan
from tests.model.scenario import Operation, Scenario
from tests.model.store import is_old
from tests.model.values import ARRAY, KEY, Value

type Steps[T] = Generator[tuple[Any, ...], tuple[Any, ...], T]

# How often a client repeats a change that another client got in the way of.
RETRIES = 2


def _nothing() -> Steps[None]:
    yield from ()


@dataclass(frozen=True)
class Setting:
    """The plan, and the scenario in which it is carried out."""

    plan: Plan
    scenario: Scenario

    @cached_property
    def chunk(self) -> Any:
        objects = [
            {"key_suffix": suffix} | ({} if size is None else {"size": size})
            for suffix, size in self.scenario.layout.parts
        ]
        return self.plan.keys.Chunk(KEY, self.plan.parts.ConcatParts(objects), ARRAY)

    @cached_property
    def index(self) -> Any:
        layout = self.scenario.layout
        return self.plan.shard_index.ShardIndex(layout.index_nbytes, "end", layout.slots, "<u8", False)

    def effect(self, operation: Operation) -> Effect:
        """What an operation should do."""
        match operation.name:
            case "write" | "overwrite":
                return Effect("write repeatedly" if self.scenario.rewrites else "write", operation.value)
            case "write if absent":
                return Effect("write if absent", operation.value)
            case "delete":
                is_full = self.scenario.level == "full" and not self.scenario.is_local
                return Effect("delete repeatedly" if is_full else "delete")
            case "change" | "change slot":
                return Effect("change", mark=operation.mark)
            case "read":
                return Effect("read", view=operation.view)
            case "repair":
                return Effect("none")


class Client:
    """One process: what it remembers, and what it does with the plan."""

    def __init__(self, setting: Setting, number: int) -> None:
        self.scenario, self.layout = setting.scenario, setting.scenario.layout
        self.plan, self.chunk, self.index = setting.plan, setting.chunk, setting.index
        self.number = number
        self._generations = 0
        # How often a long time has passed.
        self._time = 0
        self.rules = self.plan.rules.Rules(
            self.plan.rules.Level(self.scenario.level),
            self.scenario.has_conditions,
            self.scenario.has_unique_etags,
            self._new_generation,
            self._start_watch,
            self.plan.rules.MAX_EMBEDDED if self.scenario.embeds else 0,
        )
        self.protocol = self._new_protocol()
        # Ranges next to each other are merged, or not.
        max_nbytes = 1000 if self.scenario.merges_ranges else 1
        self.settings = self.plan.reading.ReadSettings(0, max_nbytes, self.scenario.retries)
        self.versioned: Any = None
        self.is_suspect = False

    def _new_protocol(self) -> Any:
        plan = self.plan
        return (plan.journaled.JournaledProtocol if self.scenario.is_local else plan.tagged.TaggedProtocol)(self.rules)

    def _new_generation(self) -> str:
        self._generations += 1
        # No client's is that of the chunk that was there at the beginning.
        return f"{self.number + 10:016x}{self._generations:016x}"

    def _start_watch(self) -> Callable[[], float]:
        begin = self._time
        return lambda: 1e6 * (self._time - begin)

    @property
    def memory(self) -> tuple[object, ...]:
        """All that may make a difference to the next operation."""
        existing = () if self.scenario.is_local else tuple(sorted(self.protocol.existing))
        return self._generations, self.versioned, self.is_suspect, existing

    def stall(self) -> None:
        """Let a long time pass."""
        self._time += 1

    def restart(self) -> None:
        """A new process in its place, which remembers nothing."""
        self.versioned, self.is_suspect = None, False
        self.protocol = self._new_protocol()

    def steps(self, operation: Operation) -> Steps[object]:
        match operation.name:
            case "write":
                return self._write(operation.value)
            case "overwrite":
                return self._overwrite(operation.value)
            case "write if absent":
                return self._write_if_absent(operation.value)
            case "delete":
                return self._delete(None)
            case "change":
                return self._change(operation.mark)
            case "change slot":
                return self._change_slot(operation.mark)
            case "read":
                return self._read(operation.view)
            case "repair":
                return self.repair(is_dead=False)

    # --- writing

    def _data(self, value: Value) -> list[memoryview]:
        assert value is not None
        return [memoryview(part) for part in self.layout.split(value)]

    def _write(self, value: Value, seen: Any = None) -> Steps[None]:
        self.versioned = None
        yield from self.protocol.write(self.chunk, self._data(value), seen)

    def _overwrite(self, value: Value) -> Steps[None]:
        """What a write does after it found that there is something."""
        self.versioned = None
        writer = self.plan.tagged_writing._overwriter(self.chunk, self._data(value), self.rules, None)
        end = yield from writer.overwrite(None)
        match end.value:
            case "unknown":
                raise AmbiguousWriteError(KEY, "")
            case "crowded out":
                raise ConcurrentWriteError(KEY, "")

    def _write_if_absent(self, value: Value) -> Steps[None]:
        self.versioned = None
        yield from self.protocol.write_if_absent(self.chunk, self._data(value))

    def _delete(self, seen: Any) -> Steps[None]:
        self.versioned = None
        yield from self.protocol.delete(self.chunk, seen)

    def _change(self, mark: bytes) -> Steps[None]:
        """Read a chunk, and write it with a change, as zarr does."""
        read = yield from self.protocol.read(self.chunk, [None], self.settings, with_anchor=True)
        seen = self.plan.reading.Absent() if read is None else read.version
        value = self.layout.changed(None if read is None else b"".join(read.values[0]), mark)
        if value is None:
            yield from self._delete(seen)
        else:
            yield from self._write(value, seen)

    def _change_slot(self, mark: bytes) -> Steps[None]:
        """Read a shard, and write it with a change of one inner chunk; merge it with what other clients changed.

        If another client changed the same inner chunk, do it again, as our codec pipeline does.
        """
        for _ in range(RETRIES):
            read = yield from self.protocol.read(self.chunk, [None], self.settings, with_anchor=True)
            seen = self.plan.reading.Absent() if read is None else read.version
            base = None if read is None else b"".join(read.values[0])
            value = self.layout.changed(base, mark)
            is_left = value is not None and any(self.layout.inner(value, range(2)))
            change = self.plan.protocol.Change(
                self.chunk,
                self.index,
                None if base is None else memoryview(base),
                memoryview(value) if value is not None and is_left else None,
                lambda shard: self._data(bytes(shard)),
                _nothing,
            )
            self.versioned = None
            try:
                yield from self.protocol.change(change, seen, self.settings)
            except ConcurrentWriteError:
                continue
            return
        raise ConcurrentWriteError(KEY, "")

    # --- reading

    def _read(self, view: str | tuple[int, ...]) -> Steps[object]:
        match view:
            case "full":
                return (yield from self._read_range(None))
            case "first byte":
                start = len(self.layout.header)
                return (yield from self._read_range(RangeByteRequest(start, start + 1)))
            case "exists":
                return (yield from self.plan.reading.exists(self.chunk))
            case "size":
                return (yield from self.protocol.size(self.chunk))
            case tuple():
                return (yield from self._read_shard(view))
            case _:
                raise ValueError(view)

    def _read_range(self, wanted: Any) -> Steps[bytes | None]:
        read = yield from self.protocol.read(self.chunk, [wanted], self.settings, with_anchor=True)
        return None if read is None else b"".join(read.values[0])

    def _read_shard(self, slots: tuple[int, ...]) -> Steps[tuple[bytes | None, ...]]:
        """Inner chunks, as zarr reads them: the index, then the data where it says."""
        known = self.versioned
        versioned = yield from self.plan.shards.read_index(
            self.protocol, self.chunk, self.index, self.settings, known=known, is_suspect=self.is_suspect
        )
        self.is_suspect = False
        if versioned is not known:
            self._remember(versioned)
        if versioned is None:
            return (None,) * len(slots)
        rows = self.layout.rows(versioned.index)
        wanted = {slot: RangeByteRequest(*row) for slot in slots if (row := rows[slot]) is not None}
        if not wanted:
            return (None,) * len(slots)
        try:
            read = yield from self.plan.shards.read_data(
                self.protocol, self.chunk, self.index, list(wanted.values()), self.settings, versioned
            )
        except PartsStoreError:
            self.versioned, self.is_suspect = None, True
            raise
        if read is None:
            self.versioned = None
            return (None,) * len(slots)
        if isinstance(read, self.plan.shards.Remapped):
            self._remember(read.versioned)
        values = dict(zip(wanted, read.values, strict=True))
        found = [values.get(slot) for slot in slots]
        return tuple(None if each is None else b"".join(each) for each in found)

    def _remember(self, versioned: Any) -> None:
        is_kept = versioned is not None and self.protocol.can_recognise(versioned.version)
        self.versioned = versioned if is_kept else None

    # --- upkeep

    def repair(self, *, is_dead: bool) -> Steps[None]:
        """What `parts_store.maintenance.execution` does.

        What is young is completed if it was committed. It is not removed unless everybody else `is_dead`.
        """
        plan = self.plan
        (listed,) = yield (self.plan.steps.List(ARRAY, ""),)
        encoding = self.plan.keys.ChunkKeyEncoding("default", "/", 1)
        record = self.plan.metadata.ArrayRecord({}, self.chunk.parts, encoding, self.index)
        survey = plan.survey.group_by_chunk(listed.entries, {ARRAY: record})
        # On a local disk, locks tell which writers are alive.
        knows_ages = not is_dead and not self.scenario.is_local
        options = plan.repair.RepairOptions(drops_incomplete=True, retags=False)
        findings = yield from plan.diagnosis.diagnose_chunks(
            list(survey.chunks.values()), record, self.protocol, self.settings, with_bytes=False
        )
        for finding in findings:
            listing = survey.chunks[finding.chunk_key]
            entries = plan.repair.objects_of_writer(listing, finding.problem)
            if knows_ages and any(not is_old(entry) for entry in entries):
                is_committed = finding.problem is plan.report.Problem.INTERRUPTED
                if is_committed and self.protocol.can_finish_beside_writers(self.chunk):
                    yield from self.protocol.finish_write(self.chunk, listing.parts, ())
                continue
            yield from plan.repair.repair_chunk(listing, finding, record, self.protocol, options)
        for folder, (array, entries) in survey.strays.items():
            if not (knows_ages and any(not is_old(entry) for entry in entries)):
                yield from self._repair_stray(array, folder, entries, record, options)

    def _repair_stray(self, array: str, folder: str, entries: list[Any], record: Any, options: Any) -> Steps[None]:
        plan = self.plan
        keys = tuple(entry.key for entry in entries)
        for entry in entries:
            chunk = yield from plan.repair.find_chunk_beside(entry, array, record)
            if chunk is not None and chunk.side_folder == folder:
                finding = plan.report.Finding(plan.report.Problem.LEFTOVERS, folder, keys, "")
                listed = plan.survey.ListedChunk(chunk, beside=entries)
                yield from plan.repair.repair_chunk(listed, finding, record, self.protocol, options)
                return
        yield from plan.repair.discard_leftovers(folder, keys, self.protocol)
