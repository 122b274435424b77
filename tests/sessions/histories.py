"""Two sessions that change one array, in parts and without: what a test does in each, and what became of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from icechunk import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictSolver,
    IcechunkError,
    RepositoryConfig,
    Session,
    VersionSelection,
    VirtualChunkContainer,
    containers_credentials,
    in_memory_storage,
    local_filesystem_store,
)
from icechunk import Repository as Icechunk
from icechunk.credentials import LocalFileSystemAccess
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps

type Values = NDArray[np.int32]
CHUNK = 8
_MOST_CHUNKS = 5
_BUFFERS = default_buffer_prototype()
TWO = (ps.Part(""), ps.Part(".index", size=8))
THREE = (ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=8))


@dataclass(frozen=True, slots=True)
class Kind:
    """How an array is kept: in these parts, or, if None, as any array of Icechunk is."""

    parts: tuple[ps.Part, ...] | None = None
    split: bool = False

    def store(self, session: Session) -> Any:
        """The store that shows a session to zarr."""
        return session.store if self.parts is None else ps.PartsStore.from_session(session)

    def create(self, store: Any, name: str = "a", *, shape: tuple[int, ...] = (32,), **more: Any) -> zarr.Array[Any]:
        """An array of this kind, uncompressed, so that its bytes are its values."""
        arguments: dict[str, Any] = {"shape": shape, "chunks": (CHUNK,), "dtype": "int32", "fill_value": -1} | more
        # A chunk that a writer made is there, whatever its values.
        arguments |= {"compressors": None, "filters": None, "config": {"write_empty_chunks": True}}
        if self.parts is None:
            return zarr.create_array(store, name=name, **arguments)
        return ps.create_array(store, name, parts=self.parts, split=self.split, **arguments)


PLAIN = Kind()
KINDS = {
    "whole, 2 parts": Kind(TWO),
    "whole, 3 parts": Kind(THREE),
    "split, 2 parts": Kind(TWO, split=True),
    "split, 3 parts": Kind(THREE, split=True),
}
SPLIT = {name: kind for name, kind in KINDS.items() if kind.split}
_CHOICES = {
    f"{choice}, {'fail on delete' if fail else 'delete'}": (getattr(VersionSelection, choice), fail)
    for choice in ("UseOurs", "UseTheirs", "Fail")
    for fail in (False, True)
}
SOLVERS: dict[str, ConflictSolver | None] = {
    "none": None,
    "detector": ConflictDetector(),
    **{
        name: BasicConflictSolver(on_chunk_conflict=choice, fail_on_delete_of_updated_array=fail)
        for name, (choice, fail) in _CHOICES.items()
    },
}


def marked(mark: int, count: int = CHUNK) -> Values:
    """Return values that identify their writer in every part of a chunk."""
    return np.arange(mark, mark + count, dtype="int32")


def repository(*, files: Path | None = None, **config: Any) -> Icechunk:
    """Create a repository in memory that may reference the files of a folder."""
    return open_repository(in_memory_storage(), files=files, **config)


def open_repository(storage: Any, *, files: Path | None = None, authorized: bool = True, **config: Any) -> Icechunk:
    """Open or create a repository that may reference the files of a folder, and read them if `authorized`."""
    settings = RepositoryConfig(**config)
    credentials = None
    if files is not None:
        prefix = f"file://{files}/"
        settings.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(files))))
        credentials = containers_credentials({prefix: LocalFileSystemAccess}) if authorized else None
    return Icechunk.open_or_create(storage, config=settings, authorize_virtual_chunk_access=credentials)


def commit(session: Session, message: str = "by a test") -> str:
    """Commit a session, and return the snapshot."""
    return session.commit(message)


def look(session: Session, name: str = "a") -> zarr.Array[Any]:
    """Open an array of a session for reading, with or without parts."""
    return zarr.open_array(ps.PartsStore.from_session(session), path=name, mode="r")


# --- what is stored, by Icechunk alone ------------------------------------------------------------------------------


async def _raw(session: Session, key: str) -> bytes | None:
    stored = await session.store.get(key, _BUFFERS)
    return None if stored is None else stored.to_bytes()


def raw(session: Session, key: str) -> bytes | None:
    """Return what Icechunk stores at a key."""
    return sync(_raw(session, key))


def part_keys(kind: Kind, number: int, name: str = "a") -> tuple[str, ...]:
    """Where the parts of a chunk are, in their order, as the design says."""
    if not kind.split or kind.parts is None:
        return (f"{name}/c/{number}",)
    nodes = [f"{name}/__parts__/{part.key_suffix}" if part.key_suffix else name for part in kind.parts]
    return tuple(f"{node}/c/{number}" for node in nodes)


def raw_chunks(session: Session, kind: Kind, name: str = "a") -> dict[int, tuple[bytes | None, ...]]:
    """Return the stored parts of all chunks, read with Icechunk alone."""

    async def read() -> dict[int, tuple[bytes | None, ...]]:
        store, found = session.store, {}
        for number in range(_MOST_CHUNKS):
            stored = [await store.get(key, _BUFFERS) for key in part_keys(kind, number, name)]
            if any(part is not None for part in stored):
                found[number] = tuple(None if part is None else part.to_bytes() for part in stored)
        return found

    return sync(read())


def listing(session: Session) -> set[str]:
    """Return all keys of Icechunk, hidden keys included, and all chunks."""

    async def list_all() -> set[str]:
        return {key async for key in session.store.list()}

    return sync(list_all())


# --- what a writer does ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Writer:
    """One of two writers of the array `a`, each with its own session."""

    kind: Kind
    session: Session
    store: Any
    mark: int
    # A file with a chunk of this writer's values, and its URL.
    url: str

    @property
    def array(self) -> zarr.Array[Any]:
        return zarr.open_array(self.store, path="a", mode="r+")


def _overwrite(writer: Writer) -> None:
    writer.array[0:CHUNK] = marked(writer.mark)


def _partial(writer: Writer) -> None:
    # Something of every part, and nothing of it whole.
    writer.array[0:CHUNK:2] = marked(writer.mark)[::2]


def _create(writer: Writer) -> None:
    writer.array[3 * CHUNK :] = marked(writer.mark)


def _delete(writer: Writer) -> None:
    sync(writer.store.delete("a/c/0"))


def _virtual(writer: Writer) -> None:
    data = marked(writer.mark).tobytes()
    if not writer.kind.split or writer.kind.parts is None:
        writer.session.store.set_virtual_ref("a/c/0", writer.url, offset=0, length=len(data))
        return
    sizes = [part.size if isinstance(part.size, int) else 0 for part in writer.kind.parts]
    start = sum(sizes[: sizes.index(0)])
    main = ps.Reference(writer.url, start, len(data) - sum(sizes))
    values = {".header": data[:8], "": main, ".index": data[-8:]}
    writer.store.set_parts("a/c/0", [values[part.key_suffix] for part in writer.kind.parts])


def _shrink(writer: Writer) -> None:
    writer.array.resize((2 * CHUNK,))


def _grow(writer: Writer) -> None:
    writer.array.resize((5 * CHUNK,))


def _delete_array(writer: Writer) -> None:
    sync(writer.store.delete_dir("a"))


def _overwrite_array(writer: Writer) -> None:
    writer.kind.create(writer.store, overwrite=True)[: 2 * CHUNK] = marked(writer.mark, 2 * CHUNK)


def _set_attribute(writer: Writer) -> None:
    writer.array.attrs["by"] = writer.mark


def _write_other(writer: Writer) -> None:
    writer.array[2 * CHUNK : 3 * CHUNK] = marked(writer.mark)


OPERATIONS: dict[str, Callable[[Writer], None]] = {
    "overwrite a chunk": _overwrite,
    "write a part of a chunk": _partial,
    "create a chunk": _create,
    "delete a chunk": _delete,
    "refer to a file": _virtual,
    "shrink": _shrink,
    "grow": _grow,
    "delete the array": _delete_array,
    "overwrite the array": _overwrite_array,
    "set an attribute": _set_attribute,
    "write another chunk": _write_other,
}
# The orders of writes and commits: each session writes before it commits, and both begin before the first write.
INTERLEAVINGS = ("wA wB cA cB", "wB wA cA cB", "wA cA wB cB", "wA wB cB cA", "wB wA cB cA", "wB cB wA cA")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of two writers: how each commit ended, and what there is now."""

    ends: tuple[str, ...]
    attributes: dict[str, Any] | None
    values: tuple[int, ...] | None
    chunks: frozenset[int]


