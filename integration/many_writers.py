"""Many processes that write to disjoint inner chunks of the same shards: what is lost, and how long it takes.

Every write sets one element that no other write sets, so every lost write is seen at the end.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

import parts_store as ps
from tests.conftest import PIPELINES

type Peer = Literal["ours, zarr's pipeline", "ours", "zarr", "tensorstore"]
START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Work:
    """What the writers do: each has an inner chunk in every shard, and sets its elements one after the other."""

    # A store of obstore; None for tensorstore.
    objects: Any
    peer: Peer
    writers: int
    writes: int
    shards: int
    has_parts: bool = False
    # False: all writers share an inner chunk.
    is_disjoint: bool = True
    # The place as tensorstore names it.
    kvstore: Any = None
    in_threads: bool = False

    @property
    def elements(self) -> int:
        """How many elements a writer has in a shard."""
        return -(-self.writes // self.shards)

    @property
    def shard(self) -> int:
        """How many elements a shard has."""
        return self.writers * self.elements

    @property
    def chunk(self) -> int:
        """How many elements an inner chunk has."""
        return self.elements if self.is_disjoint else self.shard

    def place(self, writer: int, number: int) -> int:
        """Return the element that a writer sets with its write of this number."""
        return number % self.shards * self.shard + writer * self.elements + number // self.shards


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the work."""

    seconds: float
    lost: int
    # The errors of all writers.
    errors: tuple[str, ...]
    # The longest time that a write took.
    slowest: float


def run(work: Work) -> Result:
    """Create the array, let all writers write at the same time, and count what is lost."""
    _create(work)
    if work.in_threads:
        barrier: Any = threading.Barrier(work.writers)
        with ThreadPoolExecutor(work.writers) as pool:
            ended = list(pool.map(lambda writer: _write(work, writer, barrier), range(work.writers)))
    else:
        context = multiprocessing.get_context("spawn")
        with context.Manager() as manager:
            barrier = manager.Barrier(work.writers)
            with ProcessPoolExecutor(work.writers, context) as processes:
                futures = [processes.submit(_write, work, writer, barrier) for writer in range(work.writers)]
                ended = [future.result() for future in futures]
    done = np.concatenate([each[1] for each in ended])
    found = _read(work)
    return Result(
        max(each[0] for each in ended),
        int((found[done] == 0).sum()),
        tuple(error for each in ended for error in each[2]),
        max(each[3] for each in ended),
    )


def _write(work: Work, writer: int, barrier: Any) -> tuple[float, NDArray[np.intp], list[str], float]:
    """Make all writes of one writer; return the time, which elements were set, the errors, and the slowest write."""
    errors, done, slowest = [], [], 0.0
    write = _opened(work)
    barrier.wait(START_SECONDS)
    start = time.perf_counter()
    for number in range(work.writes):
        place, before = work.place(writer, number), time.perf_counter()
        try:
            write(place)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            done.append(place)
        slowest = max(slowest, time.perf_counter() - before)
    return time.perf_counter() - start, np.array(done, np.intp), errors, slowest


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
    elif work.has_parts:
        ps.create_array(_store(work), "a", parts=["", ps.Part(".index", size=ps.SHARD_INDEX)], **_arguments(work))
    else:
        zarr.create_array(_store(work), name="a", **_arguments(work))


def _opened(work: Work) -> Callable[[int], None]:
    """Return a function that sets one element."""
    if work.peer == "tensorstore":
        array: Any = _tensorstore(work, creates=False)

        def write_to_tensorstore(place: int) -> None:
            array[place : place + 1].write(1).result()

        return write_to_tensorstore
    pipeline = "parts" if work.peer == "ours" else "batched"
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        opened: Any = zarr.open_array(_store(work), path="a", mode="r+")

    def write(place: int) -> None:
        opened[place : place + 1] = 1

    return write


def _read(work: Work) -> NDArray[Any]:
    if work.peer == "tensorstore":
        return np.asarray(_tensorstore(work, creates=False).read().result())
    return np.asarray(zarr.open_array(_store(work), path="a", mode="r")[...])


def _tensorstore(work: Work, *, creates: bool) -> Any:
    # Only the benchmark needs it.
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
    return tensorstore.open(spec, create=creates, open=not creates).result()
