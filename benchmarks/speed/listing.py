"""Measure opening and listing against zarr's own stores: `python -m benchmarks.speed.listing`.

Every row has the time of a `PartsStore` relative to zarr's ObjectStore (S3) or LocalStore (disk) on the same objects.
Repetitions of both stores are interleaved, each with a store that knows nothing yet, and medians are compared.
"""

import argparse
import asyncio
import gc
import json
import statistics
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import obstore
import xarray as xr
import zarr
from obstore.store import MemoryStore
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import LocalStore, ObjectStore

import parts_store as ps
from benchmarks.places import Disk, Place, places
from benchmarks.speed.work import DISK, LATENCY

AT_ONCE = 64
STORES = ("zarr", "ours", "ours, 2 parts")
PARTS = [ps.Part(""), ps.Part(".tail", size=4)]
type Objects = Mapping[str, bytes]
type Act = Callable[[Store], object]


@dataclass(frozen=True, slots=True)
class Row:
    """Something that both stores do with the same objects."""

    name: str
    # What the objects are called that are written before, and how many chunks or arrays they are.
    tree: str
    count: int
    act: Act
    # Whether the objects have to be written again before every repetition.
    is_destructive: bool = False


def _listed(list_keys: Callable[[], AsyncIterator[str]]) -> int:
    """Return how many keys a listing yields; zarr's ObjectStore needs the event loop already when it is called."""

    async def collect() -> int:
        return len([key async for key in list_keys()])

    return sync(collect())


def _open(store: Store) -> zarr.Group:
    return zarr.open_group(store, mode="r", use_consolidated=False)


def _open_arrays(store: Store) -> int:
    return len(list(_open(store).members()))


def _open_consolidated(store: Store) -> int:
    return len(list(zarr.open_consolidated(store, mode="r").members()))


def _open_xarray(store: Store) -> object:
    return xr.open_zarr(store, consolidated=True, chunks=None)


def _array(store: Store) -> zarr.Array[Any]:
    return zarr.open_array(store, path="a", mode="r")


def _open_each(store: Store) -> int:
    return len([zarr.open_array(store, path=f"v{number}", mode="r") for number in range(200)])


CHUNKS: dict[str, Act] = {
    "list_prefix": lambda store: _listed(lambda: store.list_prefix("a")),
    "list": lambda store: _listed(store.list),
    "list_dir": lambda store: _listed(lambda: store.list_dir("a/c/0")),
    "getsize_prefix": lambda store: sync(store.getsize_prefix("a")),
    "is_empty": lambda store: sync(store.is_empty("a")),
    "list an opened array": lambda store: [_array(store), _listed(lambda: store.list_prefix("a"))],
}
ARRAYS: dict[str, Act] = {
    "open a group and all arrays": _open_arrays,
    "open a consolidated group and all arrays": _open_consolidated,
    "xr.open_zarr, consolidated": _open_xarray,
    "list everything": lambda store: _listed(store.list),
    "list_dir of the group": lambda store: _listed(lambda: store.list_dir("")),
}
# zarr itself compares every chunk with every listed key in these, so they take quadratic time with every store.
FEW_CHUNKS: dict[str, Act] = {
    "nchunks_initialized": lambda store: _array(store).nchunks_initialized,
    "info_complete": lambda store: _array(store).info_complete(),
}
DELETE: dict[str, Act] = {"delete_dir": lambda store: sync(store.delete_dir("a"))}


def all_rows(chunks: Sequence[int] = (10_000,), arrays: Sequence[int] = (200, 10_000)) -> Iterator[Row]:
    """Return the rows for these numbers of chunks and arrays."""
    for count in chunks:
        yield from (Row(name, "chunks", count, act) for name, act in CHUNKS.items())
        if count <= 1000:
            yield from (Row(name, "chunks", count, act) for name, act in FEW_CHUNKS.items())
        if count <= 10_000:
            yield from (Row(name, "chunks", count, act, is_destructive=True) for name, act in DELETE.items())
    for count in arrays:
        yield from (Row(name, "arrays", count, act) for name, act in ARRAYS.items())
    yield Row("open 200 arrays one by one", "arrays", 200, _open_each)


