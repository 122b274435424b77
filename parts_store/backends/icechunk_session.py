"""The backend for Icechunk sessions: chunks and documents of a session in place of objects.

Calls Icechunk, translates its errors, and labels each chunk with its write: that of a tag, or the session's snapshot.
Records which write each chunk is from, and which writes are in progress (`Writes`), because Icechunk does not say it.
Knows which array the nodes of parts belong to, and nothing else about what is stored.
"""

import re
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, assert_never
from urllib.parse import quote, unquote

from icechunk import (
    ChunkType,
    ErrorKind,
    ForkSession,
    IcechunkError,
    IcechunkStore,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    Session,
    SessionMode,
)
from zarr.abc.store import RangeByteRequest
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import sync
from parts_store.backends.failures import is_panic
from parts_store.backends.icechunk_storage import opening_call
from parts_store.engine import steps
from parts_store.engine.backend import LIST_PAGE, BackendRequest, Capabilities, WriteIdentity
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.steps import Found, Outcome
from parts_store.errors import NoAccessError, ReadOnlySessionError, SessionError, StoreConfigError, raise_translated
from parts_store.format.keys import DOCUMENT, NodeKey, is_metadata, join, parse_node_key, split, splits
from parts_store.format.layout import Span, Wanted, resolve
from parts_store.format.metadata import Document, is_array, parse, without_constants
from parts_store.format.references import ENCODED_SCHEMES, Reference, ReferenceTable
from parts_store.format.tags import Tag
from parts_store.redaction import hide_in_url, hide_secrets, may_hold_secret
from parts_store.transactions.session import owner_of_node


