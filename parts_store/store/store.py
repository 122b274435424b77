"""PartsStore: how a store is opened, copied, pickled and inspected. `zarr_methods` has the methods that zarr calls."""

import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import EllipsisType
from typing import Any, Self, cast, override

import icechunk
import zarr
from obstore.store import ObjectStore

import parts_store
from parts_store import notebook
from parts_store._compat.zarr import sync
from parts_store.backends.addresses import address_of, is_in_memory, is_local, open_url, shown_address
from parts_store.backends.icechunk_session import SessionBackend
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.backend import Place
from parts_store.engine.stats import DryBackend, Requests, Stats
from parts_store.errors import ReadOnlySessionError, StoreConfigError, without_secrets
from parts_store.executors import ExecutorLike
from parts_store.format.files.description import FileFormat
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts, PartsLike
from parts_store.format.references import Reference, ReferenceTable
from parts_store.format.shard_index import shard_index_of
from parts_store.maintenance import execution
from parts_store.maintenance.repair import RepairOptions
from parts_store.maintenance.report import Problem, Report
from parts_store.pictures import Preview, preview
from parts_store.progress import ProgressLike
from parts_store.store.catalog import Catalog
from parts_store.store.chunk_reads import ChunkReader, IndexCache
from parts_store.store.inspection import Tree, inspect
from parts_store.store.operations import Operations
from parts_store.store.options import (
    DEFAULT_INDEX_CACHE,
    DEFAULT_MIN_AGE,
    DEFAULT_RETRIES,
    OPTIONS,
    Concurrency,
    StoreOptions,
    parse_patterns,
    protocol_of,
)
from parts_store.store.zarr_methods import ZarrMethods
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import ReadSettings
from parts_store.transactions.server import Features, ProbedServer


# zarr compares the source of an array with its destination before it overwrites the destination, for which it asks the
# source for a store that can be written. A source that can only be read must raise a `NotImplementedError` then.
class UnwritableStoreError(StoreConfigError, NotImplementedError):
    """The store can only be read."""


class UnwritableSessionError(ReadOnlySessionError, NotImplementedError):
    """The session of the store can only be read."""


type Selection = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
"""A region of an array, as in `array[...]`."""


