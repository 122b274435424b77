"""The steps of the demo: TIFF shards, an archive of netCDF files, requests; and those of `writers`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, override

import icechunk
import numpy as np
import tifffile
import xarray as xr
import zarr
from numpy.typing import NDArray
from PIL import Image
from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

import parts_store as ps
from parts_store.examples.demo.page import StepResult
from parts_store.examples.demo.writers import show_eight_writers, show_killed_writers
from parts_store.text import count, size

_SIDE, _SHARD = 1024, 512
_TILES = 100
# A file of a local disk that is younger than two seconds cannot be told from one that replaces it, so that its index is
# not kept in memory.
_SETTLED = 2.1


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


def open_shard(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Open a shard with two programs that do not know Zarr."""
    with Image.open(file) as image:  # Pillow
        return np.asarray(image), tifffile.imread(file)


def show_tiff_shards(folder: Path) -> StepResult:
    """Write an image, and open each of its shards with Pillow and tifffile."""
    picture = julia_set(_SIDE)
    write_image(folder, picture)
    files = sorted((folder / "images.zarr" / "image").rglob("*.tif"))
    opened = [open_shard(file) for file in files]
    expected = [
        picture[row : row + _SHARD, column : column + _SHARD]
        for row in range(0, _SIDE, _SHARD)
        for column in range(0, _SIDE, _SHARD)
    ]
    right = sum(
        all(np.array_equal(pixels, shard) for pixels in found) for found, shard in zip(opened, expected, strict=True)
    )
    return StepResult(
        summary=f"Pillow and tifffile read the right pixels from {right} of {count(len(expected), 'shard')}",
        is_right=right == len(expected),
        text="Every shard of this Zarr array is a TIFF file: its inner chunks are the tiles of the file, and the index "
        "of the shard is an object beside it. zarr, Pillow and tifffile read the same pixels from the same bytes. "
        "ImageJ, QGIS and GDAL open such files, too.",
        code=(write_image, open_shard),
        figures=(
            (picture, f"the Zarr array, {_SIDE} x {_SIDE} pixels"),
            (opened[1][0], f"{files[1].relative_to(folder)}, opened by Pillow"),
        ),
    )


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
    """Adopt twelve monthly files, append one, and compare what xarray reads with the files."""
    place = folder / "archive"
    place.mkdir()
    files = [_write_month(place, month) for month in np.arange("2025-01", "2026-02", dtype="M8[M]")]
    repository = ps.open_repository(place / "repository", virtual=[place])
    year, first = adopt(repository, place / "2025-*.nc", concat_dim="time")
    january, second = adopt(repository, place / "2026-01.nc", append_dim="time")
    expected = np.concatenate([xr.load_dataset(file, engine="h5netcdf")["temperature"] for file in files])
    before, after = (open_version(repository, version)["temperature"].values for version in (first, second))
    is_equal = np.array_equal(after, expected) and np.array_equal(before, expected[:365])
    copied = year.nbytes_copied + january.nbytes_copied
    return StepResult(
        summary=f"{count(len(files), 'netCDF file')} of {size(sum(file.stat().st_size for file in files))} adopted, "
        f"bytes copied: {copied}; xarray reads {len(before)} days of the first version and {len(after)} of the second, "
        f"{'equal to the files' if is_equal else 'DIFFERENT FROM THE FILES'}",
        is_right=is_equal and copied == 0,
        text="Twelve monthly netCDF files become one Zarr dataset in an Icechunk repository, and the next month is "
        "appended to it. Only references to the chunks in the files, and coordinates, are stored. Both commits stay "
        "readable. The values that xarray reads are compared with those that h5netcdf reads from the files.",
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
    encoding: dict[str, dict[str, Any]] = {
        "temperature": packed,
        "time": {"units": "days since 2025-01-01", "dtype": "i8"},
    }
    file = folder / f"{month}.nc"
    dataset.to_netcdf(file, engine="h5netcdf", encoding=encoding)
    return file


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
    """Read the same image with zarr's own store and with this one, and count the requests."""
    picture = julia_set(_SIDE)
    theirs, ours = CountedStore(folder / "requests/zarr"), ps.PartsStore.from_url(folder / "requests/parts_store")
    for store in (theirs, ours):
        image = zarr.create_array(
            store, name="image", shape=picture.shape, chunks=(64, 64, 3), shards=(512, 512, 3), dtype="uint8"
        )
        image[:] = picture
    time.sleep(_SETTLED)
    corners = (np.random.default_rng(0).integers(0, _SIDE // 64, (_TILES, 2)) * 64).tolist()
    expected = [picture[y : y + 64, x : x + 64] for y, x in corners]
    requests, is_equal = [], True
    counted: list[tuple[zarr.Array[Any], Callable[[], int]]] = [
        (zarr.open_array(theirs, path="image", mode="r"), lambda: len(theirs.calls)),
        (ps.open_array(ours, "image"), lambda: count_requests(ours)),
    ]
    for image, count_calls in counted:
        # One tile of every shard, so that the indexes are known to a store that keeps them.
        read_tiles(image, [[0, 0], [0, _SHARD], [_SHARD, 0], [_SHARD, _SHARD]])
        before = count_calls()
        is_equal &= np.array_equal(read_tiles(image, corners), expected)
        requests.append(count_calls() - before)
    return StepResult(
        summary=f"{_TILES} random tiles: PartsStore {requests[1]} requests, zarr's LocalStore {requests[0]}; "
        f"the pixels {'are equal' if is_equal else 'DIFFER'}",
        is_right=is_equal and requests[1] == _TILES,
        text="Tiles of the same image are read one after the other with two stores, in shards of 64 inner chunks. "
        "PartsStore keeps the indexes of shards in memory, so that a tile is one request. `explain` shows the requests "
        "of a read before it is made. `parts-store bench` measures times, also on a server.",
        code=(read_tiles, count_requests),
        printed="\n".join(
            [
                "ours.explain('image', np.s_[500:520, 500:520])",
                *map(str, ours.explain("image", np.s_[500:520, 500:520])),
            ]
        ),
    )


STEPS: tuple[tuple[str, Callable[[Path], StepResult]], ...] = (
    ("A Zarr array whose shards are TIFF files", show_tiff_shards),
    ("Two writers killed in the middle of an overwrite", show_killed_writers),
    ("Eight writers on one shard", show_eight_writers),
    ("A year of netCDF files in versions, without a copy", show_netcdf_archive),
    ("Requests beside plain zarr", show_requests),
)
