"""The five steps of the demo, each with what it found.

This module is also the program of the writers that steps 2 and 3 start: `python -m parts_store.demo.steps`.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, override
from warnings import catch_warnings, simplefilter

import icechunk
import numpy as np
import tifffile
import xarray as xr
import zarr
from numpy.typing import NDArray
from PIL import Image
from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.storage import LocalStore

import parts_store as ps
from parts_store.format.keys import PROTOCOL_FOLDER
from parts_store.text import count, size

_SIDE, _SHARD = 1024, 512
_TILES = 100
_ROWS, _WRITERS = 64, 8
# A file of a local disk that is younger than two seconds cannot be told from one that replaces it, so that its index is
# not kept in memory.
_SETTLED = 2.1


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step found.

    `summary` is one line for the terminal. `code` are the functions whose source the page shows: they have run.
    `figures` are pixels with a caption. `printed` is what the library, or the step, printed. The page also shows the
    docstring of the step.
    """

    summary: str
    is_right: bool
    code: tuple[Callable[..., Any], ...]
    figures: tuple[tuple[NDArray[np.uint8], str], ...] = ()
    printed: str = ""


def julia_set(side: int) -> NDArray[np.uint8]:
    """Return an RGB image of a Julia set, `side` pixels high and wide."""
    axis = np.linspace(-1.35, 1.35, side)
    z = axis[np.newaxis, :] + 1j * axis[:, np.newaxis]
    steps = np.zeros(z.shape)
    for step in range(120):
        inside = np.abs(z) < 4
        z[inside] = z[inside] ** 2 - 0.79 + 0.15j
        steps[inside] = step
    # The colours are three phases of one wave.
    waves = np.sin(steps[..., np.newaxis] / 16 + np.array([0.0, 0.9, 1.8]))
    return np.asarray(waves * 127.5 + 127.5, dtype=np.uint8)


def write_image(folder: Path, picture: NDArray[np.uint8]) -> None:
    """Write an array whose shards are TIFF files."""
    store = ps.PartsStore.from_url(folder / "images.zarr")
    image = ps.create_array(
        store, "image", shard_file="tiff", shape=picture.shape, chunks=(64, 64, 3), shards=(512, 512, 3), dtype="uint8"
    )
    image[:] = picture


def open_with_zarr(array: Path) -> NDArray[np.uint8]:
    """Read a shard with zarr alone, from its own store."""
    return np.asarray(zarr.open_array(LocalStore(array, read_only=True))[:_SHARD, _SHARD:])


def open_with_tensorstore(array: Path) -> NDArray[np.uint8]:
    """Read a shard with tensorstore."""
    import tensorstore  # noqa: PLC0415 - it may not be installed

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array)}}
    return np.asarray(tensorstore.open(spec, read=True).result()[:_SHARD, _SHARD:].read().result())


def open_with_zarrs(array: Path) -> NDArray[np.uint8]:
    """Read a shard with zarrs, which is a codec pipeline of zarr."""
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return open_with_zarr(array)


def open_with_tifffile(array: Path) -> NDArray[np.uint8]:
    """Open a shard with tifffile."""
    return tifffile.imread(array / "c/0/1/0")


def open_with_pillow(array: Path) -> NDArray[np.uint8]:
    """Open a shard with Pillow."""
    with Image.open(array / "c/0/1/0") as image:
        return np.asarray(image)


def open_with_gdal(array: Path) -> NDArray[np.uint8]:
    """Open a shard with GDAL, by rasterio."""
    import rasterio  # noqa: PLC0415 - it may not be installed
    from rasterio.errors import NotGeoreferencedWarning  # noqa: PLC0415

    with catch_warnings():
        simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(array / "c/0/1/0") as image:
            return np.moveaxis(image.read(), 0, -1)


