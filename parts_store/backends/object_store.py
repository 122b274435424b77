"""Objects on anything that obstore reaches: S3, GCS, Azure, HTTP, a local disk, memory.

The only module that imports obstore. Knows nothing of chunks or parts, and of zarr only its byte requests.
"""

import re
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never, assert_never, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotSupportedError,
    PreconditionError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store, from_url
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.backends.failures import (
    failure,
    is_foreign,
    speaks_of_object,
    translated,
    translated_list,
    translating,
    translating_async,
)
from parts_store.backends.obstore_checks import client_options_for, require_options, require_store, without_redirects
from parts_store.engine.backend import MAX_BULK_DELETE, BackendRequest, Capabilities, Means
from parts_store.engine.steps import (
    Delete,
    Done,
    Entry,
    Found,
    Get,
    Head,
    IfAbsent,
    IfMatch,
    List,
    Listed,
    Lock,
    Lost,
    Missing,
    Move,
    Outcome,
    OutOfRange,
    Put,
    Refer,
    Refused,
)
from parts_store.errors import ServerFeatureError, StoreConfigError, describe, raise_translated
from parts_store.format.ranges import Span, Wanted, resolve
from parts_store.format.tags import ATTRIBUTE, Tag
from parts_store.redaction import hide_in_url, hide_name, hide_secrets, secrets_in, secrets_of_url

__all__ = ["BaseError", "ObjectBackend", "address_of", "is_local", "open_url", "shown_address", "url_of"]

# The options that say where a bucket is, and not who asks.
_WHERE = ("bucket", "container_name", "account_name", "endpoint")
_STORES = (AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store)
# What obstore raises for an object that is not there, also below something that is no folder.
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_REFUSALS = (AlreadyExistsError, PreconditionError, FileNotFoundError)
_REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss", "azure", "http", "https")
_SCHEMES = (*_REMOTE_SCHEMES, "file", "memory")
# A URL without '://', which would be taken for a path.
_MISTYPED = re.compile(rf"(?:{'|'.join(_REMOTE_SCHEMES)}|memory):", re.IGNORECASE)
_OUT_OF_RANGE = (
    "Requested range was invalid",
    "Invalid range: Wanted range starting at",
    "<Code>InvalidRange</Code>",
    "416 Range Not Satisfiable",
    "416 Requested Range Not Satisfiable",
    # What MinIO says of the last bytes of an object without any.
    'CONTENT_RANGE header: "bytes 0--1/0"',
)
# In obstore's dump of an error of the operating system.
_BELOW_FILE = re.compile(r"Os \{\s+code: \d+,\s+kind: NotADirectory,")