def objects_of(tree: str, count: int, *, has_parts: bool) -> Objects:
    """Return the objects of an array with so many chunks, or of a group with so many arrays."""
    memory = MemoryStore()
    store = ps.PartsStore(memory, parts={"*": PARTS} if has_parts else None)
    root = zarr.create_group(store)
    side = count // 100 if tree == "chunks" else 1
    columns = 100 if tree == "chunks" else 1
    root.create_array("a", shape=(side, columns), chunks=(1, 1), dtype="uint8", dimension_names=("y", "x"))
    found = {each["path"]: bytes(obstore.get(memory, each["path"]).bytes()) for each in obstore.list(memory).collect()}
    suffixes = [part.key_suffix for part in PARTS] if has_parts else [""]
    chunks = [f"c/{row}/{column}{suffix}" for row in range(side) for column in range(columns) for suffix in suffixes]
    if tree == "chunks":
        return found | {f"a/{chunk}": b"12345678" for chunk in chunks}
    group, array = json.loads(found["zarr.json"]), json.loads(found["a/zarr.json"])
    names = [f"v{number}" for number in range(count)]
    members = {"kind": "inline", "must_understand": False, "metadata": dict.fromkeys(names, array)}
    documents = {"zarr.json": json.dumps(group | {"consolidated_metadata": members}).encode()}
    documents |= {f"{name}/zarr.json": found["a/zarr.json"] for name in names}
    return documents | {f"{name}/{chunk}": b"12345678" for name in names for chunk in chunks}


async def _put_all(objects: Any, written: Objects) -> None:
    remaining = iter(written.items())

    async def put() -> None:
        for key, data in remaining:
            await obstore.put_async(objects, key, data)

    await asyncio.gather(*(put() for _ in range(AT_ONCE)))


def _zarr_store(place: Place) -> Store:
    return LocalStore(place.folder) if isinstance(place, Disk) else ObjectStore(place.objects())


def _our_store(place: Place) -> Store:
    return ps.PartsStore(place.objects())


def _timed(store: Store, act: Act) -> float:
    gc.collect()
    start = time.perf_counter()
    act(store)
    return time.perf_counter() - start


def measure(
    row: Row, place: Place, repetitions: int, written: set[Place], stores: Sequence[str] = STORES
) -> dict[str, float]:
    """Return the median seconds of zarr's store, of ours on the same objects, and of ours with two parts."""
    times: dict[str, list[float]] = {name: [] for name in stores}
    for repetition in range(repetitions + 1):
        for peer, seconds in times.items():
            has_parts = peer == "ours, 2 parts"
            own = place.below(f"{row.tree}-{row.count}-{2 if has_parts else 1}")
            if row.is_destructive:
                own = own.below("deleted")
            if row.is_destructive or own not in written:
                asyncio.run(_put_all(own.objects(), objects_of(row.tree, row.count, has_parts=has_parts)))
                written.add(own)
            store = _zarr_store(own) if peer == "zarr" else _our_store(own)
            taken = _timed(store, row.act)
            # The first repetition warms up what all stores share.
            if repetition:
                seconds.append(taken)
    return {peer: statistics.median(seconds) for peer, seconds in times.items()}


def rows(places: Mapping[str, Place], repetitions: int, selected: Sequence[Row] | None = None) -> None:
    """Measure all rows at all places, and print the times of our store relative to zarr's.

    The last column is the time of our store with two parts for every stored object, relative to zarr's time for one.
    """
    print("time relative to zarr's own store, smaller is better")
    print(f"{'':<72}{'zarr':>11}{'no parts':>10}{'2 parts':>9}{'per object':>12}")
    written: set[Place] = set()
    for name, place in places.items():
        for row in selected if selected is not None else tuple(all_rows()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds = measure(row, place.below("listing"), repetitions, written)
            one, two = (seconds[peer] / seconds["zarr"] for peer in ("ours", "ours, 2 parts"))
            objects = [len(objects_of(row.tree, row.count, has_parts=has_parts)) for has_parts in (False, True)]
            label = f"{name}, {row.count} {row.tree}, {row.name}"
            milliseconds = f"{seconds['zarr'] * 1e3:.1f} ms"
            print(f"{label:<72}{milliseconds:>11}{one:>10.2f}{two:>9.2f}{two * objects[0] / objects[1]:>12.2f}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="the median of so many counts")
    parser.add_argument("--chunks", default="10000", help="numbers of chunks of an array, separated by ','")
    parser.add_argument("--arrays", default="200,10000", help="numbers of arrays of a group, separated by ','")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--places", default="disk,S3 +0 ms,S3 +20 ms", help="only these places, separated by ','")
    options = parser.parse_args()
    chunks, arrays = ([int(each) for each in text.split(",") if each] for text in (options.chunks, options.arrays))
    selected = [row for row in all_rows(chunks, arrays) if options.only in row.name]
    with places(LATENCY, DISK) as found:
        rows({name: found[name] for name in options.places.split(",")}, options.repetitions, selected)


if __name__ == "__main__":
    main()
