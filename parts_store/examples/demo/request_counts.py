"""Step 6: the requests and the times of reads and writes, beside those of zarr's own store."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

import parts_store as ps
from parts_store.examples.demo.figures import julia_set
from parts_store.examples.demo.outcome import Outcome, Table
from parts_store.text import count

SIDE, TILES, REPETITIONS = 1024, 100, 5
LAYOUT: Mapping[str, Any] = {
    "shape": (SIDE, SIDE, 3),
    "chunks": (64, 64, 3),
    "shards": (512, 512, 3),
    "dtype": "uint8",
    "overwrite": True,
}
_ZARR = "zarr's LocalStore"
_OWN = "PartsStore"
_MORE = f"{TILES} more tiles"
# A file of a local disk that is younger than two seconds cannot be told from one that replaces it, so that its index is
# not kept in memory.
_SETTLED = 2.1


class CountedStore(LocalStore):
    """zarr's own store for a local disk, which counts the calls that read or write a file."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        # A list, which the copies that zarr makes of the store share with it.
        self.calls: list[str] = []

    @override
    def with_read_only(self, read_only: bool = False) -> "CountedStore":
        clone = type(self)(self.root, read_only=read_only)
        clone.calls = self.calls
        return clone

    @override
    async def get(self, *args: Any, **kwargs: Any) -> Buffer | None:
        self.calls.append("get")
        return await super().get(*args, **kwargs)

    @override
    def get_sync(self, *args: Any, **kwargs: Any) -> Buffer | None:
        self.calls.append("get")
        return super().get_sync(*args, **kwargs)

    @override
    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> list[Buffer | None]:
        requested = list(key_ranges)
        self.calls += ["get"] * len(requested)
        return await super().get_partial_values(prototype, requested)

    @override
    async def set(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append("put")
        await super().set(*args, **kwargs)

    @override
    def set_sync(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append("put")
        super().set_sync(*args, **kwargs)

    @override
    async def exists(self, key: str) -> bool:
        self.calls.append("head")
        return await super().exists(key)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to store the image: how the array is created and opened, and how its requests are counted."""

    create: Callable[[Any], zarr.Array[Any]]
    open: Callable[[Any], zarr.Array[Any]]
    new_store: Callable[[], Any]
    requests: Callable[[Any], int]


def read_tiles(image: zarr.Array[Any], corners: Sequence[tuple[int, int]]) -> list[NDArray[np.uint8]]:
    """Read tiles of 64 x 64 pixels, one after the other."""
    return [np.asarray(image[y : y + 64, x : x + 64]) for y, x in corners]


def count_requests(store: ps.PartsStore) -> int:
    """Return how many requests a store has made."""
    return sum(store.stats.calls.values())


def show_request_counts(folder: Path) -> Outcome:
    """Write and read the same image in three ways, and print a table of requests and times."""
    picture = julia_set(SIDE)
    ways = _ways(folder / "requests")
    written = [{name: _write(way, picture) for name, way in ways.items()} for _ in range(REPETITIONS)]
    time.sleep(_SETTLED)
    read = [{name: _read(way, picture) for name, way in ways.items()} for _ in range(REPETITIONS)]
    measured = {name: [one[name] | other[name] for one, other in zip(written, read, strict=True)] for name in ways}
    works = list(measured[_ZARR][0])
    rows = [
        (work, *(cell for name in ways for cell in _cells([each[work] for each in measured[name]]))) for work in works
    ]
    head = ("", *(text for name in ways for text in (f"{name}: requests", "ms")))
    ours, theirs = (measured[name][0][_MORE][0] for name in (_OWN, _ZARR))
    return Outcome(
        result=f"{count(TILES, 'random tile')} after the first one: {_OWN} {count(ours, 'request')}, {_ZARR} {theirs}",
        is_right=True,
        text="The same image is written and read in three ways, on the disk of this machine, in shards of 64 inner "
        f"chunks. Times are medians of {REPETITIONS} repetitions and include everything that zarr does. On a server, "
        "each request takes much longer than here. PartsStore keeps the indexes of shards in memory, if their files "
        "are more than two seconds old, so that a tile is one request. Shards that are TIFF files have two objects "
        "each, and on a local disk they take more requests, which look for unfinished writes.",
        code=(read_tiles, count_requests),
        table=Table(head, tuple(rows)),
    )


def _ways(folder: Path) -> dict[str, _Way]:
    return {
        _ZARR: _Way(
            lambda store: zarr.create_array(store, name="image", **LAYOUT),
            lambda store: zarr.open_array(store, path="image", mode="r"),
            lambda: CountedStore(folder / "zarr"),
            lambda store: len(store.calls),
        ),
        _OWN: _Way(
            _created,
            lambda store: ps.open_array(store, "image"),
            lambda: ps.PartsStore.from_url(folder / "plain"),
            count_requests,
        ),
        "TIFF shards": _Way(
            lambda store: ps.create_array(store, "image", shard_file="tiff", **LAYOUT),
            lambda store: ps.open_array(store, "image"),
            lambda: ps.PartsStore.from_url(folder / "tiff"),
            count_requests,
        ),
    }


def _created(store: ps.PartsStore) -> zarr.Array[Any]:
    zarr.create_array(store, name="image", **LAYOUT)
    return ps.open_array(store, "image", mode="r+")


type Measured = dict[str, tuple[int, float]]
"""The requests and the seconds of each work."""


def _write(way: _Way, picture: NDArray[np.uint8]) -> Measured:
    """Write the image."""
    found: Measured = {}
    store = way.new_store()
    array = way.create(store)
    with _measured(found, "write the image", way, store):
        array[...] = picture
    return found


def _read(way: _Way, picture: NDArray[np.uint8]) -> Measured:
    """Read the image with a store that knows nothing of it, and raise if a value is wrong."""
    found: Measured = {}
    store = way.new_store()
    places = np.random.default_rng(0).integers(0, SIDE // 64, (TILES, 2)) * 64
    corners = [(int(y), int(x)) for y, x in places]
    with _measured(found, "open it, read one tile", way, store):
        image = way.open(store)
        first = read_tiles(image, corners[:1])
    # One tile of every shard, so that the indexes are known to a store that keeps them.
    read_tiles(image, [(0, 0), (0, 512), (512, 0), (512, 512)])
    with _measured(found, _MORE, way, store):
        tiles = read_tiles(image, corners)
    with _measured(found, "read the whole image", way, store):
        whole = np.asarray(image[:])
    expected = [picture[y : y + 64, x : x + 64] for y, x in corners]
    if not (np.array_equal(first, expected[:1]) and np.array_equal(tiles, expected) and np.array_equal(whole, picture)):
        raise RuntimeError("the image that was read is not the image that was written")
    return found


@contextmanager
def _measured(found: Measured, work: str, way: _Way, store: Any) -> Iterator[None]:
    """Put the requests and the seconds of the block into `found`."""
    before, start = way.requests(store), time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    found[work] = (way.requests(store) - before, seconds)


def _cells(repetitions: Sequence[tuple[int, float]]) -> tuple[str, str]:
    """Return the requests, which are a range if repetitions differ, and the median of the times."""
    requests = sorted({requests for requests, _ in repetitions})
    seconds = statistics.median(seconds for _, seconds in repetitions)
    return " to ".join(f"{each:,}" for each in {requests[0], requests[-1]}), f"{seconds * 1e3:,.1f}"