# The programs, each with the package that it needs; the demo installs some of the packages only.
_PROGRAMS: dict[str, tuple[str, Callable[[Path], NDArray[np.uint8]]]] = {
    "zarr": ("zarr", open_with_zarr),
    "tensorstore": ("tensorstore", open_with_tensorstore),
    "zarrs": ("zarrs", open_with_zarrs),
    "tifffile": ("tifffile", open_with_tifffile),
    "Pillow": ("PIL", open_with_pillow),
    "GDAL": ("rasterio", open_with_gdal),
}


def show_tiff_shards(folder: Path) -> StepResult:
    """Write an image, and open a shard of it with programs that know nothing of this package.

    Every shard of this Zarr array is a TIFF file: its inner chunks are the tiles of the file, and the index of the
    shard is behind the end of the file, in the same object. Programs for Zarr and programs for TIFF read the same
    pixels from the same bytes, without a plugin.
    """
    picture = julia_set(_SIDE)
    write_image(folder, picture)
    array = folder / "images.zarr" / "image"
    opened = {name: read(array) for name, (package, read) in _PROGRAMS.items() if find_spec(package) is not None}
    right = [name for name, found in opened.items() if np.array_equal(found, picture[:_SHARD, _SHARD:])]
    return StepResult(
        summary=f"{count(len(right), 'program')} without a plugin read the right pixels: {', '.join(right)}",
        is_right=len(right) == len(opened),
        code=(write_image, *(_PROGRAMS[name][1] for name in right)),
        figures=(
            (picture, f"the Zarr array, {_SIDE} x {_SIDE} pixels"),
            (opened["Pillow"], f"{(array / 'c/0/1/0').relative_to(folder)}, opened by Pillow"),
        ),
    )


# --- writers that are killed, and writers of one shard ----------------------------------------------------------------


def write_in_parts(folder: Path) -> None:
    """Write the image again, with the index of each shard as an object of its own."""
    store = ps.PartsStore.from_url(folder)
    parts = [ps.Part(".tif"), ps.Part(".index", size=ps.SHARD_INDEX)]
    image = zarr.open_array(store, path="image", mode="r")
    layout: dict[str, Any] = {"chunks": (64, 64, 3), "shards": (512, 512, 3), "data": image}
    ps.create_array(store, "in_parts", shard_file="tiff", parts=parts, **layout)


def invert_shard(folder: Path) -> None:
    """Overwrite a shard with its negative. This process is killed before it is done."""
    image = ps.open_array(ps.PartsStore.from_url(folder), "in_parts", mode="r+")
    image[:512, :512] = 255 - np.asarray(image[:512, :512])


def read_shard(folder: Path) -> NDArray[np.uint8]:
    """Read the shard as any reader does."""
    store = ps.PartsStore.from_url(folder, read_only=True)
    return np.asarray(ps.open_array(store, "in_parts")[:512, :512])


def verify_and_repair(folder: Path) -> list[ps.Report]:
    """Find what the dead writer has left, remove it, and look again."""
    store = ps.PartsStore.from_url(folder)
    return [store.verify(), store.repair(), store.verify()]


def show_killed_writers(folder: Path) -> StepResult:
    """Kill a writer before its commit and another one after it, and look at the image after each of them.

    A process overwrites a shard of the image with its negative, and is killed with SIGKILL. The shard is two objects
    here, a TIFF file and an index. The first process is killed when it has written both, right before it commits them.
    The second one is killed when it has committed them, and has replaced one of the two old objects. A reader sees the
    old image if the writer had not committed, and the new one if it had.
    """
    place = folder / "images.zarr"
    write_in_parts(place)
    before = read_shard(place)
    is_right = True
    figures, printed = [], []
    for when, rename, expected in (("before", 1, before), ("after", 3, 255 - before)):
        with _started([["invert-shard", str(place), str(rename)]]) as (writer,):
            if writer.wait() != -signal.SIGKILL:
                raise RuntimeError(f"the writer has ended before it was killed, with exit code {writer.returncode}")
        seen = read_shard(place)
        left, repaired, clean = verify_and_repair(place)
        is_right &= np.array_equal(seen, expected) and not (left.is_clean or left.is_damaged) and clean.is_clean
        figures.append((seen, f"what a reader saw, writer killed {when} its commit"))
        printed.append(f"Killed {when} its commit. `verify`, then `repair`:\n\n{left}\n\n{repaired}")
    return StepResult(
        summary="2 writers killed; readers saw one whole write each time; `repair` removed all leftovers"
        if is_right
        else "a reader saw a wrong image, or `repair` left something",
        is_right=is_right,
        code=(write_in_parts, invert_shard, read_shard, verify_and_repair),
        figures=tuple(figures),
        printed="\n\n".join(printed),
    )


