"""The peers: each opens or creates the same array in its own way."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import icechunk
import numpy as np
import obstore
import tensorstore
import zarr
from numpy.typing import NDArray
from zarr.storage import FsspecStore, LocalStore, ObjectStore

import parts_store as ps
from benchmarks.speed.layouts import Disk, Layout, Place, zarr_arguments
from parts_store.pipeline.opening import use_pipeline

FUSED = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}
ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
WORKERS = 32


class Handle(Protocol):
    """An array of a peer."""

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values."""

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Read a part of the array."""

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Read single values in one call."""


@dataclass(frozen=True, slots=True)
class ZarrHandle:
    """An array of zarr."""

    array: zarr.Array[Any]

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values."""
        self.array[...] = values

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""
        return np.asarray(self.array[...])

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Read a part of the array."""
        return np.asarray(self.array[rows, columns])

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Read single values in one call."""
        return np.asarray(self.array.vindex[rows, columns])


@dataclass(frozen=True, slots=True)
class TensorstoreHandle:
    """An array of tensorstore."""

    array: Any

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values."""
        self.array.write(values).result()

    def read(self) -> NDArray[np.uint8]:
        """Read all values."""
        return np.asarray(self.array.read().result())

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Read a part of the array."""
        return np.asarray(self.array[rows, columns].read().result())

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Read single values in one call."""
        return np.asarray(self.array[rows, columns].read().result())


@dataclass(frozen=True, slots=True)
class BareHandle:
    """The same bytes in the same objects, by obstore and threads, without arrays, metadata or codecs: the limit."""

    objects: Any
    pieces: Mapping[str, bytes]
    layout: Layout
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(WORKERS))

    def write(self, values: NDArray[np.uint8]) -> None:
        """Put all objects."""
        del values
        list(self.pool.map(lambda key: obstore.put(self.objects, key, self.pieces[key]), self.pieces))

    def read(self) -> NDArray[np.uint8]:
        """Get all objects."""
        got = list(self.pool.map(lambda key: len(obstore.get(self.objects, key).bytes()) % 256, self.pieces))
        return np.asarray(got, np.uint8)

    def read_region(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Get one range of one object."""
        del columns
        key = min(self.pieces, key=len)
        nbytes = len(self.pieces[key])
        start = rows.start * 64 % max(nbytes - 4096, 1)
        return np.frombuffer(obstore.get_range(self.objects, key, start=start, end=start + 2048), np.uint8)

    def read_points(self, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.uint8]:
        """Get as many ranges as there are points, at once."""
        del columns
        keys = sorted(self.pieces, key=len)[: self.layout.count]
        tasks = [keys[int(row) % len(keys)] for row in rows]
        got = self.pool.map(lambda key: len(obstore.get_range(self.objects, key, start=0, end=2048)) % 256, tasks)
        return np.asarray(list(got), np.uint8)


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to read and write Zarr."""

    name: str
    create: Callable[[Place, Layout], Handle]
    reopen: Callable[[Place, Layout], Handle]
    # zarr's settings while it is opened and used.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def configured(self) -> Any:
        """Return a context manager with this peer's settings of zarr."""
        return zarr.config.set(dict(self.settings)) if self.settings else nullcontext()


def _zarr_peer(
    name: str,
    open_store: Callable[[Place], Any],
    settings: Mapping[str, Any] | None = None,
) -> Peer:
    def create(place: Place, layout: Layout) -> Handle:
        return ZarrHandle(zarr.create_array(open_store(place), **zarr_arguments(layout)))

    def reopen(place: Place, layout: Layout) -> Handle:
        del layout
        return ZarrHandle(zarr.open_array(open_store(place)))

    return Peer(name, create, reopen, settings or {})


def _zarr_store(place: Place) -> Any:
    """Return zarr's own store for a place."""
    if isinstance(place, Disk):
        return LocalStore(place.folder)
    return ObjectStore(place.objects())


def parts_of(layout: Layout, count: int) -> list[ps.Part]:
    """Return the parts of an array: an index beside the shard, or the last bytes of a chunk."""
    last = ps.Part(".index", size=ps.SHARD_INDEX) if layout.shard else ps.Part(".tail", size=4)
    return [ps.Part(""), last] if count == 2 else [ps.Part(".head", size=64), ps.Part(""), last]


def _ours(name: str, count: int, settings: Mapping[str, Any] | None = None, *, is_fast: bool = False) -> Peer:
    def create(place: Place, layout: Layout) -> Handle:
        store = ps.PartsStore(place.objects())
        if count == 1:
            array = zarr.create_array(store, **zarr_arguments(layout))
        else:
            array = ps.create_array(store, parts=parts_of(layout, count), **zarr_arguments(layout))
        if is_fast:
            use_pipeline(array)
        return ZarrHandle(array)

    def reopen(place: Place, layout: Layout) -> Handle:
        del layout
        store = ps.PartsStore(place.objects())
        return ZarrHandle(ps.open_array(store, mode="r+") if is_fast else zarr.open_array(store, mode="r+"))

    return Peer(name, create, reopen, settings or {})


def _tensorstore_spec(place: Place) -> dict[str, Any]:
    if isinstance(place, Disk):
        return {"driver": "file", "path": f"{place.folder}/"}
    return {
        "driver": "s3",
        "bucket": place.bucket,
        "path": f"{place.prefix}/",
        "endpoint": place.server.endpoint,
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "environment"},
    }


