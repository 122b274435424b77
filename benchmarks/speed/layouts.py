"""The arrays that are written and read, and the places where they are kept."""

import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from obstore.store import LocalStore, S3Store

from integration.server import Server

type Compression = Literal["none", "zstd", "blosc"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of an array of bytes, and how it is divided and compressed."""

    name: str
    side: int
    chunk: int
    shard: int | None = None
    compression: Compression = "none"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the array."""
        return (self.side, self.side)

    @property
    def outer(self) -> int:
        """The side of what is one object without parts: a shard, or a chunk."""
        return self.shard or self.chunk

    @property
    def count(self) -> int:
        """The number of objects without parts."""
        return (self.side // self.outer) ** 2

    def values(self) -> NDArray[np.uint8]:
        """Return the values to write: random, and compressible to about half."""
        return _values(self.side)


@lru_cache(maxsize=2)
def _values(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(1, 17, (side, side)).astype("uint8")


SMALL = Layout("small", 4096, 128)
SHARDS = Layout("shards", 4096, 64, 1024)
ZSTD = Layout("zstd", 4096, 64, 1024, "zstd")
BLOSC = Layout("blosc", 4096, 64, 1024, "blosc")
BIG = Layout("big", 16384, 8192)
LAYOUTS = {each.name: each for each in (SMALL, SHARDS, ZSTD, BLOSC, BIG)}


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder on a local disk."""

    folder: Path

    def below(self, name: str) -> "Disk":
        """Return a place of its own for one array."""
        return Disk(self.folder / name)

    def objects(self) -> LocalStore:
        """Return the place as a store of obstore."""
        return LocalStore(self.folder, mkdir=True)

    def clear(self) -> None:
        """Remove everything below."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A prefix in a bucket of an S3 server."""

    server: Server
    bucket: str
    prefix: str

    def below(self, name: str) -> "Bucket":
        """Return a place of its own for one array."""
        return Bucket(self.server, self.bucket, f"{self.prefix}/{name}")

    def objects(self) -> S3Store:
        """Return the place as a store of obstore."""
        return S3Store(
            self.bucket,
            prefix=self.prefix,
            endpoint=self.server.endpoint,
            access_key_id=self.server.access_key,
            secret_access_key=self.server.secret_key,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def clear(self) -> None:
        """Leave everything: the server's folder is removed at the end."""


type Place = Disk | Bucket


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
