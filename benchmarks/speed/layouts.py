"""The arrays that are written and read, and how zarr and parts_store are asked for them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import parts_store as ps

type Compression = Literal["none", "zstd", "blosc"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of an array of bytes, and how it is divided and compressed."""

    name: str
    side: int
    chunk: int
    shard: int | None = None
    compression: Compression = "none"
    # The number of rows, if the array is not a square.
    rows: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the array."""
        return (self.side if self.rows is None else self.rows, self.side)

    @property
    def outer(self) -> int:
        """The side of what is one object without parts: a shard, or a chunk."""
        return self.shard or self.chunk

    @property
    def inner_count(self) -> int:
        """The number of inner chunks along one side of a shard."""
        return self.outer // self.chunk

    def values(self) -> NDArray[np.uint8]:
        """Return the values to write: random, and compressible to about half."""
        return _values(self.side)[: self.shape[0]]


@dataclass(frozen=True, slots=True)
class Archive(Layout):
    """Files that are adopted: daily maps in a netCDF4 file for each month, or the tiles of a TIFF."""

    kind: Literal["netCDF", "TIFF"] = "TIFF"
    # Of which each is a compressed chunk.
    days: int = 731

    def values(self) -> NDArray[Any]:
        """Return the values of the files: smooth, with noise."""
        return _values_of_archive(self)

    def tiles(self, seed: int, count: int) -> list[tuple[slice, ...]]:
        """Return random days, or random tiles."""
        random = np.random.default_rng(seed)
        if self.kind == "netCDF":
            days = random.integers(0, self.days, count).tolist()
            return [(slice(day, day + 1), slice(None), slice(None)) for day in days]
        corners = (random.integers(0, self.side // self.chunk, (count, 2)) * self.chunk).tolist()
        return [tuple(slice(start, start + self.chunk) for start in corner) for corner in corners]

    def series(self, seed: int) -> tuple[slice, ...]:
        """Return all days at a random point, or all rows of a random column."""
        random = np.random.default_rng(seed)
        sizes = self.shape if self.kind == "netCDF" else self.shape[1:]
        starts = [int(random.integers(0, size)) for size in sizes]
        return (slice(None), *(slice(start, start + 1) for start in starts))


@lru_cache(maxsize=2)
def _values_of_archive(archive: Archive) -> NDArray[Any]:
    random, (rows, columns) = np.random.default_rng(1), archive.shape
    surface = np.add.outer(np.sin(np.arange(rows) / 20), np.cos(np.arange(columns) / 30)) * 1000
    if archive.kind == "TIFF":
        return (surface + random.integers(2000, 2064, surface.shape)).astype("u2")
    noise = random.normal(280, 5, (archive.days, rows, columns))
    return np.asarray(np.round(surface / 100 + noise, 1), "f4")


@lru_cache(maxsize=1)
def _values(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(1, 17, (side, side), dtype=np.uint8)


SMALL = Layout("small", 4096, 128)
SHARDS = Layout("shards", 4096, 64, 1024)
ZSTD = Layout("zstd", 4096, 64, 1024, "zstd")
BLOSC = Layout("blosc", 4096, 64, 1024, "blosc")
BIG = Layout("big", 16384, 8192)
# The same arrays in a session of Icechunk, as files, opened in other ways, and with other numbers of threads.
IN_SESSION = tuple(replace(layout, name=f"Icechunk, {layout.name}") for layout in (SHARDS, ZSTD, SMALL))
FILES = replace(ZSTD, name="shard_file, zstd")
OPENED = Layout("opened by zarr, zstd", 8192, 64, 1024, "zstd")
IN_FLIGHT = (
    Layout("in flight, 512 chunks of 16 KiB", 4096, 128, rows=2048),
    Layout("in flight, 64 chunks of 1 MiB", 8192, 1024),
)
# 24 files with a compressed chunk of 65 kB for each day, and one with 256 compressed tiles of 128 KiB.
MONTHS = Archive("netCDF4, 24 months", 180, 180, rows=90, kind="netCDF")
TIFF = Archive("TIFF, 256 tiles", 4096, 256, kind="TIFF")
# For counted requests, and for the memory that one chunk of 64 MiB takes.
COUNTED = Layout("shards", 1024, 32, 256)
ONE_CHUNK = Layout("64 MiB chunk", 8192, 8192)
LARGE = Layout("1 GiB in 64 shards", 32768, 512, 4096)


def zarr_arguments(layout: Layout) -> dict[str, Any]:
    """Return the arguments of `zarr.create_array` for a layout."""
    from zarr.codecs import BloscCodec, ZstdCodec

    compressors: dict[Compression, Any] = {"none": None, "zstd": ZstdCodec(level=3), "blosc": BloscCodec(cname="lz4")}
    shards = None if layout.shard is None else (layout.shard,) * 2
    return {
        "shape": layout.shape,
        "chunks": (layout.chunk,) * 2,
        "shards": shards,
        "dtype": "uint8",
        "compressors": compressors[layout.compression],
        "fill_value": 0,
    }


def parts_of(layout: Layout, count: int) -> list[ps.Part]:
    """Return the parts of an array: an index beside the shard, or the last bytes of a chunk."""
    last = ps.Part(".index", size=ps.SHARD_INDEX) if layout.shard else ps.Part(".tail", size=4)
    return [ps.Part(""), last] if count == 2 else [ps.Part(".head", size=64), ps.Part(""), last]
