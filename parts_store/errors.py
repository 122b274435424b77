"""The exceptions of parts_store: one tree, with one class for each thing that a caller would do differently.

    PartsStoreError
    ├── PartsConfigError (a ValueError)         the parts are wrong: correct the call or the document
    ├── UnknownTransformerError (a ValueError)  the array has a storage transformer that is not supported
    ├── StoreConfigError (a ValueError)         the store cannot be opened with this URL or these options
    │   └── ServerFeatureError                  the server lacks a feature for writing: the message says what to do
    ├── StorageError                            the object store refused a request, or did not answer
    ├── SessionError                            an Icechunk session does not support it, or failed
    │   ├── ReadOnlySessionError (a ValueError) the session is read-only or was committed: open a new session
    │   └── NoAccessError                       the repository was opened without access to the files of references
    ├── AdoptionError                           a file, or some of it, cannot be adopted
    ├── ManifestError (a ValueError)            references are wrong, or do not support this: load the values
    ├── LocationError                           a referenced file is not registered, cannot be read, or was changed
    ├── ClusterWriteError                       tasks of a cluster failed, and nothing was committed
    ├── LocalPathError                          a key leads out of the local folder, or a file is in place of a folder
    ├── ReservedKeyError (a ValueError)         the key belongs to a part or to the write protocol
    ├── ChunkSizeError (a ValueError)           the value does not fit the sizes of the parts: nothing was written
    ├── PartSizeError                           a stored part has the wrong size: it is damaged
    ├── IncompleteChunkError                    a part is missing or from another write: the chunk is damaged
    ├── LayoutChangedError                      the array was created again since it was opened: open it again
    ├── ConcurrentWriteError                    another client wrote the chunk: read again, then write again
    ├── AmbiguousWriteError                     it is unknown whether the chunk was written: read it, then decide
    ├── CopyMismatchError                       the copy differs from what was written
    ├── CodecError (a ValueError)               a chunk cannot be encoded or decoded
    │   ├── CodecConfigError                    the codec's configuration is wrong: correct the call or the document
    │   └── UnboundPaddingError                 a callable makes the padding, and none is bound: bind one
    └── HeaderError (a ValueError)              the file format has no header for such a chunk

None of them is a `FileNotFoundError` or a `KeyError`, which zarr would take for absence and return fill values. All of
them can be pickled, because their fields are their `args`. Passwords and signatures are removed from the arguments of
every error when it is created, in `PartsStoreError.__post_init__`.

The package raises other exceptions only where zarr or Python expects them:

- `FileNotFoundError` from `getsize` of a key that does not exist
- `BaseExceptionGroup` with a `FileNotFoundError` from `get_ranges` of such a key
- `ValueError` from a write to a read-only store
- `TypeError` and `ValueError` for arguments of the wrong type
- `pickle.PicklingError` for a store that cannot be pickled
- `ImportError` for an extra that is not installed

Exceptions of zarr (`ContainsArrayError`, `NodeNotFoundError` ...) are not changed.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn, dataclass_transform, override

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
    "NoAccessError",
    "PartSizeError",
    "PartsConfigError",
    "PartsStoreError",
    "ReadOnlySessionError",
    "ReservedKeyError",
    "ServerFeatureError",
    "SessionError",
    "ShardFileError",
    "StorageError",
    "StoreConfigError",
    "UnboundPaddingError",
    "UnknownTransformerError",
]

# The number of failures that a message lists.
_MAX_SHOWN = 10


def describe(value: object) -> str:
    """Return the `repr` of a value for an error message, shortened and without secrets."""
    try:
        return SHOWN.repr(value)
    except Exception:
        return f"a value of type {type(value).__name__}"


@dataclass_transform(eq_default=False)
class PartsStoreError(Exception):
    """The base class of all errors of parts_store. A subclass with annotated fields becomes a dataclass."""

    # The message, with the names of the fields in braces. An error without a template makes its message itself.
    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Make the annotated fields of a subclass the arguments of its constructor."""
        super().__init_subclass__()
        if inspect.get_annotations(cls):
            dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        """Remove passwords and signatures from the fields, and make the fields the `args`, so that errors pickle."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type] # subclasses are dataclasses
        for name in names:
            setattr(self, name, _hide(getattr(self, name)))
        self.args = tuple(getattr(self, name) for name in names)

    @override
    def __str__(self) -> str:
        return self.template.format_map(vars(self)) if self.template else super().__str__()


def _hide(value: Any) -> Any:
    match value:
        case str():
            return hide_in_text(value)
        case tuple():
            return tuple(map(_hide, value))
        case _:
            return value


def _listed(problems: Sequence[tuple[str, str]]) -> str:
    """Return the first problems by the names of what has them, and the number of the others."""
    shown = "; ".join(f"{name}: {problem}" for name, problem in problems[:_MAX_SHOWN])
    return f"{shown}; and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else shown


def raise_translated(error: PartsStoreError, original: BaseException | None = None) -> NoReturn:
    """Raise an error of this package in place of an error of another library, which may contain secrets.

    If `original` is given, the cause of the new error is a copy of it without secrets.
    """
    try:
        raise error from None if original is None else without_secrets(original)
    finally:
        # Otherwise the original error would still be reachable.
        error.__context__ = None


def without_secrets(error: BaseException) -> Exception:
    """Return a copy of an error of another library with its traceback, without secrets and causes."""
    text = hide_secrets(str(error).partition("\n\nDebug source")[0])
    return Exception(f"{type(error).__name__}: {text}").with_traceback(error.__traceback__)


class PartsConfigError(PartsStoreError, ValueError):
    """The parts of an array are not allowed by the specification, or cannot be written."""

    member: str
    expected: str
    found: str
    array: str | None = None

    def of_array(self, array: str) -> "PartsConfigError":
        """Return the same error with the path of the array."""
        return PartsConfigError(self.member, self.expected, self.found, array)

    @override
    def __str__(self) -> str:
        where = "" if self.array is None else f"array {self.array!r}, "
        return f"{where}concat-parts, {self.member!r}: expected {self.expected}, found {self.found}"


class UnknownTransformerError(PartsStoreError, ValueError):
    """The array has an unknown storage transformer, or more than one."""

    template = "array {array!r}: expected one storage transformer, 'concat-parts', found {found}"
    array: str
    found: str


class StoreConfigError(PartsStoreError, ValueError):
    """The store cannot be opened from this URL or with these options."""

    template = "{subject}: expected {expected}, found {found}"
    subject: str
    expected: str
    found: str


class ServerFeatureError(StoreConfigError):
    """The server lacks a feature that is needed. Nothing was written."""

    template = "server {server} cannot support {needed_for}: {lacks}; {advice}"

    def __init__(self, server: str, lacks: str, needed_for: str, advice: str) -> None:
        super().__init__(server, f"a server that supports {needed_for}", lacks)
        self.args = _hide((server, lacks, needed_for, advice))
        self.server, self.lacks, self.needed_for, self.advice = self.args


class StorageError(PartsStoreError):
    """The object store refused a request, failed to carry it out, or did not answer.

    `operation` is the kind of request ("get", "put" ...). `code` is the error code of the store ("NoSuchBucket",
    "InvalidAccessKeyId"), the status of the response ("503") if it has no code, "Timeout" or "Connect" if there was no
    response, or None. It is never raised for an absent object.
    """

    key: str
    operation: str
    code: str | None
    message: str

    @override
    def __str__(self) -> str:
        code = "" if self.code is None else f"{self.code}: "
        return f"object store, {self.operation} {self.key!r}: {code}{self.message}"


class SessionError(PartsStoreError):
    """The Icechunk session does not support this, or failed. The cause is the error of Icechunk."""

    template = "session, {key!r}: {problem}"
    key: str
    problem: str


class ReadOnlySessionError(SessionError, ValueError):
    """The session is read-only, was committed, or can only move nodes. Nothing was written."""


class NoAccessError(SessionError):
    """The chunk is a reference to a file, and the repository was opened without access to the folder of the file."""


class AdoptionError(PartsStoreError):
    """The file cannot be adopted, or not all of it with `strict=True`. Nothing was written."""

    location: str
    problems: tuple[tuple[str, str], ...]

    @override
    def __str__(self) -> str:
        return f"file {self.location!r} cannot be adopted, nothing was written: {_listed(self.problems)}"


class ManifestError(PartsStoreError, ValueError):
    """The references of a manifest are wrong, or do not support an operation that needs the values."""

    template = "references, {subject}: expected {expected}, found {found}"
    subject: str
    expected: str
    found: str


class LocationError(PartsStoreError):
    """The file of a reference is in no registered store, cannot be read, is too short, or was changed."""

    template = "location {location!r}: {problem}"
    location: str
    problem: str


class LocalPathError(PartsStoreError):
    """The key leads out of the local folder, or what is there is not the file or the folder that it should be."""

    template = "key {key!r}: {problem}"
    key: str
    problem: str


class ClusterWriteError(PartsStoreError):
    """Some tasks of a cluster failed. Nothing was committed, and the session is unchanged."""

    array: str
    tasks: int
    failed: tuple[tuple[str, str], ...]

    @override
    def __str__(self) -> str:
        count = f"{len(self.failed)} of {self.tasks} tasks failed"
        return f"array {self.array!r}: {count}, nothing was committed: {_listed(self.failed)}"


class ReservedKeyError(PartsStoreError, ValueError):
    """The key belongs to a part of a chunk or to the write protocol, and cannot be written directly."""

    template = "key {key!r} belongs to {owner} and cannot be written directly"
    key: str
    owner: str


class ChunkSizeError(PartsStoreError, ValueError):
    """The bytes of a chunk do not fit the sizes of its parts. Nothing was written."""

    template = "chunk {chunk_key!r}: expected {expected} bytes for its parts, found {found}"
    chunk_key: str
    expected: str
    found: int


class PartSizeError(PartsStoreError):
    """A stored part has not the size that the array or its tag gives."""

    template = "part {part_key!r}: expected {expected} bytes, found {found}"
    part_key: str
    expected: int
    found: int


class IncompleteChunkError(PartsStoreError):
    """The chunk exists, but some of its parts are missing or from another write."""

    chunk_key: str
    missing: tuple[str, ...]
    mixed: tuple[str, ...]
    problem: str | None = None

    @override
    def __str__(self) -> str:
        if self.problem is not None:
            return f"chunk {self.chunk_key!r} is incomplete: {self.problem}"
        missing = [f"no object at {', '.join(map(repr, self.missing))}"] if self.missing else []
        mixed = [f"an object of another write at {', '.join(map(repr, self.mixed))}"] if self.mixed else []
        return f"chunk {self.chunk_key!r} is incomplete: {' and '.join(missing + mixed)}"


class ShardFileError(PartsStoreError):
    """The shard is a file that another program has changed after it was written, so that its index does not fit it."""

    template = (
        "another program has changed the file {key!r} after it was written, and its index does not fit it any more; "
        "write the whole shard again, or delete it"
    )
    key: str


class LayoutChangedError(PartsStoreError):
    """The array was created again with another layout since it was opened. Nothing was written.

    Also raised if consolidated metadata is out of date, and for a chunk that was written with another layout.
    """

    template = "array {array!r}: {problem}"
    array: str
    problem: str


class ConcurrentWriteError(PartsStoreError):
    """Another client wrote the chunk while it was read or changed. This client did not write it."""

    template = "chunk {chunk_key!r} is being written by another client: {problem}; read it again"
    chunk_key: str
    problem: str


class AmbiguousWriteError(PartsStoreError):
    """The store did not answer, so it is unknown whether the chunk was written."""

    template = "chunk {chunk_key!r} may or may not have been written: {problem}"
    chunk_key: str
    problem: str


class CopyMismatchError(PartsStoreError):
    """The destination of a copy does not return the bytes that were written."""

    key: str
    expected: int
    found: int | None

    @override
    def __str__(self) -> str:
        found = "nothing" if self.found is None else f"{self.found} other bytes"
        return f"copy at {self.key!r}: expected the {self.expected} bytes that were written, found {found}"


class CodecError(PartsStoreError, ValueError):
    """The chunk cannot be encoded, or the stored bytes cannot be decoded."""

    template = "codec {codec!r}: expected {expected}, found {found}"
    codec: str
    expected: str
    found: str


class CodecConfigError(CodecError):
    """A member of the codec's configuration is missing, unknown or wrong."""

    template = "codec {codec!r}, member {member!r}: expected {expected}, found {found}"

    def __init__(self, codec: str, member: str, expected: str, found: str) -> None:
        super().__init__(codec, expected, found)
        self.member = _hide(member)
        self.args = (self.codec, self.member, self.expected, self.found)


class UnboundPaddingError(CodecError):
    """The chunk cannot be written, because a callable makes its padding and none is bound."""

    template = (
        "codec {codec!r}: a callable makes the padding of this array's chunks and is never stored; "
        "write to the array that `parts_store.codecs.bind_padding(array, callable)` returns"
    )

    def __init__(self, codec: str, argument: str) -> None:
        super().__init__(codec, f"a callable bound as {argument!r}", "none")
        self.argument = _hide(argument)
        self.args = (self.codec, self.argument)


class HeaderError(PartsStoreError, ValueError):
    """The file format has no header for such a chunk."""

    template = "{file_format} header: expected {expected}, found {found}"
    file_format: str
    expected: str
    found: str
