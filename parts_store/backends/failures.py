"""Responses and errors of obstore as outcomes; errors of the operating system and Rust as errors of this package.

Reads the texts of obstore's errors. Does not call obstore.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from xml.sax.saxutils import unescape

from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from parts_store.engine import steps
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Delete, Found, List, Lock, Move, Outcome
from parts_store.errors import PartsStoreError, StorageError, StoreConfigError, raise_translated
from parts_store.format.layout import Span, Wanted, resolve
from parts_store.format.tags import ATTRIBUTE, Tag
from parts_store.redaction import hide_secrets

# The address of a proxy that never answers, because no program can listen on port 0. See `obstore_options`.
NO_PROXY_THERE: Final = "127.0.0.1:0"
# What Rust says if obstore cannot start its threads, and in every later call: it starts them once in a process.
_NO_RUNTIME: Final = ("Unable to build Tokio runtime", "PoisonError")
_WITHOUT_RUNTIME: Final = (
    "obstore could not start its threads, most likely because too many files were open, and does not try it again in "
    "this process; close files, or raise the limit (`ulimit -n`), and start the process again"
)
_MAX_MESSAGE: Final = 300
_NO_REASON: Final = "no reason was given"
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
# Codes of a response 404 that are not about the object.
_NOT_ABOUT_OBJECT: Final = re.compile("bucket|container|account|resource|host", re.IGNORECASE)
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
    "AccessDenied": "these credentials do not permit it",
    "401": "the server asks for credentials",
    "403": "these credentials, or access without credentials, do not permit it",
    "RequestTimeTooSkewed": "set this machine's clock",
    "NotImplemented": "the server does not support it",
    "Timeout": "allow more time: client_options={'timeout': '120s'}",
    "Connect": "check `endpoint` or the URL, and that the server runs",
}


def is_panic(error: BaseException) -> bool:
    """Return whether Rust code panicked: the exception of pyo3 is not an `Exception` and cannot be imported."""
    return type(error).__module__ in ("pyo3_runtime", "pyo3_async_runtimes")


def is_foreign(error: BaseException) -> bool:
    """Return whether an error is from obstore, the operating system or a panic, and has to be translated."""
    is_from_obstore = type(error).__module__ == "obstore.exceptions" or is_wrong_key(error)
    return isinstance(error, OSError) or is_from_obstore or is_panic(error)


def is_wrong_key(error: BaseException) -> bool:
    """Return whether obstore refuses a key: an empty segment, '.' or '..', or a control character."""
    return type(error) is ValueError and str(error).startswith("Could not parse path")


def is_about_object(error: BaseException) -> bool:
    """Return whether "not found" means the object, and not the bucket; True if the response does not say it."""
    code = _code(str(error))
    return code is None or _NOT_ABOUT_OBJECT.search(code) is None


def failure(operation: str, key: str, error: BaseException, secrets: Iterable[str] = ()) -> PartsStoreError:
    """Return the error of this package for an error of obstore, the operating system or Rust."""
    text = str(error)
    if is_panic(error):
        if any(each in text for each in _NO_RUNTIME):
            return StorageError(key, operation, None, _WITHOUT_RUNTIME)
        said = hide_secrets(text, secrets).partition("\n")[0][:_MAX_MESSAGE]
        expected = "an address, options and credentials that obstore accepts"
        return StoreConfigError(f"object store, {operation} {key!r}", expected, f"some that make it fail ({said})")
    if is_wrong_key(error):
        expected = "segments that are neither empty nor '.' or '..', and have no control characters"
        return StoreConfigError(f"object store, {operation}, key", expected, repr(key))
    code, message = _code_and_message(text)
    if isinstance(error, OSError) and error.strerror is not None:
        code, message = code or type(error).__name__, error.strerror
    advice = _ADVICE.get(code or "", "")
    message = " ".join(hide_secrets(message, secrets).split())[:_MAX_MESSAGE].rstrip(".")
    return StorageError(key, operation, code, f"{message}; {advice}" if advice else message)


def _code(text: str) -> str | None:
    found = _CODE.search(text)
    return None if found is None else found[1] or found[2]


def _code_and_message(text: str) -> tuple[str | None, str]:
    """Return the error code in an error text of obstore, and its message in one line, without the debug text."""
    if NO_PROXY_THERE in text:
        problem = "the server redirects to another host, which is not followed; open the store there, or allow the host"
        return "Redirect", f"{problem}: client_options={{'proxy_excludes': 'HOST'}}"
    said, _, dump = text.partition("\n\nDebug source")
    return (
        _from_response(said)
        or _without_response(said, dump)
        or (None, _GENERIC.sub("", _BEFORE.sub("", said)).strip() or _NO_REASON)
    )


def _from_response(said: str) -> tuple[str, str] | None:
    """Return the code and the message of the response that a server sent; None if there is none."""
    code, status = _code(said), _STATUS.search(said)
    if code is not None:
        message = _MESSAGE.search(said)
        return code, unescape((message[1] or message[2] or "") if message else "") or _NO_REASON
    if status is not None:
        return status[1], (status[2] or "").strip().lower() or _NO_REASON
    if "redirect without LOCATION" in said:
        return "PermanentRedirect", "the bucket is in another region, or at another endpoint"
    return None


def _without_response(said: str, dump: str) -> tuple[str | None, str] | None:
    """Return the code and the message for a request that was not sent or not answered; None if it was answered."""
    if "BadScheme" in dump:
        allow = "client_options={'allow_http': True} allows it, or AWS_ALLOW_HTTP=true in the environment"
        return None, f"plain HTTP is not allowed; {allow}"
    kind, host = _KIND.search(dump), _HOST.search(said)
    at = f" to {host[1]}{host[2].rpartition('@')[2]}" if host is not None else ""
    match kind[1] if kind is not None else None:
        case "Timeout":
            return "Timeout", f"no response to the request{at} in time"
        case "Connect":
            found = _REASON.search(dump)
            reason = "no connection" if found is None else next(filter(None, found.groups())).lower()
            return "Connect", f"the request{at} could not be sent: {reason}"
        case _:
            return None


@contextmanager
def translated(operation: str, key: str, secrets: Callable[[], Iterable[str]] = tuple) -> Iterator[None]:
    """Raise errors of this package in place of those of obstore, the operating system and Rust."""
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise_translated(failure(operation, key, error, secrets()))


def name_and_key(request: BackendRequest | Lock) -> tuple[str, str]:
    """Return the name of a request, and its key."""
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


# What obstore raises for an absent object, also for one below a file.
ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Some stores answer "not found" to a condition on an object that was deleted.
REFUSALS: Final = (AlreadyExistsError, PreconditionError, FileNotFoundError)
_OUT_OF_RANGE: Final = (
    "Requested range was invalid",
    # obstore, which compares the range with the size that the response names.
    "Wanted range starting at",
    "<Code>InvalidRange</Code>",
    "416 Range Not Satisfiable",
    "416 Requested Range Not Satisfiable",
    # MinIO, for a range that counts from the end of an empty object.
    'CONTENT_RANGE header: "bytes 0--1/0"',
)
# In obstore's debug text of an error of the operating system.
_BELOW_FILE: Final = re.compile(r"Os \{\s+code: \d+,\s+kind: NotADirectory,")


def entry_of(meta: Any) -> steps.Entry:
    """Return the entry of a listing for the metadata of an object."""
    return steps.Entry(meta["path"], meta["size"], meta["e_tag"], meta["last_modified"])


def found_of(response: Any, data: Any) -> Found:
    """Return the outcome of a GET or HEAD with this response."""
    meta = response.meta
    start, stop = response.range
    span = Span(start, stop) if len(data) == stop - start else Span(0, 0)
    # A server without ETags: the time of the last change and the size take its place, which two writes may share.
    etag = meta["e_tag"] or f"W/{meta['last_modified']}, {meta['size']}"
    tag = Tag.parse(response.attributes.get(ATTRIBUTE))
    return Found(data, span, meta["size"], etag, meta["version"], tag)


def range_of(found: Found, wanted: Wanted) -> Outcome:
    """Return the requested range of a whole object, for web servers that do not support ranges."""
    span = resolve(wanted, found.nbytes)
    if wanted is not None and span.nbytes == 0:
        return steps.OutOfRange()
    return replace(found, data=memoryview(found.data)[span.start : span.stop], span=span)


def outcome_of(request: BackendRequest, error: Exception, secrets: Callable[[], Iterable[str]]) -> Outcome:
    """Return the outcome that an error of obstore stands for; raise the error if it stands for none."""
    require_about_object(error)
    match request:
        case steps.Get() | steps.Head() if isinstance(error, ABSENT) or _is_below_file(error):
            return steps.Missing()
        case steps.Get() if isinstance(error, GenericError) and _is_out_of_range(error):
            return steps.OutOfRange()
        case steps.Get(if_match=str()) if isinstance(error, PreconditionError):
            return steps.Refused()
        case steps.Put(condition=steps.IfAbsent() | steps.IfMatch()) if isinstance(error, REFUSALS):
            return steps.Refused()
        case steps.Put() | steps.Delete() if is_not_implemented(error):
            # The server answered. A retry would get the same answer.
            pass
        # A timeout or a closed connection.
        case steps.Put(tag=tag, condition=condition) if isinstance(error, GenericError) and (tag or condition):
            return steps.Lost(failure(*name_and_key(request), error, secrets()))
        case steps.Delete() if isinstance(error, GenericError):
            return steps.Lost(failure(*name_and_key(request), error, secrets()))
    raise error


def is_not_implemented(error: Exception) -> bool:
    """Return whether the server answered 501."""
    # A key cannot contain these words, because it has no spaces where an error shows it.
    return isinstance(error, BaseError) and "status code: 501" in str(error)


def _is_out_of_range(error: BaseError) -> bool:
    # By the words of obstore and of the servers. A number alone may be in a key.
    return any(words in str(error) for words in _OUT_OF_RANGE)


def _is_below_file(error: Exception) -> bool:
    """Return whether the key is below a file of a local disk, where no object can be."""
    return isinstance(error, GenericError) and _BELOW_FILE.search(str(error)) is not None


def require_about_object(error: Exception) -> None:
    """Raise the error if it says that something other than an object is absent, such as the bucket."""
    if not is_about_object(error):
        raise error
