"""Arrays and groups copied from one store to another: chunk by chunk, several at once, each read back and compared.

On an object store the documents come last, so that an array is there with all of its chunks or not at all; in a session
they come first, and its commit is what makes the copy visible. Decides what is refused before anything is changed, and
removes again what was written if the rest cannot be.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zarr.abc.buffer import Buffer
from zarr.buffer import cpu

from parts_store import copy_plan
from parts_store._compat.zarr import normalize_path, sync
from parts_store.backends.addresses import address_of
from parts_store.catalog.owners import OwnedChunk
from parts_store.copy_plan import ARRAY_V2, GROUP_V2, Contents
from parts_store.engine.stats import Progress
from parts_store.engine.steps import List, Listed, Steps, remove
from parts_store.errors import (
    ConcurrentWriteError,
    CopyMismatchError,
    PartsConfigError,
    ReservedKeyError,
    StoreConfigError,
    describe,
)
from parts_store.format.keys import DOCUMENT, join, side_folder_of, split
from parts_store.format.layout import require_writable
from parts_store.format.metadata import is_array, parse
from parts_store.options import require_count
from parts_store.redaction import hide_secrets
from parts_store.store import PartsStore


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied. A chunk is whatever is no document; `nbytes` are those of the chunks."""

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
    progress: Progress | None = None,
) -> Copied:
    """Copy an array, or a group with everything below it, from any store to any other.

    Arrays keep their parts: what is one chunk in an Icechunk session becomes several objects on an object store, and
    the other way round. A copy that fails leaves nothing behind on an object store, and a session uncommitted.

    Parameters
    ----------
    source, destination
        Stores on object stores, local disks, in memory, or on Icechunk sessions.
    path
        What is copied; everything if empty.
    to
        Its path in the destination; the same if None. Groups above it are made where there are none.
    overwrite
        Whether what is there is deleted first.
    verify
        Whether every chunk, and the document of every array, is read back from the destination and compared.
    max_concurrency
        How many chunks are copied at once. Each takes its size in memory; twice that if it is verified.
    progress
        Called with how many chunks are done, and how many there are; in the thread of zarr's event loop.

    Raises
    ------
    StoreConfigError
        If there is nothing to copy, something in its place, or no way to do it. Nothing was changed.
    SessionError
        If the destination is a session, and cannot keep what is to be copied. Nothing was changed.
    CopyMismatchError
        If the destination does not give back what was written.
    """
    _require_arguments(source, destination, overwrite, verify, max_concurrency, progress)
    start, into = _parse_path("path", path), _parse_path("to", path if to is None else to)
    _require_apart(source, destination, start, into)
    # What these learn is true of this copy alone: that an array is there whose document is not, for one.
    reading, writing = source.with_own_catalog(), destination.with_own_catalog()
    contents = _look(reading, start, destination)
    _require_keepable(writing, contents, into)
    documents = _require_room(writing, contents, into, overwrite=overwrite)
    job = _Job(reading, writing, start, into, contents, documents, verify, max_concurrency, progress)
    try:
        if overwrite:
            sync(writing.delete_dir(into))
        job.carry_out()
    finally:
        destination.catalog.forget_below(into)
    return Copied(contents.groups, len(contents.arrays), len(contents.chunks), job.nbytes)


# --- what is refused, before anything is changed ---------------------------------------------------------------------


def _require_arguments(
    source: object, destination: object, overwrite: object, verify: object, max_concurrency: object, progress: object
) -> None:
    for name, store in (("source", source), ("destination", destination)):
        if not isinstance(store, PartsStore):
            raise StoreConfigError(name, "a PartsStore", f"an object of type {type(store).__name__}")
        store.require_listable()
    if isinstance(destination, PartsStore):
        if destination.read_only:
            raise StoreConfigError("destination", "a store that can be written", "one that is read only")
        # A session may have been committed since.
        destination.require_writable()
    for name, flag in (("overwrite", overwrite), ("verify", verify)):
        if not isinstance(flag, bool):
            raise StoreConfigError(name, "True or False", describe(flag))
    require_count("max_concurrency", max_concurrency, least=1)
    if progress is not None and not callable(progress):
        raise StoreConfigError("progress", "something to call with two numbers", describe(progress))


