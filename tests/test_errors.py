"""The exceptions: one tree, which zarr never takes for absence, and which survives pickling."""

import inspect
import pickle

import pytest

from parts_store import errors
from parts_store.errors import (
    AdoptionError,
    AmbiguousWriteError,
    ChunkSizeError,
    ClusterWriteError,
    CodecConfigError,
    CodecError,
    ConcurrentWriteError,
    CopyMismatchError,
    HeaderError,
    IncompleteChunkError,
    LayoutChangedError,
    LocalPathError,
    LocationError,
    ManifestError,
    NoAccessError,
    PartsConfigError,
    PartSizeError,
    PartsStoreError,
    ReadOnlySessionError,
    ReservedKeyError,
    ServerFeatureError,
    SessionError,
    ShardFileError,
    StorageError,
    StoreConfigError,
    UnboundPaddingError,
    UnknownTransformerError,
)

EXAMPLES: list[tuple[PartsStoreError, str]] = [
    (
        PartsConfigError("size", "an integer", "'x'", "a/b"),
        "array 'a/b', concat-parts, 'size': expected an integer, found 'x'",
    ),
    (
        UnknownTransformerError("a/b", "'zip'"),
        "array 'a/b': expected one storage transformer, 'concat-parts', found 'zip'",
    ),
    (StoreConfigError("url", "a path", "'x'"), "url: expected a path, found 'x'"),
    (
        ServerFeatureError("'s3://b' at http://x", "it drops metadata", "two parts", "write one part"),
        "server 's3://b' at http://x cannot support two parts: it drops metadata; write one part",
    ),
    (SessionError("a/c/0", "object not found"), "session, 'a/c/0': object not found"),
    (ReadOnlySessionError("a/c/0", "it is read only"), "session, 'a/c/0': it is read only"),
    (NoAccessError("a/c/0", "it refers to a file"), "session, 'a/c/0': it refers to a file"),
    (ManifestError("part 0", "a range", "none"), "references, part 0: expected a range, found none"),
    (LocationError("s3://b/f", "it ends before"), "location 's3://b/f': it ends before"),
    (LayoutChangedError("g/x", "it was deleted"), "array 'g/x': it was deleted"),
    (
        ShardFileError("g/x/c/0.tif"),
        (
            "another program has changed the file 'g/x/c/0.tif' after it was written, and its index does not fit it "
            "any more; write the whole shard again, or delete it"
        ),
    ),
    (
        AdoptionError("file:///a.h5", (("x", "a filter"), ("y", "a link"))),
        "file 'file:///a.h5' cannot be adopted, nothing was written: x: a filter; y: a link",
    ),
    (
        ClusterWriteError("a", 5, (("[0:4]", "ValueError: no"), ("[4:8]", "killed"))),
        "array 'a': 2 of 5 tasks failed, nothing was committed: [0:4]: ValueError: no; [4:8]: killed",
    ),
    (
        ClusterWriteError("a", 20, (("[0:4]", "no"),) * 12),
        f"array 'a': 12 of 20 tasks failed, nothing was committed: {'; '.join(['[0:4]: no'] * 10)}; and 2 more",
    ),
    (
        ReservedKeyError("a/c/0.index", "chunk 'a/c/0'"),
        "key 'a/c/0.index' belongs to chunk 'a/c/0' and cannot be written directly",
    ),
    (
        StorageError("a/c/0", "get", "NoSuchBucket", "the bucket does not exist"),
        "object store, get 'a/c/0': NoSuchBucket: the bucket does not exist",
    ),
    (StorageError("a/c/0", "put", None, "no reason"), "object store, put 'a/c/0': no reason"),
    (ChunkSizeError("a/c/0", "at least 4", 3), "chunk 'a/c/0': expected at least 4 bytes for its parts, found 3"),
    (LocalPathError("a/c/0", "/x/a is no folder"), "key 'a/c/0': /x/a is no folder"),
    (
        IncompleteChunkError("a/c/0", (), (), "its journal is damaged"),
        "chunk 'a/c/0' is incomplete: its journal is damaged",
    ),
    (PartSizeError("a/c/0.index", 4, 3), "part 'a/c/0.index': expected 4 bytes, found 3"),
    (
        IncompleteChunkError("a/c/0", ("a/c/0.x",), ("a/c/0.y", "a/c/0.z")),
        ("chunk 'a/c/0' is incomplete: no object at 'a/c/0.x' and an object of another write at 'a/c/0.y', 'a/c/0.z'"),
    ),
    (
        ConcurrentWriteError("a/c/0", "it changed 4 times while it was read"),
        ("chunk 'a/c/0' is being written by another client: it changed 4 times while it was read; read it again"),
    ),
    (
        AmbiguousWriteError("a/c/0", "no answer came to 6 requests"),
        "chunk 'a/c/0' may or may not have been written: no answer came to 6 requests",
    ),
    (
        CopyMismatchError("a/c/0", 4, 3),
        "copy at 'a/c/0': expected the 4 bytes that were written, found 3 other bytes",
    ),
    (CopyMismatchError("a/c/0", 4, None), "copy at 'a/c/0': expected the 4 bytes that were written, found nothing"),
    (CodecError("pad", "4 bytes", "3 bytes"), "codec 'pad': expected 4 bytes, found 3 bytes"),
    (
        CodecConfigError("pad", "nbytes", "an integer", "'x'"),
        "codec 'pad', member 'nbytes': expected an integer, found 'x'",
    ),
    (
        UnboundPaddingError("pad", "padding_func"),
        (
            "codec 'pad': a callable makes the padding of this array's chunks and is never stored; "
            "write to the array that `parts_store.codecs.bind_padding(array, callable)` returns"
        ),
    ),
    (HeaderError("TIFF", "a shape", "none"), "TIFF header: expected a shape, found none"),
]


