"""Copy arrays and groups from one store to another: several chunks at the same time, each read back and compared.

On an object store the metadata documents are written last, so that an array appears with all of its chunks or not at
all. In a session they are written first, and the commit makes the copy visible. Everything is checked before the first
write. If the copy fails, what it wrote is deleted.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from zarr.abc.buffer import Buffer
from zarr.buffer import cpu

from parts_store._compat.zarr import normalize_path, sync
from parts_store.copying import plan
from parts_store.copying.plan import ChunkBatch, Contents
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.stats import Progress
from parts_store.engine.steps import List, Listed, Steps, get_all, remove
from parts_store.errors import (
    ConcurrentWriteError,
    CopyMismatchError,
    ReservedKeyError,
    StoreConfigError,
    describe,
)
from parts_store.executors import ExecutorLike, Workers, open_workers
from parts_store.format.files.description import recorded_format
from parts_store.format.files.seal import Ends
from parts_store.format.keys import is_metadata, join, side_folder_of, split
from parts_store.format.metadata import Around, ArrayRecord, PlainLayout, is_array, parse
from parts_store.format.shard_index import ShardIndex, has_same_chunks
from parts_store.progress import ProgressLike, report_progress, require_progress
from parts_store.redaction import hide_secrets
from parts_store.store import destination as target_path
from parts_store.store.catalog import Other, OwnedChunk
from parts_store.store.destination import Documents
from parts_store.store.options import parse_count
from parts_store.store.store import PartsStore


@dataclass(frozen=True, slots=True)
class Copied:
    """A summary of what was copied.

    Parameters
    ----------
    groups : int
        The number of groups.
    arrays : int
        The number of arrays.
    chunks : int
        The number of chunks, and of other objects that are not metadata documents.
    nbytes : int
        The number of bytes of the chunks.

    Examples
    --------
    >>> print(ps.Copied(groups=1, arrays=2, chunks=1000, nbytes=4096))
    1 group, 2 arrays, 1,000 chunks, 4,096 bytes
    """

    groups: int
    arrays: int
    chunks: int
    nbytes: int

    def __str__(self) -> str:
        counts = {"group": self.groups, "array": self.arrays, "chunk": self.chunks, "byte": self.nbytes}
        return ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items())


def copy(
    source: PartsStore,
    destination: PartsStore,
    *,
    path: str = "",
    to: str | None = None,
    overwrite: bool = False,
    verify: bool = True,
    max_concurrency: int = 16,
    executor: ExecutorLike = None,
    progress: ProgressLike = None,
) -> Copied:
    """Copy an array, or a group with everything below it, from one store to another.

    Arrays keep their parts: a chunk that an Icechunk session stores as one value becomes several objects in an object
    store, and the other way round. Only several parts without a size, as in an archive of many files, become one part.
    If the copy fails, it leaves nothing behind in an object store. In a session, it leaves changes that are not
    committed.

    Parameters
    ----------
    source : PartsStore
        The store to read from: an object store, a local folder, memory, or an Icechunk session.
    destination : PartsStore
        The store to write to, of any of these kinds.
    path : str
        The path of the array or the group to copy. The default is the root.
    to : str, optional
        The path in the destination. The default is `path`. Missing groups above it are created.
    overwrite : bool
        Whether to delete what is at the path in the destination first.
    verify : bool
        Whether to read every chunk, and the metadata document of every array, back from the destination and compare it.
    max_concurrency : int
        How many chunks are copied at the same time. Each needs its size in memory, and twice its size with `verify`.
        With an executor, each of its tasks copies that many.
    executor : concurrent.futures.Executor or distributed.Client or "dask", optional
        What copies the chunks; "dask" is the current client. By default this process copies them. In other processes,
        both stores must be such that they can be pickled: not in memory.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of chunks that are done and the number of
        all chunks. Without an executor, it is called in the thread of zarr's event loop.

    Returns
    -------
    Copied
        The numbers of groups, arrays, chunks and bytes that were copied.

    Raises
    ------
    StoreConfigError
        If there is nothing to copy, the path in the destination is not free, or an argument is not valid. Nothing was
        changed.
    SessionError
        If the destination is a session that cannot store the source. Nothing was changed.
    CopyMismatchError
        If the destination does not return what was written.

    Examples
    --------
    >>> from obstore.store import MemoryStore
    >>> source, destination = ps.PartsStore(MemoryStore()), ps.PartsStore(MemoryStore())
    >>> array = zarr.create_array(source, name="a", data=np.arange(4, dtype="uint8"), chunks=(2,), compressors=None)
    >>> print(ps.copy(source, destination, path="a", to="b"))
    0 groups, 1 array, 2 chunks, 4 bytes
    >>> zarr.open_array(destination, path="b", mode="r")[...]
    array([0, 1, 2, 3], dtype=uint8)
    """
    _require_arguments(source, destination, overwrite, verify, max_concurrency)
    require_progress(progress)
    start, into = _parse_path("path", path), _parse_path("to", path if to is None else to)
    if not target_path.are_apart(source, start, destination, into):
        raise StoreConfigError("to", f"a path apart from {start!r}, in the same store or another", describe(into))
    # The catalogs of the copy know arrays before their documents are written.
    reading, writing = source.with_own_catalog(), destination.with_own_catalog()
    contents = _read_contents(reading, start, destination)
    _require_storable(writing, contents, into)
    ancestors = target_path.read_ancestors(writing, into)
    target_path.require_outside_arrays(ancestors, into, "to")
    if not overwrite:
        target_path.require_empty(writing, into, "to")
    documents = {join(into, key): data for key, data in contents.documents.items()}
    documents |= _missing_groups(contents, ancestors)
    around = _read_around(reading, contents, start, into)
    copier = ChunkCopier(reading, writing, start, into, verify, max_concurrency, around)
    with open_workers(executor) as workers, report_progress(progress, "copy", "chunks") as update:
        job = _CopyJob(copier, writing, into, contents, documents, update)
        try:
            if overwrite:
                target_path.clear(writing, into)
            job.carry_out(None if executor is None else workers)
        finally:
            destination.catalog.forget_below(into)
    return Copied(contents.groups, len(contents.arrays), len(contents.chunks), job.nbytes)


# --- checks, before anything is changed -------------------------------------------------------------------------------


def _require_arguments(
    source: object, destination: object, overwrite: object, verify: object, max_concurrency: object
) -> None:
    for name, store in (("source", source), ("destination", destination)):
        if not isinstance(store, PartsStore):
            raise StoreConfigError(name, "a PartsStore", f"an object of type {type(store).__name__}")
        store.require_listable()
    if isinstance(destination, PartsStore):
        if destination.read_only:
            raise StoreConfigError("destination", "a store that can be written", "a read-only store")
        # A session that was committed cannot be written any more.
        destination.require_writable()
    for name, flag in (("overwrite", overwrite), ("verify", verify)):
        if not isinstance(flag, bool):
            raise StoreConfigError(name, "True or False", describe(flag))
    parse_count("max_concurrency", max_concurrency, least=1)


def _parse_path(name: str, path: object) -> str:
    if not isinstance(path, str):
        raise StoreConfigError(name, "the path of an array or a group", describe(path))
    try:
        return normalize_path(path)
    except ValueError as error:
        raise StoreConfigError(name, "the path of an array or a group", describe(path)) from error


def _read_contents(store: PartsStore, path: str, destination: PartsStore) -> Contents:
    """Return everything at and below a path, with documents as the destination stores them.

    Afterwards the catalog of the store knows all arrays below the path.
    """
    prefix = f"{path}/" if path else ""
    keys = sorted({key for key in sync(_collect(store.list_prefix(path))) if key.startswith(prefix)})
    metadata = [key for key in keys if is_metadata(key)]
    if not metadata:
        raise StoreConfigError("path", f"an array or a group in {store}", f"none at {path!r}")
    documents = {}
    for key, data in store.carry_out(get_all(metadata, "document to copy")).items():
        if data is None:
            raise ConcurrentWriteError(key, "it was deleted during the copy")
        documents[key.removeprefix(prefix)] = data
    for key, data in Contents(documents, ()).arrays.items():
        store.catalog.expect(split(join(path, key))[0], data)
    converted = {
        key: plan.convert_document(data, destination.protocol, must_understand=destination.must_understand)
        for key, data in documents.items()
    }
    chunks = tuple(key.removeprefix(prefix) for key in keys if not is_metadata(key))
    return Contents(converted, chunks)


def _require_storable(store: PartsStore, contents: Contents, to: str) -> None:
    """Raise if the store cannot store the contents at the path `to`."""
    for key in (*contents.documents, *contents.chunks):
        if store.catalog.is_hidden(target := join(to, key)):
            raise ReservedKeyError(target, "the store itself")
    if store.session is not None:
        for key, data in contents.arrays.items():
            if (document := parse(data)) is not None and is_array(document):
                store.protocol.require_keepable(document, split(join(to, key))[0])
        plan.require_storable(contents, to)


def _missing_groups(contents: Contents, ancestors: Mapping[str, Documents]) -> dict[str, bytes]:
    """Return the documents of the groups that are missing above the destination, by their keys."""
    if contents.group_above is None:
        return {}
    name, data = contents.group_above
    return {join(path, name): data for path, documents in ancestors.items() if not documents}


def _read_around(source: PartsStore, contents: Contents, path: str, to: str) -> dict[str, Around]:
    """Return what the nodes that are copied say about arrays whose shards are files, by the paths of their copies."""
    found: dict[str, Around] = {}
    for key, data in contents.arrays.items():
        document, (below, _) = parse(data), split(key)
        if below and document is not None and recorded_format(document) is not None:
            found[join(to, below)] = source.carry_out(source.catalog.around(join(path, below), document))
    return found


async def _collect(keys: AsyncIterator[str]) -> list[str]:
    return [key async for key in keys]


# --- copying ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkCopier:
    """What copies chunks below a path of one store to a path of another store. Workers get a copy of it."""

    source: PartsStore
    destination: PartsStore
    path: str
    to: str
    # Whether each chunk is read back and compared.
    verify: bool
    # How many chunks are copied at the same time.
    max_concurrency: int
    # What the files of shards contain of other nodes, which may be copied later, by the paths of the new arrays.
    around: Mapping[str, Around]

    async def copy(self, key: str) -> int:
        """Copy the chunk at a key below the path, and return its size."""
        value = await self.source.get(join(self.path, key), cpu.buffer_prototype)
        if value is None:
            raise ConcurrentWriteError(join(self.path, key), "it was deleted during the copy")
        target = join(self.to, key)
        await self.destination.set(target, value)
        if self.verify:
            found = await self.destination.get(target, cpu.buffer_prototype)
            if found is None or not self._is_copy(target, _view(found), _view(value)):
                raise CopyMismatchError(target, len(value), None if found is None else len(found))
        return len(value)

    def _is_copy(self, key: str, found: memoryview, value: memoryview) -> bool:
        """Return whether what was found at a key of the destination is the chunk that was written.

        If shards are files, they are written as files, with the same inner chunks.
        """
        if found == value:
            return True
        # The destination has just written the chunk, so this sends no request.
        owner = self.destination.carry_out(self.destination.catalog.owner(key))
        match owner:
            case OwnedChunk(record=ArrayRecord(shard_index=ShardIndex() as index, ends=Ends())):
                return has_same_chunks(index, found, value)
            case Other(layout=PlainLayout(shard_index=index, ends=Ends())):
                return has_same_chunks(index, found, value)
            case _:
                return False

    def for_workers(self) -> "ChunkCopier":
        """Return a copier that can be pickled, if both stores allow that, and that writes to a fork of a session."""
        session = self.destination.session
        if session is not None and session.branch is None:
            found = "a fork of a session"
            raise StoreConfigError("destination", "a session that can be committed, for an executor", found)
        return replace(self, source=self.source.for_workers(), destination=self.destination.for_workers())

    def copy_batch(self, batch: ChunkBatch) -> tuple[int, Any]:
        """Copy some chunks; return their size, and the fork of the session that they were written to, if any."""
        if self.destination.session is not None:
            # Every task needs a fork of its own, also in threads of this process.
            destination: PartsStore = pickle.loads(pickle.dumps(self.destination))  # noqa: S301
        else:
            # The documents of the arrays are written after the chunks.
            destination = self.destination.with_own_catalog()
            for key, document in batch.arrays.items():
                destination.catalog.expect(split(join(self.to, key))[0], document)
        destination.catalog.fixed_around = self.around
        sizes: list[int] = []
        copier = replace(self, destination=destination)

        async def copy(key: str) -> None:
            sizes.append(await copier.copy(key))

        sync(run_for_each(batch.chunks, copy, self.max_concurrency))
        return sum(sizes), destination.session


def _view(buffer: Buffer) -> memoryview:
    return memoryview(buffer.as_buffer_like()).cast("B")


@dataclass(slots=True)
class _CopyJob:
    """One copy, and its progress."""

    copier: ChunkCopier
    destination: PartsStore
    to: str
    contents: Contents
    # The documents to write, by their keys in the destination.
    documents: Mapping[str, bytes]
    progress: Progress
    nbytes: int = 0
    _done: int = 0
    # Keys in the destination whose writes have begun.
    _begun: list[str] = field(default_factory=list)
    _task: asyncio.Task[Any] | None = None

    def carry_out(self, workers: Workers | None) -> None:
        """Copy everything; if that fails in an object store, delete what was written."""
        self.destination.catalog.fixed_around = self.copier.around
        try:
            self._report()
            if self.destination.session is not None:
                self._run(self._write_documents(nodes_first=True))
            else:
                self._expect()
            if workers is None:
                self._run(run_for_each(self.contents.chunks, self._copy_chunk, self.copier.max_concurrency))
            else:
                self._copy_on(workers)
            if self.destination.session is None:
                self._run(self._write_documents(nodes_first=False))
            if self.copier.verify:
                self._compare_documents()
        except BaseException as error:
            try:
                sync(self._stop())
                # The caller can discard the changes of a session.
                if self.destination.session is None:
                    self.destination.carry_out(self._remove())
            except Exception as second:
                error.add_note(f"what was copied so far could not be removed again: {hide_secrets(str(second))}")
            raise

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on zarr's event loop, as a task that `_stop` can cancel."""

        async def run() -> None:
            self._task = asyncio.current_task()
            await work

        sync(run())

    def _copy_on(self, workers: Workers) -> None:
        """Copy the chunks on workers: in a session, each task writes to its own fork, and all forks are merged."""
        self._begun += [join(self.to, key) for key in self.contents.chunks]
        batches = plan.batches(self.contents)
        forks = []
        with closing(workers.run(self.copier.for_workers().copy_batch, batches)) as tasks:
            for task in tasks:
                nbytes, fork = task.result()
                forks.append(fork)
                self.nbytes += nbytes
                self._done += len(batches[task.number].chunks)
                self._report()
        if self.destination.session is not None:
            self.destination.session.merge(*forks)

    def _expect(self) -> None:
        for key, data in self.contents.arrays.items():
            self.destination.catalog.expect(split(join(self.to, key))[0], data)

    async def _write_documents(self, *, nodes_first: bool) -> None:
        for keys in plan.in_order(self.documents, nodes_first=nodes_first):
            await run_for_each(keys, self._write_document, self.copier.max_concurrency)

    async def _write_document(self, key: str) -> None:
        self._begun.append(key)
        await self.destination.set(key, cpu.Buffer.from_bytes(self.documents[key]))

    async def _copy_chunk(self, key: str) -> None:
        self._begun.append(join(self.to, key))
        nbytes = await self.copier.copy(key)
        self.nbytes += nbytes
        self._done += 1
        self._report()

    def _report(self) -> None:
        self.progress(self._done, len(self.contents.chunks))

    def _compare_documents(self) -> None:
        """Raise unless the destination returns the documents of the arrays as they were written."""
        keys = list(Contents(self.documents, ()).arrays)
        for key, found in self.destination.carry_out(get_all(keys, "document that was copied")).items():
            if found != self.documents[key]:
                raise CopyMismatchError(key, len(self.documents[key]), None if found is None else len(found))

    async def _stop(self) -> None:
        """Cancel the copy, and wait until it has ended."""
        if self._task is not None and not self._task.done():
            # After an interrupt, zarr no longer waits for the task, but does not cancel it.
            self._task.cancel()
            await asyncio.wait({self._task})

    def _remove(self) -> Steps[None]:
        """Delete what was written: first the documents, which make it visible, then chunks and side folders."""
        documents = tuple(key for key in self._begun if key in self.documents)
        if documents:
            yield from remove(documents, "documents of a failed copy")
        # The catalog forgets an array when its document is deleted.
        self._expect()
        ours, folders = set(self._begun), set()
        for key in self._begun:
            owner = yield from self.destination.catalog.owner(key)
            if isinstance(owner, OwnedChunk):
                ours.update(owner.chunk.part_keys)
                folders.add(owner.chunk.side_folder)
        (listed,) = yield (List(self.to, "leftovers of a failed copy"),)
        found = [entry.key for entry in listed.entries] if isinstance(listed, Listed) else []
        left = tuple(key for key in found if key in ours or side_folder_of(key) in folders)
        if left:
            yield from remove(left, "chunks of a failed copy")
