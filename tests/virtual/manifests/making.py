"""Arrays of references for tests: random values, encoded by zarr, cut into pieces at random places in files."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import MemoryStore
from virtualizarr.manifests.utils import create_v3_array_metadata
from zarr.core.buffer import Buffer
from zarr.core.metadata.v3 import ArrayV3Metadata

from parts_store.manifests import PartsArray
from tests.effort import examples

DTYPES = ("uint8", "<i4", ">i2", "float64")
CODECS: dict[str, dict[str, Any]] = {
    "plain": {"compressors": None},
    "zstd": {"compressors": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]},
    "checksum": {"compressors": [{"name": "crc32c"}]},
}


class CountingStore:
    """A store that records the ranges that are requested; it has no methods other than the one that is needed."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.requests: list[tuple[str, int, int]] = []

    async def get_async(self, key: str, *, options: dict[str, Any]) -> Any:
        self.requests.append((key, *options["range"]))
        return await self.store.get_async(key, options=options)


@dataclass
class Files:
    """Files in memory, in two buckets, with pieces of chunks and other bytes between them."""

    rng: np.random.Generator
    names: tuple[str, ...] = ("s3://one/a", "s3://one/b/c", "s3://two/a")
    inline: float = 0.15
    contents: dict[str, bytearray] = field(default_factory=dict)

    def put(self, piece: bytes) -> dict[str, Any]:
        """Write a piece to a random file; return its entry in a manifest."""
        if self.rng.random() < self.inline:
            return {"path": "", "offset": 0, "length": len(piece), "data": piece}
        name = self.names[self.rng.integers(len(self.names))]
        content = self.contents.setdefault(name, bytearray())
        content += self.rng.bytes(int(self.rng.integers(4)))
        offset = len(content)
        content += piece
        return {"path": name, "offset": offset, "length": len(piece)}

    def registry(self) -> ObjectStoreRegistry[Any]:
        """Return the registry of both buckets."""
        stores = {"s3://one": MemoryStore(), "s3://two": MemoryStore()}
        for name, content in self.contents.items():
            bucket, _, key = name.removeprefix("s3://").partition("/")
            stores[f"s3://{bucket}"].put(key, bytes(content))
        return ObjectStoreRegistry(dict(stores))


@dataclass(frozen=True)
class Kind:
    """How an array is encoded and cut into parts."""

    dtype: str
    codecs: str
    parts: int
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    fill_value: int = 7
    # The axes of a chunk in the order of its bytes.
    order: tuple[int, ...] | None = None


def encode(values: NDArray[Any], kind: Kind) -> tuple[ArrayV3Metadata, dict[str, bytes]]:
    """Return the metadata of a zarr array, and its chunks by their keys in a manifest."""
    stored: dict[str, Buffer] = {}
    array = zarr.create_array(
        zarr.storage.MemoryStore(stored),
        shape=values.shape,
        chunks=kind.chunks,
        shards=kind.shards,
        dtype=kind.dtype,
        fill_value=kind.fill_value,
        config={"write_empty_chunks": True},
        filters=None if kind.order is None else [zarr.codecs.TransposeCodec(order=kind.order)],
        **CODECS[kind.codecs],
    )
    array[...] = values
    metadata = array.metadata
    assert isinstance(metadata, ArrayV3Metadata)
    chunks = {key: stored[key].to_bytes() for key in stored if key != "zarr.json"}
    return metadata, {key.removeprefix("c").strip("/").replace("/", "."): chunks[key] for key in chunks}


def cut(data: bytes, count: int, rng: np.random.Generator) -> list[bytes]:
    """Return the data in `count` pieces, none of them empty."""
    places = sorted(rng.choice(np.arange(1, len(data)), count - 1, replace=False).tolist())
    return [data[start:stop] for start, stop in itertools.pairwise([0, *places, len(data)])]


