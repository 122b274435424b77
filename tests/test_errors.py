"""The exceptions: one tree, which zarr never takes for absence, and which survives pickling."""

import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from parts_store import errors
from parts_store.errors import AdoptionError, ClusterWriteError, IncompleteChunkError, PartsStoreError

KINDS: list[type[PartsStoreError]] = [getattr(errors, name) for name in errors.__all__ if name != "PartsStoreError"]
PARENTS = {
    "ServerFeatureError": "StoreConfigError",
    "ReadOnlySessionError": "SessionError",
    "NoAccessError": "SessionError",
    "CodecConfigError": "CodecError",
    "UnboundPaddingError": "CodecError",
}
VALUE_ERRORS = {
    *("PartsConfigError", "UnknownTransformerError", "StoreConfigError", "ServerFeatureError", "ReadOnlySessionError"),
    *("ManifestError", "ReservedKeyError", "ChunkSizeError", "CodecError", "CodecConfigError", "UnboundPaddingError"),
    "HeaderError",
}
SECRET = "https://user:password@host/x?sig=abc"


def make(kind: Any, text: str) -> PartsStoreError:
    """Return an error with a text in every field that takes one."""
    values = {int: 4, int | None: 4, tuple[str, ...]: (text,), tuple[tuple[str, str], ...]: ((text, text),)}
    parameters = inspect.signature(kind).parameters.values()
    error: PartsStoreError = kind(*(values.get(each.annotation, text) for each in parameters))
    return error


def test_errors_have_the_documented_base_classes() -> None:
    assert {kind.__name__: kind.__bases__[0].__name__ for kind in KINDS} == {
        kind.__name__: PARENTS.get(kind.__name__, "PartsStoreError") for kind in KINDS
    }
    assert {kind.__name__ for kind in KINDS if issubclass(kind, ValueError)} == VALUE_ERRORS


@pytest.mark.parametrize("kind", KINDS)
def test_errors_pickle_and_are_never_taken_for_absence(kind: type[PartsStoreError]) -> None:
    error = make(kind, "a/c/0")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))
    assert str(error)
    assert "{" not in str(error)
    assert not issubclass(kind, FileNotFoundError | KeyError | NotADirectoryError | IsADirectoryError)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_hold_no_secret(kind: type[PartsStoreError]) -> None:
    error = make(kind, SECRET)
    for shown in (str(error), repr(error.args), repr(vars(error))):
        assert "password" not in shown
        assert "abc" not in shown


def test_messages_name_at_most_ten_problems() -> None:
    problems = tuple((f"[{number}]", "no") for number in range(12))
    listed = f"{'; '.join(f'[{number}]: no' for number in range(10))}; and 2 more"
    assert str(ClusterWriteError("a", 20, problems)).endswith(f"12 of 20 tasks failed, nothing was committed: {listed}")
    assert str(AdoptionError("a.h5", problems)).endswith(listed)


def test_incomplete_chunk_names_what_is_missing_and_what_is_mixed() -> None:
    said = str(IncompleteChunkError("a/c/0", ("a/c/0.x",), ("a/c/0.y", "a/c/0.z")))
    assert said.endswith("no object at 'a/c/0.x' and an object of another write at 'a/c/0.y', 'a/c/0.z'")


def test_every_error_is_in_the_table_of_the_documentation_once() -> None:
    page = (Path(__file__).parent.parent / "docs" / "errors.md").read_text()
    listed = re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(kind.__name__ for kind in KINDS)
