"""Write dask arrays and xarray datasets from a cluster to an Icechunk session, and commit the session.

Every task writes to its own fork of the session. The forks are merged when all tasks have succeeded. If a task fails,
nothing is merged and nothing is committed. If a worker dies, dask runs its tasks again on another worker.
"""

import itertools
import pickle
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import zarr
from zarr.storage import StorePath

from parts_store.engine.stats import Progress
from parts_store.errors import ClusterWriteError, ReadOnlySessionError, StoreConfigError, describe
from parts_store.executors import missing_extra, open_client
from parts_store.progress import ProgressLike, report_progress
from parts_store.redaction import hide_secrets
from parts_store.store.repositories import discard_changes_on_failure
from parts_store.store.store import PartsStore

if TYPE_CHECKING:
    import dask.array
    import distributed
    import icechunk
    import xarray as xr

__all__ = ["write_array", "write_dataset"]


def write_array(
    source: "dask.array.Array",
    target: zarr.Array[Any],
    *,
    message: str,
    region: Sequence[slice] | None = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: "icechunk.ConflictSolver | None" = None,
    align_chunks: bool = False,
    retries: int = 0,
    client: "distributed.Client | None" = None,
    progress: ProgressLike = None,
) -> str:
    """Write a dask array to an array in a session, from a cluster, and commit the session.

    Parameters
    ----------
    source
        The dask array. Each of its chunks must cover whole chunks (shards, if the target has them) of the target.
    target
        An array in a `PartsStore` on a writable session, with parts or without. Functions that are bound to its codecs
        are sent to the workers.
    message
        The message of the commit.
    region
        The region of the target to write: one slice without a step for each axis. None for the whole target.
    metadata, rebase_with
        Arguments of `icechunk.Session.commit`.
    align_chunks
        Whether to rechunk a source whose chunks do not cover whole chunks of the target. Otherwise that is an error,
        because two tasks would write the same chunk.
    retries
        How often a failed task is repeated.
    client
        A `distributed.Client` that is not asynchronous. If None, the current client is used, or else threads of this
        process.
    progress
        True to show a progress bar, or a function that is called with the number of finished tasks and the number of
        all tasks.

    Returns
    -------
    str
        The id of the new snapshot.

    Raises
    ------
    ClusterWriteError
        If tasks failed. Nothing is committed, and the session is unchanged.
    StoreConfigError
        If the source, the target, the region or the client cannot be used.
    ReadOnlySessionError
        If the session cannot be written.
    icechunk.ConflictError
        If another session has committed to the branch, and `rebase_with` is None or cannot resolve the conflict. The
        session keeps the uncommitted changes.

    Examples
    --------
    >>> import dask.array
    >>> session = ps.open_repository("cluster-repository").writable_session("main")
    >>> store = ps.PartsStore.from_session(session)
    >>> target = ps.create_array(
    ...     store, "a", parts=[ps.Part("", size=4), ps.Part(".tail")], shape=(100,), chunks=(50,), dtype="int32"
    ... )
    >>> snapshot = ps.cluster.write_array(dask.array.arange(100, chunks=50), target, message="write a")
    >>> int(target[99])
    99
    """
    store = _require_store(target)
    write = plan_array_write(source, target, region, align_chunks=align_chunks)
    _write(store, [write], retries=retries, client=client, progress=progress)
    return _commit(store, message, metadata, rebase_with)


