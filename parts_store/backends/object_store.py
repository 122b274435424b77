"""The backend for obstore: objects on S3, GCS, Azure, HTTP, a local disk, or in memory.

Carries out requests. Knows nothing about chunks and parts.
"""

from collections.abc import AsyncIterator, Buffer, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, ClassVar, Final, Never, NoReturn, assert_never

import obstore
from obstore.exceptions import NotSupportedError
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.backends.addresses import require_store, secrets_of, shown_address, without_redirects
from parts_store.backends.conditional_puts import Clock, SingleRequests, pauses, was_not_carried_out
from parts_store.backends.failures import (
    ABSENT,
    entry_of,
    found_of,
    is_not_implemented,
    name_and_key,
    outcome_of,
    range_of,
    require_about_object,
    translated,
)
from parts_store.engine import steps
from parts_store.engine.backend import (
    LIST_PAGE,
    MAX_BULK_DELETE,
    BackendRequest,
    Capabilities,
    WriteIdentity,
)
from parts_store.engine.steps import Outcome
from parts_store.errors import ServerFeatureError, StoreConfigError, raise_translated
from parts_store.format.layout import Wanted, pieces_of
from parts_store.format.references import Reference, ReferenceTable
from parts_store.format.tags import ATTRIBUTE
from parts_store.redaction import hide_in_url, hide_secrets

type Calls[T] = Generator[tuple[Any, str, tuple[Any, ...], dict[str, Any]], Any, T]
"""A generator of calls of obstore, which has each function with an event loop (`name_async`) and without (`name`).

It yields the module or object, the name of its function, and the arguments, and receives what the function returns."""

# obstore sends larger objects in parts of this size.
_PART_NBYTES: Final = 5 << 20
_STORES: Final = (AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store)