@dataclass(slots=True)
class Scene:
    """A repository with one array of a kind, of which the fourth chunk is not there, for as many cases as it takes."""

    kind: Kind
    repo: Icechunk
    files: Path
    start: str = ""
    cases: int = 0
    # The chunks before the first write.
    before: dict[int, tuple[bytes | None, ...]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        session = self.repo.writable_session("main")
        store = self.kind.store(session)
        zarr.open_group(store, mode="w")
        self.kind.create(store)[: 3 * CHUNK] = marked(0, 3 * CHUNK)
        self.start = commit(session)
        self.before = raw_chunks(session, self.kind)
        for who, mark in MARKS.items():
            (self.files / who).write_bytes(marked(mark).tobytes())
            self.urls[who] = f"file://{self.files / who}"

    def play(self, first: str, second: str, solver: ConflictSolver | None, interleaving: str) -> Result:
        """Run one operation of each of two writers, the second with the solver; assert that no writes mix."""
        self.cases += 1
        self.repo.reset_branch("main", self.start)
        writers = {who: self._writer(who) for who in MARKS}
        operations = {"A": OPERATIONS[first], "B": OPERATIONS[second]}
        written: dict[str, dict[int, tuple[bytes | None, ...]]] = {}
        ends: list[str] = []
        for step in interleaving.split():
            who = step[1]
            if step.startswith("w"):
                operations[who](writers[who])
                written[who] = raw_chunks(writers[who].session, self.kind)
            else:
                ends.append(_end_of(writers[who].session, solver if ends else None))
        session = self.repo.readonly_session("main")
        self._require_unmixed(session, written)
        return self._result(session, tuple(ends))

    def _writer(self, who: str) -> Writer:
        session = self.repo.writable_session("main")
        return Writer(self.kind, session, self.kind.store(session), MARKS[who], self.urls[who])

    def _require_unmixed(self, session: Session, written: dict[str, dict[int, tuple[bytes | None, ...]]]) -> None:
        for number, parts in raw_chunks(session, self.kind).items():
            versions = [each.get(number) for each in (self.before, *written.values())]
            assert parts in versions, f"chunk {number} is from no write: {parts}"
            assert None not in parts, f"chunk {number} is incomplete: {parts}"
        if self.kind.parts is not None:
            report = ps.PartsStore.from_session(session).verify()
            assert report.is_clean, str(report)

    def _result(self, session: Session, ends: tuple[str, ...]) -> Result:
        if raw(session, "a/zarr.json") is None:
            assert not {key for key in listing(session) if key.startswith("a/")}
            return Result(ends, None, None, frozenset())
        array = look(session)
        values: Any = array[:]
        chunks = raw_chunks(session, self.kind)
        return Result(ends, dict(array.attrs), tuple(values.tolist()), frozenset(chunks))


MARKS = {"A": 1000, "B": 2000}


def _end_of(session: Session, solver: ConflictSolver | None) -> str:
    """Commit, and return "committed", or the class and kind of the error."""
    try:
        session.commit("by a test", rebase_with=solver)
    except IcechunkError as error:
        return f"{type(error).__name__}, {error.kind}"
    return "committed"


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return all ordered pairs, each element with itself included."""
    return [(one, other) for one in names for other in names]