class PartsStore(ZarrMethods):
    """A zarr store on any obstore store, in which a chunk may be stored in several objects.

    Parameters
    ----------
    store
        A store of obstore: S3, GCS, Azure, HTTP, a local disk or memory.
    read_only
        Whether writing is refused.
    parts
        The parts of arrays that zarr creates through this store, by patterns of their paths, for example
        `{"images/*": ["", ".index"]}`. The first pattern that matches counts.
    concurrency
        What the writers of a chunk promise. `"exclusive"`: there is one writer at a time. `"writers"`: a delete does
        not overlap a write. `"full"`: nothing. All writers of an array must use the same value.
    index_cache_bytes
        The memory for the indexes of shards, which are not read again while their shard is unchanged.
    coalesce_gap
        Two byte ranges of one object are read with one request if at most this many bytes lie between them. If None,
        zarr chooses the gap: one megabyte, but at most 16 KiB for shards that are ranges of adopted files.
    retries
        How often a read is repeated if the chunk changes meanwhile.
    must_understand
        Whether an array that software without concat-parts would misread gets a member with `must_understand: true` in
        its `zarr.json` when it is created, so that such software refuses it.
    durable
        Whether a write or a delete that has returned survives a power failure, and an interrupted one leaves the old
        value or the new one. On a local disk, every write then waits for the disk. S3, GCS and Azure do this anyway.
        Memory cannot, and refuses it.
    fast
        Whether arrays on a `PartsStore` that zarr or xarray opens get the codec pipeline of this package. For this,
        zarr's configuration gets another class in place of zarr's default pipeline, which gives arrays of all other
        stores zarr's default. The environment variable `PARTS_STORE_FAST=0` does the same as False for all stores.

    Raises
    ------
    StoreConfigError
        If an option is invalid, or if the store cannot support this `concurrency` or `durable`. What a server lacks is
        found out before the first write to an array with parts, which then raises `ServerFeatureError`; see `check`.

    Examples
    --------
    >>> from obstore.store import MemoryStore
    >>> store = ps.PartsStore(MemoryStore(), parts={"images/*": ["", ps.Part(".crc", size=4)]})
    >>> array = zarr.create_array(store, name="images/a", shape=(8,), chunks=(8,), dtype="uint8", compressors=None)
    >>> array[:] = 7
    >>> [entry["path"] for entry in store.store.list(prefix="images/a/c").collect()]
    ['images/a/c/0', 'images/a/c/0.crc']
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        read_only: bool = False,
        parts: Mapping[str, PartsLike] | None = None,
        concurrency: Concurrency = "writers",
        index_cache_bytes: int = DEFAULT_INDEX_CACHE,
        coalesce_gap: int | None = None,
        retries: int = DEFAULT_RETRIES,
        must_understand: bool = True,
        durable: bool = False,
        fast: bool = True,
    ) -> None:
        patterns = parse_patterns(parts)
        options = StoreOptions(
            *(read_only, patterns, concurrency, index_cache_bytes, coalesce_gap, retries, must_understand),
            durable=durable,
            fast=fast,
        )
        self._open_backend(_backend_of(store, options), options)

    def _open_backend(self, backend: Place, options: StoreOptions) -> None:
        """Set up a store that knows no arrays yet."""
        protocol = protocol_of(options, backend)
        if not protocol.can_write:
            options = replace(options, read_only=True)
        indexes = IndexCache(options.index_cache_bytes, lambda: backend.is_settled)
        reader = ChunkReader(protocol, Stats(), indexes, options.coalesce_gap, options.retries)
        operations = Operations(_new_catalog(backend, protocol), reader, _server_of(backend, protocol))
        super().__init__(backend, options, operations)

    def _clone(
        self, *, backend: Place | None = None, options: StoreOptions | None = None, operations: Operations | None = None
    ) -> Self:
        """Return a store that differs from this one in what is given, and shares the rest."""
        clone = type(self).__new__(type(self))
        ZarrMethods.__init__(clone, backend or self._backend, options or self._options, operations or self._operations)
        return clone

    @classmethod
    def from_url(cls, url: str | Path, **options: Any) -> Self:
        """Open the store at a URL or a path.

        Parameters
        ----------
        url
            A URL (`s3://`, `gs://`, `az://`, `https://`, `file://`, `memory://`), or the path of a folder.
        options
            The keyword arguments of `PartsStore`, and options of obstore by their names there: `endpoint`, `region`,
            `access_key_id`, `client_options` ...

        Returns
        -------
        PartsStore
            The store.

        Examples
        --------
        >>> ps.PartsStore.from_url("memory://", read_only=True)
        PartsStore(memory, read_only=True)
        """
        own = {name: options.pop(name) for name in OPTIONS if name in options}
        return cls(open_url(url, options, create=not own.get("read_only", False)), **own)

    @classmethod
    def from_session(cls, session: icechunk.Session, **options: Any) -> Self:
        """Open an Icechunk session as a store: a writable, read-only or forked session, or one that moves nodes.

        The caller commits, merges or discards the session. All writes to a session in one process must go through one
        store.

        Parameters
        ----------
        session
            An `icechunk.Session`.
        options
            The keyword arguments of `PartsStore`, without `concurrency` and `durable`, which the commit decides.

        Returns
        -------
        PartsStore
            The store.
        """
        if unknown := options.keys() - (set(OPTIONS) - {"concurrency", "durable"}):
            raise TypeError(f"from_session() got an unexpected keyword argument {min(unknown)!r}")
        backend = SessionBackend(session)
        own = StoreOptions(**{**options, "parts": parse_patterns(options.get("parts"))})
        store = cls.__new__(cls)
        # `__init__` is for stores of obstore.
        store._open_backend(backend, replace(own, read_only=own.read_only or not backend.may_write))  # noqa: SLF001
        return store

    @property
    def store(self) -> Any:
        """The obstore store that this store was opened with, or the Icechunk session."""
        return self._backend.store

    @property
    def session(self) -> Any:
        """The Icechunk session, None if the store is not on one."""
        return self._backend.store if self.protocol.has_part_nodes else None

    @property
    def must_understand(self) -> bool:
        """Whether arrays created through this store tell software without concat-parts to refuse them."""
        return self._options.must_understand

    @property
    def is_fast(self) -> bool:
        """Whether arrays on this store that zarr opens get the codec pipeline of this package."""
        return self._options.is_fast

    def with_parts(
        self,
        parts: Mapping[str, PartsLike],
        *,
        split: bool = False,
        must_understand: bool | None = None,
        shard_file: FileFormat | None = None,
    ) -> Self:
        """Return a store on the same objects that gives these parts to the arrays that zarr creates through it.

        The new store knows the same arrays as this one, and counts its requests in the same `stats`.

        Parameters
        ----------
        parts
            The parts of new arrays, by patterns of their paths.
        split
            In an Icechunk session, whether each part is stored as a chunk of its own, so that it can refer to an
            existing file.
        must_understand
            Whether new arrays tell software that would misread them to refuse them; None for the option of this store.
        shard_file
            The format of the files that the shards of new arrays are, None if they are not files.

        Returns
        -------
        PartsStore
            The new store.
        """
        if split and not self.protocol.has_part_nodes:
            raise StoreConfigError("split", "a store on an Icechunk session", str(self))
        options = replace(self._options, parts=parse_patterns(parts), split=split, shard_file=shard_file)
        if must_understand is not None:
            options = replace(options, must_understand=must_understand)
        return self._clone(options=options)

    @override
    def with_read_only(self, read_only: bool = False) -> Self:
        if not read_only and not self.supports_writes:
            raise UnwritableStoreError(str(self), "a store that can be written", "one that can only be read")
        if not read_only:
            try:
                self._backend.require_writable()
            except ReadOnlySessionError as error:
                raise UnwritableSessionError(error.key, error.problem) from error
        return self._clone(options=replace(self._options, read_only=read_only))

    def with_own_catalog(self) -> Self:
        """Return a store on the same objects that knows no arrays yet, and gives no parts to new ones.

        Returns
        -------
        PartsStore
            The new store, which counts its requests in the same `stats`.
        """
        operations = replace(self._operations, catalog=_new_catalog(self._backend, self.protocol))
        return self._clone(
            options=replace(self._options, parts=(), split=False, shard_file=None), operations=operations
        )

    def __copy__(self) -> Self:
        return self._clone()

    def parts_of(self, path: str) -> ConcatParts | None:
        """Return the parts of an array.

        Parameters
        ----------
        path
            The path of the array.

        Returns
        -------
        ConcatParts or None
            The parts; None if the array has none, or if there is no array.
        """
        entry = self.carry_out(self.catalog.read(path.strip("/")))
        self.catalog.rely_on(path.strip("/"), entry)
        return entry.parts if isinstance(entry, ArrayRecord) else None

    def explain(self, path: str, selection: Selection) -> Requests:
        """Return the requests that a read of an array would make.

        Metadata documents and the indexes of shards are read, because later requests depend on them. Data is not read.

        Parameters
        ----------
        path
            The path of the array.
        selection
            What to read, as in `array[selection]`.

        Returns
        -------
        Requests
            A list of `Request`, each with its key, its byte range and the reason for it. It prints itself as a table,
            and in a notebook also as a drawing of the byte ranges.

        Examples
        --------
        >>> store = ps.PartsStore.from_url("memory://")
        >>> parts = ["", ps.Part(".crc", size=4)]
        >>> array = ps.create_array(store, "a", parts=parts, shape=(8,), chunks=(8,), dtype="uint8")
        >>> array[:] = 7
        >>> [(request.kind, request.key) for request in store.explain("a", slice(0, 2))]
        [('get', 'a/c/0'), ('get', 'a/c/0.crc')]
        """
        dry = DryBackend(self._backend)
        options = replace(self._options, read_only=True, parts=(), split=False)
        clone = self._clone(backend=cast("Place", dry), options=options, operations=self._operations.rehearsal())
        array = zarr.open_array(clone, path=path.strip("/"), mode="r")
        dry.expect_index(shard_index_of(array.metadata.to_dict()))
        array[selection]
        return dry.requests

    def view(self, path: str, *at: int) -> Preview:
        """Return a picture of the last two axes of an array, which a notebook shows.

        Parameters
        ----------
        path
            The path of the array.
        *at
            The positions on its other axes; 0 where none is given.

        Returns
        -------
        Preview
            The picture, of at most 256 by 256 pixels. Of a large array it shows single values.

        Examples
        --------
        >>> store = ps.PartsStore.from_url("memory://")
        >>> array = zarr.create_array(store, name="a", shape=(64, 64), chunks=(64, 64), dtype="uint8")
        >>> store.view("a").caption
        'a (64, 64)'
        """
        array = zarr.open_array(self, path=path.strip("/"), mode="r")
        return preview(array, f"{path.strip('/')} {array.shape}", at)

    def tree(self, path: str = "", *, sizes: bool = False, progress: ProgressLike = None) -> Tree:
        """Return the groups and arrays at and below a path, as a tree that shows itself.

        Parameters
        ----------
        path
            The path to start from; the root of the store if empty.
        sizes
            Whether to count chunks, objects and bytes, which needs a listing of all objects.
        progress
            True for a progress bar, or a function of the numbers of nodes that are opened and that are known so far.

        Returns
        -------
        Tree
            The tree, whose `nodes` are the groups and arrays.

        Examples
        --------
        >>> store = ps.PartsStore.from_url("memory://")
        >>> parts = ["", ps.Part(".b", size=1)]
        >>> array = ps.create_array(store, "a", parts=parts, shape=(8,), chunks=(4,), dtype="int8")
        >>> print(store.tree())
        memory
        /: group
          a: int8 (8,), chunks (4,), parts '' + '.b' (1 bytes)
        """
        return Tree(str(self._backend), inspect(self, path, sizes=sizes, progress=progress))

    def chunks_of_files(self, path: str) -> Mapping[str, str]:
        """Return the files that an array of a session refers to, each with the key of one of its chunks.

        Parameters
        ----------
        path
            The path of the array.

        Returns
        -------
        Mapping
            The keys of chunks by the URLs of files; empty if the store is not on a session.
        """
        return sync(self._backend.chunks_of_files(path))

    def verify(
        self,
        prefix: str = "",
        *,
        checksums: bool = False,
        decode: bool = False,
        executor: ExecutorLike = None,
        progress: ProgressLike = None,
    ) -> Report:
        """Check whether all chunks below a prefix are complete, of one write and of the right size; change nothing.

        Parameters
        ----------
        prefix
            The path of a group, of an array, or of chunks; everything if empty.
        checksums
            Whether to read the chunks whose last codec is `crc32c`, and compare the checksums. The index of a shard
            that is a part by itself is always compared with its checksum. Of arrays of plain references, one chunk in
            each file is read, which finds files that were changed or lost.
        decode
            Whether to read and decode all chunks of all arrays, also of those without parts, and the inner chunks of
            shards. Codecs notice most damage; changed bytes of values that are neither compressed nor have a checksum
            cannot be noticed. A few chunks, or pieces of shards of 16 MiB, are in memory at once.
        executor
            What checks the chunks: an instance of `concurrent.futures.Executor`, a `distributed.Client`, "dask" for the
            current client, or None for this thread.
        progress
            True for a progress bar, or a function of the numbers of checked chunks and of all chunks.

        Returns
        -------
        Report
            The findings, and how much was checked.

        Examples
        --------
        >>> store = ps.PartsStore.from_url("memory://")
        >>> parts = ["", ps.Part(".crc", size=4)]
        >>> array = ps.create_array(store, "a", parts=parts, shape=(8,), chunks=(4,), dtype="uint8")
        >>> array[:] = 7
        >>> store.verify().findings
        ()
        """
        self.require_listable()
        return execution.verify(self, prefix, checksums=checksums, decode=decode, executor=executor, progress=progress)

    def repair(
        self,
        prefix: str = "",
        *,
        min_age: timedelta | float = DEFAULT_MIN_AGE,
        drop_incomplete: bool = False,
        retag: bool = False,
        must_understand: bool = False,
        executor: ExecutorLike = None,
        progress: ProgressLike = None,
    ) -> Report:
        """Repair what `verify` finds: finish committed writes, and remove what dead writers have left.

        Parameters
        ----------
        prefix
            The path of a group, of an array, or of chunks; everything if empty.
        min_age
            How old an object must be, by the clock of the store, to be removed as that of a dead writer: a `timedelta`,
            or seconds. The least is 15 minutes, or 0 to state that no client is writing. A local disk recognises dead
            writers of parts without it, except with `concurrency="exclusive"`. Committed writes are completed at any
            age, except with `"exclusive"` on a local disk, and on S3 and similar servers if the parts are large.
        drop_incomplete
            Whether to remove chunks that cannot be read, and journals that are not understood. Their data is lost.
        retag
            Whether to accept the parts of a chunk as one write if another program has written some or all of them.
            Parts with the tags of several writes, which a mirror can leave, are accepted if their bytes can be checked.
        must_understand
            Whether to add the member with `must_understand: true` to the `zarr.json` of arrays that lack it and that
            software without concat-parts would misread. Consolidate metadata again afterwards.
        executor
            What checks the chunks, as in `verify`. What it finds is repaired by threads of this process.
        progress
            True for a progress bar, or a function of the numbers of repaired findings and of all findings.

        Returns
        -------
        Report
            The findings, each with what was done.
        """
        self._check_writable()
        options = RepairOptions(drop_incomplete, retag, must_understand)
        report = execution.repair(self, prefix, min_age=min_age, options=options, executor=executor, progress=progress)
        for finding in report.findings:
            if finding.problem is Problem.UNMARKED and must_understand:
                # The document of the array has been rewritten.
                self.catalog.forget(finding.chunk_key)
        return report

    def check(self) -> Features:
        """Find out what the server supports, with a small object below `.parts-txn/` that is removed again.

        Returns
        -------
        Features
            What the server supports, and with which `concurrency` arrays with parts can be written there. A local disk
            and an Icechunk session need no features of a server, and are not asked.

        Raises
        ------
        ValueError
            If the store is read-only.
        """
        if self.supports_writes:
            self._check_writable()
        return self.carry_out(self._operations.check())

    def manifest(
        self, path: str, *, native_chunks_prefix: str | None = None, check: bool = True
    ) -> "parts_store.manifests.PartsArray":
        """Return the array at a path as references to the objects or files that it is stored in.

        This needs the extra `virtual`. It makes one listing; see `parts_store.manifests.manifest_of`.

        Parameters
        ----------
        path
            The path of the array.
        native_chunks_prefix
            For an Icechunk session with chunks that Icechunk stores itself: the URL of the repository's folder
            `chunks`.
        check
            For an Icechunk session: whether to ask Icechunk, with a request of one byte for each reference, whether
            the files that it refers to are unchanged. Without the check, such changes go unnoticed.

        Returns
        -------
        PartsArray
            The array, which reads only files that are not changed afterwards.
        """
        # The package imports its public names when they are first used, and names the extra if it is missing.
        manifests = parts_store.manifests
        return manifests.manifest_of(self, path, native_chunks_prefix=native_chunks_prefix, check=check)

    def __eq__(self, other: object) -> bool:
        # zarr compares stores before it deletes an array, to find out whether they hold the same objects.
        return isinstance(other, PartsStore) and address_of(self.store) == address_of(other.store)

    # Like zarr's stores: two equal stores may hold different data later.
    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"parts_store://{self._backend}"

    def __repr__(self) -> str:
        return f"PartsStore({self._backend}{', read_only=True' if self.read_only else ''})"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {"store": self._backend, "read only": "yes" if self.read_only else "no"}
        for path, record in self.catalog.arrays().items():
            rows[f"parts of {path or '/'}"] = ", ".join(repr(part.key_suffix) for part in record.parts.parts)
        rows["calls"] = ", ".join(f"{count} {kind}" for kind, count in self.stats.calls.items() if count) or "none"
        return notebook.table("PartsStore", rows)

    def __getstate__(self) -> dict[str, Any]:
        try:
            store = pickle.dumps(self.store)
        except Exception as error:
            why = "its objects are in this process alone" if self.session is None else "fork the session"
            problem = f"a PartsStore on {self._backend} cannot be pickled: {why}"
            raise pickle.PicklingError(problem) from without_secrets(error)
        operations = self._operations
        server = None if operations.server is None else operations.server.known
        return {
            "store": store,
            "in_session": self.session is not None,
            "options": self._options,
            "is_open": self._is_open,
            # A group may mention thousands of arrays, which are much alike.
            "arrays": zlib.compress(pickle.dumps(self.catalog.to_state())),
            "server": server,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The bytes are our own, from `__getstate__`.
        store, arrays = pickle.loads(state["store"]), pickle.loads(zlib.decompress(state["arrays"]))  # noqa: S301
        options: StoreOptions = state["options"]
        backend = SessionBackend(store) if state["in_session"] else _backend_of(store, options)
        self._open_backend(backend, options)
        self._is_open = state["is_open"]
        self.catalog.from_state(arrays)
        if self._operations.server is not None and state["server"] is not None:
            self._operations.server.learn(state["server"])

    @property
    def stats(self) -> Stats:
        """The requests that this store has made, and the stores that were made from it by `with_parts` and the like."""
        return self._operations.reader.stats

    # --- what other modules use -----------------------------------------------------------------------------------

    @property
    def protocol(self) -> ChunkProtocol:
        """The protocol that makes the chunks of this store atomic."""
        return self._operations.protocol

    @property
    def read_settings(self) -> ReadSettings:
        """The way in which reads are merged and repeated, where zarr does not ask for anything else."""
        return self._operations.reader.settings()

    def for_workers(self) -> Self:
        """Return a store on the same objects that can be pickled for other processes, if its objects allow that.

        Returns
        -------
        PartsStore
            This store, or, if it is on a writable session, a store on a fork of the session. What workers write to the
            fork is merged into the session by the caller.
        """
        session = self.session
        # A read-only session and a fork can be pickled.
        if session is None or session.read_only or session.branch is None:
            return self
        store = type(self).__new__(type(self))
        store._open_backend(SessionBackend(session.fork()), self._options)  # noqa: SLF001
        return store

    # --- writing --------------------------------------------------------------------------------------------------

    def require_writable(self) -> None:
        """Raise an error unless the store can be written."""
        self._check_writable()

    @override
    def _check_writable(self) -> None:
        super()._check_writable()
        self._backend.require_writable()

    def set_parts(self, key: str, values: Sequence[Reference | bytes]) -> None:
        """Write a chunk of an array in an Icechunk session by its parts.

        The array must have been created with `split=True`, or have no parts. Without a checksum, a reference gets the
        current time as one: a file that is changed later is not read.

        Parameters
        ----------
        key
            The key of the chunk.
        values
            The parts in their order, each of them as bytes, or as a `Reference` to a range of an existing file.
        """
        self._check_writable()
        parts: list[memoryview | Reference] = []
        for value in values:
            if isinstance(value, Reference):
                self._backend.require_location(value)
                parts.append(_with_checksum(value))
            else:
                parts.append(memoryview(value).cast("B"))
        self.carry_out(self._operations.put_parts(key, parts))

    async def write_node(
        self, path: str, tables: Sequence[ReferenceTable], chunks: Mapping[tuple[int, ...], bytes]
    ) -> None:
        """Write many chunks of a node of an Icechunk session at once: an array, or the node of a part.

        Parameters
        ----------
        path
            The path of the node. No other thread may write to it meanwhile.
        tables
            The references. Without a checksum, they get the current time as one.
        chunks
            The chunks that are not references, by their indexes.
        """
        self._check_writable()
        if self.session is None:
            raise StoreConfigError("store", "a store on an Icechunk session, for references", str(self))
        await self._backend.write_node(path, list(map(_with_checksum, tables)), chunks)
        self.stats.count("put", calls=sum(table.nrefs for table in tables) + len(chunks))

    def require_server(self, path: str, parts: PartsLike) -> None:
        """Raise `ServerFeatureError` unless the server supports writing an array with these parts.

        Parameters
        ----------
        path
            The path of the array. The first call asks the server, with an object below this path.
        parts
            The parts of the array.
        """
        self._check_writable()
        self.carry_out(self._operations.require_server(path, ConcatParts.parse(parts)))

    def require_location(self, reference: Reference) -> None:
        """Raise an error unless a part can be this reference.

        Parameters
        ----------
        reference
            The reference. The store must be on an Icechunk session, and the file in one of its virtual chunk
            containers.
        """
        if self.session is None:
            raise StoreConfigError("store", "a store on an Icechunk session, for references", str(self))
        self._backend.require_location(reference)


def _with_checksum[R: (Reference, ReferenceTable)](reference: R) -> R:
    """Return a reference with a checksum: by default the time after which the file must not be modified."""
    if reference.checksum is not None:
        return reference
    # Icechunk compares whole seconds.
    return replace(reference, checksum=datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1))


def _backend_of(store: Any, options: StoreOptions) -> Place:
    """Return the backend for a store of obstore; raise `StoreConfigError` if it cannot be durable and has to be."""
    if is_local(store):
        return LocalBackend(store, options.durable)
    if options.durable and is_in_memory(store):
        raise StoreConfigError("durable", "False, since a store in memory ends with its process", "True")
    # The servers of object stores have a value on their disks when they answer.
    return ObjectBackend(store)


def _new_catalog(backend: Place, protocol: ChunkProtocol) -> Catalog:
    return Catalog(protocol, snapshot=lambda: backend.snapshot, stamp=backend.file_stamp)


def _server_of(backend: Place, protocol: ChunkProtocol) -> ProbedServer | None:
    """Return the server that is asked before the first write; None for memory, a local disk and a session."""
    if not protocol.has_tags or not backend.has_latency:
        return None
    has_conditions = protocol.rules.has_conditions
    return ProbedServer((address_of(backend.store), has_conditions), shown_address(backend.store), has_conditions)