@dataclass(frozen=True, slots=True, repr=False)
class ObjectBackend:
    """A backend that stores objects in an obstore store."""

    # An object store has no versions of everything that it holds.
    snapshot: ClassVar[None] = None
    # A change of an object changes its tag or its ETag.
    is_settled: ClassVar[bool] = True

    store: Any
    capabilities: Capabilities = field(init=False)
    has_latency: bool = field(init=False)
    _conditional: SingleRequests = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.store, _STORES):
            # Only the type is shown: the value may be an address with a password.
            hint = "; `PartsStore.from_url` opens URLs and paths" if isinstance(self.store, str | PurePath) else ""
            raise StoreConfigError("store", "an obstore store", f"an object of type {type(self.store).__name__}{hint}")
        require_store(self.store)
        object.__setattr__(self, "store", without_redirects(self.store))
        object.__setattr__(self, "capabilities", self._capabilities())
        object.__setattr__(self, "has_latency", not isinstance(self.store, LocalStore | MemoryStore))
        object.__setattr__(self, "_conditional", SingleRequests(self.store))

    @property
    def secrets(self) -> list[str]:
        """The secrets that the store was opened with, which no message may show."""
        return secrets_of(self.store)

    @property
    def file_stamp(self) -> Callable[[str], tuple[int, ...] | None] | None:
        """None: objects are not files."""
        return None

    def require_writable(self) -> None:
        """Do nothing: a store of objects that could be written to still can."""

    def require_location(self, reference: Reference) -> None:
        """Do nothing: a store of objects has no references, and refuses them when they are written."""

    async def write_node(
        self, path: str, tables: Sequence[ReferenceTable], chunks: Mapping[tuple[int, ...], bytes]
    ) -> None:
        """Raise: a store of objects has no nodes."""
        raise TypeError(f"only a session has nodes: {path!r}, {len(tables)} tables, {len(chunks)} chunks")

    async def chunks_of_files(self, path: str, /) -> Mapping[str, str]:  # noqa: ARG002
        """Return nothing: the chunks of a store of objects are no references."""
        return {}

    @property
    def _keeps_tags(self) -> bool:
        return self.capabilities.identifies_writes_by is WriteIdentity.TAGS

    def _capabilities(self) -> Capabilities:
        """Return what the store can do. Local disks and HTTP have no user metadata, and HTTP is read-only."""
        match self.store:
            case LocalStore():
                identity = WriteIdentity.JOURNAL
            case HTTPStore():
                identity = WriteIdentity.ETAGS
            case _:
                identity = WriteIdentity.TAGS
        is_disabled = isinstance(self.store, S3Store) and self.store.config.get("conditional_put") == "disabled"
        return Capabilities(
            identifies_writes_by=identity,
            has_conditions=identity is WriteIdentity.TAGS and not is_disabled,
            # On S3 the ETag may be a digest of the bytes.
            has_unique_etags=isinstance(self.store, GCSStore | AzureStore | MemoryStore),
        )

    async def perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request."""
        if not self.has_latency:
            # Memory answers at once.
            return self.perform_sync(request)
        try:
            return await _run_calls_async(self.calls(request))
        except BaseException as error:
            self._raise_translated(request, error)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request without an event loop."""
        try:
            return run_calls(self.calls(request))
        except BaseException as error:
            self._raise_translated(request, error)

    def _raise_translated(self, request: BackendRequest, error: BaseException) -> NoReturn:
        """Raise an error of this package in place of an error of a request; raise other errors again."""
        with translated(*name_and_key(request), lambda: self.secrets):
            raise error

    def lock(self, lock: steps.Lock) -> Callable[[], None] | None:
        """Raise: an object store has no locks."""
        return _refuse(lock)

    def keep_lock(self, _key: str, /) -> AbstractContextManager[None]:
        """Do nothing: an object store has no locks."""
        return nullcontext()

    def calls(self, request: BackendRequest) -> Calls[Outcome]:
        """Carry out a request without translating the errors of obstore."""
        try:
            match request:
                case steps.Get(key, wanted, _, if_match):
                    return (yield from self._get(key, wanted, self._if_match(if_match)))
                case steps.Head(key):
                    return found_of((yield obstore, "get", (self.store, key), {"options": {"head": True}}), b"")
                case steps.Put():
                    return (yield from self._put_object(request))
                case steps.Delete(keys):
                    yield from self._delete(keys)
                    return steps.Done()
                case steps.List(folder):
                    listed = yield self._pages(folder), "collect", (), {}
                    return steps.Listed(tuple(map(entry_of, listed)))
                case steps.Move() | steps.Refer():
                    return _refuse(request)
                case never:
                    assert_never(never)
        except Exception as error:
            self._require_conditions(request, error)
            return outcome_of(request, error, lambda: self.secrets)

    def _put_object(self, put: steps.Put) -> Calls[Outcome]:
        """Write an object; repeat a conditional PUT only if it was surely not carried out."""
        options = _put_options(put, keeps_tags=self._keeps_tags)
        # A store in memory keeps the buffer that it is given, which the caller may change later.
        data = bytes(put.data) if isinstance(self.store, MemoryStore) else _unjoined(put.data)
        if put.condition is None:
            yield obstore, "put", (self.store, put.key, data), options
            return steps.Done()
        is_partial = put.tag is not None and put.tag.is_conditional
        waits = pauses(self.store)
        while True:
            try:
                with self._conditional.choose(is_partial=is_partial) as store:
                    yield obstore, "put", (store, put.key, data), options
            except Exception as error:
                pause = next(waits, None) if was_not_carried_out(error) else None
                if pause is None:
                    raise
            else:
                return steps.Done()
            yield Clock, "sleep", (pause,), {}

    def _require_conditions(self, request: BackendRequest, error: Exception) -> None:
        """Raise `ServerFeatureError` if the server answered that it has no conditional PUTs."""
        if isinstance(request, steps.Put) and request.condition is not None and is_not_implemented(error):
            advice = "open the store with concurrency='exclusive' and the option conditional_put='disabled'"
            lacks = "it does not implement them (501)"
            raise_translated(ServerFeatureError(shown_address(self.store), lacks, "conditional PUTs", advice))

    def _if_match(self, if_match: str | None) -> dict[str, Any]:
        """Return the option that makes a GET conditional; none if the ETag is weak or does not come from the server."""
        is_sent = if_match is not None and self._keeps_tags and not if_match.startswith("W/")
        return {"if_match": if_match} if is_sent else {}

    def _get(self, key: str, wanted: Wanted, condition: dict[str, Any]) -> Calls[Outcome]:
        try:
            response = yield obstore, "get", (self.store, key), {"options": _options(wanted) | condition}
        except NotSupportedError:
            # Azure lacks suffix ranges, and some web servers have no ranges at all.
            if not isinstance(wanted, SuffixByteRequest) or isinstance(self.store, HTTPStore):
                response = yield obstore, "get", (self.store, key), {"options": condition}
                return range_of(found_of(response, (yield response, "bytes", (), {})), wanted)
            nbytes = (yield obstore, "head", (self.store, key), {})["size"]
            options = _options(OffsetByteRequest(max(0, nbytes - wanted.suffix))) | condition
            response = yield obstore, "get", (self.store, key), {"options": options}
        return found_of(response, (yield response, "bytes", (), {}))

    def _delete(self, keys: tuple[str, ...]) -> Calls[None]:
        for at in range(0, len(keys), MAX_BULK_DELETE):
            batch = list(keys[at : at + MAX_BULK_DELETE])
            try:
                yield obstore, "delete", (self.store, batch), {}
            except ABSENT as error:
                require_about_object(error)
                # Some stores stop at the first absent object.
                for each in batch:
                    with suppress(*ABSENT):
                        yield obstore, "delete", (self.store, each), {}

    async def list_keys(self, folder: str, *, page: int = LIST_PAGE) -> AsyncIterator[Sequence[str]]:
        """Yield the keys of all objects below a folder, in pages."""
        with translated("list", folder, lambda: self.secrets):
            async for batch in self._pages(folder, page):
                yield [each["path"] for each in batch]

    async def list_sizes(self, folder: str) -> AsyncIterator[Mapping[str, int]]:
        """Yield the keys of all objects below a folder with their sizes, in pages."""
        with translated("list", folder, lambda: self.secrets):
            async for batch in self._pages(folder):
                yield {each["path"]: each["size"] for each in batch}

    def _pages(self, folder: str, page: int = LIST_PAGE) -> Any:
        return obstore.list(self.store, prefix=folder or None, chunk_size=page)

    async def list_folder(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the folders and the keys directly in a folder."""
        with translated("list", prefix, lambda: self.secrets):
            listed = await obstore.list_with_delimiter_async(self.store, prefix=prefix or None)
        return listed["common_prefixes"], [each["path"] for each in listed["objects"]]

    def __repr__(self) -> str:
        return f"ObjectBackend({self})"

    def __str__(self) -> str:
        if isinstance(self.store, MemoryStore):
            return "memory"
        if isinstance(self.store, HTTPStore):
            return f'HTTPStore("{hide_in_url(str(self.store.url))}")'
        return hide_secrets(repr(self.store))


def _options(wanted: Wanted) -> Any:
    match wanted:
        case None:
            return {}
        case RangeByteRequest(start=start, end=end):
            return {"range": (start, end)}
        case OffsetByteRequest(offset=offset):
            return {"range": {"offset": offset}}
        case SuffixByteRequest(suffix=suffix):
            return {"range": {"suffix": suffix}}


def _unjoined(data: Buffer) -> list[memoryview]:
    """Return data as buffers that obstore sends without a copy.

    Before each buffer, obstore waits until it may send another part of an object. It does not wait between the parts
    of one buffer.
    """
    return [piece[at : at + _PART_NBYTES] for piece in pieces_of(data) for at in range(0, piece.nbytes, _PART_NBYTES)]


def _refuse(request: steps.Lock | steps.Move | steps.Refer) -> Never:
    raise TypeError(f"an object store has no locks, renames and references: {request}")


def _put_options(put: steps.Put, *, keeps_tags: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    match put.condition:
        case steps.IfAbsent():
            options["mode"] = "create"
        case steps.IfMatch(etag, version):
            # obstore refuses None as a value.
            known = {"e_tag": etag, "version": version}
            options["mode"] = {name: value for name, value in known.items() if value is not None}
    if put.tag is not None and keeps_tags:
        options["attributes"] = {ATTRIBUTE: str(put.tag)}
    if put.condition is not None or put.tag is not None:
        # One request for each part, so that the part is stored completely or not at all, with one kind of ETag.
        options["use_multipart"] = False
    else:
        options["use_multipart"] = sum(piece.nbytes for piece in pieces_of(put.data)) > _PART_NBYTES
    return options


async def _run_calls_async[T](calls: Calls[T]) -> T:
    """Make calls of obstore with an event loop."""
    try:
        target, name, args, options = next(calls)
        while True:
            try:
                answer = await getattr(target, f"{name}_async")(*args, **options)
            except Exception as error:
                target, name, args, options = calls.throw(error)
            else:
                target, name, args, options = calls.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


def run_calls[T](calls: Calls[T]) -> T:
    """Make calls of obstore without an event loop."""
    try:
        target, name, args, options = next(calls)
        while True:
            try:
                answer = getattr(target, name)(*args, **options)
            except Exception as error:
                target, name, args, options = calls.throw(error)
            else:
                target, name, args, options = calls.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value
