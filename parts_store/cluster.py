"""Writing to an Icechunk session from a cluster: every task to a fork of its own, and one commit at the end.

Decides which blocks are written by which task, and what becomes of failures: all tasks are heard, and if one failed
nothing is merged and nothing committed. A worker that dies loses nothing: what it did is done again, by another one.
"""

import itertools
import pickle
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import zarr
from zarr.storage import StorePath

from parts_store.engine.stats import Progress
from parts_store.errors import ClusterWriteError, ReadOnlySessionError, StoreConfigError, describe
from parts_store.redaction import hide_secrets
from parts_store.store import PartsStore

__all__ = ["write_array", "write_dataset"]


@dataclass(frozen=True, slots=True)
class _Job:
    """An array of dask's to be written to an array of zarr's, whose first element goes to `start`."""

    source: Any
    target: zarr.Array[Any]
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    """A block to be written, where it goes, and what that is called in a report."""

    path: str
    region: tuple[slice, ...]
    block: Any

    @property
    def name(self) -> str:
        """The region, as it is written in Python."""
        return "[" + ", ".join(f"{each.start}:{each.stop}" for each in self.region) + "]"


def write_array(
    source: Any,
    target: zarr.Array[Any],
    *,
    message: str,
    region: Sequence[slice] | None = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: Any = None,
    align_chunks: bool = False,
    retries: int = 0,
    client: Any = None,
    progress: bool | Progress = False,
) -> str:
    """Write an array of dask's to an array in a session, from a cluster, and commit the session.

    Parameters
    ----------
    source
        The array. Each of its chunks covers whole chunks (shards, if there are any) of the target.
    target
        An array in a `PartsStore` on a writable session, with parts or without. The callables that are bound to its
        codecs go with it to the workers.
    message, metadata, rebase_with
        Those of the session's commit.
    region
        Where in the target the array goes: slices without steps, the whole of it if None.
    align_chunks
        Whether a source whose chunks cover parts of the target's is rechunked; otherwise that is an error, because two
        tasks would write one chunk.
    retries
        How often a task that failed is tried again.
    client
        A client of dask that is not asynchronous; if None, the current one, or else the threads of this process.
    progress
        Whether to show a bar, or what to call with how many tasks are done, and how many there are.

    Returns
    -------
    The id of the new snapshot.

    Raises
    ------
    ClusterWriteError
        If tasks failed. Nothing is committed, and the session is what it was.
    """
    store = _require_store(target)
    job = _plan(source, target, region, align_chunks=align_chunks)
    _write(store, [job], retries=retries, client=client, progress=progress)
    return _commit(store, message, metadata, rebase_with)


def write_dataset(
    dataset: Any,
    store: PartsStore,
    *,
    message: str,
    group: str | None = None,
    mode: Any = None,
    encoding: Mapping[Any, Any] | None = None,
    append_dim: Any = None,
    region: Any = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: Any = None,
    align_chunks: bool = False,
    retries: int = 0,
    client: Any = None,
    progress: bool | Progress = False,
) -> str:
    """Write a dataset of xarray's to a session, its arrays of dask's from a cluster, and commit the session.

    Parameters
    ----------
    dataset
        The dataset, or an array of xarray's. What is in memory is written by this process.
    store
        A store on a writable session; its `parts` say which arrays get which.
    group, mode, encoding, append_dim, region
        Those of `xarray.Dataset.to_zarr`.
    message, metadata, rebase_with, align_chunks, retries, client, progress
        Those of `write_array`.

    Returns
    -------
    The id of the new snapshot.

    Raises
    ------
    ClusterWriteError
        If tasks failed. Nothing is committed, and the session is what it was; but if it had changes before, it has the
        new arrays too, without their chunks.
    """
    _require_session(store)
    with _undone_if_it_fails(store.session):
        pending = _write_metadata(dataset, store, group, mode, encoding, append_dim, region)
        jobs = [_plan(source, target, at, align_chunks=align_chunks) for source, target, at in pending]
        _write(store, jobs, retries=retries, client=client, progress=progress)
    return _commit(store, message, metadata, rebase_with)


