"""Icechunk sessions: chunks and documents in place of objects, and what was changed in them.

Calls Icechunk, translates its errors, and says of each chunk which write it is: that of a tag, or of the session's
snapshot. Knows of the nodes of parts whose they are, and of nothing else that is stored.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from icechunk import (
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
from parts_store.backends.session_changes import Writes
from parts_store.engine.backend import BackendRequest, Capabilities, WriteIdentity
from parts_store.engine.steps import (
    Delete,
    Done,
    Entry,
    Found,
    Get,
    Head,
    IfAbsent,
    List,
    Listed,
    Lock,
    Missing,
    Move,
    Outcome,
    OutOfRange,
    Put,
    Refer,
    Refused,
)
from parts_store.errors import ReadOnlySessionError, SessionError, StoreConfigError, raise_translated
from parts_store.format.keys import DOCUMENT, NodeKey, join, parse_node_key, split
from parts_store.format.metadata import parse
from parts_store.format.ranges import Span, Wanted, resolve
from parts_store.format.references import Reference
from parts_store.format.tags import Tag
from parts_store.redaction import hide_secrets
from parts_store.transactions import part_nodes

# A session does not say when a chunk was written.
_LONG_AGO = datetime.fromtimestamp(0, UTC)
# The location of a file in a container that is called by its name.
_BY_NAME = "vcc://"
# The name of the folder in which an array has its chunks.
_CHUNKS = "c"
_OF_ZARR_V2 = (".zarray", ".zgroup", ".zattrs", ".zmetadata")

_CAPABILITIES = Capabilities(
    identifies_writes_by=WriteIdentity.SESSION,
    has_conditions=True,
    has_unique_etags=True,
    is_remote=True,
    is_writable=True,
    is_listable=True,
)


@dataclass(frozen=True, slots=True, repr=False)
class SessionBackend:
    """An Icechunk session: writable, read only, forked, or one that can only move nodes."""

    session: Session
    icechunk: IcechunkStore = field(init=False)
    _writes: Writes = field(default_factory=Writes)
    _locks: set[str] = field(default_factory=set)
    # To which array a node of parts belongs: both by their ids, which do not come back.
    _owners: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.session, Session):
            found = f"an object of type {type(self.session).__name__}"
            raise StoreConfigError("session", "a session of Icechunk", found)
        object.__setattr__(self, "icechunk", self.session.store)
        self._writes.snapshot = self.session.snapshot_id

    @property
    def store(self) -> Session:
        """What a copy in another process is made from."""
        return self.session

    @property
    def capabilities(self) -> Capabilities:
        """What a session can do, if it may."""
        return _CAPABILITIES

    @property
    def snapshot(self) -> str:
        """What the session is based on: its snapshot, which is another one after its changes were discarded."""
        return self._writes.base(self.session)

    @property
    def is_settled(self) -> bool:
        """Whether all that there is, is of the snapshot: what is changed in a session can be changed unseen."""
        return not self.session.has_uncommitted_changes

    @property
    def file_stamp(self) -> None:
        """None: the chunks and nodes of a session are not files."""
        return

    @property
    def may_write(self) -> bool:
        """Whether the session can be written to."""
        # A fork says that its mode is read only, and is not.
        return not self.session.read_only and self.session.mode != SessionMode.rearrange

    def require_writable(self) -> None:
        """Raise unless the session can be written to."""
        if self.session.mode == SessionMode.rearrange:
            raise ReadOnlySessionError(str(self), "it can only move nodes; open a writable session")
        if not self.may_write:
            raise ReadOnlySessionError(str(self), "it is read only, or was committed; open a writable session")

    def require_location(self, reference: Reference) -> None:
        """Raise if Icechunk would refuse a reference: before anything is written, not in the midst of a chunk."""
        containers = self.session.config.virtual_chunk_containers or {}
        names = [f"{_BY_NAME}{each.name}/" for each in containers.values() if each.name]
        if not reference.location.startswith((*containers, *names)):
            known = ", ".join(map(repr, [*containers, *names])) or "none"
            problem = f"expected a location in a virtual chunk container of the repository ({known}), found another"
            raise SessionError(reference.location, problem)

    # --- requests -------------------------------------------------------------------------------------------------

    async def perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request."""
        match request:
            case Get(key, wanted):
                return await self._get(key, wanted)
            case Head(key):
                return await self._head(key)
            case Put(key):
                return await self._put(request)
            case Refer(key):
                return await self._refer(request)
            case Delete(keys):
                # One after the other: a node goes after those below it.
                for key in keys:
                    # One that fails leaves what is there, or nothing.
                    writing = self._writes.writing(key, secrets.token_hex(16), or_same=True)
                    with _translated(key), _absent_if_no_key(), writing:
                        await self.icechunk.delete(key)
                return Done()
            case List(folder):
                return Listed(tuple([entry async for entry in self.list(folder)]))
            case Move():
                raise TypeError(f"only a local disk has renames: {request}")
            case never:
                assert_never(never)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request, and wait: Icechunk has no calls without an event loop.

        zarr's fused pipeline calls from threads, where a chunk that is read to be changed is known when it is written.
        """
        return sync(self.perform(request))

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """Take a lock, which is for this process: nobody else writes to this session."""
        with self._writes.guard:
            if lock.key in self._locks:
                return None
            self._locks.add(lock.key)
        return lambda: self._locks.discard(lock.key)

    async def _get(self, key: str, wanted: Wanted) -> Outcome:
        if await self._is_stray(key):
            return Missing()
        before = self._label(key)
        if wanted is None:
            return await self._get_whole(key, wanted, before)
        # Icechunk refuses ranges that go beyond a chunk.
        nbytes = await self._size(key)
        if nbytes is None:
            return Missing()
        span = resolve(wanted, nbytes)
        if not span.nbytes:
            return OutOfRange()
        try:
            with _translated(key):
                byte_range = RangeByteRequest(span.start, span.stop)
                buffer = await self.icechunk.get(key, default_buffer_prototype(), byte_range)
        except SessionError:
            if self._is_still(key, before):
                raise
            buffer = None
        if not self._is_still(key, before):
            # The size was that of another write, and so the range may be: one look at all of it tells both.
            return await self._get_whole(key, wanted, before)
        if buffer is None:
            return Missing()
        data = memoryview(buffer.as_buffer_like())
        if data.nbytes != span.nbytes:
            raise SessionError(key, f"expected {span.nbytes} bytes, found {data.nbytes}")
        return self._found(key, data, span, nbytes, before)

    async def _get_whole(self, key: str, wanted: Wanted, before: str | None) -> Outcome:
        """A value, or a range of it, cut from all of it."""
        buffer = None
        with _translated(key), _absent_if_no_key():
            buffer = await self.icechunk.get(key, default_buffer_prototype())
        if buffer is None:
            return Missing()
        data = memoryview(buffer.as_buffer_like())
        span = resolve(wanted, data.nbytes)
        if wanted is not None and not span.nbytes:
            return OutOfRange()
        return self._found(key, data[span.start : span.stop], span, data.nbytes, before)

    async def _head(self, key: str) -> Outcome:
        if await self._is_stray(key):
            return Missing()
        before = self._label(key)
        nbytes = await self._size(key)
        return Missing() if nbytes is None else self._found(key, b"", Span(0, 0), nbytes, before)

    async def _put(self, put: Put) -> Outcome:
        await self._require_place(put.key)
        if isinstance(put.condition, IfAbsent) and await self._size(put.key) is not None:
            return Refused()
        if put.condition is not None and not isinstance(put.condition, IfAbsent):
            raise TypeError(f"a session compares under a lock: {put}")
        generation = secrets.token_hex(16) if put.tag is None else put.tag.generation
        # Also of what is no array of bytes, and without a copy.
        value = default_buffer_prototype().buffer.from_bytes(memoryview(put.data))
        with _translated(put.key), self._writes.writing(put.key, generation):
            await self.icechunk.set(put.key, value)
        return Done()

    async def _refer(self, refer: Refer) -> Outcome:
        await self._require_place(refer.key)
        to: Reference = refer.reference
        with _translated(refer.key), self._writes.writing(refer.key, refer.tag.generation):
            await self.icechunk.set_virtual_ref_async(
                refer.key, to.location, offset=to.offset, length=to.length, checksum=_whole_seconds(to.checksum)
            )
        return Done()

    def _label(self, key: str) -> str | None:
        return self._writes.label(key, self.snapshot)

    def _is_still(self, key: str, before: str | None) -> bool:
        """Whether nobody has written a chunk since it had this label."""
        return before is not None and self._label(key) == before

    def _found(self, key: str, data: Any, span: Span, nbytes: int, before: str | None) -> Found:
        if split(key)[1] == DOCUMENT:
            return Found(data, span, nbytes, None, self._node_id(split(key)[0]), None)
        # Written meanwhile: it may be what it was, or what it is, and is known as neither.
        label = before if before is not None and self._is_still(key, before) else secrets.token_hex(16)
        return Found(data, span, nbytes, label, None, Tag(label, "c", ()))

    async def _size(self, key: str) -> int | None:
        with _translated(key), _absent_if_no_key():
            try:
                nbytes = await self.icechunk.getsize(key)
            except NodeNotFoundError:
                return None
            # Of a chunk that is not there, Icechunk says that it has no bytes.
            return nbytes if nbytes or await self.icechunk.exists(key) else None
        return None

    # --- nodes of parts -------------------------------------------------------------------------------------------

    def _node_id(self, path: str) -> str | None:
        with _translated(path):
            try:
                return self.session.get_node_id(f"/{path}")
            except NodeNotFoundError:
                return None

    async def _is_stray(self, key: str) -> bool:
        """Whether the key is that of a node of parts, or below one, whose array is gone or another."""
        place = parse_node_key(key)
        return place is not None and not await self._is_owned(place)

    async def _is_owned(self, place: NodeKey) -> bool:
        node, array = self._node_id(place.node), self._node_id(place.array)
        if node is None or array is None:
            return False
        if node not in self._owners:
            document = join(place.node, DOCUMENT)
            with _translated(document):
                stored = await self.icechunk.get(document, default_buffer_prototype())
            owner = part_nodes.owner_of(None if stored is None else parse(stored.to_bytes()))
            if owner is None:
                return False
            self._owners[node] = owner
        return self._owners[node] == array

    async def _require_place(self, key: str) -> None:
        """Raise unless a session can keep what is written there."""
        self.require_writable()
        if split(key)[1] in _OF_ZARR_V2:
            raise SessionError(key, "expected Zarr v3, found Zarr v2, which no session can keep")
        place = parse_node_key(key)
        if place is not None and place.relative != DOCUMENT and not await self._is_owned(place):
            problem = f"expected the node of a part of {place.array!r} at {place.node!r}, found none or another array's"
            raise SessionError(key, problem)

    # --- listing --------------------------------------------------------------------------------------------------

    async def list(self, folder: str) -> AsyncIterator[Entry]:
        """Every document and chunk below a folder, those of the nodes of parts included."""
        arrays = []
        async for key in self._keys(folder):
            path, name = split(key)
            if name == DOCUMENT:
                yield Entry(key, await self._size(key) or 0, None, _LONG_AGO)
                arrays.append(path)
        # The array that the folder is in, if it is in one, has no document there.
        inside = [] if arrays else self._above(folder)
        for path in [*arrays, *inside]:
            async for entry in self._chunks(path):
                if not inside or entry.key.startswith(f"{folder}/"):
                    yield entry

    def _above(self, folder: str) -> Sequence[str]:
        segments = folder.split("/")
        paths = ["/".join(segments[:count]) for count in range(len(segments) - 1, -1, -1)]
        return [path for path in paths if self._node_id(path) is not None][:1]

    async def _keys(self, folder: str) -> AsyncIterator[str]:
        with _translated(folder):
            if not folder or self._node_id(folder) is not None:
                listed = self.icechunk.list_prefix(folder) if folder else self.icechunk.list()
            else:
                listed = self.icechunk.list()
            async for key in listed:
                if not folder or key.startswith(f"{folder}/"):
                    yield key

    async def _chunks(self, path: str) -> AsyncIterator[Entry]:
        """The chunks of the array at a path; none if it is a group."""
        if not await self._is_array(path):
            return
        with _translated(join(path, DOCUMENT)):
            async for coordinates, _, _, _, lengths, _ in self.icechunk.array_chunk_iterator(f"/{path}"):
                for at, nbytes in zip(coordinates.tolist(), lengths.tolist(), strict=True):
                    yield Entry(join(path, "/".join([_CHUNKS, *map(str, at)])), nbytes, None, _LONG_AGO)

    async def _is_array(self, path: str) -> bool:
        document = join(path, DOCUMENT)
        with _translated(document):
            stored = await self.icechunk.get(document, default_buffer_prototype())
        parsed = None if stored is None else parse(stored.to_bytes())
        return parsed is not None and parsed.get("node_type") == "array"

    async def list_folder(self, folder: str) -> tuple[Sequence[str], Sequence[str]]:
        """Nothing by itself, and the names in a folder: Icechunk lists no folder that has nothing to show."""
        with _translated(folder):
            names = [name async for name in self.icechunk.list_dir(folder)]
            # But that of an array's chunks, which it shows also if there are none.
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
    """A time as Icechunk keeps it, which cuts it: not before a file that was last modified then."""
    if not isinstance(checksum, datetime) or not checksum.microsecond:
        return checksum
    return checksum.replace(microsecond=0) + timedelta(seconds=1)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """Icechunk's errors as our own: some of its are `KeyError`s, which zarr takes for absence."""
    try:
        yield
    except ReadOnlyError as error:
        raise_translated(ReadOnlySessionError(key, _message(error)), error)
    except IcechunkError as error:
        raise_translated(SessionError(key, _message(error)), error)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise_translated(SessionError(key, f"Icechunk failed: {_message(error)}"), error)


@contextmanager
def _absent_if_no_key() -> Iterator[None]:
    """Nothing, if the key is one that no session could keep: there is nothing there then."""
    try:
        yield
    except InvalidInputError as error:
        if error.kind != ErrorKind.INVALID_KEY:
            raise


def _message(error: BaseException) -> str:
    """What went wrong, without where in Icechunk."""
    return hide_secrets(str(error).strip().partition("\n")[0])