def _tensorstore(place: Place, layout: Layout, *, creates: bool) -> Handle:
    codecs: list[Any] = [{"name": "bytes"}]
    if layout.compression == "zstd":
        codecs.append({"name": "zstd", "configuration": {"level": 3}})
    elif layout.compression == "blosc":
        codecs.append(
            {
                "name": "blosc",
                "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 1, "blocksize": 0},
            }
        )
    if layout.shard is not None:
        index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        inner = {"chunk_shape": [layout.chunk] * 2, "codecs": codecs, "index_codecs": index_codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    metadata = {
        "shape": list(layout.shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [layout.outer] * 2}},
        "data_type": "uint8",
        "fill_value": 0,
        "codecs": codecs,
    }
    spec = {"driver": "zarr3", "kvstore": _tensorstore_spec(place), "metadata": metadata}
    # A cache of its own for every array: what was read before must not help.
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 100_000_000}})
    return TensorstoreHandle(
        tensorstore.open(spec, create=creates, open=not creates, context=context, recheck_cached_data=True).result()
    )


def _icechunk_repository(place: Place) -> icechunk.Repository:
    if isinstance(place, Disk):
        storage = icechunk.local_filesystem_storage(str(place.folder))
    else:
        storage = icechunk.s3_storage(
            bucket=place.bucket,
            prefix=place.prefix,
            endpoint_url=place.server.endpoint,
            access_key_id=place.server.access_key,
            secret_access_key=place.server.secret_key,
            region="us-east-1",
            allow_http=True,
            force_path_style=True,
        )
    return icechunk.Repository.open_or_create(storage)


@dataclass(frozen=True, slots=True)
class IcechunkHandle(ZarrHandle):
    """An array in an Icechunk session; writing ends with a commit."""

    session: Any

    def write(self, values: NDArray[np.uint8]) -> None:
        """Write all values, and commit them."""
        self.array[...] = values
        self.session.commit("all values")


def _create_icechunk(place: Place, layout: Layout) -> Handle:
    session = _icechunk_repository(place).writable_session("main")
    return IcechunkHandle(zarr.create_array(session.store, **zarr_arguments(layout)), session)


def _reopen_icechunk(place: Place, layout: Layout) -> Handle:
    del layout
    return ZarrHandle(zarr.open_array(_icechunk_repository(place).readonly_session("main").store, mode="r"))


def _fsspec_store(place: Place) -> Any:
    import fsspec

    if isinstance(place, Disk):
        return FsspecStore.from_url(f"file://{place.folder}", storage_options={"auto_mkdir": True})
    filesystem = fsspec.filesystem(
        "s3",
        key=place.server.access_key,
        secret=place.server.secret_key,
        endpoint_url=place.server.endpoint,
        asynchronous=True,
    )
    return FsspecStore(filesystem, path=f"{place.bucket}/{place.prefix}")


def _bare(name: str, count: int) -> Peer:
    """Return the limit: the objects that our store would write, without any work around them."""

    def create(place: Place, layout: Layout) -> Handle:
        objects = place.objects()
        return BareHandle(objects, _pieces(layout, count), layout)

    return Peer(name, create, create)


def _pieces(layout: Layout, count: int) -> dict[str, bytes]:
    """Return the objects of the array by their keys, as our store writes them."""
    from obstore.store import MemoryStore

    memory = MemoryStore()
    store = ps.PartsStore(memory)
    if count == 1:
        array = zarr.create_array(store, **zarr_arguments(layout))
    else:
        array = ps.create_array(store, parts=parts_of(layout, count), **zarr_arguments(layout))
    array[...] = layout.values()
    keys = [each["path"] for each in obstore.list(memory).collect()]
    return {key: bytes(obstore.get(memory, key).bytes()) for key in keys if key.startswith("c/")}


PEERS = {
    peer.name: peer
    for peer in (
        _zarr_peer("zarr", _zarr_store),
        _zarr_peer("zarr fused", _zarr_store, FUSED),
        _zarr_peer("zarrs", _zarr_store, ZARRS),
        _zarr_peer("fsspec", _fsspec_store),
        Peer(
            "tensorstore",
            lambda place, layout: _tensorstore(place, layout, creates=True),
            lambda place, layout: _tensorstore(place, layout, creates=False),
        ),
        Peer("icechunk", _create_icechunk, _reopen_icechunk),
        _bare("limit, 1 part", 1),
        _bare("limit, 2 parts", 2),
        _ours("ours, no parts, zarr's pipeline", 1),
        _ours("ours, 2 parts, zarr's pipeline", 2),
        _ours("ours, no parts", 1, is_fast=True),
        _ours("ours, 2 parts", 2, is_fast=True),
    )
}
