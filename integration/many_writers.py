"""Many processes that write to disjoint inner chunks of the same shards: what is lost, and how long it takes.

Every element has one writer, which writes another value each time: a last value that is lost is seen at the end.
"""

import fcntl
import math
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import zarr
from numpy.typing import NDArray

import parts_store as ps
from tests.conftest import PIPELINES

type Peer = Literal["ours, zarr's pipeline", "ours", "zarr", "tensorstore", "h5py"]
START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Work:
    """What the writers do: each has an inner chunk in every shard, and sets its elements one after the other."""

    # A store of obstore.
    objects: Any
    peer: Peer
    writers: int
    # How many writes each of them makes at most, and for how long.
    writes: int
    shards: int
    seconds: float = math.inf
    has_parts: bool = False
    # False: all writers share an inner chunk.
    is_disjoint: bool = True
    # How many inner chunks a shard has, and how many elements each: one for each writer, one for each write if 0.
    slots: int = 0
    slot_elements: int = 0
    # The place as tensorstore names it.
    kvstore: Any = None
    in_threads: bool = False

    @property
    def elements(self) -> int:
        """How many elements a writer has in a shard."""
        return self.slot_elements or -(-self.writes // self.shards)

    @property
    def shard(self) -> int:
        """How many elements a shard has."""
        return (self.slots or self.writers) * self.elements

    @property
    def chunk(self) -> int:
        """How many elements an inner chunk has."""
        return self.elements if self.is_disjoint else self.shard

    def place(self, writer: int, number: int) -> int:
        """Return the element that a writer sets with its write of this number."""
        inside = number // self.shards % self.elements
        return number % self.shards * self.shard + writer * self.elements + inside

    def value(self, number: int) -> int:
        """Return the value that a write of this number sets: another one each time that it sets the same element."""
        return 1 + number // (self.shards * self.elements)


@dataclass(slots=True)
class Ended:
    """What one writer has done."""

    seconds: float = 0.0
    slowest: float = 0.0
    count: int = 0
    # The last value of every element that was set.
    values: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the work."""

    seconds: float
    # How many elements do not have the last value that was written to them.
    lost: int
    # The errors of all writers.
    errors: tuple[str, ...]
    # The longest time that a write took.
    slowest: float
    # How many writes each writer has made.
    counts: tuple[int, ...]


class Writers:
    """Processes that are started once, and that any number of works use one after the other."""

    def __init__(self, most: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._stack = ExitStack()
        self._most = most

    def __enter__(self) -> Self:
        self._manager = self._stack.enter_context(self._context.Manager())
        self._processes = self._stack.enter_context(ProcessPoolExecutor(self._most, self._context))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, work: Work) -> list[Ended]:
        """Let all writers write at the same time, each in a process of its own."""
        barrier = self._manager.Barrier(work.writers)
        futures: list[Future[Ended]] = [
            self._processes.submit(_write, work, writer, barrier) for writer in range(work.writers)
        ]
        return [future.result() for future in futures]


def run(work: Work, writers: Writers | None = None) -> Result:
    """Create the array, let all writers write at the same time, and count what is lost."""
    _create(work)
    if work.in_threads:
        barrier = threading.Barrier(work.writers)
        with ThreadPoolExecutor(work.writers) as pool:
            ended = list(pool.map(lambda writer: _write(work, writer, barrier), range(work.writers)))
    elif writers is None:
        with Writers(work.writers) as own:
            ended = own.write(work)
    else:
        ended = writers.write(work)
    expected = {place: value for each in ended for place, value in each.values.items()}
    found = _read(work)
    return Result(
        max(each.seconds for each in ended),
        sum(int(found[place]) != value for place, value in expected.items()),
        tuple(error for each in ended for error in each.errors),
        max(each.slowest for each in ended),
        tuple(each.count for each in ended),
    )


def _write(work: Work, writer: int, barrier: Any) -> Ended:
    """Make all writes of one writer."""
    ended, write = Ended(), _opened(work)
    barrier.wait(START_SECONDS)
    start = now = time.perf_counter()
    for number in range(work.writes):
        if now - start > work.seconds:
            break
        place, value, before = work.place(writer, number), work.value(number), now
        try:
            write(place, value)
        except Exception as error:
            ended.errors.append(f"{type(error).__name__}: {error}")
        else:
            ended.values[place] = value
            ended.count += 1
        now = time.perf_counter()
        ended.slowest = max(ended.slowest, now - before)
    ended.seconds = now - start
    return ended


def _arguments(work: Work) -> dict[str, Any]:
    return {
        "shape": (work.shard * work.shards,),
        "chunks": (work.chunk,),
        "shards": (work.shard,),
        "dtype": "i4",
        "compressors": None,
        "fill_value": 0,
    }


def _store(work: Work) -> Any:
    if work.peer.startswith("ours"):
        return ps.PartsStore(work.objects)
    if type(work.objects).__name__ == "LocalStore":
        return zarr.storage.LocalStore(work.objects.prefix)
    return zarr.storage.ObjectStore(work.objects)


def _create(work: Work) -> None:
    if work.peer == "tensorstore":
        _tensorstore(work, creates=True)
    elif work.peer == "h5py":
        _create_hdf5(work)
    elif work.has_parts:
        ps.create_array(_store(work), "a", parts=["", ps.Part(".index", size=ps.SHARD_INDEX)], **_arguments(work))
    else:
        zarr.create_array(_store(work), name="a", **_arguments(work))


def _opened(work: Work) -> Callable[[int, int], None]:
    """Return a function that sets one element to a value."""
    if work.peer == "tensorstore":
        array: Any = _tensorstore(work, creates=False)

        def write_to_tensorstore(place: int, value: int) -> None:
            array[place : place + 1].write(value).result()

        return write_to_tensorstore
    if work.peer == "h5py":
        return _opened_hdf5(work)
    pipeline = "parts" if work.peer == "ours" else "batched"
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        opened: Any = zarr.open_array(_store(work), path="a", mode="r+")

    def write(place: int, value: int) -> None:
        opened[place : place + 1] = value

    return write


def _read(work: Work) -> NDArray[Any]:
    if work.peer == "tensorstore":
        return np.asarray(_tensorstore(work, creates=False).read().result())
    if work.peer == "h5py":
        return _read_hdf5(work)
    return np.asarray(zarr.open_array(_store(work), path="a", mode="r")[...])


# --- peers that only the benchmark needs, imported where they are used -----------------------------------------------


@cache
def _tensorstore_context() -> Any:
    """Return the context that all threads of this process share: the memory of tensorstore belongs to a context."""
    import tensorstore

    return tensorstore.Context()


def _tensorstore(work: Work, *, creates: bool) -> Any:
    import tensorstore

    index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    inner = {"chunk_shape": [work.chunk], "codecs": [{"name": "bytes"}], "index_codecs": index_codecs}
    metadata = {
        "shape": [work.shard * work.shards],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [work.shard]}},
        "data_type": "int32",
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }
    spec = {"driver": "zarr3", "kvstore": work.kvstore, "metadata": metadata}
    return tensorstore.open(spec, create=creates, open=not creates, context=_tensorstore_context()).result()


def _hdf5_path(work: Work) -> Path:
    return Path(work.objects.prefix) / "a.h5"


def _create_hdf5(work: Work) -> None:
    import h5py

    with h5py.File(_hdf5_path(work), "w") as file:
        file.create_dataset("a", (work.shard * work.shards,), "i4", chunks=(work.chunk,), fillvalue=0)


def _opened_hdf5(work: Work) -> Callable[[int, int], None]:
    """Return a function that sets one element: threads share an open file, processes take turns with a lock."""
    import h5py

    path = _hdf5_path(work)
    if work.in_threads:
        dataset = h5py.File(path, "r+")["a"]

        def write(place: int, value: int) -> None:
            dataset[place] = value

        return write
    lock = path.with_suffix(".lock").open("w")

    def write_in_turn(place: int, value: int) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with h5py.File(path, "r+") as file:
                file["a"][place] = value
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    return write_in_turn


def _read_hdf5(work: Work) -> NDArray[Any]:
    import h5py

    with h5py.File(_hdf5_path(work), "r") as file:
        return np.asarray(file["a"][...])
