"""Parts that are references into other files."""

import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import (
    ChunkType,
    RepositoryConfig,
    VirtualChunkContainer,
    containers_credentials,
    in_memory_storage,
    local_filesystem_store,
)
from icechunk import Repository as Icechunk
from icechunk.credentials import LocalFileSystemAccess
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ChunkSizeError, PartsConfigError, SessionError, StoreConfigError
from parts_store.maintenance.report import Problem
from tests.sessions.histories import (
    CHUNK,
    KINDS,
    Kind,
    commit,
    listing,
    look,
    marked,
    raw_chunks,
    repository,
)
from tests.sessions.steps import FILL, IN_THREE, at, begin, by_split, started, values, write_chunk

pytestmark = pytest.mark.slow


class Referring:
    """A repository, and a file in which the main part of a chunk is, after some bytes of something else."""

    def __init__(self, folder: Path, kind: Kind = IN_THREE, *, start: int = 1000) -> None:
        self.file = folder / "some file.h5"
        self.repo = repository(files=folder)
        self.kind = kind
        self.data = marked(start).tobytes()
        sizes = [part.size if isinstance(part.size, int) else 0 for part in kind.parts or ()]
        self.before, self.after = sizes[0], sizes[-1]
        self.main = self.data[self.before : len(self.data) - self.after]
        self.rewrite(b"\x89HDF\r\n\x1a\n" + self.main + b"something after it", age=100)
        started(kind, self.repo)

    def rewrite(self, content: bytes, *, age: float) -> None:
        """Let the file be another one, written so many seconds ago."""
        self.file.write_bytes(content)
        modified = datetime.now(UTC).timestamp() - age
        os.utime(self.file, (modified, modified))

    def reference(self, **more: Any) -> ps.Reference:
        arguments: dict[str, Any] = {"location": f"file://{self.file}", "offset": 8, "length": len(self.main)}
        return ps.Reference(**arguments | more)

    def parts(self, **more: Any) -> list[bytes | ps.Reference]:
        """The chunk, with its main part in the file."""
        parts: dict[str, bytes | ps.Reference] = {".header": self.data[:8], ".index": self.data[-8:]}
        parts[""] = self.reference(**more)
        return [parts[part.key_suffix] for part in self.kind.parts or ()]

    def write(self, number: int = 0, **more: Any) -> str:
        session, store = begin(self.repo)
        store.set_parts(f"a/c/{number}", self.parts(**more))
        return commit(session)


@by_split
@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
def test_a_chunk_with_a_referred_part_reads_as_any_other(kind: Kind, number: int, tmp_path: Path) -> None:
    given = Referring(tmp_path, kind)
    session = at(given.repo, given.write(number))
    assert values(session)[number * CHUNK :][:CHUNK] == marked(1000).tolist()
    assert session.chunk_type("/a", [number]) == ChunkType.virtual
    store = ps.PartsStore.from_session(session)
    for start, stop in itertools.combinations(range(len(given.data) + 1), 2):
        found = sync(store.get(f"a/c/{number}", default_buffer_prototype(), RangeByteRequest(start, stop)))
        assert found is not None
        assert found.to_bytes() == given.data[start:stop]
    assert sync(store.getsize(f"a/c/{number}")) == len(given.data)
    assert store.verify(checksums=True).is_clean


def test_every_part_may_be_a_reference(tmp_path: Path) -> None:
    given = Referring(tmp_path)
    given.rewrite(given.data, age=100)
    session, store = begin(given.repo)
    spans = [(0, 8), (8, 16), (24, 8)]
    store.set_parts("a/c/3", [given.reference(offset=offset, length=length) for offset, length in spans])
    snapshot = commit(session)
    assert values(at(given.repo, snapshot)) == [*range(24), *marked(1000).tolist()]
    given.file.unlink()
    with pytest.raises(SessionError, match=r"the file 'file://.*', which no longer exists"):
        look(at(given.repo, snapshot))[3 * CHUNK]


def test_a_location_may_name_its_container(tmp_path: Path) -> None:
    prefix, data = f"file://{tmp_path}/", marked(1000).tobytes()
    (tmp_path / "data").write_bytes(data)
    config = RepositoryConfig()
    local = local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local, name="mine"))
    allowed = containers_credentials({prefix: LocalFileSystemAccess})
    repo = Icechunk.create(in_memory_storage(), config=config, authorize_virtual_chunk_access=allowed)
    started(IN_THREE, repo)
    session, store = begin(repo)
    store.set_parts("a/c/0", [data[:8], ps.Reference("vcc://mine/data", 8, 16), data[-8:]])
    assert values(at(repo, commit(session)))[:CHUNK] == marked(1000).tolist()
    session, store = begin(repo)
    with pytest.raises(SessionError, match="container"):
        store.set_parts("a/c/0", [data[:8], ps.Reference("vcc://mined/data", 8, 16), data[-8:]])
    assert not session.has_uncommitted_changes