@dataclass(slots=True)
class Writes:
    """A record of the writes to a session in this process."""

    generations: dict[str, str] = field(default_factory=dict)
    under_way: Counter[str] = field(default_factory=Counter)
    guard: threading.Lock = field(default_factory=threading.Lock)
    # The snapshot at the last check, whether it had changes, and how often all labels were replaced.
    snapshot: str = ""
    has_changes: bool = False
    discards: int = 0

    def base(self, session: Session) -> str:
        """Return the label of all chunks that were not written: the snapshot, and another label after each discard."""
        with self.guard:
            # Read under the guard, so that a write that ends at this moment is not taken for a discard.
            snapshot, has_changes = session.snapshot_id, session.has_uncommitted_changes
            if snapshot != self.snapshot:
                # Committed or rebased: the chunks are those of the new snapshot.
                self.generations.clear()
                self.snapshot, self.has_changes = snapshot, False
            elif self.has_changes and not has_changes and not self.under_way:
                self.generations.clear()
                self.discards, self.has_changes = self.discards + 1, False
            self.has_changes |= has_changes
            return f"{snapshot}, {self.discards} discarded" if self.discards else snapshot

    def label(self, key: str, base: str) -> str | None:
        """Return the label of the write that a chunk is from; None while it is being written."""
        with self.guard:
            return None if self.under_way[key] else self.generations.get(key, base)

    @contextmanager
    def writing(self, key: str, generation: str, *, or_same: bool = False) -> Iterator[None]:
        """Record that a chunk is written in this block; with `or_same`, a write that fails did not change it."""
        with self.guard:
            self.under_way[key] += 1
        is_changed = not or_same
        try:
            yield
            is_changed = True
        finally:
            with self.guard:
                if is_changed:
                    self.generations[key] = generation
                self.has_changes = True
                self.under_way[key] -= 1
                if not self.under_way[key]:
                    del self.under_way[key]

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Record that any chunks are written in this block: all chunks get another label."""
        try:
            yield
        finally:
            with self.guard:
                self.generations.clear()
                self.discards += 1
                self.has_changes = True


# A session does not say when a chunk was written.
_LONG_AGO = datetime.fromtimestamp(0, UTC)
# The start of a location in a container that is given by its name.
_BY_NAME = "vcc://"
# The folder of an array's chunks.
_CHUNKS = "c"
# How many chunks of a node are written at the same time.
_AT_ONCE = 32
# The name under which a session object keeps the URL of its repository.
_LOCATION = "_parts_store_location"
# How Icechunk says on each service that there is no such file.
_NOT_FOUND = re.compile(r"\bNoSuchKey\b|\bnot found\b|\b404\b")
# How many references are read to find the file of a chunk, for an error message.
_MAX_SEARCHED = 1 << 20
# The container that Icechunk names in the message for a file that may not be read.
_CONTAINER = re.compile(r"resolves to the url prefix (?P<prefix>.+?)(?: \(container: [^)]*\))?, to be able to")


@dataclass(frozen=True, slots=True, repr=False)
class SessionBackend:
    """A backend that stores chunks and documents in an Icechunk session of any kind."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        identifies_writes_by=WriteIdentity.SESSION,
        has_conditions=True,
        has_unique_etags=True,
    )
    has_latency: ClassVar[bool] = True
    # The chunks and nodes of a session are not files.
    file_stamp: ClassVar[None] = None

    session: Session
    icechunk: IcechunkStore = field(init=False)
    _writes: Writes = field(default_factory=Writes)
    _locks: set[str] = field(default_factory=set)
    # The id of the array that each node of parts belongs to. Ids are never used again.
    _owners: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.session, Session):
            found = f"an object of type {type(self.session).__name__}"
            raise StoreConfigError("session", "an Icechunk session", found)
        object.__setattr__(self, "icechunk", self.session.store)
        self._writes.snapshot = self.session.snapshot_id

    @property
    def store(self) -> Session:
        """The session, from which a copy in another process is made."""
        return self.session

    @property
    def snapshot(self) -> str:
        """The snapshot that the session is based on, with another label after changes were discarded."""
        return self._writes.base(self.session)

    @property
    def is_settled(self) -> bool:
        """Whether the session has no uncommitted changes, some of which could not be detected."""
        return not self.session.has_uncommitted_changes

    @property
    def may_write(self) -> bool:
        """Whether the session can be written to."""
        # The mode of a fork is read-only, although it can be written.
        return not self.session.read_only and self.session.mode != SessionMode.rearrange

    def require_writable(self) -> None:
        """Raise unless the session can be written to."""
        if self.session.mode == SessionMode.rearrange:
            raise ReadOnlySessionError(str(self), "it can only move nodes; open a writable session")
        if not self.may_write:
            raise ReadOnlySessionError(str(self), "it is read-only or was committed; open a writable session")

    def require_location(self, reference: Reference) -> None:
        """Raise `SessionError` if Icechunk would refuse a reference, before any part of the chunk is written.

        A URL with a password or a signature is refused, too, because everyone who reads the repository would read it.
        """
        scheme = reference.location.partition("://")[0].lower()
        # The key of an object is percent-encoded here, unlike in the URL that the caller knows.
        known = reference.location if scheme in ENCODED_SCHEMES else unquote(reference.location)
        if may_hold_secret(known):
            problem = (
                "expected a URL without a password, a query and a signature, which would be stored in the repository: "
                "refer to the file by its plain URL, such as s3://bucket/file, and give the credentials to the store "
                "that reads it"
            )
            raise SessionError(known, problem)
        containers = self.session.config.virtual_chunk_containers or {}
        names = [f"{_BY_NAME}{each.name}/" for each in containers.values() if each.name]
        # The location may be percent-encoded, and the folder of a container not.
        spellings = (reference.location, unquote(reference.location))
        covering = [each for each in containers if any(spelling.startswith(each) for spelling in spellings)]
        if scheme == "file" and covering and all("%" in quote(unquote(each), safe="/:~") for each in covering):
            problem = (
                f"Icechunk finds no files below the virtual chunk container {covering[0]!r}, because URLs encode some "
                "of its characters, such as spaces: use a container for a folder above it"
            )
            raise SessionError(reference.location, problem)
        if not any(each.startswith((*containers, *names)) for each in spellings):
            known = ", ".join(map(repr, [*containers, *names])) or "none"
            folder = f"{reference.location.rpartition('/')[0]}/"
            call = opening_call((vars(self.session).get(_LOCATION) or (None,))[0], {*containers, folder})
            problem = (
                f"no virtual chunk container of the repository covers this location (containers: {known}); open the "
                f"repository with its folder, too: `{call}`"
            )
            raise SessionError(reference.location, problem)

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Raise errors of this package in place of those of Icechunk, some of which zarr would take for absence."""
        try:
            yield
        except ReadOnlyError as error:
            raise_translated(ReadOnlySessionError(key, message_of(error, self.session)), error)
        except IcechunkError as error:
            if error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
                raise_translated(NoAccessError(_shown(key), message_of(error, self.session)), error)
            if (problem := _problem_of_file(error)) is not None:
                raise_translated(_FileError(key, problem), error)
            raise_translated(SessionError(key, message_of(error, self.session)), error)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise_translated(SessionError(key, f"Icechunk failed: {message_of(error, self.session)}"), error)

    # --- requests -------------------------------------------------------------------------------------------------

    async def perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request."""
        match request:
            case steps.Get(key, wanted):
                try:
                    return await self._get(key, wanted)
                except _FileError as error:
                    problem = f"it refers to the file {await self._file_of(key)}, {error.problem}"
                    raise SessionError(_shown(key), problem) from error.__cause__
            case steps.Head(key):
                return await self._head(key)
            case steps.Put(key):
                return await self._put(request)
            case steps.Refer(key):
                return await self._refer(request)
            case steps.Delete(keys):
                # One after the other: a node is deleted after the nodes below it.
                for key in keys:
                    # A delete that fails leaves the old chunk or no chunk.
                    writing = self._writes.writing(key, secrets.token_hex(16), or_same=True)
                    with self._translated(key), _absent_if_no_key(), writing:
                        await self.icechunk.delete(key)
                return steps.Done()
            case steps.List(folder):
                found = [each async for sizes in self.list_sizes(folder) for each in sizes.items()]
                return steps.Listed(tuple(steps.Entry(key, nbytes, None, _LONG_AGO) for key, nbytes in found))
            case steps.Move():
                raise TypeError(f"only a local disk has renames: {request}")
            case never:
                assert_never(never)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request on zarr's event loop, because Icechunk has no synchronous calls.

        zarr's fused pipeline calls this from threads, where a partial write can be recognised.
        """
        return sync(self.perform(request))

    def lock(self, lock: steps.Lock) -> Callable[[], None] | None:
        """Take a lock for this process, which is the only one that writes to this session."""
        with self._writes.guard:
            if lock.key in self._locks:
                return None
            self._locks.add(lock.key)
        return lambda: self._locks.discard(lock.key)

    def keep_lock(self, _key: str, /) -> AbstractContextManager[None]:
        """Do nothing: a lock of a session is not shared."""
        return nullcontext()

    async def _get(self, key: str, wanted: Wanted) -> Outcome:
        if await self._is_stray(key):
            return steps.Missing()
        before = self._label(key)
        if wanted is None:
            return await self._get_whole(key, wanted, before)
        # Icechunk refuses ranges beyond the end of a chunk.
        nbytes = await self._size(key)
        if nbytes is None:
            return steps.Missing()
        span = resolve(wanted, nbytes)
        if not span.nbytes:
            return steps.OutOfRange()
        try:
            with self._translated(key):
                byte_range = RangeByteRequest(span.start, span.stop)
                buffer = await self.icechunk.get(key, default_buffer_prototype(), byte_range)
        except SessionError:
            if self._is_still(key, before):
                raise
            buffer = None
        if not self._is_still(key, before):
            # The size, and so the range, may be from another write. The whole chunk gives both from one write.
            return await self._get_whole(key, wanted, before)
        if buffer is None:
            return steps.Missing()
        data = memoryview(buffer.as_buffer_like())
        if data.nbytes != span.nbytes:
            raise SessionError(key, f"expected {span.nbytes} bytes, found {data.nbytes}")
        return self._found(key, data, span, nbytes, before)

    async def _get_whole(self, key: str, wanted: Wanted, before: str | None) -> Outcome:
        """Return the outcome for a range of a value by reading the whole value."""
        buffer = None
        with self._translated(key), _absent_if_no_key():
            buffer = await self.icechunk.get(key, default_buffer_prototype())
        if buffer is None:
            return steps.Missing()
        data = memoryview(buffer.as_buffer_like())
        span = resolve(wanted, data.nbytes)
        if wanted is not None and not span.nbytes:
            return steps.OutOfRange()
        return self._found(key, data[span.start : span.stop], span, data.nbytes, before)

    async def _head(self, key: str) -> Outcome:
        if await self._is_stray(key):
            return steps.Missing()
        before = self._label(key)
        nbytes = await self._size(key)
        return steps.Missing() if nbytes is None else self._found(key, b"", Span(0, 0), nbytes, before)

    async def _put(self, put: steps.Put) -> Outcome:
        await self._require_place(put.key)
        if isinstance(put.condition, steps.IfAbsent) and await self._size(put.key) is not None:
            return steps.Refused()
        if put.condition is not None and not isinstance(put.condition, steps.IfAbsent):
            raise TypeError(f"expected no condition on an ETag in a session, where locks protect writes: {put}")
        generation = secrets.token_hex(16) if put.tag is None else put.tag.generation
        # A session keeps the buffers of small chunks until its commit, a repository in memory those of all chunks, and
        # the caller may change them meanwhile. A session does not say where its repository is.
        data = bytes(put.data)
        if split(put.key)[1] == DOCUMENT:
            # Icechunk refuses numbers that JSON does not have.
            data = without_constants(data)
        value = default_buffer_prototype().buffer.from_bytes(data)
        with self._translated(put.key), self._writes.writing(put.key, generation):
            await self.icechunk.set(put.key, value)
        return steps.Done()

    async def _refer(self, refer: steps.Refer) -> Outcome:
        await self._require_place(refer.key)
        to: Reference = refer.reference
        with self._translated(refer.key), self._writes.writing(refer.key, refer.tag.generation):
            await self.icechunk.set_virtual_ref_async(
                refer.key, to.location, offset=to.offset, length=to.length, checksum=_whole_seconds(to.checksum)
            )
        return steps.Done()

    async def write_node(
        self, path: str, tables: Sequence[ReferenceTable], chunks: Mapping[tuple[int, ...], bytes]
    ) -> None:
        """Write many chunks of the node at a path, all at once.

        This takes no locks. No other thread may write to the node meanwhile.
        """
        start = join(path, _CHUNKS)
        await self._require_place(start)
        # Chunks that are written by their keys would be labelled one by one. Here all of them get another label.
        with self._translated(path), self._writes.replacing():
            await run_for_each(tables, lambda table: self._write_references(path, table), _AT_ONCE)
            await run_for_each(
                chunks,
                lambda index: self.icechunk.set(
                    "/".join((start, *map(str, index))), default_buffer_prototype().buffer.from_bytes(chunks[index])
                ),
                _AT_ONCE,
            )

    async def _write_references(self, path: str, table: ReferenceTable) -> None:
        # The caller has checked the locations. Icechunk would compare them with folders that are not percent-encoded.
        await self.icechunk.set_virtual_refs_arr_async(
            f"/{path}",
            table.locations.shape,
            table.locations.ravel().tolist(),
            table.offsets.ravel(),
            table.lengths.ravel(),
            validate_containers=False,
            arr_offset=table.first,
            checksum=_whole_seconds(table.checksum),
        )

    def _label(self, key: str) -> str | None:
        return self._writes.label(key, self.snapshot)

    def _is_still(self, key: str, before: str | None) -> bool:
        """Return whether a chunk still has this label, so that it was not written."""
        return before is not None and self._label(key) == before

    def _found(self, key: str, data: Any, span: Span, nbytes: int, before: str | None) -> Found:
        if split(key)[1] == DOCUMENT:
            return Found(data, span, nbytes, None, self._node_id(split(key)[0]), None)
        # If the chunk was written meanwhile, it may be the old or the new one, so it gets a label of its own.
        label = before if before is not None and self._is_still(key, before) else secrets.token_hex(16)
        return Found(data, span, nbytes, label, None, Tag(label, "c", ()))

    async def _size(self, key: str) -> int | None:
        with self._translated(key), _absent_if_no_key():
            try:
                nbytes = await self.icechunk.getsize(key)
            except NodeNotFoundError:
                return None
            # Icechunk returns 0 for an absent chunk.
            return nbytes if nbytes or await self.icechunk.exists(key) else None
        return None

    async def _file_of(self, key: str) -> str:
        """Return the URL of the file that a chunk refers to, for an error message. Icechunk does not always say it."""
        path, index = _chunk_of(key)
        searched = 0
        with suppress(IcechunkError):
            async for coordinates, _, locations, _, _, _ in self.icechunk.array_chunk_iterator(f"/{path}"):
                for number, found in enumerate(coordinates.tolist()):
                    if tuple(found) == index:
                        return repr(hide_in_url(unquote(locations[number])))
                searched += len(coordinates)
                if searched > _MAX_SEARCHED:
                    break
        return "of one of its references"

    async def chunks_of_files(self, path: str, /) -> Mapping[str, str]:
        """Return the files that an array refers to, each with the key of its first chunk in the file."""
        found: dict[str, str] = {}
        with self._translated(path):
            async for coordinates, kinds, locations, _, _, _ in self.icechunk.array_chunk_iterator(f"/{path}"):
                for index, kind, location in zip(coordinates.tolist(), kinds, locations, strict=True):
                    if kind == ChunkType.virtual and location not in found:
                        found[location] = join(path, "/".join(map(str, ("c", *index))))
        return found

    # --- nodes of parts -------------------------------------------------------------------------------------------

    def _node_id(self, path: str) -> str | None:
        with self._translated(path):
            try:
                return self.session.get_node_id(f"/{path}")
            except NodeNotFoundError:
                return None

    async def _is_stray(self, key: str) -> bool:
        """Return whether the key is at or below a node of parts whose array was deleted or created again."""
        place = parse_node_key(key)
        return place is not None and not await self._is_owned(place)

    async def _is_owned(self, place: NodeKey) -> bool:
        node, array = self._node_id(place.node), self._node_id(place.array)
        if node is None or array is None:
            return False
        if node not in self._owners:
            owner = owner_of_node(await self._document(place.node))
            if owner is None:
                return False
            self._owners[node] = owner
        return self._owners[node] == array

    async def _require_place(self, key: str) -> None:
        """Raise unless the session can store something at this key."""
        self.require_writable()
        if is_metadata(key) and split(key)[1] != DOCUMENT:
            raise SessionError(key, "expected Zarr v3, found Zarr v2, which sessions do not support")
        place = parse_node_key(key)
        if place is not None and place.relative != DOCUMENT and not await self._is_owned(place):
            expected = f"expected the node of a part of {place.array!r} at {place.node!r}"
            problem = f"{expected}, found none, or a node of another array"
            raise SessionError(key, problem)

    # --- listing --------------------------------------------------------------------------------------------------

    async def list_keys(self, folder: str, *, page: int = LIST_PAGE) -> AsyncIterator[Sequence[str]]:
        """Yield the keys of all documents and chunks below a folder, in pages as long as those of Icechunk."""
        del page
        async for sizes in self.list_sizes(folder):
            yield tuple(sizes)

    async def list_sizes(self, folder: str) -> AsyncIterator[Mapping[str, int]]:
        """Yield all documents and chunks below a folder with their sizes, including those of the nodes of parts."""
        arrays = []
        async for key in self._keys(folder):
            path, name = split(key)
            if name == DOCUMENT:
                yield {key: await self._size(key) or 0}
                arrays.append(path)
        # If the folder is inside an array, the document of the array is not below the folder.
        above = [] if arrays else [path for path, _ in reversed(splits(folder)) if self._node_id(path) is not None]
        inside = above[:1]
        for path in [*arrays, *inside]:
            async for sizes in self._chunks(path):
                yield {key: size for key, size in sizes.items() if not inside or key.startswith(f"{folder}/")}

    async def _keys(self, folder: str) -> AsyncIterator[str]:
        with self._translated(folder):
            if not folder or self._node_id(folder) is not None:
                listed = self.icechunk.list_prefix(folder) if folder else self.icechunk.list()
            else:
                listed = self.icechunk.list()
            async for key in listed:
                if not folder or key.startswith(f"{folder}/"):
                    yield key

    async def _chunks(self, path: str) -> AsyncIterator[Mapping[str, int]]:
        """Yield the chunks of the array at a path, in pages; none if it is a group."""
        if not await self._is_array(path):
            return
        with self._translated(join(path, DOCUMENT)):
            async for coordinates, _, _, _, lengths, _ in self.icechunk.array_chunk_iterator(f"/{path}"):
                start = join(path, _CHUNKS)
                keys = ["/".join((start, *map(str, at))) for at in coordinates.tolist()]
                yield dict(zip(keys, lengths.tolist(), strict=True))

    async def _is_array(self, path: str) -> bool:
        return is_array(await self._document(path) or {})

    async def _document(self, path: str) -> Document | None:
        """Return the document of the node at a path, None if there is none."""
        key = join(path, DOCUMENT)
        with self._translated(key):
            stored = await self.icechunk.get(key, default_buffer_prototype())
        return None if stored is None else parse(stored.to_bytes())

    async def list_folder(self, folder: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return no folders, and the keys in a folder, among them folders, which Icechunk lists only if not empty."""
        with self._translated(folder):
            names = [name async for name in self.icechunk.list_dir(folder)]
            # Except for the folder of an array's chunks, which Icechunk lists even if it is empty.
            if DOCUMENT in names and _CHUNKS in names and await self._is_array(folder):
                chunks = self.icechunk.array_chunk_iterator(f"/{folder}", batch_size=1)
                if await anext(aiter(chunks), None) is None:
                    names.remove(_CHUNKS)
        return (), [join(folder, name) for name in names]

    def __repr__(self) -> str:
        return f"SessionBackend({self})"

    def __str__(self) -> str:
        session = self.session
        if session.read_only:
            return f"icechunk at {session.snapshot_id}"
        if isinstance(session, ForkSession):
            return f"icechunk fork at {session.snapshot_id}"
        what = ", to move nodes," if session.mode == SessionMode.rearrange else ""
        return f"icechunk session{what} on {session.branch} at {session.snapshot_id}"