@dataclass(frozen=True, slots=True, repr=False)
class ObjectBackend:
    """An obstore store."""

    store: Any
    capabilities: Capabilities = field(init=False)
    # Whether the server answered a conditional PUT, if only to refuse it.
    _has_conditions: threading.Event = field(init=False, compare=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        if not isinstance(self.store, _STORES):
            # Its type alone: what was given instead may be an address with a password.
            raise StoreConfigError("store", "a store of obstore", f"an object of type {type(self.store).__name__}")
        require_store(self.store)
        object.__setattr__(self, "store", without_redirects(self.store))
        object.__setattr__(self, "capabilities", self._capabilities())

    @property
    def secrets(self) -> list[str]:
        """The secrets that the store was opened with, which no message may show."""
        return secrets_of(self.store)

    @property
    def snapshot(self) -> None:
        """Objects are as they are now."""
        return

    @property
    def is_settled(self) -> bool:
        """Whoever changes an object changes its tag or its ETag."""
        return True

    def _capabilities(self) -> Capabilities:
        """What this store can do: a local disk and plain HTTP give no user metadata, and HTTP is for reading alone."""
        match self.store:
            case LocalStore():
                means = Means.LOCKS
            case HTTPStore():
                means = Means.ETAGS
            case _:
                means = Means.TAGS
        is_disabled = isinstance(self.store, S3Store) and self.store.config.get("conditional_put") == "disabled"
        return Capabilities(
            means=means,
            has_conditions=means is Means.TAGS and not is_disabled,
            # On S3 it is a digest of the bytes, or may be.
            has_unique_etags=isinstance(self.store, GCSStore | AzureStore | MemoryStore),
            is_remote=not isinstance(self.store, LocalStore | MemoryStore),
            is_writable=means is not Means.ETAGS,
            is_listable=means is not Means.ETAGS,
        )

    @translating_async
    async def perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request."""
        return await self._perform(request)

    async def _perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request, and raise errors of obstore as they are."""
        try:
            match request:
                case Get(key, wanted, _, if_match):
                    return await self._get(key, wanted, self._pin(if_match))
                case Head(key):
                    return _found(await obstore.get_async(self.store, key, options={"head": True}), b"")
                case Put(key, data):
                    store = self._store_for(request)
                    await obstore.put_async(store, key, cast("bytes", data), **self._options_of(request))
                    self._note_answer(request, None)
                    return Done()
                case Delete(keys):
                    await self._delete(keys)
                    return Done()
                case List(folder):
                    return Listed(tuple([entry async for entry in self.list(folder)]))
                case Move() | Refer():
                    return _refuse(request)
                case never:
                    assert_never(never)
        except Exception as error:
            self._note_answer(request, error)
            return _outcome(request, error, self)

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """Only a local disk has locks."""
        return _refuse(lock)

    @translating
    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request without an event loop."""
        return self._perform_sync(request)

    def _perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request without an event loop, and raise errors of obstore as they are."""
        try:
            match request:
                case Get(key, wanted, _, if_match):
                    return self._get_sync(key, wanted, self._pin(if_match))
                case Head(key):
                    return _found(obstore.get(self.store, key, options={"head": True}), b"")
                case Put(key, data):
                    store = self._store_for(request)
                    obstore.put(store, key, cast("bytes", data), **self._options_of(request))
                    self._note_answer(request, None)
                    return Done()
                case Delete(keys):
                    self._delete_sync(keys)
                    return Done()
                case List(folder):
                    return Listed(tuple(_entry(each) for batch in self._pages(folder) for each in batch))
                case Move() | Refer():
                    return _refuse(request)
                case never:
                    assert_never(never)
        except Exception as error:
            self._note_answer(request, error)
            return _outcome(request, error, self)

    def _options_of(self, put: Put) -> dict[str, Any]:
        return _put_options(put, keeps_tags=self.capabilities.means is Means.TAGS)

    def _store_for(self, put: Put) -> Any:
        """Return the store for a PUT: until the server has answered a conditional one, a store that does not retry.

        obstore retries every answer from 500 on, with pauses, also 501: not implemented.
        """
        if put.condition is None or self._has_conditions.is_set() or not isinstance(self.store, S3Store):
            return self.store
        return _without_retries(self.store)

    def _note_answer(self, request: BackendRequest, error: Exception | None) -> None:
        """Note that a conditional PUT was carried out, or failed for another reason than that there are none."""
        if isinstance(request, Put) and request.condition is not None:
            if error is not None and _is_not_implemented(error):
                advice = "open the store with concurrency='exclusive' and the option conditional_put='disabled'"
                lacks = "it does not implement them (501)"
                raise_translated(ServerFeatureError(shown_address(self.store), lacks, "conditional PUTs", advice))
            self._has_conditions.set()

    def _pin(self, if_match: str | None) -> dict[str, Any]:
        """Return the option that makes a GET conditional; none where the ETag is not the server's, or a weak one."""
        is_sent = if_match is not None and self.capabilities.means is Means.TAGS and not if_match.startswith("W/")
        return {"if_match": if_match} if is_sent else {}

    async def _get(self, key: str, wanted: Wanted, versioned: dict[str, Any]) -> Outcome:
        try:
            response = await obstore.get_async(self.store, key, options=_options(wanted) | versioned)
        except NotSupportedError:
            if not self._counts_from_end_only(wanted):
                response = await obstore.get_async(self.store, key, options=cast("Any", versioned))
                return _cut(_found(response, await response.bytes_async()), wanted)
            nbytes = (await obstore.head_async(self.store, key))["size"]
            options = _options(_suffix_as_offset(wanted, nbytes)) | versioned
            response = await obstore.get_async(self.store, key, options=options)
        return _found(response, await response.bytes_async())

    def _get_sync(self, key: str, wanted: Wanted, versioned: dict[str, Any]) -> Outcome:
        try:
            response = obstore.get(self.store, key, options=_options(wanted) | versioned)
        except NotSupportedError:
            if not self._counts_from_end_only(wanted):
                response = obstore.get(self.store, key, options=cast("Any", versioned))
                return _cut(_found(response, response.bytes()), wanted)
            nbytes = obstore.head(self.store, key)["size"]
            response = obstore.get(self.store, key, options=_options(_suffix_as_offset(wanted, nbytes)) | versioned)
        return _found(response, response.bytes())

    def _counts_from_end_only(self, wanted: Wanted) -> bool:
        """Whether the store only cannot count from the end, as Azure cannot; some web servers know no ranges at all."""
        return isinstance(wanted, SuffixByteRequest) and not isinstance(self.store, HTTPStore)

    async def _delete(self, keys: tuple[str, ...]) -> None:
        for batch in _batches(keys):
            try:
                await obstore.delete_async(self.store, batch)
            except _ABSENT as error:
                _require_object(error)
                # Some stores stop at the first that is not there.
                for each in batch:
                    with suppress(*_ABSENT):
                        await obstore.delete_async(self.store, each)

    def _delete_sync(self, keys: tuple[str, ...]) -> None:
        for batch in _batches(keys):
            try:
                obstore.delete(self.store, batch)
            except _ABSENT as error:
                _require_object(error)
                for each in batch:
                    with suppress(*_ABSENT):
                        obstore.delete(self.store, each)

    async def list(self, folder: str) -> AsyncIterator[Entry]:
        """Every object below a folder."""
        async for batch in translated_list(folder, aiter(self._pages(folder)), lambda: self.secrets):
            for each in batch:
                yield _entry(each)

    def _pages(self, folder: str) -> Any:
        return obstore.list(self.store, prefix=folder or None)

    async def list_folder(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """The folders and the keys directly in a folder."""
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


def secrets_of(store: Any) -> list[str]:
    """The secrets that a store of obstore was opened with."""
    if isinstance(store, HTTPStore):
        return [*secrets_of_url(str(store.url)), *secrets_in(store.client_options or {})]
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return []
    options: dict[str, Any] = {"client_options": store.client_options or {}, **store.config}
    return secrets_in(options)


def is_local(store: object) -> bool:
    """Whether this is a folder of this machine."""
    return isinstance(store, LocalStore)


def address_of(store: Any) -> tuple[object, str]:
    """Where the objects of a store are: in what, and in which folder of it."""
    match store:
        case LocalStore():
            return "this machine", (store.prefix or Path("/")).resolve().as_posix().strip("/")
        case S3Store() | GCSStore() | AzureStore():
            known = {name: str(value).rstrip("/") for name, value in store.config.items() if name in _WHERE}
            return (type(store).__name__, tuple(sorted(known.items()))), (store.prefix or "").strip("/")
        case _:
            # One in memory is where no other is; so is a session.
            return store, ""


def url_of(store: Any) -> str | None:
    """The URL that the objects of a store are below, None if they have none: in memory, for one."""
    folder = str(getattr(store, "prefix", None) or "").strip("/")
    match store:
        case LocalStore():
            return (store.prefix or Path("/")).absolute().as_uri().rstrip("/")
        case S3Store():
            scheme, name = "s3", store.config.get("bucket")
        case GCSStore():
            scheme, name = "gs", store.config.get("bucket")
        case AzureStore():
            scheme, name = "az", store.config.get("container_name")
        case HTTPStore():
            return str(store.url).rstrip("/")
        case _:
            return None
    if not name:
        found = f"a {type(store).__name__} that does not"
        raise StoreConfigError("store", "a store that says which bucket it is", found)
    return f"{scheme}://{name}/{folder}".rstrip("/")


def shown_address(store: Any) -> str:
    """Return where the objects of a store are, as errors show it: without secrets."""
    url = hide_in_url(url_of(store) or type(store).__name__)
    endpoint = getattr(store, "config", {}).get("endpoint")
    return f"{url!r}" if endpoint is None else f"{url!r} at {hide_in_url(str(endpoint))}"


def open_url(url: str | Path, options: dict[str, Any], *, create: bool) -> Any:
    """The obstore store at a URL, or in a folder of this machine; `create` makes the folder."""
    text = str(url)
    scheme = text.partition("://")[0] if "://" in text else ""
    if not scheme and _MISTYPED.match(text):
        # What follows is not shown: it may be a password.
        raise StoreConfigError("url", "a path, or a URL with '://' behind its scheme", f"{text.partition(':')[0]}:***")
    require_options(options)
    try:
        return _open(text, scheme, options, create=create)
    except StoreConfigError:
        raise
    # Without the cause: obstore may repeat what it was given, and that may be a secret.
    except (UnknownConfigurationKeyError, TypeError):
        names = ", ".join(sorted(map(hide_name, options))) or "none"
        wrong = StoreConfigError("options", f"obstore's options for {scheme or 'file'}://", names)
    except BaseException as error:
        if not is_foreign(error) and not isinstance(error, ValueError | ArithmeticError):
            raise
        shown = describe(text)
        if not scheme or scheme == "file":
            reason = failure("open", text, error).args[-1]
            wrong = StoreConfigError("url", "a folder that can be opened", f"{shown} ({reason})")
        elif scheme in _SCHEMES:
            wrong = StoreConfigError("url", f"an address and options that obstore takes for {scheme}://", shown)
        else:
            wrong = StoreConfigError("url", f"a path, or one of {', '.join(_SCHEMES)}", shown)
    raise wrong


def _open(text: str, scheme: str, options: dict[str, Any], *, create: bool) -> Any:
    if not scheme or scheme == "file":
        folder = local_path(text) if scheme else Path(text).expanduser().absolute()
        # Without clean-up, a folder whose last object is gone stays, and is listed.
        return LocalStore(folder, **{"mkdir": create, "automatic_cleanup": True, **options})
    if scheme == "memory":
        return MemoryStore(**options)
    allowed = _allowing_http(options)
    return without_redirects(from_url(text, **(client_options_for(allowed) if scheme in ("s3", "s3a") else allowed)))


def local_path(url: str) -> Path:
    # Not by `urlsplit`, which raises for some hosts, and repeats them.
    host, slash, path = url.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise StoreConfigError("url", "file:///path, on this machine", describe(url))
    return Path(urllib.request.url2pathname(f"{slash}{path}".partition("?")[0].partition("#")[0]))


def _allowing_http(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with plain HTTP allowed where the caller's own endpoint is of that kind."""
    endpoint = options.get("endpoint") or options.get("aws_endpoint") or ""
    if not str(endpoint).startswith("http://"):
        return options
    return {**options, "client_options": {"allow_http": True, **(options.get("client_options") or {})}}


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


def _suffix_as_offset(wanted: Wanted, nbytes: int) -> Wanted:
    """The same range, for stores that cannot count from the end: Azure."""
    return OffsetByteRequest(max(0, nbytes - wanted.suffix)) if isinstance(wanted, SuffixByteRequest) else wanted


def _cut(found: Found, wanted: Wanted) -> Outcome:
    """The range asked for of a whole object, for web servers that know no ranges."""
    span = resolve(wanted, found.nbytes)
    if wanted is not None and span.nbytes == 0:
        return OutOfRange()
    return replace(found, data=memoryview(found.data)[span.start : span.stop], span=span)


def _refuse(request: Lock | Move | Refer) -> Never:
    raise TypeError(f"no object store has locks, renames and references: {request}")


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["e_tag"], meta["last_modified"])


def _put_options(put: Put, *, keeps_tags: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    match put.condition:
        case IfAbsent():
            options["mode"] = "create"
        case IfMatch(etag, version):
            # Not with None in it: obstore refuses that.
            known = {"e_tag": etag, "version": version}
            options["mode"] = {name: value for name, value in known.items() if value is not None}
    if put.tag is not None and keeps_tags:
        options["attributes"] = {ATTRIBUTE: str(put.tag)}
    if put.condition is not None or put.tag is not None:
        # A part is one request, so that it is there whole or not at all, with one kind of ETag.
        options["use_multipart"] = False
    return options


def _found(response: Any, data: Any) -> Found:
    meta = response.meta
    start, stop = response.range
    span = Span(start, stop) if len(data) == stop - start else Span(0, 0)
    # A web server may know no ETags; when it was changed, and to what size, has to do then.
    etag = meta["e_tag"] or f"{meta['last_modified']}, {meta['size']}"
    tag = Tag.parse(response.attributes.get(ATTRIBUTE))
    return Found(data, span, meta["size"], etag, meta["version"], tag)


def _outcome(request: BackendRequest, error: Exception, backend: ObjectBackend) -> Outcome:
    """What an error of obstore means, or the error itself where it means nothing that is expected."""
    _require_object(error)
    match request:
        case Get() | Head() if isinstance(error, _ABSENT) or _is_below_file(error):
            return Missing()
        case Get() if isinstance(error, GenericError) and _is_out_of_range(error):
            return OutOfRange()
        case Get(if_match=str()) if isinstance(error, PreconditionError):
            return Refused()
        # "Not found" is what some say of a condition on an object that is gone.
        case Put(condition=IfAbsent() | IfMatch()) if isinstance(error, _REFUSALS):
            return Refused()
        case Put() | Delete() if _is_not_implemented(error):
            # This is an answer: to ask again is of no use.
            pass
        # A time-out, or a connection that was closed: MinIO closes some that it refuses, before it has read the body.
        case Put(tag=Tag()) | Put(condition=IfAbsent() | IfMatch()) | Delete() if isinstance(error, GenericError):
            return Lost(failure(type(request).__name__.lower(), _key_of(request), error, backend.secrets))
    raise error


def _without_retries(store: S3Store) -> S3Store:
    """Return a store on the same objects that makes each request once."""
    return S3Store(
        prefix=store.prefix,
        config=store.config,
        client_options=store.client_options,
        retry_config={"max_retries": 0},
        credential_provider=store.credential_provider,
    )


def _is_not_implemented(error: Exception) -> bool:
    # The words are obstore's. No key can imitate them, since a key has no spaces where an error shows it.
    return isinstance(error, BaseError) and "status code: 501" in str(error)


def _is_out_of_range(error: BaseError) -> bool:
    # By what obstore says of a local disk and of memory, and S3; never by a number, which may be in a key.
    return any(words in str(error) for words in _OUT_OF_RANGE)


def _is_below_file(error: Exception) -> bool:
    """Whether the key leads through a file of a local disk, as if it were a folder: nothing can be there."""
    return isinstance(error, GenericError) and _BELOW_FILE.search(str(error)) is not None


def _require_object(error: Exception) -> None:
    """Raise the error if it is not an object that is absent: a whole bucket, for one."""
    if not speaks_of_object(error):
        raise error


def _key_of(request: Put | Delete) -> str:
    return request.key if isinstance(request, Put) else request.keys[0]


def _batches(keys: tuple[str, ...]) -> list[list[str]]:
    return [list(keys[at : at + MAX_BULK_DELETE]) for at in range(0, len(keys), MAX_BULK_DELETE)]
