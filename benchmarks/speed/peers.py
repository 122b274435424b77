"""The peers: each creates and opens the same array in its own way."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal

import icechunk
import obstore
import tensorstore
import xarray as xr
import zarr
from obstore.store import MemoryStore
from zarr.storage import FsspecStore, LocalStore, ObjectStore

import parts_store as ps
from benchmarks.places import BUCKET, Bucket, Disk, Place
from benchmarks.speed.handles import IN_FLIGHT as THREADS_OF_LIMIT
from benchmarks.speed.handles import BareHandle, Handle, IcechunkHandle, TensorstoreHandle, XarrayHandle, ZarrHandle
from benchmarks.speed.layouts import Layout, parts_of, zarr_arguments
from benchmarks.speed.work import KNOWN_SHARD, THREADS, Operation
from parts_store.pipeline.opening import use_pipeline

FUSED = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}
ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
IN_FLIGHT = {"async.concurrency": 64}
# More than any array here, so that everything that is read stays in the cache.
TENSORSTORE_CACHE = {"cache_pool": {"total_bytes_limit": 1_000_000_000}}
# tensorstore waits until written files are on the disk unless it is told not to; no other peer does.
TENSORSTORE_FILES = {"file_io_sync": False}


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to read and write Zarr."""

    name: str
    about: str
    create: Callable[[Place, Layout], Handle]
    # Opens an array that was written before, for reading or also for writing, without anything that is known of it.
    reopen: Callable[[Place, Layout, bool], Handle]
    # zarr's settings while it is opened and used.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Where it is measured, and which operations; all if None.
    only: Literal["disk", "S3"] | None = None
    operations: tuple[Operation, ...] | None = None
    # Opens what was committed before the last commit, for reading.
    reopen_old: Callable[[Place, Layout], Handle] | None = None
    # Copies an array from one place to another.
    copy: Callable[[Place, Place], object] | None = None

    @property
    def is_limit(self) -> bool:
        """Whether it moves the bytes without decoding them."""
        return self.name.startswith("limit")

    @property
    def folder(self) -> str:
        """The name as a part of a path."""
        return folder_of(self.name)

    def configured(self) -> Any:
        """Return a context manager with this peer's settings of zarr."""
        return zarr.config.set(dict(self.settings)) if self.settings else nullcontext()

    def does(self, operation: Operation, place: Place) -> bool:
        """Return whether the peer is measured for an operation at a place."""
        where = "disk" if isinstance(place, Disk) else "S3"
        if (operation == "read of an old snapshot" and self.reopen_old is None) or (
            operation == "copy" and self.copy is None
        ):
            return False
        return self.only in (None, where) and (self.operations is None or operation in self.operations)


def folder_of(name: str) -> str:
    """Return a name as a part of a path."""
    return "".join(each if each.isalnum() else "-" for each in name)


def _zarr_peer(
    name: str,
    about: str,
    make_store: Callable[[Place], Any],
    settings: Mapping[str, Any] | None = None,
    only: Literal["disk", "S3"] | None = None,
) -> Peer:
    def create(place: Place, layout: Layout) -> Handle:
        return ZarrHandle(zarr.create_array(make_store(place), **zarr_arguments(layout)))

    def reopen(place: Place, layout: Layout, is_writable: bool) -> Handle:
        del layout
        return ZarrHandle(zarr.open_array(make_store(place), mode="r+" if is_writable else "r"))

    def copy(source: Place, destination: Place) -> None:
        zarr.from_array(make_store(destination), data=zarr.open_array(make_store(source), mode="r"))

    return Peer(name, about, create, reopen, settings or {}, only, copy=copy if name == "zarr" else None)


def _zarr_store(place: Place) -> Any:
    """Return zarr's own store for a place."""
    if isinstance(place, Disk):
        return LocalStore(place.folder)
    return ObjectStore(place.objects())


def _fsspec_store(place: Place) -> Any:
    if isinstance(place, Disk):
        return FsspecStore.from_url(f"file://{place.folder}", storage_options={"auto_mkdir": True})
    return FsspecStore(filesystem(place, asynchronous=True), path=f"{BUCKET}/{place.prefix}")