def write_dataset(
    dataset: "xr.Dataset | xr.DataArray",
    store: PartsStore,
    *,
    message: str,
    group: str | None = None,
    mode: Literal["w", "w-", "a", "a-", "r+"] | None = None,
    encoding: Mapping[Any, Any] | None = None,
    append_dim: Hashable | None = None,
    region: Mapping[Any, Any] | Literal["auto"] | None = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: "icechunk.ConflictSolver | None" = None,
    align_chunks: bool = False,
    retries: int = 0,
    client: "distributed.Client | None" = None,
    progress: ProgressLike = None,
) -> str:
    """Write an xarray dataset to a session, its dask arrays from a cluster, and commit the session.

    Parameters
    ----------
    dataset
        The `xarray.Dataset` or `xarray.DataArray`. Variables in memory are written by this process.
    store
        A store on a writable session. Its `parts` say which arrays get which parts.
    message
        The message of the commit.
    group, mode, encoding, append_dim, region
        Arguments of `xarray.Dataset.to_zarr`.
    metadata, rebase_with, align_chunks, retries, client, progress
        Arguments of `write_array`.

    Returns
    -------
    str
        The id of the new snapshot.

    Raises
    ------
    ClusterWriteError
        If tasks failed. Nothing is committed. If the session had no uncommitted changes before, it has none now;
        otherwise it also has the new arrays, without their chunks.
    StoreConfigError
        If the dataset, the store or the client cannot be used.
    ReadOnlySessionError
        If the session cannot be written.
    icechunk.ConflictError
        If another session has committed to the branch, as in `write_array`.

    Examples
    --------
    >>> import numpy as np, xarray
    >>> dataset = xarray.Dataset({"t": ("x", np.arange(100))}).chunk(x=50)
    >>> session = ps.open_repository("dataset-repository").writable_session("main")
    >>> store = ps.PartsStore.from_session(session)
    >>> snapshot = ps.cluster.write_dataset(dataset, store, message="write the dataset")
    >>> int(xarray.open_zarr(store, consolidated=False)["t"][99])
    99
    """
    from parts_store._compat.xarray import create_arrays  # noqa: PLC0415 - a caller that has a dataset has xarray

    _require_session(store)
    if mode is None:
        mode = "a" if append_dim is not None else "r+" if region is not None else "w-"
    with discard_changes_on_failure(store.session):
        # This writes the arrays that are in memory.
        lazy = create_arrays(_as_dataset(dataset), store, group, mode, encoding or {}, append_dim, region)
        writes = [
            plan_array_write(source, target, _as_slices(at, target), align_chunks=align_chunks)
            for source, target, at in lazy
        ]
        _write(store, writes, retries=retries, client=client, progress=progress)
    return _commit(store, message, metadata, rebase_with)


def _commit(store: PartsStore, message: str, metadata: dict[str, Any] | None, rebase_with: Any) -> str:
    # A source without elements changes nothing. It is a commit nevertheless.
    snapshot: str = store.session.commit(message, metadata, rebase_with=rebase_with, allow_empty=True)
    return snapshot


def _require_store(target: object) -> PartsStore:
    """Return the store of an array; raise unless it is on a session that can be committed."""
    store = target.store if isinstance(target, zarr.Array) else None
    if not isinstance(store, PartsStore):
        raise StoreConfigError("target", "a zarr.Array in a PartsStore", describe(target))
    return _require_session(store)


def _require_session(store: object) -> PartsStore:
    if not isinstance(store, PartsStore) or store.session is None:
        raise StoreConfigError("store", "a PartsStore on an Icechunk session", describe(store))
    if store.read_only or store.session.read_only:
        raise ReadOnlySessionError(str(store), "it is read only, or was committed; open a writable session")
    store.require_writable()
    if store.session.branch is None:
        raise StoreConfigError("store", "a session that can be committed", "a fork of a session")
    return store