def make(values: NDArray[Any], kind: Kind, files: Files, *, holes: float = 0.0) -> tuple[PartsArray, NDArray[Any]]:
    """Return an array of references, and its values: fill values where a chunk is missing."""
    metadata, chunks = encode(values, kind)
    expected = values.copy()
    manifests: list[dict[str, Any]] = [{} for _ in range(kind.parts)]
    for key, data in chunks.items():
        index = tuple(int(number) for number in key.split(".")) if key else ()
        if files.rng.random() < holes:
            shape = kind.shards or kind.chunks
            region = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))
            expected[region] = kind.fill_value
            continue
        for manifest, piece in zip(manifests, cut(data, kind.parts, files.rng), strict=True):
            manifest[key] = files.put(piece)
    return PartsArray(metadata, manifests), expected


def random_values(shape: tuple[int, ...], kind: Kind, rng: np.random.Generator) -> NDArray[Any]:
    return rng.integers(0, 100, shape).astype(kind.dtype)


@st.composite
def kinds(draw: st.DrawFn, *, ndim: int | None = None, codecs: tuple[str, ...] = tuple(CODECS)) -> Kind:
    axes = draw(st.integers(1, 3)) if ndim is None else ndim
    chunks = tuple(draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes)))
    dtype = draw(st.sampled_from(DTYPES))
    # A chunk of one byte can only have one part.
    nbytes = int(np.prod(chunks)) * np.dtype(dtype).itemsize
    shards = None
    if nbytes > 1 and draw(st.booleans()) and "zstd" in codecs:
        shards = tuple(chunk * draw(st.integers(1, 2)) for chunk in chunks)
    return Kind(dtype, draw(st.sampled_from(codecs)), draw(st.integers(1, min(4, nbytes))), chunks, shards)


def chunk_of(kind: Kind) -> tuple[int, ...]:
    """Return the shape of what one entry of a manifest refers to: a chunk, or a shard."""
    return kind.shards or kind.chunks


@st.composite
def shapes(draw: st.DrawFn, kind: Kind) -> tuple[int, ...]:
    return tuple(draw(st.integers(1, 3 * chunk)) for chunk in chunk_of(kind))


seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Made:
    """An array of references to files, and its values."""

    kind: Kind
    files: Files
    holes: float
    array: PartsArray
    values: NDArray[Any]

    @classmethod
    def of(cls, shape: tuple[int, ...], kind: Kind, files: Files, holes: float = 0.0) -> "Made":
        """Return an array with random values."""
        return cls(kind, files, holes, *make(random_values(shape, kind, files.rng), kind, files, holes=holes))

    def like(self, shape: tuple[int, ...]) -> "Made":
        """Return another array of this kind in the same files."""
        return Made.of(shape, self.kind, self.files, self.holes)


@st.composite
def drawn(draw: st.DrawFn, kind: st.SearchStrategy[Kind] | None = None, *, holes: float = 0.2) -> Made:
    chosen = draw(kinds() if kind is None else kind)
    return Made.of(draw(shapes(chosen)), chosen, Files(np.random.default_rng(draw(seeds))), holes)


# --- small arrays -------------------------------------------------------------------------------------------------

FEW = settings(max_examples=examples(40))
PLAIN = Kind("<i4", "plain", 2, (2, 3))


def simple(shape: tuple[int, ...] = (6, 6), kind: Kind = PLAIN, *, seed: int = 0) -> tuple[PartsArray, NDArray[Any]]:
    """Return an array that is bound to the files that it refers to, and its values."""
    files = Files(np.random.default_rng(seed))
    array, values = make(random_values(shape, kind, files.rng), kind, files)
    return array.with_registry(files.registry()), values


def entry(offset: int = 0, length: int = 4, path: str = "s3://b/f") -> dict[str, Any]:
    return {"path": path, "offset": offset, "length": length}


def metadata(shape: tuple[int, ...] = (4,), chunks: tuple[int, ...] = (2,), dtype: str = "u2", **others: Any) -> Any:
    return create_v3_array_metadata(shape=shape, data_type=np.dtype(dtype), chunk_shape=chunks, **others)


GOOD = [{"0": entry(), "1": entry()}]