def _parse_path(name: str, path: object) -> str:
    if not isinstance(path, str):
        raise StoreConfigError(name, "the path of an array or a group", describe(path))
    try:
        return normalize_path(path)
    except ValueError as error:
        raise StoreConfigError(name, "the path of an array or a group", describe(path)) from error


def _require_apart(source: PartsStore, destination: PartsStore, path: str, to: str) -> None:
    """Raise if what is written would be a part of what is read, or the other way round."""
    (one, above), (other, above_other) = address_of(source.store), address_of(destination.store)
    if one == other and not copy_plan.are_apart(join(above, path), join(above_other, to)):
        raise StoreConfigError("to", f"a path apart from {path!r}, in the same store or another", describe(to))


def _look(store: PartsStore, path: str, destination: PartsStore) -> Contents:
    """Everything at and below a path, with the documents as they are to arrive; the store then knows its arrays."""
    prefix = f"{path}/" if path else ""
    keys = sorted({key for key in sync(_collect(store.list_prefix(path))) if key.startswith(prefix)})
    metadata = [key for key in keys if copy_plan.is_metadata(key)]
    if not metadata:
        raise StoreConfigError("path", f"an array or a group in {store}", f"none at {path!r}")
    documents = {}
    for key, data in store.carry_out(copy_plan.read(metadata)).items():
        if data is None:
            raise ConcurrentWriteError(key, "it was there a moment ago")
        documents[key.removeprefix(prefix)] = data
    for key, data in Contents(documents, ()).arrays.items():
        store.catalog.expect(split(join(path, key))[0], data)
    for array, record in store.catalog.arrays().items():
        try:
            require_writable(record.parts)
        except PartsConfigError as error:
            raise error.of_array(array) from error
    arriving = {
        key: copy_plan.arriving(data, destination.protocol, must_understand=destination.must_understand)
        for key, data in documents.items()
    }
    chunks = tuple(key.removeprefix(prefix) for key in keys if not copy_plan.is_metadata(key))
    return Contents(arriving, chunks)


def _require_keepable(store: PartsStore, contents: Contents, to: str) -> None:
    """Raise if the store cannot keep what is to be written at the path `to`."""
    for key in (*contents.documents, *contents.chunks):
        if store.catalog.is_hidden(target := join(to, key)):
            raise ReservedKeyError(target, "the store itself")
    if store.session is not None:
        for key, data in contents.arrays.items():
            if (document := parse(data)) is not None and is_array(document):
                store.protocol.require_keepable(document, split(join(to, key))[0])
        copy_plan.require_keepable(contents, to)


def _require_room(store: PartsStore, contents: Contents, to: str, *, overwrite: bool) -> dict[str, bytes]:
    """The documents to be written, those of groups that are missing above `to` included; raises if there is no room."""
    segments = to.split("/") if to else []
    above = ["/".join(segments[:count]) for count in range(len(segments))]
    names = (DOCUMENT,) if store.session is not None else (DOCUMENT, ARRAY_V2, GROUP_V2)
    found = store.carry_out(copy_plan.read([join(path, name) for path in above for name in names]))
    for key, data in found.items():
        if data is not None and Contents({key: data}, ()).arrays:
            raise StoreConfigError("to", f"a path that is not in an array, as {split(key)[0]!r} is", describe(to))
    if not overwrite and (there := sync(_first(store.list_prefix(to)))) is not None:
        raise StoreConfigError("to", "a path with nothing there, or `overwrite=True`", describe(there))
    documents = {join(to, key): data for key, data in contents.documents.items()}
    for path in above:
        if contents.group_above is not None and all(found[join(path, name)] is None for name in names):
            name, data = contents.group_above
            documents[join(path, name)] = data
    return documents


async def _collect(keys: AsyncIterator[str]) -> list[str]:
    return [key async for key in keys]


async def _first(keys: AsyncIterator[str]) -> str | None:
    async for key in keys:
        return key
    return None


