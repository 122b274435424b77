"""`parts-store bench`."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parts_store.cli.exits import OK
from parts_store.cli.output import Output
from parts_store.cli.parameters import Options, Url, parse_options
from parts_store.errors import StoreConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from zarr import Array

    from parts_store.engine.stats import Progress
    from parts_store.store import PartsStore

_ZARR: Final = "zarr's own store"
_DOCUMENT: Final = "zarr.json"
_WORK: Final = ("write", "read", "random read")


@dataclass(frozen=True, slots=True)
class _Layout:
    """The array that is written: a square of bytes, in chunks, and in shards if `shard` is not 0."""

    side: int
    chunk: int
    shard: int

    def __post_init__(self) -> None:
        if self.shard and self.shard % self.chunk:
            raise StoreConfigError("--shard", f"a multiple of {self.chunk}, the side of a chunk", f"{self.shard}")
        outer = self.shard or self.chunk
        if self.side % outer:
            what = "a shard" if self.shard else "a chunk"
            raise StoreConfigError("--side", f"a multiple of {outer}, the side of {what}", f"{self.side}")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `zarr.create_array`."""
        return {
            "shape": (self.side, self.side),
            "chunks": (self.chunk, self.chunk),
            "shards": (self.shard, self.shard) if self.shard else None,
            "dtype": "uint8",
            "compressors": None,
        }


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to write and read an array, by its path."""

    create: "Callable[[str], Array[Any]]"
    open: "Callable[[str], Array[Any]]"


@dataclass(frozen=True, slots=True)
class _Result:
    """The median time of one way for one work, and its speed as a multiple of that of zarr's own store."""

    store: str
    work: str
    seconds: float
    speed: float


def bench(
    url: Url,
    *,
    side: Annotated[int, typer.Option(min=1, help="The side of the array, a square of bytes.")] = 4096,
    chunk: Annotated[int, typer.Option(min=1, help="The side of a chunk.")] = 64,
    shard: Annotated[int, typer.Option(min=0, help="The side of a shard; 0 for an array without shards.")] = 1024,
    reads: Annotated[int, typer.Option(min=1, help="How many chunks are read at random, one after the other.")] = 20,
    repetitions: Annotated[int, typer.Option(min=1, help="The median of this many repetitions is printed.")] = 3,
    option: Options = None,
    output: Output,
) -> int:
    """Measure how fast arrays are written and read at a URL.

    Arrays are written to a new folder below the URL, read back, compared and
    deleted, also after an error. zarr's own store is measured beside the store
    of this package, without and with its codec pipeline, and with two parts.
    """
    layout = _Layout(side, chunk, shard)
    from parts_store.repositories import open_writable

    store = open_writable(url, **parse_options(option))
    if store.session is not None:
        raise StoreConfigError("url", "a store of objects", "an Icechunk repository")
    with _folder(store) as folder, output.progress("bench", "arrays") as progress:
        found = _measure(_ways(store.store, layout), layout, folder, reads, repetitions, progress)
    results = [
        _Result(name, work, seconds[work], found[_ZARR][work] / seconds[work])
        for name, seconds in found.items()
        for work in _WORK
    ]
    lines = [
        f"{each.store}, {each.work}: {each.seconds * 1e3:.2f} ms, {each.speed:.2f} times {_ZARR}" for each in results
    ]
    document = {"side": side, "chunk": chunk, "shard": shard, "results": [asdict(each) for each in results]}
    output.show(document, lines, lambda: _table(found))
    return OK


@contextmanager
def _folder(store: "PartsStore") -> Iterator[str]:
    """Yield the path of a new folder, which is deleted with everything in it at the end.

    zarr creates a group above the first array, at the URL. That group is deleted as well, unless it was there before,
    or another client has put something beside it.
    """
    import secrets

    from parts_store._compat.zarr import sync

    folder = f"parts-store-bench-{secrets.token_hex(8)}"
    before = None if _is_group(store) else sync(_names(store))
    try:
        yield folder
    finally:
        sync(store.delete_dir(folder))
        if before is not None and sync(_names(store)) == before | {_DOCUMENT}:
            sync(store.delete(_DOCUMENT))


