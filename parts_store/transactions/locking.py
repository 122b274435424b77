"""Locks that make a process the only writer of a chunk or an array, and the deletion of folders under them.

On a local disk there is a lock for each chunk, and one for each array. A writer of a chunk holds the lock of the chunk
exclusively, and shares the lock of the array. A process that deletes the array, or a folder of its chunks, holds the
lock of the array exclusively. So a lock file is deleted by its holder, or while no process can hold it or wait for it.
The backend decides whether the lock of a chunk is a file of its own, or a byte range of the file of the array.

A folder is deleted under these locks. The arrays and groups below the folder are deleted one after another, the deepest
first, each under its own lock, and each by a listing that is made under the lock. What belongs to none of them comes
last, and so does a folder inside an array. If the process ends in between, this is what it leaves behind: the chunks of
an array lose their anchors first, so each chunk is complete or does not exist. The document of an array is deleted
last, so every remaining file belongs to an array. An array that another process creates below the folder meanwhile
stays. Symbolic links are removed. The files and folders that they lead to are not.
"""

from collections.abc import Container, Iterable, Sequence
from itertools import count
from typing import Final

from parts_store.engine.steps import (
    Done,
    Get,
    List,
    Listed,
    Lock,
    Outcome,
    Steps,
    content,
    gate_of,
    remove,
    wait_for_others,
)
from parts_store.errors import ConcurrentWriteError, PartsStoreError
from parts_store.format import metadata
from parts_store.format.keys import DOCUMENT, JOURNAL, PROTOCOL_FOLDER, candidates, is_protocol_key, join, split
from parts_store.format.metadata import ArrayRecord, Document
from parts_store.transactions.rules import Level, Rules

_ARRAY_LOCK: Final = "array.lock"


def lock_chunk(folder: str, *, shares_array: bool) -> Steps[None]:
    """Lock the chunk that a folder lies beside until the steps have ended, and share the lock of its array if asked."""
    shared = join(split(folder)[0], _ARRAY_LOCK) if shares_array else None
    yield from _lock(Lock(f"{folder}.lock", "lock of a chunk", shared), folder)


def lock_array(array: str) -> Steps[None]:
    """Keep all writers away from the array at a path on a local disk until the steps have ended."""
    gate, lock = array_locks(array)
    for key in (gate, lock):
        yield from _lock(Lock(key, "lock of an array"), lock)


def remove_unused_locks(array: str) -> Steps[None]:
    """Remove the lock files of an array, unless another process holds them. The end of the steps removes them."""
    for key in array_locks(array):
        yield (Lock(key, "lock of an array"),)


def array_locks(array: str) -> tuple[str, str]:
    """Return the keys of the locks of an array: the lock that is taken first, and the lock that its writers share."""
    lock = join(array, f"{PROTOCOL_FOLDER}/{_ARRAY_LOCK}")
    return gate_of(lock), lock


def _lock(lock: Lock, what: str) -> Steps[None]:
    for repeat in count(1):
        (outcome,) = yield (lock,)
        if isinstance(outcome, Done):
            return
        if not (yield from wait_for_others(repeat)):
            raise ConcurrentWriteError(what, "another process has held its lock for five minutes")


_WHY = "everything below"
# The local backend removes this many files without a pause, so a cancelled deletion has none in progress.
_AT_ONCE = 100


def find_nodes(folder: str) -> Steps[tuple[str, ...]]:
    """Return the paths of the arrays and groups at and below a folder, the deepest first."""
    keys = yield from _list(folder)
    # A link or a file is in the place of the folder with the locks.
    obstacles = tuple(key for key in keys if split(key)[1] == PROTOCOL_FOLDER)
    if obstacles:
        yield from remove(obstacles, _WHY)
    paths = _nodes_in(keys)
    return tuple(sorted(paths, key=lambda path: (path.count("/") + bool(path), path), reverse=True))


def delete_node(path: str, nodes: Sequence[str], rules: Rules) -> Steps[None]:
    """Delete what belongs to one of these arrays and groups, and not to an array or group below it."""
    yield from _lock_all((path,), rules)
    keys = yield from _list(path)
    known = {*nodes, *_nodes_in(keys)}
    own = [key for key in keys if _nearest(key, known) == path]
    (outcome,) = yield (Get(join(path, DOCUMENT), None, "which parts the array has"),)
    yield from _remove(own, path, _record(_array_document(outcome), path), (path,), rules)


