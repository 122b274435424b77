"""What readers of adopted files wait for: an archive of months with dask, and a stack page by page, in one run.

- months: 24 netCDF4 files of daily values on a grid of 180 x 360, a compressed chunk for each day. A series at one
  point, and the mean over time, with the engine `parts_store` and `chunks={}`, with VirtualiZarr and Icechunk, and with
  `xr.open_mfdataset`, with a task for each chunk or for each file.
- pages: an uncompressed ImageJ stack of 60 pages, page by page and in random order, against the Zarr view of tifffile.

Everything is on a local disk. The contestants take turns, medians are shown, and all values are compared.

    python -m benchmarks.reading --quick    # fewer and smaller files
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import tifffile
import xarray as xr
import zarr
from numpy.typing import NDArray

import parts_store as ps
from benchmarks.places import Disk
from benchmarks.speed.archives import ARCHIVE_PEERS
from benchmarks.speed.handles import ZarrHandle
from benchmarks.speed.layouts import Archive
from benchmarks.speed.peers import Peer

REPEAT = 3
type Timed = Mapping[str, Callable[[], Any]]


def medians(contestants: Timed, repeat: int) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the median seconds and processor seconds of each contestant, which take turns, and what it returned."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    returned: dict[str, Any] = {}
    for number in range(repeat + 1):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start, processor = time.perf_counter(), time.process_time()
            returned[name] = contestants[name]()
            # The first time, modules are imported and files come into the cache of the system.
            if number:
                seconds[name].append((time.perf_counter() - start, time.process_time() - processor))
    return {name: np.median(each, axis=0) for name, each in seconds.items()}, returned


# --- months -----------------------------------------------------------------------------------------------------------


def run_months(folder: Path, archive: Archive, repeat: int) -> None:
    peers = {"parts_store": "ours, references", "VirtualiZarr": "icechunk", "open_mfdataset, file": "files"}
    openers: dict[str, Callable[[], xr.DataArray]] = {}
    for name, peer_name in peers.items():
        peer, place = ARCHIVE_PEERS[f"{peer_name}, dask"], Disk(folder / name.split(",")[0])
        peer.create(place, archive).write(archive.values())
        openers[name] = partial(_opened, peer, place, archive)
    files = sorted((folder / "open_mfdataset" / "files").iterdir())
    joined: dict[str, Any] = {"engine": "h5netcdf", "combine": "nested", "concat_dim": "time"}
    openers["open_mfdataset, chunk"] = lambda: xr.open_mfdataset(files, chunks={}, **joined)["t"]
    rows, columns = archive.shape
    reads: dict[str, Callable[[Any], Any]] = {
        "series": lambda values: values[:, rows // 2, columns // 3],
        "mean": lambda values: values.mean(axis=0),
    }
    print(f"{len(files)} files, {archive.days} chunks of {4 * rows * columns:,} bytes")
    print(f"seconds (processor), medians of {repeat}\n")
    print(f"{'':<24}{'tasks':>8}" + "".join(f"{name:>16}" for name in ("open", *reads)))
    table: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in openers}

    def opening(opener: Callable[[], xr.DataArray]) -> Callable[[], int]:
        def run() -> int:
            with closing(opener()) as found:
                return len(found.data.dask)

        return run

    tasks: dict[str, int]
    seconds, tasks = medians({name: opening(each) for name, each in openers.items()}, repeat)
    for name in openers:
        table[name]["open"] = seconds[name]
    for name, read in reads.items():

        def reading(opener: Callable[[], xr.DataArray], read: Callable[[Any], Any] = read) -> Callable[[], Any]:
            def run() -> Any:
                with closing(opener()) as found:
                    return read(found).values

            return run

        seconds, values = medians({each: reading(opener) for each, opener in openers.items()}, repeat)
        for each, found in values.items():
            np.testing.assert_allclose(found, read(archive.values()), rtol=1e-4)
            table[each][name] = seconds[each]
    print_months(table, tasks)


def print_months(table: Mapping[str, Mapping[str, NDArray[Any]]], tasks: Mapping[str, int]) -> None:
    ours = table["parts_store"]
    for name, row in table.items():
        shown = ("{:.2f} ({:.2f})".format(*row[each]) for each in ours)
        print(f"{name:<24}{tasks[name]:>8}" + "".join(f"{text:>16}" for text in shown))
    for name in list(table)[1:]:
        shown = ("{:.2f} ({:.2f})".format(*(ours[each] / table[name][each])) for each in ours)
        print(f"{f'relative to {name}':<32}" + "".join(f"{text:>16}" for text in shown))


def _opened(peer: Peer, place: Disk, archive: Archive) -> xr.DataArray:
    handle = peer.reopen(place, archive, False)
    assert isinstance(handle, ZarrHandle)
    found: xr.DataArray = handle.array
    return found


# --- pages ------------------------------------------------------------------------------------------------------------


def run_pages(folder: Path, count: int, repeat: int) -> None:
    values = np.random.default_rng(1).integers(0, 60_000, (count, 512, 512)).astype("u2")
    path = folder / "stack.tif"
    tifffile.imwrite(path, values, imagej=True, metadata={"axes": "ZYX"})
    time.sleep(2)
    repository = ps.open_repository(folder / "stack", virtual=[folder])
    session = repository.writable_session("main")
    ps.adopt(path, into=session)
    session.commit("adopted")
    order = random.Random(1).sample(range(count), count)
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    array = ps.open_array(store, "data")
    view: Any = tifffile.imread(path, aszarr=True)
    other = zarr.open_array(view, mode="r")

    def pages(source: Any) -> Callable[[], int]:
        def run() -> int:
            for page in order:
                np.testing.assert_array_equal(source[page], values[page])
            return 0

        return run

    seconds, _ = medians({"parts_store": pages(array), "tifffile": pages(other)}, repeat)
    store.stats.reset()
    array[order[0]]
    print(f"\n{count} pages of {values[0].nbytes:,} bytes in random order; milliseconds (processor) for a page\n")
    for name, each in seconds.items():
        print(f"{name:<24}" + "{:.2f} ({:.2f})".format(*(1000 * each / count)))
    print("relative to tifffile: {:.2f} ({:.2f})".format(*(seconds["parts_store"] / seconds["tifffile"])))
    print(f"bytes that one page reads: {store.stats.bytes_read:,}")
    view.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller files")
    is_quick = parser.parse_args().quick
    icechunk.set_logs_filter("error")
    with tempfile.TemporaryDirectory(prefix="bench_reading_") as name:
        folder = Path(name).resolve()
        size, days = (36, 90) if is_quick else (360, 731)
        archive = Archive("months", size, size, rows=size // 2, kind="netCDF", days=days)
        run_months(folder, archive, 1 if is_quick else REPEAT)
        run_pages(folder, *((5, 1) if is_quick else (60, REPEAT)))


if __name__ == "__main__":
    main()