def _commit(store: PartsStore, message: str, metadata: dict[str, Any] | None, rebase_with: Any) -> str:
    # A source without elements changes nothing, and is written all the same.
    snapshot: str = store.session.commit(message, metadata, rebase_with=rebase_with, allow_empty=True)
    return snapshot


@contextmanager
def _undone_if_it_fails(session: Any) -> Iterator[None]:
    """Discard the changes of a session that had none before, if not all of them were made."""
    had_changes = session.has_uncommitted_changes
    try:
        yield
    except BaseException:
        # Others' changes are not ours to discard, and Icechunk discards all or nothing.
        if not had_changes and session.has_uncommitted_changes:
            session.discard_changes()
        raise


# --- what is written where ----------------------------------------------------------------------------------------


def _require_store(target: object) -> PartsStore:
    store = target.store if isinstance(target, zarr.Array) else None
    if not isinstance(store, PartsStore):
        raise StoreConfigError("target", "an array of zarr's in a PartsStore", describe(target))
    return _require_session(store)


def _require_session(store: object) -> PartsStore:
    if not isinstance(store, PartsStore) or store.session is None:
        raise StoreConfigError("store", "a PartsStore on an Icechunk session", describe(store))
    if store.read_only or store.session.read_only:
        raise ReadOnlySessionError(str(store), "it is read only, or was committed; open a writable session")
    store.require_writable()
    if store.session.branch is None:
        raise StoreConfigError("store", "a session that can be committed", "a fork of one")
    return store


def _plan(source: Any, target: zarr.Array[Any], region: Sequence[slice] | None, *, align_chunks: bool) -> _Job:
    """The job, if every chunk of the target is written by one task alone."""
    path = target.path or "/"
    _require_dask_array(source, path)
    start, stop = _bounds(target, region)
    shape = tuple(after - before for before, after in zip(start, stop, strict=True))
    # A size that is not known is not a number, and equals nothing.
    if tuple(source.shape) != shape:
        raise StoreConfigError(f"source for {path!r}", f"the shape {shape}", f"{tuple(source.shape)}")
    grid = [_edges(sizes, 0) for sizes in target.write_chunk_sizes]
    for axis, edges in enumerate(grid):
        if not {start[axis], stop[axis]} <= set(edges):
            expected = f"bounds between chunks along axis {axis}"
            raise StoreConfigError(f"region of {path!r}", expected, f"{start[axis]}:{stop[axis]}")
    axes = list(zip(source.chunks, start, grid, strict=True))
    if all(set(_edges(sizes, at)) <= set(edges) for sizes, at, edges in axes):
        return _Job(source, target, start)
    if not align_chunks:
        expected = f"chunks that cover whole ones of {describe(target.write_chunk_sizes)}, or align_chunks=True"
        raise StoreConfigError(f"source for {path!r}", expected, f"chunks {describe(source.chunks)}")
    return _Job(source.rechunk(tuple(_aligned(*axis) for axis in axes)), target, start)


def _require_dask_array(source: Any, path: str) -> None:
    if not hasattr(source, "to_delayed") or not hasattr(source, "chunks"):
        raise StoreConfigError(f"source for {path!r}", "an array of dask's", describe(source))
    # zarr stores what is under a mask.
    if hasattr(getattr(source, "_meta", None), "mask"):
        raise StoreConfigError(f"source for {path!r}", "an array without a mask", "one with, which `filled` removes")