# --- tasks: no two of them write the same chunk of a Zarr array ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArrayWrite:
    """A dask array, and the Zarr array it is written to; its first element goes to `start`."""

    source: Any
    target: zarr.Array[Any]
    start: tuple[int, ...]

    def tasks(self) -> "Iterator[WriteTask]":
        """Yield a task for each block of the source."""
        blocks = self.source.to_delayed()
        edges = [_edges(sizes, start) for sizes, start in zip(self.source.chunks, self.start, strict=True)]
        for block in itertools.product(*(range(len(each) - 1) for each in edges)):
            region = tuple(slice(edge[at], edge[at + 1]) for edge, at in zip(edges, block, strict=True))
            yield WriteTask(self.target.path, region, blocks[block])


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A block of a dask array, and the path and region it is written to."""

    path: str
    region: tuple[slice, ...]
    block: Any

    @property
    def name(self) -> str:
        """The path and the region, as they are shown in an error: `temperature[0:4, 0:5]`."""
        return f"{self.path or '/'}[" + ", ".join(f"{each.start}:{each.stop}" for each in self.region) + "]"


def plan_array_write(
    source: Any, target: zarr.Array[Any], region: Sequence[slice] | None, *, align_chunks: bool
) -> ArrayWrite:
    """Return how to write a dask array, with each chunk of the target in one task.

    Parameters
    ----------
    source
        The dask array.
    target
        The Zarr array.
    region
        Slices of the target without steps; the whole target if None.
    align_chunks
        Whether to rechunk a source whose chunks would share a chunk of the target.

    Raises
    ------
    StoreConfigError
        If the source is not a dask array, if its shape is not the shape of the region, if the region cuts chunks of
        the target, or if the chunks of the source do and `align_chunks` is False.
    """
    path = target.path or "/"
    _require_dask_array(source, path)
    start, stop = _bounds(target, region)
    shape = tuple(after - before for before, after in zip(start, stop, strict=True))
    # dask says NaN for a size that is not known yet, which equals nothing.
    if tuple(source.shape) != shape:
        raise StoreConfigError(f"source for {path!r}", f"the shape {shape}", f"{tuple(source.shape)}")
    grid = [_edges(sizes, 0) for sizes in target.write_chunk_sizes]
    _require_between_chunks(path, start, stop, grid)
    axes = list(zip(source.chunks, start, grid, strict=True))
    if all(set(_edges(sizes, first)) <= set(edges) for sizes, first, edges in axes):
        return ArrayWrite(source, target, start)
    if not align_chunks:
        expected = f"chunks that cover whole chunks of {describe(target.write_chunk_sizes)}, or align_chunks=True"
        raise StoreConfigError(f"source for {path!r}", expected, f"chunks {describe(source.chunks)}")
    return ArrayWrite(source.rechunk(tuple(_aligned(*axis) for axis in axes)), target, start)


def _require_dask_array(source: Any, path: str) -> None:
    if not hasattr(source, "to_delayed") or not hasattr(source, "chunks"):
        raise StoreConfigError(f"source for {path!r}", "a dask array", describe(source))
    # zarr would store the values below the mask.
    if hasattr(getattr(source, "_meta", None), "mask"):
        expected = "an array without a mask, such as dask.array.ma.filled returns"
        raise StoreConfigError(f"source for {path!r}", expected, "a masked array")


def _require_between_chunks(
    path: str, start: Sequence[int], stop: Sequence[int], grid: Sequence[Sequence[int]]
) -> None:
    for axis, edges in enumerate(grid):
        if not {start[axis], stop[axis]} <= set(edges):
            expected = f"bounds between chunks along axis {axis}"
            raise StoreConfigError(f"region of {path!r}", expected, f"{start[axis]}:{stop[axis]}")


def _bounds(target: zarr.Array[Any], region: Sequence[slice] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first index of a region along each axis, and the index after the last one."""
    if region is None:
        return (0,) * target.ndim, target.shape
    slices = tuple(region) if isinstance(region, Sequence) else ()
    if len(slices) != target.ndim or not all(isinstance(each, slice) and each.step in (None, 1) for each in slices):
        raise StoreConfigError("region", f"a tuple of {target.ndim} slices without steps", describe(region))
    bounds = [each.indices(size) for each, size in zip(slices, target.shape, strict=True)]
    return tuple(start for start, _, _ in bounds), tuple(max(start, stop) for start, stop, _ in bounds)


def _edges(sizes: Sequence[int], start: int) -> list[int]:
    """Return where chunks of these sizes begin, and where the last of them ends."""
    return list(itertools.accumulate(sizes, initial=start))