def _is_group(store: "PartsStore") -> bool:
    """Return whether there is a group at the URL; raise if a group would hide what is there, or cannot be there."""
    import zarr

    from parts_store._compat.zarr import sync

    expected = "a folder without a Zarr array or group, or a group of Zarr v3"
    if sync(store.exists(_DOCUMENT)):
        if isinstance(zarr.open(store, mode="r"), zarr.Array):
            raise StoreConfigError("url", expected, "an array")
        return True
    if any(sync(store.exists(name)) for name in (".zgroup", ".zarray")):
        raise StoreConfigError("url", expected, "an array or a group of Zarr v2")
    return False


async def _names(store: "PartsStore") -> set[str]:
    return {name async for name in store.list_dir("")}


def _ways(objects: Any, layout: _Layout) -> dict[str, _Way]:
    """Return the ways that are compared. Each opens a store of its own, which knows nothing of the array."""
    import zarr
    from obstore.store import LocalStore
    from zarr.storage import LocalStore as ZarrLocalStore
    from zarr.storage import ObjectStore

    from parts_store.create import create_array
    from parts_store.format.parts import SHARD_INDEX, Part
    from parts_store.pipeline.opening import open_array
    from parts_store.store import PartsStore

    def theirs() -> Any:
        return ZarrLocalStore(str(objects.prefix)) if isinstance(objects, LocalStore) else ObjectStore(objects)

    def ours() -> PartsStore:
        return PartsStore(objects)

    def create_fast(path: str) -> "Array[Any]":
        store = ours()
        zarr.create_array(store, name=path, **layout.arguments)
        return open_array(store, path, mode="r+")

    parts = [Part(""), Part(".index", size=SHARD_INDEX) if layout.shard else Part(".tail", size=1)]
    return {
        _ZARR: _Way(
            lambda path: zarr.create_array(theirs(), name=path, **layout.arguments),
            lambda path: zarr.open_array(theirs(), path=path, mode="r"),
        ),
        "PartsStore": _Way(
            lambda path: zarr.create_array(ours(), name=path, **layout.arguments),
            lambda path: zarr.open_array(ours(), path=path, mode="r"),
        ),
        "PartsStore and its pipeline": _Way(create_fast, lambda path: open_array(ours(), path)),
        "PartsStore and its pipeline, 2 parts": _Way(
            lambda path: create_array(ours(), path, parts=parts, **layout.arguments),
            lambda path: open_array(ours(), path),
        ),
    }


def _measure(
    ways: dict[str, _Way], layout: _Layout, folder: str, reads: int, repetitions: int, progress: "Progress"
) -> dict[str, dict[str, float]]:
    """Return the median seconds of each way for each work; the ways take turns."""
    times: dict[str, dict[str, list[float]]] = {name: {work: [] for work in _WORK} for name in ways}
    for repetition in range(repetitions):
        for number, (name, way) in enumerate(ways.items()):
            seconds = _measure_once(way, layout, f"{folder}/{repetition}-{number}", reads)
            for work in _WORK:
                times[name][work].append(seconds[work])
            progress(repetition * len(ways) + number + 1, repetitions * len(ways))
    return {name: {work: statistics.median(each) for work, each in of_way.items()} for name, of_way in times.items()}


def _measure_once(way: _Way, layout: _Layout, path: str, reads: int) -> dict[str, float]:
    import numpy as np

    random = np.random.default_rng(0)
    values = random.integers(1, 256, (layout.side, layout.side), dtype="uint8")
    array = way.create(path)
    start = time.perf_counter()
    array[...] = values
    write = time.perf_counter() - start
    array = way.open(path)
    start = time.perf_counter()
    found = array[...]
    read = time.perf_counter() - start
    np.testing.assert_array_equal(found, values)
    # All in the first shard, whose index is known after one read.
    corners = random.integers(0, (layout.shard or layout.side) // layout.chunk, (reads, 2)) * layout.chunk
    array[: layout.chunk, : layout.chunk]
    start = time.perf_counter()
    for row, column in corners.tolist():
        array[row : row + layout.chunk, column : column + layout.chunk]
    return {"write": write, "read": read, "random read": (time.perf_counter() - start) / reads}


def _table(found: dict[str, dict[str, float]]) -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for work in _WORK:
        table.add_column(work, justify="right", no_wrap=True)
    for name, seconds in found.items():
        cells = [f"{seconds[work] * 1e3:,.1f} ms {found[_ZARR][work] / seconds[work]:6.1f}" for work in _WORK]
        table.add_row(Text(name), *(Text(f"{cell}\N{MULTIPLICATION SIGN}") for cell in cells))
    return [table]
