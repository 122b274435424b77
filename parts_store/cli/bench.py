"""`parts-store bench` and `parts-store demo`: how fast the library is, and what it does."""

import secrets
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parts_store.cli.exits import DAMAGED, OK, print_error
from parts_store.cli.parameters import Options, Output, Url, parse_options
from parts_store.errors import StoreConfigError

if TYPE_CHECKING:
    from zarr import Array

# How many seconds a server has to carry out what it has received, before the folder is deleted.
_SETTLE: Final = 1.0
_ZARR: Final = "zarr's own store"


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
    deleted, also after an error. The store of this package, with its codec
    pipeline, is measured beside zarr's own store.
    """
    outer = shard or chunk
    if outer % chunk:
        raise StoreConfigError("--shard", f"a multiple of {chunk}, the side of a chunk", f"{shard}")
    if side % outer:
        what = "a shard" if shard else "a chunk"
        raise StoreConfigError("--side", f"a multiple of {outer}, the side of {what}", f"{side}")
    import zarr

    from parts_store._compat.zarr import end_tasks, sync
    from parts_store.store.repositories import open_writable

    given = parse_options(option)
    store = open_writable(url, **given)
    if store.session is not None:
        raise StoreConfigError("url", "a store of objects", "an Icechunk repository")
    layout: dict[str, Any] = {
        "shape": (side, side),
        "chunks": (chunk, chunk),
        "shards": (shard, shard) if shard else None,
    }
    folder = f"parts-store-bench-{secrets.token_hex(8)}"
    times: dict[tuple[str, str], list[float]] = {}
    try:
        # The folder is the root of a store, so that zarr creates no group at the URL.
        below = open_writable(f"{url.removesuffix('/')}/{folder}", create=True, **given)
        openers = _openers(below.store)
        with output.progress("bench", "arrays") as progress:
            # The stores take turns.
            for number, name in enumerate([*openers] * repetitions, start=1):
                zarr.create_array(below, name=f"{number}", dtype="uint8", compressors=None, **layout)
                for work, seconds in _measure(openers[name], f"{number}", chunk, shard or side, reads).items():
                    times.setdefault((name, work), []).append(seconds)
                progress(number, len(openers) * repetitions)
    except KeyboardInterrupt:
        # zarr would go on writing into the folder.
        end_tasks()
        # A server may still carry out requests that it has received.
        time.sleep(_SETTLE)
        raise
    finally:
        sync(store.delete_dir(folder))
    results, lines = [], []
    for (name, work), measured in times.items():
        seconds = statistics.median(measured)
        speed = statistics.median(times[_ZARR, work]) / seconds
        results.append({"store": name, "work": work, "seconds": seconds, "speed": speed})
        lines.append(f"{name}, {work}: {seconds * 1e3:.2f} ms, {speed:.2f} times {_ZARR}")
    output.show({"side": side, "chunk": chunk, "shard": shard, "results": results}, lines)
    return OK


def _openers(objects: Any) -> "dict[str, Callable[[str, Any], Array[Any]]]":
    """Return functions that open an array, by its path and a mode, in a new store that knows nothing of the array."""
    import zarr
    from obstore.store import LocalStore
    from zarr.storage import LocalStore as ZarrLocalStore
    from zarr.storage import ObjectStore

    from parts_store.pipeline.opening import open_array
    from parts_store.store.store import PartsStore

    def theirs() -> Any:
        return ZarrLocalStore(str(objects.prefix)) if isinstance(objects, LocalStore) else ObjectStore(objects)

    return {
        _ZARR: lambda path, mode: zarr.open_array(theirs(), path=path, mode=mode),
        "PartsStore": lambda path, mode: open_array(PartsStore(objects), path, mode=mode),
    }


def _measure(
    open_array: "Callable[[str, Any], Array[Any]]", path: str, chunk: int, outer: int, reads: int
) -> dict[str, float]:
    """Write an array, read it, compare, and read random chunks of it; return the seconds of each work."""
    import numpy as np

    random = np.random.default_rng(0)
    array = open_array(path, "r+")
    values = random.integers(1, 256, array.shape, dtype="uint8")
    start = time.perf_counter()
    array[...] = values
    write = time.perf_counter() - start
    array = open_array(path, "r")
    start = time.perf_counter()
    found = array[...]
    read = time.perf_counter() - start
    np.testing.assert_array_equal(found, values)
    # All in the first shard, whose index is known after one read.
    corners = random.integers(0, outer // chunk, (reads, 2)) * chunk
    array[:chunk, :chunk]
    start = time.perf_counter()
    for row, column in corners.tolist():
        array[row : row + chunk, column : column + chunk]
    return {"write": write, "read": read, "random read": (time.perf_counter() - start) / reads}


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new folder, or that of an earlier demo, which is replaced.")
    ] = Path("demo-output"),
    *,
    output: Output,
) -> int:
    """Show what the library does, in five steps on this machine.

    It takes less than a minute, and needs no server. The pictures, numbers and
    code of each step are on a page, FOLDER/index.html.
    """
    from parts_store.demo import run

    is_silent = output.as_json or output.is_quiet
    done = run(folder, (lambda _text: None) if is_silent else _say)
    output.show(done.to_json(), [f"open {done.page.as_uri()} in a browser"])
    if not done.is_right:
        print_error("a step of the demo did not find what it should find; please report it")
        return DAMAGED
    return OK


def _say(text: str) -> None:
    print(text, flush=True)