def _aligned(sizes: Sequence[int], start: int, edges: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks that end where chunks of the target end, at or after where they ended."""
    ends = sorted({edges[bisect_left(edges, end)] for end in _edges(sizes, start)})
    return tuple(after - before for before, after in itertools.pairwise(ends)) or (0,)


# --- on the cluster -----------------------------------------------------------------------------------------------


def _write_block(arrays: bytes, path: str, region: tuple[slice, ...], block: Any) -> Any:
    """Write a block to a fork of the session, and return the fork. This runs on a worker, perhaps more than once."""
    # Each task unpickles its own fork, so that the fork it returns has the chunks of this task only. `_write` made the
    # pickle.
    array = pickle.loads(arrays)[path]  # noqa: S301
    array[region] = block
    return array.store.session


def _on_fork(store: PartsStore, writes: Sequence[ArrayWrite]) -> dict[str, zarr.Array[Any]]:
    """Return the targets by path on one fork of the session, with the functions that are bound to their codecs."""
    fork = PartsStore.from_session(store.session.fork())
    arrays = [write.target.async_array for write in writes]
    return {each.path: zarr.Array(replace(each, store_path=StorePath(fork, each.path))) for each in arrays}


def _write(
    store: PartsStore, writes: Sequence[ArrayWrite], *, retries: int, client: Any, progress: ProgressLike
) -> None:
    """Write every block on a cluster, and merge the forks; if a task fails, raise and merge nothing."""
    tasks = [task for write in writes for task in write.tasks()]
    if not tasks:
        return
    with missing_extra("writing from a cluster", "dask"):
        import dask  # noqa: PLC0415
        import distributed  # noqa: PLC0415

    # With dask's own pickling: `pickle` alone cannot serialize a function that was defined in a notebook.
    arrays = distributed.protocol.pickle.dumps(_on_fork(store, writes))
    writing = dask.delayed(_write_block, pure=False)
    with open_client(client) as cluster, report_progress(progress, "write", "blocks") as update:
        # One node of the task graph that all tasks share. dask sends it again if a worker dies.
        shared = dask.delayed(arrays)
        delayed = [writing(shared, task.path, task.region, task.block) for task in tasks]
        futures = cluster.compute(delayed, retries=retries)
        try:
            forks, failed = _gather(cluster, futures, tasks, update)
        except BaseException:
            # If the cluster is gone, there is nothing to cancel.
            with suppress(Exception):
                cluster.cancel(futures)
            raise
    if failed:
        paths = sorted({write.target.path or "/" for write in writes})
        raise ClusterWriteError(", ".join(paths), len(tasks), tuple(failed))
    store.session.merge(*forks)


def _gather(
    cluster: Any, futures: Sequence[Any], tasks: Sequence[WriteTask], update: Progress
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the forks of the tasks that succeeded, and the names and errors of the others, in the order of tasks."""
    from distributed import as_completed  # noqa: PLC0415

    forks: dict[int, Any] = {}
    failed: dict[int, tuple[str, str]] = {}
    numbers = {future.key: number for number, future in enumerate(futures)}
    # Without a loop, `as_completed` uses that of the current client, which may be another client or None.
    for future in as_completed(futures, loop=cluster.loop):
        number = numbers[future.key]
        try:
            forks[number] = future.result()
        except Exception as error:
            problem = f"{type(error).__name__}: {hide_secrets(str(error))}".strip()
            failed[number] = (tasks[number].name, problem)
        future.release()
        update(len(forks) + len(failed), len(futures))
    return [forks[number] for number in sorted(forks)], [failed[number] for number in sorted(failed)]


# --- datasets -----------------------------------------------------------------------------------------------------


def _as_dataset(given: Any) -> Any:
    """Return a dataset; a DataArray becomes the dataset that `xarray.open_dataarray` turns back into it."""
    from xarray import DataArray, Dataset  # noqa: PLC0415

    if isinstance(given, Dataset):
        return given
    if not isinstance(given, DataArray):
        raise StoreConfigError("dataset", "an xarray.Dataset or xarray.DataArray", describe(given))
    if given.name is not None and given.name not in given.coords and given.name not in given.dims:
        return given.to_dataset()
    dataset = given.to_dataset(name="__xarray_dataarray_variable__")
    if given.name is not None:
        dataset.attrs["__xarray_dataarray_name__"] = given.name
    return dataset


def _as_slices(region: Any, target: zarr.Array[Any]) -> tuple[slice, ...] | None:
    """Return a region with one slice for each axis of the target; None for the whole target."""
    if region is None:
        return None
    given = region if isinstance(region, tuple) else (region,)
    return (*given, *(slice(None),) * (target.ndim - len(given)))
