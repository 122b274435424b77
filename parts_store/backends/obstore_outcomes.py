"""Responses and errors of obstore as outcomes of requests."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from parts_store.backends.failures import failure, is_about_object, name_and_key
from parts_store.engine import steps
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Found, Outcome
from parts_store.format.ranges import Span, Wanted, resolve
from parts_store.format.tags import ATTRIBUTE, Tag

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
