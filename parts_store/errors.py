"""The exceptions of parts_store: one tree, grouped by what a handler would do.

    PartsStoreError
    ├── PartsConfigError (a ValueError)         the parts are wrong: mend the call or the document
    ├── UnknownTransformerError (a ValueError)  the array is stored in a way that we do not know
    ├── StoreConfigError (a ValueError)         the store cannot be opened like that
    │   └── ServerFeatureError                  the server lacks what writing needs: it says what to do instead
    ├── StorageError                            the object store refused a request, or did not answer: it says why
    ├── SessionError                            an Icechunk session cannot do that, or failed: its message says why
    │   └── ReadOnlySessionError (a ValueError) the session is read only, or was committed: open a new one
    ├── AdoptionError                           a file cannot be adopted, or not all of it: it says what, and why
    ├── ManifestError (a ValueError)            references are wrong, or cannot do that: mend them, or load the values
    ├── LocationError                           a file that is referred to may not be read, or not so: register it, or
    │                                           make the references anew
    ├── ClusterWriteError                       tasks of a cluster failed: nothing was committed; it says which, and why
    ├── LocalPathError                          a folder of this machine has something else where a file or a folder
    │                                           should be, or the key leads out of it: its message says what to remove
    ├── ReservedKeyError (a ValueError)         the key is a part's, or the protocol's: not to be used by itself
    ├── ChunkSizeError (a ValueError)           the value does not fit the parts: nothing was written
    ├── PartSizeError                           a stored part has another size than it should: it is damaged
    ├── IncompleteChunkError                    a part is missing, or of another write: it is damaged
    ├── LayoutChangedError                      the array was created again since it was opened: open it again
    ├── ConcurrentWriteError                    the chunk changed, or kept changing: read again, then write again
    ├── AmbiguousWriteError                     nobody can know whether the chunk was written: look, then decide
    ├── CopyMismatchError                       what was copied reads otherwise than it was written
    ├── CodecError (a ValueError)               a chunk cannot be encoded, or what is stored cannot be decoded
    │   ├── CodecConfigError                    the codec's configuration is wrong: mend the call or the document
    │   └── UnboundPaddingError                 the padding is made by a callable, and none is bound: bind one
    └── HeaderError (a ValueError)              the file format has no header for such a chunk

None of them is a `FileNotFoundError` or a `KeyError`: zarr would take those for absence, and turn damage into fill
values. All of them survive pickling, because their fields are their `args`. None of them shows a password or a
signature that is in a URL.

Everything that the package raises is one of these, with four exceptions, which zarr expects of a store:
`FileNotFoundError` from `getsize` of a key that is not there; a `BaseExceptionGroup` with a `FileNotFoundError` from
`get_ranges` of such a key; `ValueError` from a write to a store that is read only; `TypeError` and `ValueError` for
arguments of a wrong type. Beside these, `pickle.PicklingError` says that a store cannot be pickled, and `ImportError`
that an extra is not installed. What zarr itself raises (`ContainsArrayError`, `NodeNotFoundError` ...) stays as it is.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, override

from parts_store.redaction import SHOWN, hide_in_text, hide_secrets

__all__ = [
    "AdoptionError",
    "AmbiguousWriteError",
    "ChunkSizeError",
    "ClusterWriteError",
    "CodecConfigError",
    "CodecError",
    "ConcurrentWriteError",
    "CopyMismatchError",
    "HeaderError",
    "IncompleteChunkError",
    "LayoutChangedError",
    "LocalPathError",
    "LocationError",
    "ManifestError",
    "PartSizeError",
    "PartsConfigError",
    "PartsStoreError",
    "ReadOnlySessionError",
    "ReservedKeyError",
    "ServerFeatureError",
    "SessionError",
    "StorageError",
    "StoreConfigError",
    "UnboundPaddingError",
    "UnknownTransformerError",
]

# So many failures are told one by one.
_MAX_SHOWN = 10


def describe(value: object) -> str:
    """The value as an error message shows it: its `repr`, cut where it is long."""
    try:
        return SHOWN.repr(value)
    except Exception:
        return f"a value of type {type(value).__name__}"


class PartsStoreError(Exception):
    """The root of everything that parts_store raises on purpose."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let no error of this class keep a URL with a password or a signature."""
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls):
            cls.__init__ = _without_secrets(cls.__init__)  # type: ignore[method-assign]