def test_exception_tree_is_the_documented_tree() -> None:
    tree = {
        name: [base.__name__ for base in kind.__bases__]
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__ and issubclass(kind, BaseException)
    }
    assert tree == {
        "PartsStoreError": ["Exception"],
        "PartsConfigError": ["PartsStoreError", "ValueError"],
        "UnknownTransformerError": ["PartsStoreError", "ValueError"],
        "StoreConfigError": ["PartsStoreError", "ValueError"],
        "ServerFeatureError": ["StoreConfigError"],
        "StorageError": ["PartsStoreError"],
        "SessionError": ["PartsStoreError"],
        "ReadOnlySessionError": ["SessionError", "ValueError"],
        "NoAccessError": ["SessionError"],
        "ManifestError": ["PartsStoreError", "ValueError"],
        "LocalPathError": ["PartsStoreError"],
        "LocationError": ["PartsStoreError"],
        "AdoptionError": ["PartsStoreError"],
        "ClusterWriteError": ["PartsStoreError"],
        "ReservedKeyError": ["PartsStoreError", "ValueError"],
        "ChunkSizeError": ["PartsStoreError", "ValueError"],
        "PartSizeError": ["PartsStoreError"],
        "IncompleteChunkError": ["PartsStoreError"],
        "ConcurrentWriteError": ["PartsStoreError"],
        "AmbiguousWriteError": ["PartsStoreError"],
        "CopyMismatchError": ["PartsStoreError"],
        "CodecError": ["PartsStoreError", "ValueError"],
        "CodecConfigError": ["CodecError"],
        "UnboundPaddingError": ["CodecError"],
        "HeaderError": ["PartsStoreError", "ValueError"],
        "LayoutChangedError": ["PartsStoreError"],
        "ShardFileError": ["PartsStoreError"],
    }
    assert set(tree) == set(errors.__all__)
    assert set(tree) - {"PartsStoreError"} == {type(error).__name__ for error, _ in EXAMPLES}


@pytest.mark.parametrize(("error", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_errors_have_the_same_message_after_pickling(error: PartsStoreError, message: str) -> None:
    assert str(error) == message
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == message
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=lambda error: type(error).__name__)
def test_no_error_can_be_taken_for_absence(error: PartsStoreError) -> None:
    assert not isinstance(error, FileNotFoundError | KeyError | NotADirectoryError | IsADirectoryError)


def test_long_values_are_cut_in_messages() -> None:
    assert len(errors.describe("x" * 10_000)) < 100
    assert len(errors.describe(b"x" * 10_000)) < 100
    assert len(errors.describe(list(range(10_000)))) < 100
    assert errors.describe("short") == "'short'"