@by_split
def test_a_partial_write_over_a_reference_makes_it_a_chunk_of_its_own(kind: Kind, tmp_path: Path) -> None:
    given = Referring(tmp_path, kind)
    before = given.write()
    session, store = begin(given.repo)
    zarr.open_array(store, path="a")[1:7:2] = [5, 6, 7]
    snapshot = commit(session)
    given.file.unlink()
    expected = marked(1000)
    expected[1:7:2] = [5, 6, 7]
    assert values(at(given.repo, snapshot))[:CHUNK] == expected.tolist()
    assert at(given.repo, snapshot).chunk_type("/a", [0]) != ChunkType.virtual
    with pytest.raises(SessionError, match=r"the file 'file://.*', which no longer exists"):
        values(at(given.repo, before))


DAMAGES: dict[str, Callable[[Referring], None]] = {
    "changed": lambda given: given.rewrite(given.file.read_bytes()[::-1], age=-100),
    "longer": lambda given: given.rewrite(bytes(1000), age=-100),
    "shorter": lambda given: given.rewrite(given.file.read_bytes()[:12], age=-100),
    "shorter, at the same time": lambda given: given.rewrite(given.file.read_bytes()[:12], age=1000),
    "empty": lambda given: given.rewrite(b"", age=1000),
    "deleted": lambda given: given.file.unlink(),
}
CHECKSUMS: dict[str, Callable[[Referring], str | datetime | None]] = {
    "none": lambda given: None,
    "time": lambda given: datetime.fromtimestamp(given.file.stat().st_mtime, UTC),
    # object_store puts the ETag of a local file into quotes, of which Icechunk takes one pair away.
    "etag": lambda given: f'""{_etag(given.file)}""',
}


def _etag(file: Path) -> str:
    found = file.stat()
    return f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_changed_is_an_error_and_never_values(damage: str, checksum: str, tmp_path: Path) -> None:
    given = Referring(tmp_path)
    snapshot = given.write(checksum=CHECKSUMS[checksum](given))
    assert values(at(given.repo, snapshot))[:CHUNK] == marked(1000).tolist()
    DAMAGES[damage](given)
    array = look(at(given.repo, snapshot))
    for span in (slice(0, CHUNK), slice(4, 5), slice(0, 32)):
        with pytest.raises(SessionError, match=r"was changed or deleted after|no longer exists|range"):
            array[span]
    if damage == "deleted":
        report = ps.PartsStore.from_session(at(given.repo, snapshot)).verify(checksums=True)
        assert [(finding.problem, finding.chunk_key) for finding in report.findings] == [(Problem.UNREADABLE, "a/c/0")]
        assert report.is_damaged
    # The others are not concerned, and a new write heals it.
    assert np.array_equal(array[CHUNK : 3 * CHUNK], range(8, 24))
    session, store = begin(given.repo)
    with pytest.raises(SessionError):
        zarr.open_array(store, path="a")[1:3] = 1
    write_chunk(store, 0, 2000)
    assert values(at(given.repo, commit(session)))[:CHUNK] == marked(2000).tolist()


@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
@pytest.mark.parametrize(
    "location", ["s3://bucket/file", "file:///somewhere/else", "file://{folder}x/file", "vcc://no/f"]
)
def test_unknown_location_is_refused_before_any_write(location: str, number: int, tmp_path: Path) -> None:
    given = Referring(tmp_path)
    session, store = begin(given.repo)
    before = listing(session), raw_chunks(session, given.kind)
    with pytest.raises(SessionError, match="container"):
        store.set_parts(f"a/c/{number}", given.parts(location=location.format(folder=tmp_path)))
    assert (listing(session), raw_chunks(session, given.kind)) == before
    assert not session.has_uncommitted_changes
    assert np.array_equal(zarr.open_array(store, path="a")[:], [*range(24), *FILL])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"offset": -1}, StoreConfigError),
        ({"offset": 1.5}, StoreConfigError),
        ({"length": 0}, StoreConfigError),
        ({"length": True}, StoreConfigError),
        ({"checksum": datetime(2026, 1, 1)}, StoreConfigError),
        ({"checksum": 5}, StoreConfigError),
        ({"location": "/a/path"}, StoreConfigError),
        ({"location": b"file:///a"}, StoreConfigError),
    ],
)
def test_a_reference_that_cannot_be_is_refused(wrong: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        Referring(tmp_path).reference(**wrong)


@pytest.mark.parametrize("number", [0, 3], ids=["over a chunk", "where none is"])
def test_wrong_size_or_number_of_parts_is_refused_before_any_write(number: int, tmp_path: Path) -> None:
    given = Referring(tmp_path)
    header, main, index = given.parts()
    session, store = begin(given.repo)
    before = listing(session), raw_chunks(session, given.kind)
    cases: list[tuple[list[Any], type[Exception]]] = [
        ([b"short", main, index], ChunkSizeError),
        ([header, main, b""], ChunkSizeError),
        ([header, b"", index], ChunkSizeError),
        ([given.reference(length=9), main, index], ChunkSizeError),
        ([header, main], PartsConfigError),
        ([header, main, index, b""], PartsConfigError),
    ]
    for parts, error in cases:
        with pytest.raises(error):
            store.set_parts(f"a/c/{number}", parts)
    with pytest.raises(SessionError):
        store.set_parts("a/c/9", [header, main, index])
    assert (listing(session), raw_chunks(session, given.kind)) == before
    assert not session.has_uncommitted_changes
    KINDS["whole, 3 parts"].create(store, "b")
    for path in ("b", "absent"):
        with pytest.raises(SessionError, match="split"):
            store.set_parts(f"{path}/c/0", [header, main, index])