def _without_secrets(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def hiding(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *map(_hide, args), **{name: _hide(value) for name, value in kwargs.items()})

    return hiding


def _hide(value: Any) -> Any:
    match value:
        case str():
            return hide_in_text(value)
        case tuple():
            return tuple(map(_hide, value))
        case _:
            return value


def raise_translated(error: PartsStoreError, original: BaseException | None = None) -> NoReturn:
    """Raise our own error in place of another library's, which may hold secrets and is therefore not kept.

    What caused the other library's error is shown by a copy of it, without secrets.
    """
    try:
        raise error from None if original is None else without_secrets(original)
    finally:
        # Otherwise the original would still be reachable.
        error.__context__ = None


def without_secrets(error: BaseException) -> Exception:
    """Return a copy of another library's error, with its traceback, without secrets and without its own causes."""
    text = hide_secrets(str(error).partition("\n\nDebug source")[0])
    return Exception(f"{type(error).__name__}: {text}").with_traceback(error.__traceback__)


class PartsConfigError(PartsStoreError, ValueError):
    """The parts of an array are not what the specification allows, or not what writing needs."""

    def __init__(self, member: str, expected: str, found: str, array: str | None = None) -> None:
        super().__init__(member, expected, found, array)
        self.member, self.expected, self.found, self.array = member, expected, found, array

    def of_array(self, array: str) -> "PartsConfigError":
        """The same mistake, found in the array at this path."""
        return PartsConfigError(self.member, self.expected, self.found, array)

    @override
    def __str__(self) -> str:
        where = "" if self.array is None else f"array {self.array!r}, "
        return f"{where}concat-parts, {self.member!r}: expected {self.expected}, found {self.found}"


class UnknownTransformerError(PartsStoreError, ValueError):
    """An array has a storage transformer that we do not know, or more than one."""

    def __init__(self, array: str, found: str) -> None:
        super().__init__(array, found)
        self.array, self.found = array, found

    @override
    def __str__(self) -> str:
        return f"array {self.array!r}: expected one storage transformer, 'concat-parts', found {self.found}"


class StoreConfigError(PartsStoreError, ValueError):
    """A store cannot be opened from this URL or with these options."""

    def __init__(self, subject: str, expected: str, found: str) -> None:
        super().__init__(subject, expected, found)
        self.subject, self.expected, self.found = subject, expected, found

    @override
    def __str__(self) -> str:
        return f"{self.subject}: expected {self.expected}, found {self.found}"


class ServerFeatureError(StoreConfigError):
    """A server lacks a feature that is needed. Nothing was written."""

    def __init__(self, server: str, lacks: str, needed_for: str, advice: str) -> None:
        super().__init__(server, f"a server that supports {needed_for}", lacks)
        self.args = (server, lacks, needed_for, advice)
        self.server, self.lacks, self.needed_for, self.advice = server, lacks, needed_for, advice

    @override
    def __str__(self) -> str:
        return f"server {self.server} cannot support {self.needed_for}: {self.lacks}; {self.advice}"


class StorageError(PartsStoreError):
    """An object store refused a request, failed to carry it out, or did not answer.

    `operation` is the kind of request ("get", "put" ...) and `code` the store's own error code ("NoSuchBucket",
    "InvalidAccessKeyId"), the status of the response ("503") if it had none, "Timeout" or "Connect" if there was no
    response, or None. It is never raised for an object that is not there.
    """

    def __init__(self, key: str, operation: str, code: str | None, message: str) -> None:
        super().__init__(key, operation, code, message)
        self.key, self.operation, self.code, self.message = key, operation, code, message

    @override
    def __str__(self) -> str:
        code = "" if self.code is None else f"{self.code}: "
        return f"object store, {self.operation} {self.key!r}: {code}{self.message}"


class SessionError(PartsStoreError):
    """An Icechunk session cannot keep this, or did not answer as it should. What it says is the error's cause."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    @override
    def __str__(self) -> str:
        return f"session, {self.key!r}: {self.problem}"


class ReadOnlySessionError(SessionError, ValueError):
    """A session is read only, was committed, or can only move nodes. Nothing was written."""


class AdoptionError(PartsStoreError):
    """A file cannot be adopted, or not all of it where all was asked for. Nothing was written."""

    def __init__(self, location: str, problems: tuple[tuple[str, str], ...]) -> None:
        super().__init__(location, problems)
        self.location, self.problems = location, problems

    @override
    def __str__(self) -> str:
        shown = "; ".join(f"{name}: {reason}" for name, reason in self.problems[:_MAX_SHOWN])
        more = f"; and {len(self.problems) - _MAX_SHOWN} more" if len(self.problems) > _MAX_SHOWN else ""
        return f"file {self.location!r} cannot be adopted, nothing was written: {shown}{more}"


class ManifestError(PartsStoreError, ValueError):
    """References to chunks are not what they should be, or cannot do what values could."""

    def __init__(self, subject: str, expected: str, found: str) -> None:
        super().__init__(subject, expected, found)
        self.subject, self.expected, self.found = subject, expected, found

    @override
    def __str__(self) -> str:
        return f"references, {self.subject}: expected {self.expected}, found {self.found}"


class LocationError(PartsStoreError):
    """A file that a chunk refers to is in no registered store, cannot be read, or ends before the reference does."""

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(location, problem)
        self.location, self.problem = location, problem

    @override
    def __str__(self) -> str:
        return f"location {self.location!r}: {self.problem}"


class LocalPathError(PartsStoreError):
    """A key has no path in a folder of this machine that can be used: it leads out, or something is in the way."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    @override
    def __str__(self) -> str:
        return f"key {self.key!r}: {self.problem}"


class ClusterWriteError(PartsStoreError):
    """Tasks that wrote to a session from a cluster failed. Nothing was committed, and the session has none of it."""

    def __init__(self, array: str, tasks: int, failed: tuple[tuple[str, str], ...]) -> None:
        super().__init__(array, tasks, failed)
        self.array, self.tasks, self.failed = array, tasks, failed

    @override
    def __str__(self) -> str:
        shown = "; ".join(f"{region}: {problem}" for region, problem in self.failed[:_MAX_SHOWN])
        more = f"; and {len(self.failed) - _MAX_SHOWN} more" if len(self.failed) > _MAX_SHOWN else ""
        count = f"{len(self.failed)} of {self.tasks} tasks failed"
        return f"array {self.array!r}: {count}, nothing is committed: {shown}{more}"


class ReservedKeyError(PartsStoreError, ValueError):
    """A key belongs to a part of a chunk, or to the write protocol, and cannot be written by itself."""

    def __init__(self, key: str, owner: str) -> None:
        super().__init__(key, owner)
        self.key, self.owner = key, owner

    @override
    def __str__(self) -> str:
        return f"key {self.key!r} belongs to {self.owner}, and cannot be written by itself"


class ChunkSizeError(PartsStoreError, ValueError):
    """The bytes of a chunk do not fit the sizes of its parts. Nothing was written."""

    def __init__(self, chunk_key: str, expected: str, found: int) -> None:
        super().__init__(chunk_key, expected, found)
        self.chunk_key, self.expected, self.found = chunk_key, expected, found

    @override
    def __str__(self) -> str:
        return f"chunk {self.chunk_key!r}: expected {self.expected} bytes for its parts, found {self.found}"


class PartSizeError(PartsStoreError):
    """A stored part has another size than the array, or its own write, says."""

    def __init__(self, part_key: str, expected: int, found: int) -> None:
        super().__init__(part_key, expected, found)
        self.part_key, self.expected, self.found = part_key, expected, found

    @override
    def __str__(self) -> str:
        return f"part {self.part_key!r}: expected {self.expected} bytes, found {self.found}"


class IncompleteChunkError(PartsStoreError):
    """A chunk exists, and some of its parts are missing or of another write."""

    def __init__(
        self, chunk_key: str, missing: tuple[str, ...], mixed: tuple[str, ...], problem: str | None = None
    ) -> None:
        super().__init__(chunk_key, missing, mixed, problem)
        self.chunk_key, self.missing, self.mixed, self.problem = chunk_key, missing, mixed, problem

    @override
    def __str__(self) -> str:
        if self.problem is not None:
            return f"chunk {self.chunk_key!r} is incomplete: {self.problem}"
        missing = [f"no object at {', '.join(map(repr, self.missing))}"] if self.missing else []
        mixed = [f"another write's object at {', '.join(map(repr, self.mixed))}"] if self.mixed else []
        return f"chunk {self.chunk_key!r} is incomplete: {' and '.join(missing + mixed)}"


class LayoutChangedError(PartsStoreError):
    """An array was created again with another layout since it was opened. Nothing was written.

    Raised as well where consolidated metadata is out of date, and for a chunk that was written with another layout.
    """

    def __init__(self, array: str, problem: str) -> None:
        super().__init__(array, problem)
        self.array, self.problem = array, problem

    @override
    def __str__(self) -> str:
        return f"array {self.array!r}: {self.problem}"


class ConcurrentWriteError(PartsStoreError):
    """Somebody else wrote a chunk while it was read or changed. If it was to be written, it was not."""

    def __init__(self, chunk_key: str, problem: str) -> None:
        super().__init__(chunk_key, problem)
        self.chunk_key, self.problem = chunk_key, problem

    @override
    def __str__(self) -> str:
        return f"chunk {self.chunk_key!r} is being written by somebody else: {self.problem}; read it again"


class AmbiguousWriteError(PartsStoreError):
    """Nobody can know whether a chunk was written: no answer came."""

    def __init__(self, chunk_key: str, problem: str) -> None:
        super().__init__(chunk_key, problem)
        self.chunk_key, self.problem = chunk_key, problem

    @override
    def __str__(self) -> str:
        return f"chunk {self.chunk_key!r} may have been written or not: {self.problem}"


class CopyMismatchError(PartsStoreError):
    """What was copied reads otherwise than it was written: the destination does not keep what it is given."""

    def __init__(self, key: str, expected: int, found: int | None) -> None:
        super().__init__(key, expected, found)
        self.key, self.expected, self.found = key, expected, found

    @override
    def __str__(self) -> str:
        found = "nothing" if self.found is None else f"{self.found} bytes that are not the same"
        return f"copy at {self.key!r}: expected the {self.expected} bytes that were written, found {found}"


class CodecError(PartsStoreError, ValueError):
    """A chunk cannot be encoded, or what is stored is not what the codec writes."""

    def __init__(self, codec: str, expected: str, found: str) -> None:
        super().__init__(codec, expected, found)
        self.codec, self.expected, self.found = codec, expected, found

    @override
    def __str__(self) -> str:
        return f"codec {self.codec!r}: expected {self.expected}, found {self.found}"


class CodecConfigError(CodecError):
    """A member of a codec's configuration is missing, unknown or not what it should be."""

    def __init__(self, codec: str, member: str, expected: str, found: str) -> None:
        super().__init__(codec, expected, found)
        self.args = (codec, member, expected, found)
        self.member = member

    @override
    def __str__(self) -> str:
        return f"codec {self.codec!r}, member {self.member!r}: expected {self.expected}, found {self.found}"


class UnboundPaddingError(CodecError):
    """A chunk would be written, its padding is made by a callable, and none is bound."""

    def __init__(self, codec: str, argument: str) -> None:
        super().__init__(codec, f"a callable bound as {argument!r}", "none")
        self.args = (codec, argument)
        self.argument = argument

    @override
    def __str__(self) -> str:
        return (
            f"codec {self.codec!r}: this array's chunks get their padding from a callable, which is never stored; "
            "bind it with `parts_store.codecs.bind_padding(array, callable)` and write to the array that returns"
        )


class HeaderError(PartsStoreError, ValueError):
    """A file format has no header that describes such a chunk."""

    def __init__(self, file_format: str, expected: str, found: str) -> None:
        super().__init__(file_format, expected, found)
        self.file_format, self.expected, self.found = file_format, expected, found

    @override
    def __str__(self) -> str:
        return f"{self.file_format} header: expected {self.expected}, found {self.found}"
