"""PartsStore: zarr's store methods, each of them steps that are carried out."""

import html
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, cast, override

import zarr

import parts_store
from parts_store.backends.addresses import address_of, is_local, open_url, shown_address
from parts_store.backends.icechunk_session import SessionBackend
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.object_store import ObjectBackend
from parts_store.catalog.known_arrays import Catalog
from parts_store.chunk_reads import ChunkReader
from parts_store.engine.backend import Place
from parts_store.engine.explain import DryBackend
from parts_store.engine.stats import Progress, Request, Stats
from parts_store.errors import StoreConfigError, without_secrets
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts, PartsLike
from parts_store.format.references import Reference
from parts_store.format.shard_index import shard_index_of
from parts_store.index_cache import IndexCache
from parts_store.maintenance import execution
from parts_store.maintenance.repair import RepairOptions
from parts_store.maintenance.report import Report
from parts_store.maintenance.survey import survey_prefix
from parts_store.operations import Operations
from parts_store.options import (
    DEFAULT_INDEX_CACHE,
    DEFAULT_MIN_AGE,
    DEFAULT_RETRIES,
    Concurrency,
    StoreOptions,
    parse_patterns,
    protocol_of,
)
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.server import Server
from parts_store.transactions.server_probe import Features
from parts_store.zarr_methods import ZarrMethods


