"""Errors of obstore, of the operating system and of Rust as our own: which store error it was, and what to do.

Reads what obstore says. Does not call obstore.
"""

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, NoReturn
from xml.sax.saxutils import unescape

from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Delete, List, Lock, Move
from parts_store.errors import PartsStoreError, StorageError, StoreConfigError, raise_translated
from parts_store.redaction import hide_secrets

# A proxy that never answers: port 0 cannot be connected to. See `guards`.
NO_PROXY_THERE: Final = "127.0.0.1:0"
_MAX_MESSAGE: Final = 300
# In the debug dump of obstore, which is looked at and never shown.
_CODE: Final = re.compile(r"<Code>\s*([\w.-]+)\s*</Code>|\(code: ([\w.-]+)\)")
_MESSAGE: Final = re.compile(r"<Message>(.*?)</Message>|for key .*?: (.*) \(code: [\w.-]+\)", re.DOTALL)
_STATUS: Final = re.compile(r"status code: (\d{3}) ?([A-Za-z '-]*)")
_KIND: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_REASON: Final = re.compile(r'message: "([^"]*)"|"(failed to lookup address information[^"]*)"|"(invalid peer[^"]*)"')
_HOST: Final = re.compile(r"Error performing [A-Z]+ (https?://)([^/\s?#]+)")
_BEFORE: Final = re.compile(
    r"^.*?Error performing (?:[a-z]+ request: Error performing )?[A-Z]+ \S+ in .*? - ", re.DOTALL
)
_GENERIC: Final = re.compile(r"^Generic \w+ error: ")
# Codes of a response 404 that do not speak of the object.
_NOT_OF_OBJECT: Final = re.compile("bucket|container|account|resource|host", re.IGNORECASE)
_CREDENTIALS: Final = (
    "check the credentials: access_key_id and secret_access_key, or the environment's AWS_ACCESS_KEY_ID"
)
_REGION: Final = "check `region` and `endpoint`"
_ADVICE: Final = {
    "NoSuchBucket": "create the bucket, or check its name and `endpoint`",
    "ContainerNotFound": "create the container, or check its name and `account_name`",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "InvalidToken": "check `session_token`: it is wrong",
    "ExpiredToken": "renew the credentials: the session token has expired",
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "AccessDenied": "these credentials may not do that there",
    "401": "the server asks for credentials",
    "403": "these credentials, or a reader without any, may not do that there",
    "RequestTimeTooSkewed": "set this machine's clock",
    "NotImplemented": "the server cannot do that",
    "Timeout": "allow more time: client_options={'timeout': '120s'}",
    "Connect": "check `endpoint` or the URL, and that the server runs",
}


def is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up: pyo3's exception is not an `Exception`, and has no name that can be imported."""
    return type(error).__module__ in ("pyo3_runtime", "pyo3_async_runtimes")


def is_foreign(error: BaseException) -> bool:
    """Whether an error is obstore's, the operating system's or a panic, and so to be translated."""
    is_of_obstore = type(error).__module__ == "obstore.exceptions" or is_wrong_key(error)
    return isinstance(error, OSError) or is_of_obstore or is_panic(error)


def is_wrong_key(error: BaseException) -> bool:
    """Whether obstore refuses a key: an empty segment, '.' or '..', or a control character."""
    return type(error) is ValueError and str(error).startswith("Could not parse path")


def speaks_of_object(error: BaseException) -> bool:
    """Whether "not found" means the object: a response to a HEAD does not say what was not found."""
    code = _code(str(error))
    return code is None or _NOT_OF_OBJECT.search(code) is None


def failure(operation: str, key: str, error: BaseException, secrets: Iterable[str] = ()) -> PartsStoreError:
    """Return our own error for one of obstore's, of the operating system's, or of Rust's."""
    text = str(error)
    if is_panic(error):
        said = hide_secrets(text, secrets).partition("\n")[0][:_MAX_MESSAGE]
        expected = "an address, options and credentials that obstore can make a request of"
        return StoreConfigError(f"object store, {operation} {key!r}", expected, f"some that it fails at ({said})")
    if is_wrong_key(error):
        expected = "segments that are neither empty nor '.' or '..', and have no control characters"
        return StoreConfigError(f"object store, {operation}, key", expected, repr(key))
    code, message = _told(text)
    if isinstance(error, OSError) and error.strerror is not None:
        code, message = code or type(error).__name__, error.strerror
    advice = _ADVICE.get(code or "", "")
    message = " ".join(hide_secrets(message, secrets).split())[:_MAX_MESSAGE].rstrip(".")
    return StorageError(key, operation, code, f"{message}; {advice}" if advice else message)