def write_rows(store: Store, writer: int) -> None:
    """Write every eighth row. Each row is an inner chunk of the one shard that all eight writers write."""
    array = zarr.open_array(store, path="shared", mode="r+")
    for row in range(writer, 64, 8):
        array[row] = writer + 1


def show_eight_writers(folder: Path) -> StepResult:
    """Let eight processes write their rows of one shard, and count the rows that are lost.

    Eight processes write different rows of one shard at the same time. Each write reads the shard, changes a row and
    writes the shard back. PartsStore notices that another process has written in between, and merges both changes.
    zarr's own store replaces the change of the other process.
    """
    place = folder / "shared"
    stores = _shared_stores(place)
    for store in stores.values():
        zarr.create_array(
            store, name="shared", shape=(_ROWS, _ROWS), chunks=(1, _ROWS), shards=(_ROWS, _ROWS), dtype="uint8"
        )
    with _started([["write-rows", str(place), str(number)] for number in range(_WRITERS)]) as writers:
        for _ in stores:
            _wait_for_all(writers)
            for writer in writers:
                print("go", file=writer.stdin, flush=True)
        _wait_for_all(writers)
    found = {name: np.asarray(zarr.open_array(store, path="shared", mode="r")[:]) for name, store in stores.items()}
    expected = (np.arange(_ROWS) % _WRITERS + 1)[:, np.newaxis]
    lost = {name: int((rows != expected).any(axis=1).sum()) for name, rows in found.items()}
    return StepResult(
        summary=f"{_ROWS} updates by {_WRITERS} processes: PartsStore lost {lost['PartsStore']}, "
        f"zarr's LocalStore lost {lost['LocalStore']}{'' if lost['LocalStore'] else ' (by luck)'}",
        is_right=lost["PartsStore"] == 0,
        code=(write_rows,),
        figures=tuple(
            (
                (rows * (255 // _WRITERS)).astype(np.uint8),
                f"{name}: the shade of a row is its writer, lost rows are black",
            )
            for name, rows in found.items()
        ),
    )


def _shared_stores(folder: Path) -> dict[str, Store]:
    ours = ps.PartsStore.from_url(folder / "PartsStore")
    return {"PartsStore": ours, "LocalStore": LocalStore(folder / "LocalStore")}


def _wait_for_all(writers: Sequence[subprocess.Popen[str]]) -> None:
    for writer in writers:
        if writer.stdout is None or writer.stdout.readline() != "ready\n":
            raise RuntimeError("a writer has ended before it was done")


@contextmanager
def _started(calls: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process for each list of arguments of `main`, and kill those that still run at the end of the block."""
    # The import path is sent, because this process may have changed it.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as stack:
        processes = []
        for arguments in calls:
            process = subprocess.Popen(  # noqa: S603 (this Python, and a module of this package)
                [sys.executable, "-m", __name__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
                # Ctrl-C is for this process, which ends the others.
                start_new_session=True,
            )
            # `communicate` closes the pipes.
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def die_before_rename(number: int) -> None:
    """Kill this process with SIGKILL right before it renames a file of the write protocol for the `number`-th time.

    An overwrite of a shard in two objects does this three times. The first one is the commit, which names the journal.
    The other two put the new objects in the place of the old ones.
    """
    numbers = itertools.count(1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        # Python renames files of compiled modules, too.
        is_counted = event in ("os.link", "os.rename") and PROTOCOL_FOLDER in Path(str(arguments[0])).parts
        if is_counted and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say: `invert-shard FOLDER RENAME`, or `write-rows FOLDER WRITER`."""
    match arguments:
        case ["invert-shard", folder, rename]:
            die_before_rename(int(rename))
            invert_shard(Path(folder))
        case ["write-rows", folder, writer]:
            for store in _shared_stores(Path(folder)).values():
                # All writers start when the demo says so. They end if the demo has ended.
                print("ready", flush=True)
                if not sys.stdin.readline():
                    return
                write_rows(store, int(writer))
            print("ready", flush=True)
        case _:
            raise SystemExit(f"unknown arguments {arguments}")


# --- an archive of netCDF files ---------------------------------------------------------------------------------------


def adopt(repository: icechunk.Repository, files: Path, **how: Any) -> tuple[Any, str]:
    """Adopt files, and commit. Only references to the files are written."""
    session = repository.writable_session("main")
    report = ps.adopt(files, into=session, **how)
    return report, session.commit(f"adopt {files.name}")


def open_version(repository: icechunk.Repository, snapshot: str) -> xr.Dataset:
    """Open a version with xarray."""
    store = ps.PartsStore.from_session(repository.readonly_session(snapshot_id=snapshot))
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return dataset


def show_netcdf_archive(folder: Path) -> StepResult:
    """Adopt twelve monthly files, append one, and compare what xarray reads with the files.

    Twelve monthly netCDF files become one Zarr dataset in an Icechunk repository, and the next month is appended to
    it. Only references to the chunks in the files, and coordinates, are stored. Both commits stay readable. The values
    that xarray reads are compared with those that h5netcdf reads from the files.
    """
    place = folder / "archive"
    place.mkdir()
    files = [_write_month(place, month) for month in np.arange("2025-01", "2026-02", dtype="M8[M]")]
    repository = ps.open_repository(place / "repository", virtual=[place])
    year, first = adopt(repository, place / "2025-*.nc", concat_dim="time")
    january, second = adopt(repository, place / "2026-01.nc", append_dim="time")
    expected = np.concatenate([xr.load_dataset(file, engine="h5netcdf")["temperature"] for file in files])
    before, after = (open_version(repository, version)["temperature"].values for version in (first, second))
    is_equal = np.array_equal(after, expected) and np.array_equal(before, expected[:365])
    # The coordinates are copied.
    copied = sum(each.nbytes_copied for each in (*year.arrays, *january.arrays) if each.path == "temperature")
    return StepResult(
        summary=f"{count(len(files), 'netCDF file')} of {size(sum(file.stat().st_size for file in files))} adopted, "
        f"bytes of temperatures copied: {copied}; xarray reads {len(before)} days of the first version and "
        f"{len(after)} of the second, {'equal to the files' if is_equal else 'DIFFERENT FROM THE FILES'}",
        is_right=is_equal and copied == 0,
        code=(adopt, open_version),
        printed=f"The year:\n\n{year}\n\nThe month that is appended:\n\n{january}",
    )


def _write_month(folder: Path, month: np.datetime64) -> Path:
    """Write a netCDF file with a temperature for each day of a month, packed as 16-bit integers and compressed."""
    days = np.arange(month, month + np.timedelta64(1, "M"), dtype="M8[D]").astype("M8[ns]")
    temperature = np.random.default_rng(month.astype(int)).normal(15, 5, (len(days), 45, 90))
    dataset = xr.Dataset(
        {"temperature": (("time", "lat", "lon"), temperature, {"units": "degree_Celsius"})},
        {"time": days, "lat": np.linspace(-88, 88, 45), "lon": np.linspace(2, 358, 90)},
    )
    packed = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9999, "chunksizes": (1, 45, 90), "zlib": True}
    file = folder / f"{month}.nc"
    days_since = {"units": "days since 2025-01-01", "dtype": "i8"}
    dataset.to_netcdf(file, engine="h5netcdf", encoding={"temperature": packed, "time": days_since})
    return file


# --- requests ---------------------------------------------------------------------------------------------------------


class CountedStore(LocalStore):
    """zarr's own store for a local disk, which counts the calls that read a file."""

    # In the class, because zarr makes copies of a store.
    calls: ClassVar[list[str]] = []

    @override
    async def get(self, key: str, *args: Any, **kwargs: Any) -> Buffer | None:
        self.calls.append(key)
        return await super().get(key, *args, **kwargs)

    @override
    def get_sync(self, key: str, **kwargs: Any) -> Buffer | None:
        self.calls.append(key)
        return super().get_sync(key, **kwargs)


def read_tiles(image: zarr.Array[Any], corners: list[list[int]]) -> list[Any]:
    """Read tiles of 64 x 64 pixels, one after the other."""
    return [image[y : y + 64, x : x + 64] for y, x in corners]


def count_requests(store: ps.PartsStore) -> int:
    """Return how many requests a store has made."""
    return sum(store.stats.calls.values())


def show_requests(folder: Path) -> StepResult:
    """Read the same image with zarr's own store and with this one, and count the requests.

    Tiles of the same image are read one after the other with two stores, in shards of 64 inner chunks. PartsStore
    keeps the indexes of shards in memory, so that a tile is one request. `explain` shows the requests of a read before
    it is made. `parts-store bench` measures times, also on a server.
    """
    picture = julia_set(_SIDE)
    theirs, ours = CountedStore(folder / "requests/zarr"), ps.PartsStore.from_url(folder / "requests/parts_store")
    layout: dict[str, Any] = {"shape": picture.shape, "chunks": (64, 64, 3), "shards": (_SHARD, _SHARD, 3)}
    for store in (theirs, ours):
        zarr.create_array(store, name="image", dtype="uint8", **layout)[:] = picture
    time.sleep(_SETTLED)
    corners = (np.random.default_rng(0).integers(0, _SIDE // 64, (_TILES, 2)) * 64).tolist()
    expected = [picture[y : y + 64, x : x + 64] for y, x in corners]
    arrays = {"zarr": zarr.open_array(theirs, path="image", mode="r"), "PartsStore": ps.open_array(ours, "image")}
    # One tile of every shard, so that the indexes are known to a store that keeps them.
    for image in arrays.values():
        read_tiles(image, [[0, 0], [0, _SHARD], [_SHARD, 0], [_SHARD, _SHARD]])
    theirs.calls.clear()
    ours.stats.reset()
    is_equal = all(np.array_equal(read_tiles(image, corners), expected) for image in arrays.values())
    requests = count_requests(ours)
    shown = ours.explain("image", np.s_[500:520, 500:520])
    return StepResult(
        summary=f"{_TILES} random tiles: PartsStore {requests} requests, zarr's LocalStore {len(theirs.calls)}; "
        f"the pixels {'are equal' if is_equal else 'DIFFER'}",
        is_right=is_equal and requests == _TILES,
        code=(read_tiles, count_requests),
        printed="\n".join(["ours.explain('image', np.s_[500:520, 500:520])", *map(str, shown)]),
    )


STEPS: tuple[tuple[str, Callable[[Path], StepResult]], ...] = (
    ("A Zarr array whose shards are TIFF files", show_tiff_shards),
    ("Two writers killed in the middle of an overwrite", show_killed_writers),
    ("Eight writers on one shard", show_eight_writers),
    ("A year of netCDF files in versions, without a copy", show_netcdf_archive),
    ("Requests beside plain zarr", show_requests),
)


if __name__ == "__main__":
    main(sys.argv[1:])