# --- copying ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    """One copy, and how far it has come."""

    source: PartsStore
    destination: PartsStore
    path: str
    to: str
    contents: Contents
    # To be written, by their keys in the destination.
    documents: Mapping[str, bytes]
    verify: bool
    max_concurrency: int
    progress: Progress | None
    nbytes: int = 0
    _done: int = 0
    # Keys in the destination that were written, or may have been.
    _begun: list[str] = field(default_factory=list)
    _task: asyncio.Task[Any] | None = None

    def carry_out(self) -> None:
        """All of it; or, on an object store, nothing."""
        try:
            sync(self._run())
            if self.verify:
                self._compare_documents()
        except BaseException as error:
            try:
                sync(self._stop())
                # In a session it is the caller's to discard.
                if self.destination.session is None:
                    self.destination.carry_out(self._remove())
            except Exception as second:
                error.add_note(f"what was copied so far could not be removed again: {hide_secrets(str(second))}")
            raise

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        is_session = self.destination.session is not None
        self._report()
        if is_session:
            await self._write_documents(nodes_first=True)
        else:
            self._expect()
        await self._each(self.contents.chunks, self._copy_chunk)
        if not is_session:
            await self._write_documents(nodes_first=False)

    def _expect(self) -> None:
        for key, data in self.contents.arrays.items():
            self.destination.catalog.expect(split(join(self.to, key))[0], data)

    async def _write_documents(self, *, nodes_first: bool) -> None:
        for keys in copy_plan.in_order(self.documents, nodes_first=nodes_first):
            await self._each(keys, self._write_document)

    async def _write_document(self, key: str) -> None:
        self._begun.append(key)
        await self.destination.set(key, cpu.Buffer.from_bytes(self.documents[key]))

    async def _copy_chunk(self, key: str) -> None:
        value = await self.source.get(join(self.path, key), cpu.buffer_prototype)
        if value is None:
            raise ConcurrentWriteError(join(self.path, key), "it was there when the copy began")
        target = join(self.to, key)
        self._begun.append(target)
        await self.destination.set(target, value)
        if self.verify:
            found = await self.destination.get(target, cpu.buffer_prototype)
            if found is None or _view(found) != _view(value):
                raise CopyMismatchError(target, len(value), None if found is None else len(found))
        self.nbytes += len(value)
        self._done += 1
        self._report()

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self._done, len(self.contents.chunks))

    async def _each(self, keys: Sequence[str], act: Callable[[str], Awaitable[None]]) -> None:
        """Do something with every key, with so many at once; at the first error, all of them end."""
        waiting = iter(keys)

        async def work() -> None:
            for key in waiting:
                await act(key)

        workers = [asyncio.ensure_future(work()) for _ in range(min(self.max_concurrency, len(keys)))]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            raise

    def _compare_documents(self) -> None:
        """Raise unless the documents of the arrays are there as they were written."""
        keys = list(Contents(self.documents, ()).arrays)
        for key, found in self.destination.carry_out(copy_plan.read(keys)).items():
            if found != self.documents[key]:
                raise CopyMismatchError(key, len(self.documents[key]), None if found is None else len(found))

    async def _stop(self) -> None:
        """Nothing of ours is under way any more."""
        if self._task is not None and not self._task.done():
            # Somebody waits no longer: zarr lets go on what he waited for.
            self._task.cancel()
            await asyncio.wait({self._task})

    def _remove(self) -> Steps[None]:
        """What was written, gone: first what makes it visible, then the chunks with all that is beside them."""
        documents = tuple(key for key in self._begun if key in self.documents)
        if documents:
            yield from remove(documents, "documents of a copy that failed")
        # With a document that could not be written, what was known of its array is forgotten.
        self._expect()
        ours, folders = set(self._begun), set()
        for key in self._begun:
            owner = yield from self.destination.catalog.owner(key)
            if isinstance(owner, OwnedChunk):
                ours.update(owner.chunk.part_keys)
                folders.add(owner.chunk.side_folder)
        (listed,) = yield (List(self.to, "what a copy that failed has left"),)
        found = [entry.key for entry in listed.entries] if isinstance(listed, Listed) else []
        left = tuple(key for key in found if key in ours or side_folder_of(key) in folders)
        if left:
            yield from remove(left, "chunks of a copy that failed")


def _view(buffer: Buffer) -> memoryview:
    return memoryview(buffer.as_buffer_like()).cast("B")