def _whole_seconds(checksum: str | datetime | None) -> str | datetime | None:
    """Return a time in whole seconds, rounded up, because Icechunk cuts fractions and would refuse the file."""
    if not isinstance(checksum, datetime) or not checksum.microsecond:
        return checksum
    return checksum.replace(microsecond=0) + timedelta(seconds=1)


@contextmanager
def _absent_if_no_key() -> Iterator[None]:
    """Ignore the error for a key that no session could store: there is no value at such a key."""
    try:
        yield
    except InvalidInputError as error:
        if error.kind != ErrorKind.INVALID_KEY:
            raise


def remember_url(session: Session, location: tuple[str, bool] | None) -> Session:
    """Record in a session the URL of its repository, and whether it was opened with options, for error messages."""
    vars(session)[_LOCATION] = location
    return session


def containers_in(session: Session) -> list[str]:
    """Return the URLs of all folders with files that the chunks of a repository may refer to."""
    return sorted(session.config.virtual_chunk_containers or {})


def message_of(error: BaseException, session: Session) -> str:
    """Return the first line of an error message of Icechunk, without secrets; say what to do about missing access."""
    message = hide_secrets(str(error).strip().partition("\n")[0])
    if getattr(error, "kind", None) != ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
        return message
    # Icechunk has no attribute with the container.
    found = _CONTAINER.search(message)
    container = found["prefix"] if found else "..."
    url, has_options = vars(session).get(_LOCATION) or (None, False)
    folders = {*containers_in(session), *([container] if found else [])}
    call = opening_call(url, folders, has_options=has_options)
    return (
        f"it refers to a file below {container!r}, and the repository was opened without access to the files there: "
        f"open it with `{call}`, or with the argument `authorize_virtual_chunk_access` of Icechunk for "
        f"{', '.join(map(repr, sorted(folders)))}"
    )


def _problem_of_file(error: IcechunkError) -> str | None:
    """Return what is wrong with the file that a chunk refers to; None if the error is about something else."""
    if error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED:
        return "which was changed or deleted after the reference was made: restore the file, or adopt it again"
    if error.kind != ErrorKind.VIRTUAL_CHUNK_FETCH:
        return None
    message = hide_secrets(str(error).strip().partition("\n")[0])
    if _NOT_FOUND.search(message):
        return "which no longer exists: restore the file, or adopt the others again"
    return f"which cannot be read: {message}"


class _FileError(SessionError):
    """The file that a chunk refers to cannot be read. The name of the file is added where it can be looked for."""


def _shown(key: str) -> str:
    """Return the key of the chunk that a key of a part belongs to."""
    place = parse_node_key(key)
    return key if place is None else join(place.array, place.relative)


def _chunk_of(key: str) -> tuple[str, tuple[int, ...]]:
    """Return the path of the node of a chunk, and the index of the chunk; a single value has an empty index."""
    path, _, rest = f"/{key}".rpartition(f"/{_CHUNKS}")
    return path.strip("/"), tuple(int(number) for number in rest.split("/") if number)