def filesystem(place: Bucket, *, asynchronous: bool) -> Any:
    """Return s3fs for the server of a place."""
    import fsspec

    return fsspec.filesystem(
        "s3",
        key=place.server.access_key,
        secret=place.server.secret_key,
        endpoint_url=place.server.endpoint,
        asynchronous=asynchronous,
        # Checksums that no other peer sends would cost time.
        config_kwargs={"request_checksum_calculation": "when_required"},
    )


# --- parts_store -----------------------------------------------------------------------------------------------------


def _ours(name: str, about: str, count: int, *, is_fast: bool) -> Peer:
    def opened(store: ps.PartsStore, mode: Any) -> Handle:
        return ZarrHandle(ps.open_array(store, mode=mode) if is_fast else zarr.open_array(store, mode=mode))

    def create(place: Place, layout: Layout) -> Handle:
        store = ps.PartsStore(place.objects(), fast=is_fast)
        _create_ours(store, layout, count)
        return opened(store, "r+")

    def reopen(place: Place, layout: Layout, is_writable: bool) -> Handle:
        del layout
        return opened(ps.PartsStore(place.objects(), fast=is_fast), "r+" if is_writable else "r")

    return Peer(name, about, create, reopen, copy=_copy_ours if is_fast else None)


def _copy_ours(source: Place, destination: Place) -> None:
    ps.copy(ps.PartsStore(source.objects()), ps.PartsStore(destination.objects()))


def _in_files(shard_file: Literal["tiff", "hdf5"]) -> Peer:
    name = f"ours, {shard_file.upper()} shards"
    peer = _ours(name, f'the same with `shard_file="{shard_file}"`: every shard is a file', 1, is_fast=True)

    def create(place: Place, layout: Layout) -> Handle:
        store = ps.PartsStore(place.objects())
        return ZarrHandle(ps.create_array(store, shard_file=shard_file, **zarr_arguments(layout)))

    return replace(peer, create=create)


def _create_for_xarray(place: Place, layout: Layout) -> Handle:
    arguments = zarr_arguments(layout) | {"dimension_names": ("y", "x")}
    return ZarrHandle(zarr.create_array(ps.PartsStore(place.objects()), name="a", **arguments))


def _reopen_with_xarray(place: Place, layout: Layout, is_writable: bool) -> Handle:
    del layout
    store = ps.PartsStore(place.objects())
    if is_writable:
        return ZarrHandle(zarr.open_array(store, path="a", mode="r+"))
    return XarrayHandle(xr.open_zarr(store, consolidated=False, chunks=None)["a"])


def _create_ours(store: ps.PartsStore, layout: Layout, count: int) -> zarr.Array[Any]:
    if count == 1:
        return zarr.create_array(store, **zarr_arguments(layout))
    return ps.create_array(store, parts=parts_of(layout, count), **zarr_arguments(layout))


def _bare(name: str, about: str, count: int) -> Peer:
    def create(place: Place, layout: Layout) -> Handle:
        return BareHandle(place.objects(), _pieces(layout, count), layout)

    def copy(source: Place, destination: Place) -> None:
        keys = [each["path"] for each in obstore.list(source.objects()).collect()]
        with ThreadPoolExecutor(THREADS_OF_LIMIT) as pool:
            list(pool.map(partial(_copy_object, source.objects(), destination.objects()), keys))

    return Peer(name, about, create, lambda place, layout, _: create(place, layout), copy=copy if count == 1 else None)


def _copy_object(source: Any, destination: Any, key: str) -> None:
    obstore.put(destination, key, obstore.get(source, key).bytes(), use_multipart=False)


@lru_cache(maxsize=2)
def _pieces(layout: Layout, count: int) -> Mapping[str, bytes]:
    """Return the objects of the array by their keys, as our store writes them."""
    memory = MemoryStore()
    array = _create_ours(ps.PartsStore(memory), layout, count)
    use_pipeline(array)
    array[...] = layout.values()
    keys = [each["path"] for each in obstore.list(memory).collect()]
    return {key: bytes(obstore.get(memory, key).bytes()) for key in keys if key.startswith("c/")}