def _bounds(target: zarr.Array[Any], region: Sequence[slice] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if region is None:
        return (0,) * target.ndim, target.shape
    slices = tuple(region) if isinstance(region, Sequence) else ()
    if len(slices) != target.ndim or not all(isinstance(each, slice) and each.step in (None, 1) for each in slices):
        raise StoreConfigError("region", f"a tuple of {target.ndim} slices without steps", describe(region))
    bounds = [each.indices(size) for each, size in zip(slices, target.shape, strict=True)]
    return tuple(start for start, _, _ in bounds), tuple(max(start, stop) for start, stop, _ in bounds)


def _edges(sizes: Sequence[int], start: int) -> list[int]:
    """Where chunks of these sizes begin, and where the last of them ends."""
    return list(itertools.accumulate(sizes, initial=start))


def _aligned(sizes: Sequence[int], start: int, edges: Sequence[int]) -> tuple[int, ...]:
    """The sizes of chunks each of which ends where the target's do, at or after where it did."""
    ends = sorted({edges[bisect_left(edges, end)] for end in _edges(sizes, start)})
    return tuple(after - before for before, after in itertools.pairwise(ends)) or (0,)


def _tasks(job: _Job) -> Iterator[_Task]:
    """A task for each block of the source."""
    blocks = job.source.to_delayed()
    edges = [_edges(sizes, at) for sizes, at in zip(job.source.chunks, job.start, strict=True)]
    for place in itertools.product(*(range(len(each) - 1) for each in edges)):
        region = tuple(slice(edge[at], edge[at + 1]) for edge, at in zip(edges, place, strict=True))
        yield _Task(job.target.path, region, blocks[place])


# --- on the cluster -----------------------------------------------------------------------------------------------


def _write_block(arrays: bytes, path: str, region: tuple[slice, ...], block: Any) -> Any:
    """Write a block to a fork of the session, and return the fork: on a worker, which may do this more than once."""
    # Of our own making, and a new one each time: what another task wrote is that task's to return.
    array = pickle.loads(arrays)[path]  # noqa: S301
    array[region] = block
    return array.store.session


def _on_fork(store: PartsStore, jobs: Sequence[_Job]) -> dict[str, zarr.Array[Any]]:
    """The targets by their paths, in one fork of the session: with what is bound to them, and never stored."""
    fork = PartsStore.from_session(store.session.fork())
    arrays = [job.target.async_array for job in jobs]
    return {each.path: zarr.Array(replace(each, store_path=StorePath(fork, each.path))) for each in arrays}


def _write(store: PartsStore, jobs: Sequence[_Job], *, retries: int, client: Any, progress: bool | Progress) -> None:
    """Write every block on a cluster, and merge what was written; or raise, and merge nothing."""
    tasks = [task for job in jobs for task in _tasks(job)]
    if not tasks:
        return
    with _extra("dask"):
        import dask  # noqa: PLC0415
        import distributed  # noqa: PLC0415

    # As dask does it: `pickle` alone cannot take a function of a notebook.
    arrays = distributed.protocol.pickle.dumps(_on_fork(store, jobs))
    writing = dask.delayed(_write_block, pure=False)
    with _client(client) as cluster, _bar(progress, len(tasks)) as update:
        # One node of the graph for all tasks, which outlives every worker.
        shared = dask.delayed(arrays)
        delayed = [writing(shared, task.path, task.region, task.block) for task in tasks]
        futures = cluster.compute(delayed, retries=retries)
        try:
            forks, failed = _gather(cluster, futures, tasks, update)
        except BaseException:
            # Interrupted: nobody waits for the rest. A cluster that is gone has nothing to cancel.
            with suppress(Exception):
                cluster.cancel(futures)
            raise
    if failed:
        paths = sorted({job.target.path or "/" for job in jobs})
        raise ClusterWriteError(", ".join(paths), len(tasks), tuple(failed))
    store.session.merge(*forks)


def _gather(
    cluster: Any, futures: Sequence[Any], tasks: Sequence[_Task], update: Progress
) -> tuple[list[Any], list[tuple[str, str]]]:
    """The forks of the tasks that succeeded, and the names of the others with what went wrong, all in their order."""
    from distributed import as_completed  # noqa: PLC0415

    forks: dict[int, Any] = {}
    failed: dict[int, tuple[str, str]] = {}
    numbers = {future.key: number for number, future in enumerate(futures)}
    # On the loop of this client: without one it is the current client's, which may be another or none.
    for future in as_completed(futures, loop=cluster.loop):
        number = numbers[future.key]
        try:
            forks[number] = future.result()
        except Exception as error:
            # Whatever it is, it is told with the others.
            problem = f"{type(error).__name__}: {hide_secrets(str(error))}".strip()
            failed[number] = (f"{tasks[number].path or '/'}{tasks[number].name}", problem)
        future.release()
        update(len(forks) + len(failed), len(futures))
    return [forks[number] for number in sorted(forks)], [failed[number] for number in sorted(failed)]


@contextmanager
def _client(client: Any) -> Iterator[Any]:
    """The client given, the current one, or one for the threads of this process."""
    from distributed import Client, get_client, worker_client  # noqa: PLC0415

    with ExitStack() as stack:
        if client is None:
            try:
                # In a task of dask's, which gives its thread to those that it waits for.
                client = stack.enter_context(worker_client())
            except ValueError:
                with suppress(ValueError):
                    client = get_client()
        if client is None:
            # On any port: without an address it is a certain one, and a warning if that is taken.
            client = stack.enter_context(Client(processes=False, dashboard_address=":0"))
        if not isinstance(client, Client):
            raise StoreConfigError("client", "a client of dask", describe(client))
        if client.asynchronous:
            raise StoreConfigError("client", "one that is not asynchronous, or none", describe(client))
        yield client


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Say which extra has what cannot be imported."""
    try:
        yield
    except ImportError as error:
        problem = f"writing from a cluster needs {error.name}: install parts_store[{name}]"
        raise ImportError(problem, name=error.name) from error


@contextmanager
def _bar(progress: bool | Progress, total: int) -> Iterator[Progress]:
    """What is called with how far it is."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda _done, _total: None
        return
    with _extra("cli"):
        from parts_store.progress import progress_bar  # noqa: PLC0415

    with progress_bar("write", "blocks") as update:
        update(0, total)
        yield update


# --- datasets -----------------------------------------------------------------------------------------------------


def _write_metadata(
    dataset: Any,
    store: PartsStore,
    group: str | None,
    mode: Any,
    encoding: Mapping[Any, Any] | None,
    append_dim: Any,
    region: Any,
) -> list[tuple[Any, zarr.Array[Any], Sequence[slice] | None]]:
    """Create the arrays of a dataset, write what is in memory, and return what is not: encoded, and where it goes."""
    from parts_store._compat.xarray import create_arrays  # noqa: PLC0415 - a caller that has a dataset has xarray

    if mode is None:
        mode = "a" if append_dim is not None else "r+" if region is not None else "w-"
    written = create_arrays(
        _as_dataset(dataset),
        store,
        group=group,
        mode=mode,
        encoding=encoding or {},
        append_dim=append_dim,
        region=region,
    )
    return [(source, target, None if at is None else _as_slices(at, target)) for source, target, at in written]


def _as_dataset(given: Any) -> Any:
    """The dataset, or that of `DataArray.to_zarr`, of which `xarray.open_dataarray` makes the array again."""
    from xarray import DataArray, Dataset  # noqa: PLC0415

    if isinstance(given, Dataset):
        return given
    if not isinstance(given, DataArray):
        raise StoreConfigError("dataset", "a dataset or an array of xarray's", describe(given))
    if given.name is not None and given.name not in given.coords and given.name not in given.dims:
        return given.to_dataset()
    dataset = given.to_dataset(name="__xarray_dataarray_variable__")
    if given.name is not None:
        dataset.attrs["__xarray_dataarray_name__"] = given.name
    return dataset


def _as_slices(region: Any, target: zarr.Array[Any]) -> tuple[slice, ...]:
    given = region if isinstance(region, tuple) else (region,)
    return (*given, *(slice(None),) * (target.ndim - len(given)))
