"""Arrays of the peers, with the same methods for all of them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import obstore
import zarr
from numpy.typing import NDArray

from benchmarks.speed.layouts import Layout

# As many requests in flight as `PartsCodecPipeline` makes for chunks of two parts, 32 chunks at a time.
IN_FLIGHT = 64
DASK_THREADS = 8


class Handle(Protocol):
    """An array of a peer."""

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values."""

    def write_with_dask(self, values: NDArray[np.uint8], side: int) -> None:
        """Write all values with dask, in square regions of that side."""

    def append(self, values: NDArray[np.uint8]) -> None:
        """Make the array longer by these rows."""

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Read a part of the array."""

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Read single values in one call."""


def _store_with_dask(values: NDArray[np.uint8], side: int, target: Any) -> None:
    import dask.array as da

    blocks = da.from_array(values, chunks=side)
    # Every region is a whole chunk, so no lock is needed.
    da.store(blocks, target, lock=False, scheduler="threads", num_workers=DASK_THREADS)


@dataclass(frozen=True, slots=True)
class ZarrHandle:
    """An array of zarr, or another one that is selected from in the same way."""

    array: Any

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values."""
        self.array[...] = values

    def write_with_dask(self, values: NDArray[np.uint8], side: int) -> None:
        """Write all values with dask, in square regions of that side."""
        _store_with_dask(values, side, self.array)

    def append(self, values: NDArray[np.uint8]) -> None:
        """Make the array longer by these rows."""
        self.array.append(values)

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""
        return np.asarray(self.array[...])

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Read a part of the array."""
        return np.asarray(self.array[rows, columns])

    def select(self, selection: tuple[slice, ...]) -> NDArray[Any]:
        """Read a part of an array of any dimensions."""
        return np.asarray(self.array[selection])

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Read single values in one call."""
        return np.asarray(self.array.vindex[rows, columns])


@dataclass(frozen=True, slots=True)
class XarrayHandle(ZarrHandle):
    """A variable of xarray, which is only read."""

    array: Any

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""
        return np.asarray(self.array.values)


@dataclass(frozen=True, slots=True)
class IcechunkHandle(ZarrHandle):
    """An array in a writable session of Icechunk; every write ends with a commit."""

    repository: Any
    session: Any

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values, and commit them."""
        self.array[...] = values
        self.session.commit("all values")

    def write_with_dask(self, values: NDArray[np.uint8], side: int) -> None:
        """Write all values with dask, and commit them."""
        _store_with_dask(values, side, self.array)
        self.session.commit("all values")

    def append(self, values: NDArray[np.uint8]) -> None:
        """Make the array longer by these rows, and commit them."""
        session = self.repository.writable_session("main")
        zarr.open_array(session.store, mode="r+").append(values)
        session.commit("more rows")


@dataclass(slots=True)
class TensorstoreHandle:
    """An array of tensorstore."""

    array: Any

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values."""
        self.array.write(values).result()

    def write_with_dask(self, values: NDArray[np.uint8], side: int) -> None:
        """Write all values with dask, in square regions of that side."""
        _store_with_dask(values, side, self.array)

    def append(self, values: NDArray[np.uint8]) -> None:
        """Make the array longer by these rows."""
        before = self.array.shape[0]
        self.array = self.array.resize(exclusive_max=[before + len(values), self.array.shape[1]]).result()
        self.array[before:].write(values).result()

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""
        return np.asarray(self.array.read().result())

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Read a part of the array."""
        return np.asarray(self.array[rows, columns].read().result())

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Read single values in one call."""
        return np.asarray(self.array[rows, columns].read().result())


@dataclass(slots=True)
class BareHandle:
    """The objects of an array, written and read by obstore and threads, without metadata and codecs: the limit.

    It makes the requests that a `PartsStore` has to make: an unknown shard takes the index first, and then the data.
    """

    objects: Any
    pieces: Mapping[str, bytes]
    layout: Layout
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(IN_FLIGHT))
    known: set[str] = field(default_factory=set)
    rows: int = 0

    def write(self, values: NDArray[np.uint8]) -> None:
        """Put all objects."""
        del values
        self._put(self.pieces)

    def write_with_dask(self, values: NDArray[np.uint8], side: int) -> None:
        """Raise: the limit has nothing to do with dask."""
        raise NotImplementedError

    def append(self, values: NDArray[np.uint8]) -> None:
        """Put the metadata document, and the objects of some rows."""
        if not self.rows:
            self.rows = self.layout.shape[0]
        obstore.put(self.objects, "zarr.json", bytes(1000))
        first, self.rows = self.rows // self.layout.outer, self.rows + len(values)
        self._put({key.replace("c/0/", f"c/{first}/", 1): data for key, data in self.pieces.items()})

    def read(self) -> NDArray[np.uint8]:
        """Get all objects."""
        got = self.pool.map(lambda key: len(obstore.get(self.objects, key).bytes()) % 256, self.pieces)
        return np.asarray(list(got), np.uint8)

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Get the bytes of one inner chunk."""
        shard, number = self._locate(rows.start, columns.start)
        if shard not in self.known:
            self._get_index(shard)
        return np.frombuffer(self._get_inner(shard, number), np.uint8)

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Get the indexes of all shards at once, and then the bytes of all inner chunks at once."""
        located = [self._locate(row, column) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)]
        list(self.pool.map(self._get_index, {shard for shard, _ in located} - self.known))
        got = self.pool.map(lambda each: len(self._get_inner(*each)) % 256, located)
        return np.asarray(list(got), np.uint8)

    def _put(self, pieces: Mapping[str, bytes]) -> None:
        list(self.pool.map(lambda key: obstore.put(self.objects, key, pieces[key], use_multipart=False), pieces))

    def _locate(self, row: int, column: int) -> tuple[str, int]:
        outer, inner = self.layout.outer, self.layout.chunk
        number = row % outer // inner * self.layout.inner_count + column % outer // inner
        return f"c/{row // outer}/{column // outer}", number

    def _get_index(self, shard: str) -> None:
        nbytes = 16 * self.layout.inner_count**2 + 4
        if f"{shard}.index" in self.pieces:
            obstore.get(self.objects, f"{shard}.index").bytes()
        else:
            obstore.get(self.objects, shard, options={"range": {"suffix": nbytes}}).bytes()
        self.known.add(shard)

    def _get_inner(self, shard: str, number: int) -> Any:
        """Return as many bytes as an inner chunk has on average."""
        nbytes = len(self.pieces[shard]) // (self.layout.inner_count**2 + 1)
        return obstore.get_range(self.objects, shard, start=number * nbytes, end=(number + 1) * nbytes)