# --- tensorstore and Icechunk ----------------------------------------------------------------------------------------


def _tensorstore_place(place: Place) -> dict[str, Any]:
    if isinstance(place, Disk):
        return {"driver": "file", "path": f"{place.folder}/"}
    return {
        "driver": "s3",
        "bucket": BUCKET,
        "path": f"{place.prefix}/",
        "endpoint": place.server.endpoint,
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "environment"},
    }


def _tensorstore_metadata(layout: Layout) -> dict[str, Any]:
    """Return the metadata of the array that zarr makes of the same layout."""
    codecs: list[Any] = [{"name": "bytes"}]
    if layout.compression == "zstd":
        codecs.append({"name": "zstd", "configuration": {"level": 3}})
    elif layout.compression == "blosc":
        blosc = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 1, "blocksize": 0}
        codecs.append({"name": "blosc", "configuration": blosc})
    if layout.shard is not None:
        index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        inner = {"chunk_shape": [layout.chunk] * 2, "codecs": codecs, "index_codecs": index_codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    return {
        "shape": list(layout.shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [layout.outer] * 2}},
        "data_type": "uint8",
        "fill_value": 0,
        "codecs": codecs,
    }


def _tensorstore(
    name: str,
    about: str,
    context: Mapping[str, Any],
    operations: tuple[Operation, ...] | None = None,
    **options: Any,
) -> Peer:
    def opened(place: Place, spec: Mapping[str, Any], **how: Any) -> Handle:
        whole = {"driver": "zarr3", "kvstore": _tensorstore_place(place), **spec}
        # A context of its own for every array: what was read before must not help.
        own = tensorstore.Context({**context, **TENSORSTORE_FILES})
        return TensorstoreHandle(tensorstore.open(whole, context=own, **options, **how).result())

    return Peer(
        name,
        about,
        lambda place, layout: opened(place, {"metadata": _tensorstore_metadata(layout)}, create=True),
        lambda place, layout, _: opened(place, {}, open=True),
        operations=operations,
    )


def _icechunk_repository(place: Place) -> icechunk.Repository:
    if isinstance(place, Disk):
        storage = icechunk.local_filesystem_storage(str(place.folder))
    else:
        storage = icechunk.s3_storage(
            bucket=BUCKET,
            prefix=place.prefix,
            endpoint_url=place.server.endpoint,
            access_key_id=place.server.access_key,
            secret_access_key=place.server.secret_key,
            region="us-east-1",
            allow_http=True,
            force_path_style=True,
        )
    return icechunk.Repository.open_or_create(storage)


def _icechunk(name: str, about: str, view: Callable[[icechunk.Session], Any], **others: Any) -> Peer:
    """Return a peer whose arrays are in a session; `view` makes zarr's store of the session."""

    def create(place: Place, layout: Layout) -> Handle:
        repository = _icechunk_repository(place)
        session = repository.writable_session("main")
        return IcechunkHandle(zarr.create_array(view(session), **zarr_arguments(layout)), repository, session)

    def reopen(place: Place, layout: Layout, is_writable: bool) -> Handle:
        del layout
        repository = _icechunk_repository(place)
        if not is_writable:
            return ZarrHandle(zarr.open_array(view(repository.readonly_session("main")), mode="r"))
        session = repository.writable_session("main")
        return IcechunkHandle(zarr.open_array(view(session), mode="r+"), repository, session)

    def reopen_old(place: Place, layout: Layout) -> Handle:
        del layout
        repository = _icechunk_repository(place)
        _, before, *_ = repository.ancestry(branch="main")
        return ZarrHandle(zarr.open_array(view(repository.readonly_session(snapshot_id=before.id)), mode="r"))

    return Peer(name, about, create, reopen, reopen_old=reopen_old, **others)


# --- all of them -----------------------------------------------------------------------------------------------------

