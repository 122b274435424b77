"""The assumptions about zarr in `parts_store.store.partial_writes`, each tested with zarr itself."""

import contextvars
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import zarr
from obstore.store import MemoryStore
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

import parts_store as ps
from parts_store.engine.steps import Steps
from parts_store.store.operations import Operations
from parts_store.store.partial_writes import EarlierReads, WholeRead
from parts_store.transactions.protocol import Unknown
from parts_store.transactions.reading import Absent

BREAKS = "zarr calls a store in another way now: see parts_store/partial_writes.py"
NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


@dataclass(slots=True, eq=False)
class Call:
    """A call of the store by zarr, and the number of the call that was made before it in its context."""

    name: str
    key: str
    wanted: Any
    after: int


class Recording(Operations):
    """Operations that record the calls of zarr for chunks."""

    calls: list[Call]

    def _record(self, name: str, key: str, wanted: Any = None) -> None:
        if key.rsplit("/", maxsplit=1)[-1] != "zarr.json":
            self.calls.append(Call(name, key, wanted, NUMBER.get()))
            NUMBER.set(len(self.calls))

    def get(self, key: str, wanted: Any) -> Steps[Any]:
        self._record("get", key, wanted)
        return super().get(key, wanted)

    def get_ranges(self, key: str, wanted: Sequence[Any], settings: Any) -> Steps[Any]:
        self._record("get_ranges", key, list(wanted))
        return super().get_ranges(key, wanted, settings)

    def get_inner(self, key: str, *arguments: Any) -> Steps[Any]:
        self._record("get_inner", key)
        return super().get_inner(key, *arguments)

    def put(self, key: str, *arguments: Any, **options: Any) -> Steps[None]:
        self._record("put", key)
        return super().put(key, *arguments, **options)

    def delete(self, key: str) -> Steps[None]:
        self._record("delete", key)
        return super().delete(key)


def recorded(**arguments: Any) -> tuple[zarr.Array[Any], list[Call]]:
    """Create an array of ones whose store records what zarr calls from now on."""
    store = ps.PartsStore(MemoryStore())
    chosen = {"shape": (16,), "dtype": "uint8", "compressors": None, "fill_value": 0}
    ps.create_array(store, "a", parts=["", ps.Part(".t", size=1)], **(chosen | arguments))
    array = zarr.open_array(store, path="a")
    array[:] = 1
    real = store._operations
    recording = Recording(real.catalog, real.reader, real.server)
    recording.calls = []
    store._operations = recording
    return array, recording.calls


def test_zarr_passes_the_same_key_object_to_get_and_set_of_a_partial_write(pipeline: str) -> None:
    array, calls = recorded(chunks=(4,))
    array[3:5] = 7
    for key in ("a/c/0", "a/c/1"):
        of_chunk = [call for call in calls if call.key == key]
        assert [call.name for call in of_chunk] == ["get", "put"], BREAKS
        read, write = of_chunk
        assert read.wanted is None, BREAKS
        assert read.key is write.key, f"{pipeline}: the key of the write is not that of the read. {BREAKS}"


def test_zarr_passes_the_same_key_object_to_get_and_delete_of_a_partial_write(pipeline: str) -> None:
    array, calls = recorded(chunks=(4,))
    array[0:3] = 0
    calls.clear()
    # Now the whole chunk is the fill value.
    array[3:4] = 0
    assert [call.name for call in calls] == ["get", "delete"], BREAKS
    read, delete = calls
    assert read.key is delete.key, f"{pipeline}: the key of the delete is not that of the read. {BREAKS}"


def test_zarr_makes_a_new_key_object_for_every_operation(pipeline: str) -> None:
    array, calls = recorded(chunks=(4,))
    array[0:2]
    array[0:2] = 7
    array[0:2] = 8
    first, *rest = [call.key for call in calls if call.name == "get"]
    assert len(rest) == 2, BREAKS
    assert not any(first is key for key in rest), f"{pipeline}: a key object is used again. {BREAKS}"
    assert rest[0] is not rest[1], f"{pipeline}: a key object is used again. {BREAKS}"


