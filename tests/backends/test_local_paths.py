"""What is stored, or linked, on a local disk never leads a write or a deletion out of the store's folder."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import zarr
from obstore.store import LocalStore
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.backends import local_locks
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Delete, Done, IfAbsent, Lock, Move, Put, Refused
from parts_store.errors import IncompleteChunkError, LocalPathError, PartsStoreError, StoreConfigError
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.format.tags import Tag
from tests.certified import PARTS, create, is_whole, new_value, read, write

pytestmark = pytest.mark.usefixtures("short_waits")

CHUNK = Chunk("a/c/0", ConcatParts(PARTS), "a")
JOURNAL = f"{CHUNK.side_folder}.journal"
GENERATION = "0123abcd" * 4
SIZES = [16, 3484, 500]
OUT = "../../../../outside/secret"

JOURNALS: dict[str, Any] = {
    "generation leads out": {"key": "c/0", "gen": OUT, "sizes": SIZES},
    "generation is absolute": {"key": "c/0", "gen": "/etc/passwd", "sizes": SIZES},
    "generation is short": {"key": "c/0", "gen": "abc", "sizes": SIZES},
    "generation is upper case": {"key": "c/0", "gen": GENERATION.upper(), "sizes": SIZES},
    "generation ends the line": {"key": "c/0", "gen": GENERATION + "\n", "sizes": SIZES},
    "generation is a number": {"key": "c/0", "gen": 7, "sizes": SIZES},
    "another chunk": {"key": "c/1", "gen": GENERATION, "sizes": SIZES},
    "key leads out": {"key": OUT, "gen": GENERATION, "sizes": SIZES},
    "negative size": {"key": "c/0", "gen": GENERATION, "sizes": [16, -1, 500]},
    "sizes are booleans": {"key": "c/0", "gen": GENERATION, "sizes": [True, True, True]},
    "sizes are floats": {"key": "c/0", "gen": GENERATION, "sizes": [1.0, 2.0, 3.0]},
    "too few sizes": {"key": "c/0", "gen": GENERATION, "sizes": [16]},
    "too many sizes": {"key": "c/0", "gen": GENERATION, "sizes": [*SIZES, 0]},
    "sizes are text": {"key": "c/0", "gen": GENERATION, "sizes": "123"},
    "a list": [],
    "nothing": None,
}
TEXTS = {name: json.dumps(each).encode() for name, each in JOURNALS.items()} | {
    "empty": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "deeply nested": b"[" * 200_000,
    "a huge number": b'{"key": "c/0", "gen": 1' + b"0" * 10_000 + b"}",
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the store, which must never change."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("secret", "secret.0", "secret.1", "secret.2"):
        (outside / name).write_text(name)
    return outside


@pytest.fixture
def store(folder: Path) -> ps.PartsStore:
    store = ps.PartsStore.from_url(folder)
    create(store, "a")
    return store


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


# --- journals ---------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TEXTS)
def test_invalid_journal_is_reported_and_never_executed(
    store: ps.PartsStore, folder: Path, outside: Path, name: str
) -> None:
    before = contents(outside)
    numbers = random.Random(0)
    value = new_value(numbers)
    write(store, "a/c/0", value)
    write(store, "a/c/1", value)
    (folder / JOURNAL).parent.mkdir(parents=True, exist_ok=True)
    (folder / JOURNAL).write_bytes(TEXTS[name])
    with pytest.raises(IncompleteChunkError, match="journal"):
        read(store, "a/c/0")
    assert read(store, "a/c/1") == value
    report = store.verify()
    assert report.is_damaged
    assert {finding.chunk_key for finding in report.findings} == {"a/c/0"}
    store.repair()
    assert contents(outside) == before
    again = new_value(numbers)
    write(store, "a/c/0", again)
    assert read(store, "a/c/0") == again
    assert store.verify().is_clean
    assert contents(outside) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TEXTS)
def test_repair_removes_an_invalid_journal_without_a_chunk_only_if_asked(
    store: ps.PartsStore, folder: Path, outside: Path, name: str
) -> None:
    before = contents(outside)
    (folder / JOURNAL).parent.mkdir(parents=True)
    (folder / JOURNAL).write_bytes(TEXTS[name])
    assert read(store, "a/c/0") is None
    (finding,) = store.repair().findings
    assert not finding.is_repaired
    assert "drop_incomplete" in finding.detail
    assert (folder / JOURNAL).read_bytes() == TEXTS[name]
    assert store.repair(drop_incomplete=True).is_clean
    assert sorted(contents(folder)) == ["a/zarr.json", "zarr.json"]
    assert contents(outside) == before


@pytest.mark.parametrize("relative", [OUT, "../outside/secret", "c/../../outside/secret", "/etc/passwd", "c/0/1", ""])
def test_leftovers_that_name_no_chunk_of_their_array_are_not_believed(
    store: ps.PartsStore, folder: Path, outside: Path, relative: str
) -> None:
    # Files of these names, made by a program that knows how the names are built.
    before = contents(outside)
    beside = folder / Chunk(f"a/{relative}", CHUNK.parts, "a").side_folder
    beside.mkdir(parents=True)
    (beside / "precious").write_text("hostile")
    beside.with_name(f"{beside.name}.journal").write_text(
        json.dumps({"key": relative, "gen": GENERATION, "sizes": SIZES})
    )
    for part in range(3):
        beside.with_name(f"{beside.name}.{GENERATION}.{part}").write_text("hostile")
    assert store.repair(drop_incomplete=True).is_clean
    assert contents(outside) == before
    assert not beside.parent.exists()


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["../outside/secret", "a/../../outside/secret", "/etc/passwd", "a//b", "a/./b", "x\0", ""]
)
def test_no_request_leaves_the_folder_of_the_store(folder: Path, outside: Path, key: str) -> None:
    backend = LocalBackend(LocalStore(folder, mkdir=True))
    before = contents(outside)
    inside = Put("x", b"", None, None, "test")
    backend.perform_sync(inside)
    tag = Tag(GENERATION, "s", (0,))
    for request in (
        Move("x", key, "test"),
        Move(key, "y", "test"),
        Delete((key,), "test"),
        Put(key, b"", tag, None, "test"),
        Put(key, b"", None, IfAbsent(), "test"),
    ):
        with pytest.raises(LocalPathError):
            backend.perform_sync(request)
        with pytest.raises(LocalPathError):
            asyncio.run(backend.perform(request))
    with pytest.raises(LocalPathError):
        backend.lock(Lock(key, "test"))
    assert contents(outside) == before
    assert [*contents(folder)] == ["x"]


def test_consolidated_metadata_cannot_name_an_array_outside(store: ps.PartsStore, folder: Path, outside: Path) -> None:
    member = json.loads((folder / "a/zarr.json").read_bytes())
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    members = {"..": group, "../outside": group, "../outside/secret": member}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
    (folder / "zarr.json").write_text(json.dumps({**group, "consolidated_metadata": consolidated}))
    before = contents(outside)
    with contextlib.suppress(PartsStoreError, ValueError, KeyError):
        for _, array in zarr.open_group(store, mode="r+").members(max_depth=None):
            if isinstance(array, zarr.Array):
                array[...] = 1
    assert contents(outside) == before
    assert not list(outside.parent.glob("outside/**/.parts-txn"))


# --- symbolic links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", ["a", "a/c", "a/c/0", "a/.parts-txn", "g/deep/link"])
@pytest.mark.parametrize("deleted", ["", "top"])
def test_deletion_removes_a_link_and_never_what_it_leads_to(
    folder: Path, outside: Path, linked: str, deleted: str
) -> None:
    store = ps.PartsStore.from_url(folder)
    create(store, "top/a")
    write(store, "top/a/c/1", new_value(random.Random(0)))
    before = contents(outside)
    link = folder / "top" / linked
    if link.is_dir():
        os.rename(link, link.with_name("renamed"))  # noqa: PTH104
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / "secret" if linked == "a/c/0" else outside)
    asyncio.run(store.delete_dir(deleted))
    assert contents(outside) == before
    assert not link.is_symlink()


def test_overwrite_replaces_a_linked_array_and_leaves_its_target(folder: Path, tmp_path: Path) -> None:
    elsewhere = ps.PartsStore.from_url(tmp_path / "elsewhere")
    create(elsewhere, "a")
    value = new_value(random.Random(0))
    write(elsewhere, "a/c/0", value)
    before = contents(tmp_path / "elsewhere")
    store = ps.PartsStore.from_url(folder)
    (folder / "linked").symlink_to(tmp_path / "elsewhere/a")
    # Reading follows links, as zarr's own store does.
    assert read(store, "linked/c/0") == value
    create(store, "linked", overwrite=True)
    assert contents(tmp_path / "elsewhere") == before
    assert not (folder / "linked").is_symlink()
    assert read(store, "linked/c/0") is None


def test_a_link_to_a_chunk_is_read_and_a_write_replaces_the_link_alone(
    store: ps.PartsStore, folder: Path, outside: Path
) -> None:
    numbers = random.Random(0)
    value, new = new_value(numbers), new_value(numbers)
    write(store, "a/c/0", value)
    os.rename(folder / "a/c/0", outside / "kept")  # noqa: PTH104
    (folder / "a/c/0").symlink_to(outside / "kept")
    assert read(store, "a/c/0") == value
    before = contents(outside)
    write(store, "a/c/0", new)
    assert read(store, "a/c/0") == new
    assert contents(outside) == before


@pytest.mark.parametrize("dangling", ["a/c/0", "a/c/0.tail", "a/c", "a", "a/.parts-txn"])
def test_a_link_without_a_target_is_an_error_and_never_fill_values(
    store: ps.PartsStore, folder: Path, tmp_path: Path, dangling: str
) -> None:
    write(store, "a/c/0", new_value(random.Random(0)))
    link = folder / dangling
    if link.exists():
        os.rename(link, tmp_path / "moved")  # noqa: PTH104
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(LocalPathError, match="symbolic link"):
        read(store, "a/c/0")
    new = new_value(random.Random(1))
    if dangling == "a/c/0.tail":
        # A write replaces the link.
        write(store, "a/c/0", new)
        assert read(store, "a/c/0") == new
    else:
        for each in (store, ps.PartsStore.from_url(folder)):
            with pytest.raises(LocalPathError, match="link"):
                write(each, "a/c/0", new)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_link_in_place_of_a_lock_or_its_folder_is_an_error(
    store: ps.PartsStore, folder: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, *, is_dangling: bool
) -> None:
    before = contents(outside)
    target = outside / ("nothing" if is_dangling else "secret")
    beside = folder / "a/.parts-txn"
    for name in ("array.lock", "array.wanted.lock", f"{Path(CHUNK.side_folder).name}.lock"):
        if name not in ("array.lock", "array.wanted.lock"):
            # Linux needs no lock file for a chunk.
            monkeypatch.setattr(local_locks, "has_names", lambda: False)
        beside.mkdir()
        (beside / name).symlink_to(target)
        with pytest.raises(LocalPathError, match="remove"):
            write(store, "a/c/0", new_value(random.Random(0)))
        (beside / name).unlink()
        with contextlib.suppress(OSError):
            beside.rmdir()
    assert contents(outside) == before


def test_links_to_the_protocol_folder_are_not_followed(store: ps.PartsStore, folder: Path, outside: Path) -> None:
    write(store, "a/c/0", new_value(random.Random(0)))
    (outside / Path(CHUNK.side_folder).name).mkdir()
    (outside / Path(CHUNK.side_folder).name / "precious").write_text("precious")
    before = contents(outside)
    (folder / "a/.parts-txn").symlink_to(outside)
    with pytest.raises(LocalPathError, match="symbolic link"):
        write(store, "a/c/0", new_value(random.Random(1)))
    store.repair(drop_incomplete=True)
    assert contents(outside) == before


# --- filesystems that lack something ----------------------------------------------------------------------------------


@pytest.fixture(params=[errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def without_hard_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem without hard links: none can be mounted wherever tests run, so the kernel's answer is replaced."""

    def link(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.usefixtures("without_hard_links")
def test_chunks_and_documents_are_written_without_hard_links(store: ps.PartsStore, folder: Path) -> None:
    numbers = random.Random(0)
    before = sorted(contents(folder))
    for _ in range(3):
        value = new_value(numbers)
        write(store, "a/c/0", value)
        assert read(store, "a/c/0") == value
    assert store.verify().is_clean
    asyncio.run(store.set_if_not_exists("x", cpu.Buffer.from_bytes(b"1")))
    asyncio.run(store.set_if_not_exists("x", cpu.Buffer.from_bytes(b"2")))
    assert (folder / "x").read_bytes() == b"1"
    assert sorted(contents(folder)) == sorted([*before, "x", "a/c/0", "a/c/0.head", "a/c/0.tail"])
    assert not list(folder.rglob(".parts-txn"))


@pytest.mark.usefixtures("without_hard_links")
def test_exactly_one_create_wins_without_hard_links(folder: Path) -> None:
    backend = LocalBackend(LocalStore(folder, mkdir=True))
    outcomes: list[Any] = []

    def create_it(number: int) -> None:
        outcomes.append((number, backend.perform_sync(Put("x", b"%d" % number, None, IfAbsent(), "test"))))

    threads = [threading.Thread(target=create_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, outcome in outcomes if outcome == Done()]
    assert [outcome for _, outcome in outcomes].count(Refused()) == 7
    assert contents(folder) == {"x": b"%d" % winner}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_filesystem_without_locks_is_refused_by_name(
    store: ps.PartsStore, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl" if local_locks.has_names() else "flock", refuse)
    with pytest.raises(StoreConfigError, match="'exclusive'"):
        write(store, "a/c/0", new_value(random.Random(0)))
    alone = ps.PartsStore.from_url(folder, concurrency="exclusive")
    write(alone, "a/c/0", new_value(random.Random(0)))
    value = read(alone, "a/c/0")
    assert value is not None
    assert is_whole(value)