def _code(text: str) -> str | None:
    found = _CODE.search(text)
    return None if found is None else found[1] or found[2]


def _told(text: str) -> tuple[str | None, str]:
    """The code of an error of obstore's, and what it says, in one line, without the dump behind it."""
    if NO_PROXY_THERE in text:
        problem = "the server redirects to another host, which is not followed; open the store there, or allow the host"
        return "Redirect", f"{problem}: client_options={{'proxy_excludes': 'HOST'}}"
    said, _, dump = text.partition("\n\nDebug source")
    code, status = _code(said), _STATUS.search(said)
    message = _MESSAGE.search(said)
    if code is not None:
        return code, unescape((message[1] or message[2] or "") if message else "") or "no reason was given"
    if status is not None:
        return status[1], (status[2] or "").strip().lower() or "no reason was given"
    if "redirect without LOCATION" in said:
        return "PermanentRedirect", "the bucket is in another region, or at another endpoint"
    if "BadScheme" in dump:
        allow = "client_options={'allow_http': True} allows it, or AWS_ALLOW_HTTP=true in the environment"
        return None, f"plain HTTP is not allowed; {allow}"
    kind, host = _KIND.search(dump), _HOST.search(said)
    at = f" to {host[1]}{host[2].rpartition('@')[2]}" if host is not None else ""
    if kind is not None and kind[1] == "Timeout":
        return "Timeout", f"no response to the request{at} in time"
    if kind is not None and kind[1] == "Connect":
        found = _REASON.search(dump)
        reason = "no connection" if found is None else next(filter(None, found.groups())).lower()
        return "Connect", f"the request{at} could not be sent: {reason}"
    return None, _GENERIC.sub("", _BEFORE.sub("", said)).strip() or "no reason was given"


def raise_failure(operation: str, key: str, error: BaseException, secrets: Iterable[str] = ()) -> NoReturn:
    """Raise our own error in place of another."""
    raise_translated(failure(operation, key, error, secrets))


@contextmanager
def translated(operation: str, key: str, secrets: Callable[[], Iterable[str]] = tuple) -> Iterator[None]:
    """Raise our own errors in place of obstore's, the operating system's and Rust's."""
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise_failure(operation, key, error, secrets())


def _named(request: BackendRequest | Lock) -> tuple[str, str]:
    """What a request is called, and the key that it is about."""
    match request:
        case Delete(keys):
            key = keys[0] if keys else ""
        case List(folder):
            key = folder
        case Move(source):
            key = source
        case _:
            key = request.key
    return type(request).__name__.lower(), key


def translating[B: Any, R: Any, T](perform: Callable[[B, R], T]) -> Callable[[B, R], T]:
    """Decorate the method of a backend that carries out a request, so that it raises our own errors only."""

    @wraps(perform)
    def call(backend: B, request: R) -> T:
        with translated(*_named(request), lambda: backend.secrets):
            return perform(backend, request)

    return call


def translating_async[B: Any, R: Any, T](
    perform: Callable[[B, R], Coroutine[Any, Any, T]],
) -> Callable[[B, R], Coroutine[Any, Any, T]]:
    """Decorate the same with an event loop."""

    @wraps(perform)
    async def call(backend: B, request: R) -> T:
        with translated(*_named(request), lambda: backend.secrets):
            return await perform(backend, request)

    return call


async def translated_list[T](
    folder: str, entries: AsyncIterator[T], secrets: Callable[[], Iterable[str]]
) -> AsyncIterator[T]:
    """Yield the entries of a listing, and raise our own errors only."""
    while True:
        with translated("list", folder, secrets):
            try:
                entry = await anext(entries)
            except StopAsyncIteration:
                return
        yield entry