def is_one_context(calls: list[Call]) -> bool:
    """Return whether each of two writes is made in the context of the read before it."""
    assert sorted(call.name for call in calls) == ["get", "get", "put", "put"], BREAKS
    return all(
        calls[write.after - 1].key == write.key for write in calls if write.name == "put" and write.after
    ) and all(write.after for write in calls if write.name == "put")


def test_zarr_makes_both_calls_of_a_partial_write_of_a_shard_in_one_context(pipeline: str) -> None:
    array, calls = recorded(chunks=(2,), shards=(8,))
    array[7:9] = 7
    assert is_one_context(calls), f"{pipeline}: the write is in another context than the read. {BREAKS}"


def test_zarr_makes_both_calls_of_a_partial_write_of_a_chunk_in_one_context_unless_batched(pipeline: str) -> None:
    array, calls = recorded(chunks=(4,))
    array[3:5] = 7
    # The batched pipeline reads and writes in two tasks. If it no longer does, docs/guarantees.md promises too little.
    assert is_one_context(calls) == (pipeline != "batched"), f"{pipeline}: {BREAKS}"


def test_zarr_reads_the_index_of_a_shard_then_its_ranges_in_one_context(pipeline: str) -> None:
    array, calls = recorded(chunks=(2,), shards=(8,))
    np.testing.assert_array_equal(array[2:5], 1)
    if pipeline == "parts":
        # Our pipeline reads both with one call.
        assert [call.name for call in calls] == ["get_inner"]
        return
    index, data = calls
    # Four inner chunks of 16 bytes each, and a checksum.
    assert (index.name, index.wanted) == ("get", SuffixByteRequest(4 * 16 + 4)), BREAKS
    assert (data.name, data.wanted) == ("get_ranges", [RangeByteRequest(2, 4), RangeByteRequest(4, 6)]), BREAKS
    assert data.key == index.key, BREAKS
    assert data.after == 1, f"{pipeline}: the data is read in another context than the index. {BREAKS}"


def test_a_note_is_taken_once_and_by_its_own_store() -> None:
    mine, other = EarlierReads(), EarlierReads()
    key = "a/c/0"
    mine.note_whole(key, Absent())
    assert other.take_whole(key) is None
    assert mine.take_whole(key) == WholeRead(Absent())
    assert mine.take_whole(key) is None


def test_an_equal_key_that_is_another_object_continues_no_read() -> None:
    reads = EarlierReads()
    reads.note_whole("a/c/0", Absent())
    assert reads.take_whole(f"{'a/c'}/{0}") is None


def test_a_task_takes_a_note_from_the_context_that_started_it() -> None:
    reads = EarlierReads()
    key = "a/c/0"
    reads.note_whole(key, Absent())
    assert contextvars.copy_context().run(reads.take_whole, key) == WholeRead(Absent())
    assert reads.take_whole(key) is None


def test_zarr_keeps_the_buffer_that_it_read_until_it_has_written_the_shard(pipeline: str) -> None:
    array, _ = recorded(chunks=(2,), shards=(8,))
    operations: Any = cast("ps.PartsStore", array.store)._operations
    known: list[object] = []
    write = operations._write

    def recording(*arguments: Any) -> Steps[None]:
        known.append(arguments[-1].content)
        return write(*arguments)  # type: ignore[no-any-return]

    operations._write = recording
    array[1:3] = 7
    (content,) = known
    assert isinstance(content, memoryview), f"{pipeline}: the shard is not known any more. {BREAKS}"
    # Inner chunks of ones, and an index of four rows with a checksum.
    assert bytes(content[:8]) == b"\1" * 8, BREAKS
    assert content.nbytes == 8 + 4 * 16 + 4, BREAKS
    assert content.readonly


def test_a_whole_read_keeps_no_memory() -> None:
    array, _ = recorded(chunks=(4,))
    store = cast("ps.PartsStore", array.store)
    key = "a/c/0"
    buffer = store.get_sync(key)
    assert buffer is not None
    reads = store._operations.reader.earlier
    gone = weakref.ref(buffer)
    del buffer
    assert gone() is None
    read = reads.take_whole(key)
    assert read is not None
    assert read.content == Unknown()
