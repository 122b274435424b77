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
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import tifffile
import virtualizarr
import xarray as xr
import zarr
from numpy.typing import NDArray
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.parsers import HDFParser

import parts_store as ps

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


def write_months(folder: Path, months: int, shape: tuple[int, int]) -> list[Path]:
    """Write a file for each month from January 2023 on."""
    files, chance = [], np.random.default_rng(1)
    for number in range(months):
        month = np.datetime64("2023-01") + np.timedelta64(number, "M")
        days = np.arange(month, month + np.timedelta64(1, "M"), dtype="M8[D]").astype("M8[ns]")
        values = np.round(chance.normal(280, 5, (len(days), *shape)), 1).astype("f4")
        dataset = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": days})
        files.append(folder / f"{month}.nc")
        chunks = {"t": {"chunksizes": (1, *shape), "zlib": True, "complevel": 1}}
        dataset.to_netcdf(files[-1], engine="h5netcdf", encoding=chunks)
    # Of a file that was just written, the next second is waited for.
    time.sleep(2)
    return files


def with_parts_store(folder: Path, files: list[Path]) -> Callable[[], xr.Dataset]:
    repository = ps.open_repository(folder / "ours", virtual=[folder])
    session = repository.writable_session("main")
    ps.adopt(files, into=session, concat_dim="time")
    session.commit("adopted")

    def opened() -> xr.Dataset:
        session = ps.open_repository(folder / "ours", virtual=[folder]).readonly_session("main")
        source: Any = session
        return xr.open_dataset(source, engine="parts_store", chunks={})

    return opened


def with_virtualizarr(folder: Path, files: list[Path]) -> Callable[[], xr.Dataset]:
    prefix = f"{folder.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store=store))
    storage = icechunk.local_filesystem_storage(str(folder / "theirs"))
    access: Any = {prefix: icechunk.credentials.LocalFileSystemAccess}
    repository = icechunk.Repository.create(storage, config=config, authorize_virtual_chunk_access=access)
    virtual = virtualizarr.open_virtual_mfdataset(
        [each.as_uri() for each in files],
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=HDFParser(),
        loadable_variables=["time"],
        combine="nested",
        concat_dim="time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
    )
    session = repository.writable_session("main")
    virtual.vz.to_icechunk(session.store)
    session.commit("written")

    def opened() -> xr.Dataset:
        found = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
        store = found.readonly_session("main").store
        dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, zarr_format=3, chunks={})
        return dataset

    return opened


def run_months(folder: Path, months: int, shape: tuple[int, int], repeat: int) -> None:
    files = write_months(folder, months, shape)
    joined: dict[str, Any] = {"engine": "h5netcdf", "combine": "nested", "concat_dim": "time"}
    openers: dict[str, Callable[[], xr.Dataset]] = {
        "parts_store": with_parts_store(folder, files),
        "VirtualiZarr": with_virtualizarr(folder, files),
        "open_mfdataset, chunk": lambda: xr.open_mfdataset(files, chunks={}, **joined),
        "open_mfdataset, file": lambda: xr.open_mfdataset(files, chunks={"time": -1}, **joined),
    }
    reads: dict[str, Callable[[xr.DataArray], xr.DataArray]] = {
        "series": lambda values: values[:, shape[0] // 2, shape[1] // 3],
        "mean": lambda values: values.mean("time"),
    }
    days = sum(xr.open_dataset(each, engine="h5netcdf").sizes["time"] for each in files)
    print(f"{months} files, {days} chunks of {4 * shape[0] * shape[1]:,} bytes")
    print(f"seconds (processor), medians of {repeat}\n")
    print(f"{'':<24}{'tasks':>8}" + "".join(f"{name:>16}" for name in ("open", *reads)))
    rows: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in openers}

    def opening(opener: Callable[[], xr.Dataset]) -> Callable[[], int]:
        def run() -> int:
            with closing(opener()) as dataset:
                return len(dataset["t"].data.dask)

        return run

    tasks: dict[str, int]
    seconds, tasks = medians({name: opening(each) for name, each in openers.items()}, repeat)
    for name in openers:
        rows[name]["open"] = seconds[name]
    for name, read in reads.items():

        def reading(opener: Callable[[], xr.Dataset], read: Callable[[Any], Any] = read) -> Callable[[], Any]:
            def run() -> Any:
                with closing(opener()) as dataset:
                    return read(dataset["t"]).values

            return run

        seconds, values = medians({each: reading(opener) for each, opener in openers.items()}, repeat)
        for each, found in values.items():
            np.testing.assert_allclose(found, values["open_mfdataset, file"], rtol=1e-4)
            rows[each][name] = seconds[each]
    ours = rows["parts_store"]
    for name, row in rows.items():
        shown = ("{:.2f} ({:.2f})".format(*row[each]) for each in ours)
        print(f"{name:<24}{tasks[name]:>8}" + "".join(f"{text:>16}" for text in shown))
    for name in list(openers)[1:]:
        shown = ("{:.2f} ({:.2f})".format(*(ours[each] / rows[name][each])) for each in ours)
        print(f"{f'relative to {name}':<32}" + "".join(f"{text:>16}" for text in shown))


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
        run_months(folder, *((3, (18, 36), 1) if is_quick else (24, (180, 360), REPEAT)))
        run_pages(folder, *((5, 1) if is_quick else (60, REPEAT)))


if __name__ == "__main__":
    main()