class PartsStore(ZarrMethods):
    """A zarr store on any obstore store, in which a chunk may be several objects.

    Parameters
    ----------
    store
        A store of obstore: S3, GCS, Azure, HTTP, a local disk, memory.
    read_only
        Whether writing is refused.
    parts
        The parts of arrays that zarr creates through this store, by patterns of their paths (`{"images/*": [...]}`);
        the first that matches counts.
    concurrency
        What the writers of a chunk promise: `"exclusive"`, that there is one at a time; `"writers"`, that a delete does
        not overlap a write; `"full"`, nothing. All writers of an array must say the same.
    index_cache_bytes
        How much memory the indexes of shards may take, that need not be read again while their shard is the same.
    coalesce_gap
        Two ranges of one object are read with one request if at most this many bytes lie between them; if None, that is
        zarr's to say, which says a megabyte, but at most 16 KiB for shards that are spans of adopted files.
    retries
        How often a read is repeated when a chunk changes under it.
    must_understand
        Whether an array that is created through this store, and that software without concat-parts would misread, gets
        a member in its `zarr.json` with `must_understand: true`, so that such software refuses it.

    Raises
    ------
    StoreConfigError
        If the store cannot give what `concurrency` needs. What a server lacks is found out before the first write to an
        array with parts, which then raises `ServerFeatureError`; see `check`.
    """

    def __init__(
        self,
        store: Any,
        *,
        read_only: bool = False,
        parts: Mapping[str, PartsLike] | None = None,
        concurrency: Concurrency = "writers",
        index_cache_bytes: int = DEFAULT_INDEX_CACHE,
        coalesce_gap: int | None = None,
        retries: int = DEFAULT_RETRIES,
        must_understand: bool = True,
    ) -> None:
        parsed = parse_patterns(parts)
        options = StoreOptions(
            read_only, parsed, concurrency, index_cache_bytes, coalesce_gap, retries, must_understand
        )
        self._open_backend(_backend_of(store), options)

    def _open_backend(self, backend: Place, options: StoreOptions) -> None:
        """Set up a store that knows nothing yet of what the backend holds."""
        if not backend.capabilities.is_writable:
            options = replace(options, read_only=True)
        protocol = protocol_of(options, backend.capabilities)
        indexes = IndexCache(options.index_cache_bytes, lambda: backend.is_settled)
        reader = ChunkReader(Stats(), indexes, options.coalesce_gap, options.retries)
        operations = Operations(_new_catalog(backend, protocol), protocol, reader, _server_of(backend, protocol))
        self._set_up(backend, options, operations)

    def _set_up(self, backend: Place, options: StoreOptions, operations: Operations) -> None:
        super().__init__(backend, options, operations)

    def _clone(
        self, *, backend: Place | None = None, options: StoreOptions | None = None, operations: Operations | None = None
    ) -> Self:
        """Return a store that differs from this one in what is given, and shares the rest."""
        clone = type(self).__new__(type(self))
        clone._set_up(backend or self._backend, options or self._options, operations or self._operations)  # noqa: SLF001
        return clone

    @classmethod
    def from_url(
        cls,
        url: str | Path,
        *,
        read_only: bool = False,
        parts: Mapping[str, PartsLike] | None = None,
        concurrency: Concurrency = "writers",
        index_cache_bytes: int = DEFAULT_INDEX_CACHE,
        coalesce_gap: int | None = None,
        retries: int = DEFAULT_RETRIES,
        must_understand: bool = True,
        **options: Any,
    ) -> Self:
        """The store at a URL (`s3://`, `gs://`, `az://`, `https://`, `file://`, `memory://`) or a path.

        Further options are obstore's, by their names there: `endpoint`, `region`, `access_key_id`, `client_options` ...
        """
        return cls(
            open_url(url, options, create=not read_only),
            read_only=read_only,
            parts=parts,
            concurrency=concurrency,
            index_cache_bytes=index_cache_bytes,
            coalesce_gap=coalesce_gap,
            retries=retries,
            must_understand=must_understand,
        )

    @classmethod
    def from_session(
        cls,
        session: Any,
        *,
        read_only: bool = False,
        parts: Mapping[str, PartsLike] | None = None,
        index_cache_bytes: int = DEFAULT_INDEX_CACHE,
        coalesce_gap: int | None = None,
        retries: int = DEFAULT_RETRIES,
        must_understand: bool = True,
    ) -> Self:
        """The store that an Icechunk session shows: writable, read only, forked, or to move nodes.

        The session stays the caller's, to commit, to merge or to discard. Whoever writes to it in this process does so
        through one store.
        """
        store = cls.__new__(cls)
        backend = SessionBackend(session)
        read_only = read_only or not backend.may_write
        parsed = parse_patterns(parts)
        options = StoreOptions(read_only, parsed, "writers", index_cache_bytes, coalesce_gap, retries, must_understand)
        # Not by `__init__`, which is for stores of obstore.
        store._open_backend(backend, options)  # noqa: SLF001
        return store

    @property
    def store(self) -> Any:
        """The underlying obstore store; the session, if it is one."""
        return self._backend.store

    @property
    def session(self) -> Any:
        """The underlying Icechunk session, None if there is none."""
        return self._backend.store if self._is_in_session else None

    @property
    def _is_in_session(self) -> bool:
        return self.protocol.has_part_nodes

    @property
    def must_understand(self) -> bool:
        """Whether arrays created through this store tell software without concat-parts to refuse them."""
        return self._options.must_understand

    def with_parts(
        self, parts: Mapping[str, PartsLike], *, split: bool = False, must_understand: bool | None = None
    ) -> Self:
        """A store over the same objects, with these parts for the arrays that zarr creates through it.

        It knows what this one knows, and counts where this one counts. `split` is for sessions: each part is then a
        chunk by itself, which may be a reference into an existing file. `must_understand` is this store's if None.
        """
        if split and not self.protocol.has_part_nodes:
            raise StoreConfigError("split", "a store on an Icechunk session", str(self))
        options = replace(self._options, parts=parse_patterns(parts), split=split)
        if must_understand is not None:
            options = replace(options, must_understand=must_understand)
        return self._clone(options=options)

    @override
    def with_read_only(self, read_only: bool = False) -> Self:
        if not read_only and not self.supports_writes:
            raise StoreConfigError(str(self), "a store that can be written", "one that can only be read")
        if not read_only:
            self._backend.require_writable()
        return self._clone(options=replace(self._options, read_only=read_only))

    def with_own_catalog(self) -> Self:
        """A store over the same objects that learns of its arrays by itself, and gives no parts to new ones."""
        operations = replace(self._operations, catalog=_new_catalog(self._backend, self.protocol))
        return self._clone(options=replace(self._options, parts=(), split=False), operations=operations)

    def __copy__(self) -> Self:
        return self._clone()

    def parts_of(self, path: str) -> ConcatParts | None:
        """The parts of the array at a path; None if it has none, or there is none."""
        entry = self.carry_out(self.catalog.read(path.strip("/")))
        self.catalog.rely_on(path.strip("/"), entry)
        return entry.parts if isinstance(entry, ArrayRecord) else None

    def explain(self, path: str, selection: Any) -> list[Request]:
        """The requests that reading this selection of the array at a path makes, before any of them is made for data.

        Documents and the indexes of shards are read, for what follows depends on them.
        """
        dry = DryBackend(self._backend)
        options = replace(self._options, read_only=True, parts=(), split=False)
        clone = self._clone(backend=cast("Place", dry), options=options, operations=self._operations.rehearsal())
        array = zarr.open_array(clone, path=path.strip("/"), mode="r")
        dry.expect_index(shard_index_of(array.metadata.to_dict()))
        array[selection]
        return dry.requests

    def verify(
        self, prefix: str = "", *, checksums: bool = False, client: Any = None, progress: Progress | None = None
    ) -> Report:
        """What is incomplete, mixed, orphaned, of a wrong size or left over below a prefix; nothing is changed.

        Parameters
        ----------
        prefix
            Where to look: everything if empty.
        checksums
            Whether to read the chunks whose last codec is `crc32c`, and compare. An index that is a part by itself is
            always compared with its own.
        client
            A client of dask, whose workers look at the chunks.
        progress
            Called with how many chunks are done, and how many there are.
        """
        self.require_listable()
        survey = self.carry_out(survey_prefix(prefix, self.protocol))
        settings = self._operations.reader.settings()
        found = execution.verify(
            self,
            survey,
            self.protocol,
            settings,
            checksums=checksums,
            must_understand=self.must_understand,
            client=client,
            progress=progress,
        )
        return survey.report(found)

    def repair(
        self,
        prefix: str = "",
        *,
        min_age: timedelta | float = DEFAULT_MIN_AGE,
        drop_incomplete: bool = False,
        retag: bool = False,
        must_understand: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        """The same, and put right: committed writes finished, leftovers and orphans of dead writers removed.

        Parameters
        ----------
        prefix
            Where to look: everything if empty.
        min_age
            How old, by the store's clock, something must be to be a dead writer's: a `timedelta`, or seconds, at least
            15 minutes. 0 says that nobody is writing. A local disk knows who is dead, except at `"exclusive"`.
        drop_incomplete
            Remove chunks that cannot be read. Nothing else has their bytes.
        retag
            Let the parts of a chunk, of which some or all are another program's, count as one write; also those that a
            mirror left with tags of several writes, if their bytes can be checked.
        must_understand
            Add the member with `must_understand: true` to the `zarr.json` of arrays that lack it and that software
            without concat-parts would misread. Consolidated metadata has to be consolidated again afterwards.
        progress
            Called with how many findings are done, and how many there are.
        """
        self._check_writable()
        survey = self.carry_out(survey_prefix(prefix, self.protocol))
        parts = [each.parts for each in survey.arrays.values()]
        self.carry_out(self._operations.require_server(min(survey.arrays, default=""), *parts))
        options = RepairOptions(drop_incomplete, retag, must_understand)
        reports_unmarked = must_understand or self.must_understand
        found = execution.verify(
            self, survey, self.protocol, self._operations.reader.settings(), must_understand=reports_unmarked
        )
        repaired = execution.repair(
            self, survey, found, self.protocol, min_age=min_age, options=options, progress=progress
        )
        for path in survey.unmarked if must_understand else ():
            # Its document may be another one now.
            self.catalog.forget(path)
        return survey.report(repaired)

    def check(self) -> Features:
        """Find out what the server supports, with a small object below `.parts-txn/` that is removed again.

        Returns
        -------
        Features
            What the server supports, and at which levels of `concurrency` arrays with parts can be written there. A
            local disk and an Icechunk session need nothing of a server, and are not asked.

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
        return isinstance(other, PartsStore) and bool(self.store == other.store) and self._options == other._options

    # Like zarr's own: two that are equal may hold different things tomorrow.
    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"parts_store://{self._backend}"

    def __repr__(self) -> str:
        return f"PartsStore({self._backend}{', read_only=True' if self.read_only else ''})"

    def _repr_html_(self) -> str:
        rows = {"store": str(self._backend), "read only": "yes" if self.read_only else "no"}
        for path, record in self.catalog.arrays().items():
            rows[f"parts of {path or '/'}"] = ", ".join(repr(part.key_suffix) for part in record.parts.parts)
        rows["calls"] = ", ".join(f"{count} {kind}" for kind, count in self.stats.calls.items() if count) or "none"
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(rows[name])}</td></tr>" for name in rows)
        return f"<table><caption>PartsStore</caption>{cells}</table>"

    def __getstate__(self) -> dict[str, Any]:
        try:
            store = pickle.dumps(self.store)
        except Exception as error:
            why = "fork the session" if self._is_in_session else "its objects are in this process alone"
            problem = f"a PartsStore on {self._backend} cannot be pickled: {why}"
            raise pickle.PicklingError(problem) from without_secrets(error)
        operations = self._operations
        server = None if operations.server is None else operations.server.known
        return {
            "store": store,
            "in_session": self._is_in_session,
            "options": self._options,
            "is_open": self._is_open,
            "arrays": self.catalog.lasting(),
            "server": server,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The bytes are our own, from `__getstate__`.
        store = pickle.loads(state["store"])  # noqa: S301
        self._open_backend(SessionBackend(store) if state["in_session"] else _backend_of(store), state["options"])
        self._is_open = state["is_open"]
        self.catalog.take_over(state["arrays"])
        if self._operations.server is not None and state["server"] is not None:
            self._operations.server.learn(state["server"])

    @property
    def stats(self) -> Stats:
        """The requests that the store has made; stores made from it by `with_parts` and the like are included."""
        return self._operations.reader.stats

    # --- carrying out ---------------------------------------------------------------------------------------------

    @property
    def protocol(self) -> ChunkProtocol:
        """The protocol that makes the chunks of this store atomic."""
        return self._operations.protocol

    @property
    def catalog(self) -> Catalog:
        """What the store has learnt of its arrays."""
        return self._operations.catalog

    # --- writing ---

    def require_writable(self) -> None:
        """Raise unless the store can be written to."""
        self._check_writable()

    @override
    def _check_writable(self) -> None:
        super()._check_writable()
        self._backend.require_writable()

    async def set_parts_async(self, key: str, values: Sequence[Reference | bytes]) -> None:
        """The same as `set_parts`, in an event loop."""
        await self._run(self._operations.put_parts(key, self._protected(values)))

    def set_parts(self, key: str, values: Sequence[Reference | bytes]) -> None:
        """Write a chunk by its parts, in their order: each its bytes, or a `Reference` into an existing file.

        The array is one of a session, created with `split=True`.
        """
        self.carry_out(self._operations.put_parts(key, self._protected(values)))

    def require_server(self, path: str, parts: PartsLike) -> None:
        """Raise unless the server supports writing an array with these parts at a path; the first call asks it."""
        self._check_writable()
        self.carry_out(self._operations.require_server(path, ConcatParts.parse(parts)))

    def require_location(self, reference: Reference) -> None:
        """Raise unless a part may be this reference: there is a session, and the file is in one of its containers."""
        if self.session is None:
            raise StoreConfigError("store", "a store on an Icechunk session, for references", str(self))
        self._backend.require_location(reference)

    def _protected(self, values: Sequence[Reference | bytes]) -> list[memoryview | Reference]:
        """The parts of a chunk, with something by which a file is known that was changed after it was referred to."""
        self._check_writable()
        # As others do it: Icechunk compares whole seconds.
        now = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        parts: list[memoryview | Reference] = []
        for value in values:
            if not isinstance(value, Reference):
                parts.append(memoryview(value).cast("B"))
                continue
            self._backend.require_location(value)
            parts.append(value if value.checksum is not None else replace(value, checksum=now))
        return parts

    def require_listable(self) -> None:
        """Raise `StoreConfigError` unless the store can be listed."""
        self._folders.require_listable()


def _backend_of(store: Any) -> Place:
    """Return the backend for a store of obstore."""
    return LocalBackend(store) if is_local(store) else ObjectBackend(store)


def _new_catalog(backend: Place, protocol: ChunkProtocol) -> Catalog:
    return Catalog(protocol, snapshot=lambda: backend.snapshot, stamp=backend.file_stamp)


def _server_of(backend: Place, protocol: ChunkProtocol) -> Server | None:
    """What has to be asked before the first write, None if nothing has: memory and a local disk lack nothing."""
    can = backend.capabilities
    if not protocol.has_tags or not can.is_remote:
        return None
    key = (address_of(backend.store), can.has_conditions)
    return Server(key, shown_address(backend.store), can.has_conditions)