def delete_rest(folder: str, nodes: Sequence[str], rules: Rules) -> Steps[None]:
    """Delete what is below a folder and in none of these arrays and groups; a folder may be inside an array."""
    arrays = yield from _arrays_around(folder)
    yield from _lock_all(tuple(sorted(arrays)), rules)
    keys = yield from _list(folder)
    below = {*nodes, *_nodes_in(keys)} - {*arrays}
    rest = [key for key in keys if _nearest(key, below) is None]
    for path, record in arrays.items():
        own = [key for key in rest if _is_below(key, path)]
        yield from _remove(own, path, record, tuple(arrays), rules)
    yield from _remove([key for key in rest if _nearest(key, arrays) is None], "", None, tuple(arrays), rules)


def _list(folder: str) -> Steps[list[str]]:
    (outcome,) = yield (List(folder, _WHY, through_links=False),)
    return [entry.key for entry in outcome.entries] if isinstance(outcome, Listed) else []


def _nodes_in(keys: Iterable[str]) -> set[str]:
    """Return the paths of all documents, and of all arrays that have files of the write protocol."""
    documents = {split(key)[0] for key in keys if split(key)[1] == DOCUMENT and not is_protocol_key(key)}
    return documents | {_array_of(key) for key in keys if is_protocol_key(key)}


def _array_of(key: str) -> str:
    """Return the path of the array that an object of the write protocol belongs to."""
    segments = key.split("/")
    return "/".join(segments[: segments.index(PROTOCOL_FOLDER)])


def _nearest(key: str, paths: Container[str]) -> str | None:
    """Return the deepest of these paths that a key is below."""
    path = key
    while path:
        path = split(path)[0]
        if path in paths:
            return path
    return None


def _is_below(key: str, path: str) -> bool:
    return key.startswith(join(path, ""))


def _arrays_around(folder: str) -> Steps[dict[str, ArrayRecord | None]]:
    """Return the arrays that a folder may be inside of; None for arrays without parts, or that are not understood."""
    paths = [path for path, _ in candidates(folder)] if folder else []
    if is_protocol_key(folder):
        paths = [_array_of(folder)]
    if not paths:
        return {}
    outcomes = yield tuple(Get(join(path, DOCUMENT), None, "whether this is an array") for path in paths)
    documents = {path: _array_document(outcome) for path, outcome in zip(paths, outcomes, strict=True)}
    return {path: _record(document, path) for path, document in documents.items() if document is not None}


def _array_document(outcome: Outcome) -> Document | None:
    """Return the metadata document that was read, None if it is not that of an array."""
    stored = content(outcome)
    document = None if stored is None else metadata.parse(stored)
    return document if document is not None and metadata.is_array(document) else None


def _record(document: Document | None, path: str) -> ArrayRecord | None:
    """Return the parts of the array with this document; None if it has none or is not understood."""
    try:
        return None if document is None else metadata.read_array(document, path)
    except PartsStoreError:
        return None


def _lock_all(arrays: tuple[str, ...], rules: Rules) -> Steps[None]:
    if rules.level is not Level.EXCLUSIVE:
        for path in arrays:
            yield from lock_array(path)


def _remove(
    keys: Sequence[str], path: str, record: ArrayRecord | None, locked: tuple[str, ...], rules: Rules
) -> Steps[None]:
    """Delete keys of an array: anchors, then journals, then everything else, and documents last."""
    # The lock files that this process holds are removed when it releases the locks.
    held = set() if rules.level is Level.EXCLUSIVE else {lock for array in locked for lock in array_locks(array)}
    kinds: tuple[list[str], ...] = ([], [], [], [])
    for key in keys:
        if key not in held:
            kinds[_kind(key, path, record)].append(key)
    for kind in kinds:
        for start in range(0, len(kind), _AT_ONCE):
            yield from remove(tuple(kind[start : start + _AT_ONCE]), _WHY)


def _kind(key: str, path: str, record: ArrayRecord | None) -> int:
    """Return the phase, from 0 to 3, in which a key of an array is deleted."""
    if split(key) == (path, DOCUMENT):
        return 3
    if is_protocol_key(key):
        return 1 if key.endswith(JOURNAL) else 2
    if record is not None:
        suffix = record.parts.parts[record.parts.anchor].key_suffix
        relative = key.removeprefix(join(path, ""))
        if relative.endswith(suffix) and record.encoding.is_chunk_key(relative.removesuffix(suffix)):
            return 0
    return 2