_ALL = (
    _zarr_peer("zarr", "zarr's ObjectStore (S3) or LocalStore (disk), with zarr's default settings", _zarr_store),
    _zarr_peer(
        "zarr, 64 in flight", "the same, with `async.concurrency` set from 10 to 64", _zarr_store, IN_FLIGHT, "S3"
    ),
    _zarr_peer(
        "zarr fused",
        "zarr's LocalStore with zarr's `FusedCodecPipeline`; ObjectStore has no synchronous interface, which it needs",
        _zarr_store,
        FUSED,
        "disk",
    ),
    _zarr_peer("zarrs", "zarr's stores with the Rust pipeline of the package `zarrs`", _zarr_store, ZARRS),
    _zarr_peer("fsspec", "zarr's FsspecStore with s3fs", _fsspec_store, only="S3"),
    _tensorstore(
        "tensorstore",
        "tensorstore with a cache that is empty when the array is opened; cached data is revalidated before it is "
        "used, as is tensorstore's default; files are not synchronised, as all other peers do",
        TENSORSTORE_CACHE,
    ),
    _tensorstore("tensorstore, no cache", "tensorstore without a cache, its default", {}, KNOWN_SHARD),
    _tensorstore(
        "tensorstore, no recheck",
        'tensorstore with `recheck_cached_data="open"`: what was read once is never compared with the store again, '
        "so a changed chunk is not noticed; no goal compares with it",
        TENSORSTORE_CACHE,
        KNOWN_SHARD,
        recheck_cached_data="open",
    ),
    _icechunk("icechunk", "an Icechunk session; a write ends with a commit", lambda session: session.store),
    _bare("limit, 1 part", "obstore and 64 threads, which make the requests of parts_store without parts", 1),
    _bare("limit, 2 parts", "obstore and 64 threads, which make the requests of parts_store with 2 parts", 2),
    _ours("ours, no parts, zarr's pipeline", "PartsStore with `fast=False` in place of zarr's store", 1, is_fast=False),
    _ours("ours, 2 parts, zarr's pipeline", "PartsStore, 2 parts, zarr's default pipeline", 2, is_fast=False),
    _ours("ours, no parts", "PartsStore and its pipeline", 1, is_fast=True),
    _ours("ours, 2 parts", "PartsStore, 2 parts, and its pipeline", 2, is_fast=True),
)
PEERS = {peer.name: peer for peer in _ALL}
# These do work of their own, not that of all peers.
_SPECIAL = (
    _icechunk(
        "icechunk, zarrs",
        "the same with the pipeline of the package `zarrs`, which does not know the store and calls zarr's",
        lambda session: session.store,
        settings=ZARRS,
    ),
    _icechunk("ours, session", "PartsStore on an Icechunk session", ps.PartsStore.from_session),
    replace(
        _ours("ours, zarr.open", "the array is opened by `zarr.open_array(PartsStore(...))`", 1, is_fast=True),
        create=lambda place, layout: ZarrHandle(_create_ours(ps.PartsStore(place.objects()), layout, 1)),
        reopen=lambda place, _, is_writable: ZarrHandle(
            zarr.open_array(ps.PartsStore(place.objects()), mode="r+" if is_writable else "r")
        ),
    ),
    Peer(
        "ours, xr.open_zarr",
        "the array is opened by `xr.open_zarr(PartsStore(...))`",
        _create_for_xarray,
        _reopen_with_xarray,
        operations=("read",),
    ),
    _in_files("tiff"),
    _in_files("hdf5"),
    *(
        replace(
            _ours(f"ours, {count} threads", f"`ps.fast(max_workers={count})`", 1, is_fast=True),
            settings={"codec_pipeline.max_workers": count, "async.concurrency": 2 * count},
        )
        for count in THREADS
    ),
)
SPECIAL_PEERS = {peer.name: peer for peer in _SPECIAL}
THREE_PARTS = _ours("ours, 3 parts", "PartsStore, 3 parts, and its pipeline", 3, is_fast=True)
