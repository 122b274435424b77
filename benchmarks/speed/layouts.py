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


@lru_cache(maxsize=1)
def _values(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(1, 17, (side, side), dtype=np.uint8)


SMALL = Layout("small", 4096, 128)
SHARDS = Layout("shards", 4096, 64, 1024)
ZSTD = Layout("zstd", 4096, 64, 1024, "zstd")
BLOSC = Layout("blosc", 4096, 64, 1024, "blosc")
BIG = Layout("big", 16384, 8192)
# The same arrays in a session of Icechunk, by other ways to open them, and with other numbers of threads.
IN_SESSION = tuple(replace(layout, name=f"Icechunk, {layout.name}") for layout in (SHARDS, ZSTD, SMALL))
OPENED = Layout("opened by zarr, zstd", 8192, 64, 1024, "zstd")
IN_FLIGHT = (
    Layout("in flight, 512 chunks of 16 KiB", 4096, 128, rows=2048),
    Layout("in flight, 64 chunks of 1 MiB", 8192, 1024),
)
# For counted requests, and for the memory that one chunk of 64 MiB takes.
COUNTED = Layout("shards", 1024, 32, 256)
ONE_CHUNK = Layout("64 MiB chunk", 8192, 8192)


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
