"""Reads and writes of chunks in a session, by any byte range, also of chunks that are references."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ChunkSizeError, PartsConfigError, SessionError
from parts_store.format.references import Reference
from parts_store.maintenance.report import Problem
from tests.backends.icechunk_session.stores import (
    KINDS,
    LAYOUTS,
    PROTOTYPE,
    buffer,
    keys_of,
    make_bytes,
    requests,
    value_of,
)


def fixed_size(parts: list[Any]) -> tuple[int, bool]:
    """Return the number of bytes in parts with a size, and whether there is a part without a size."""
    sizes = [each.size if isinstance(each, ps.Part) else None for each in parts]
    return sum(size for size in sizes if isinstance(size, int)), None in sizes


@pytest.mark.sampled(15)
@KINDS
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_any_range_of_a_chunk_reads_as_a_slice(store: ps.PartsStore, layout: str, *, split: bool) -> None:
    make_bytes(store, LAYOUTS[layout], split=split)
    fixed, is_open = fixed_size(LAYOUTS[layout])
    for number, nbytes in enumerate(range(fixed + 1, 9) if is_open else [fixed]):
        value, key = bytes(range(1, nbytes + 1)), f"a/c/{number % 8}"
        store.set_sync(key, buffer(value))
        wanted = list(requests(nbytes))

        async def read_each(key: str, wanted: list[Any]) -> list[Any]:
            return [await store.get(key, PROTOTYPE, each) for each, _ in wanted]

        for (each, expected), found in zip(wanted, sync(read_each(key, wanted)), strict=True):
            assert found is not None
            assert found.to_bytes() == value[expected], (nbytes, each)
        together = store.get_ranges_sync(key, [each for each, _ in wanted], prototype=PROTOTYPE)
        assert [None if each is None else each.to_bytes() for _, each in together] == [
            value[each] for _, each in wanted
        ]
        partial = sync(store.get_partial_values(PROTOTYPE, [(key, each) for each, _ in wanted]))
        assert [None if each is None else each.to_bytes() for each in partial] == [value[each] for _, each in wanted]
        assert sync(store.getsize(key)) == nbytes
        assert sync(store.exists(key))


@KINDS
def test_no_range_of_a_chunk_that_is_not_there_reads_as_anything(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    for wanted, _ in requests(2):
        assert value_of(store, "a/c/0", wanted) is None
    with pytest.raises(BaseExceptionGroup) as caught:
        store.get_ranges_sync("a/c/0", [RangeByteRequest(0, 1)], prototype=PROTOTYPE)
    assert caught.group_contains(FileNotFoundError)
    assert sync(store.get_partial_values(PROTOTYPE, [("a/c/0", None)])) == [None]
    assert not sync(store.exists("a/c/0"))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a/c/0"))


@KINDS
def test_a_value_that_does_not_fit_is_refused_and_the_old_chunk_stays(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    # In a split array each part is a chunk by itself, and Icechunk keeps none that is empty.
    for value in (b"", b"12", *([b"123"] if split else [])):
        for write in (store.set_sync, lambda key, new: sync(store.set_if_not_exists(key, new))):
            with pytest.raises(ChunkSizeError):
                write("a/c/0", buffer(value))
        with pytest.raises(ChunkSizeError):
            store.set_sync("a/c/1", buffer(value))
    assert value_of(store, "a/c/0") == b"12345"
    assert value_of(store, "a/c/1") is None
    assert store.verify().is_clean


def test_split_array_with_an_empty_part_is_refused_at_creation(store: ps.PartsStore) -> None:
    with pytest.raises(PartsConfigError, match="at least 1"):
        make_bytes(store, [ps.Part(".empty", size=0), ""], split=True)
    assert not sync(store.exists("a/zarr.json"))
    make_bytes(store, [ps.Part(".empty", size=0), ""], split=False)
    store.set_sync("a/c/0", buffer(b"1"))
    assert value_of(store, "a/c/0") == b"1"


@KINDS
def test_set_if_not_exists_writes_a_chunk_once(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    for value in (b"first", b"other"):
        sync(store.set_if_not_exists("a/c/0", buffer(value)))
        assert value_of(store, "a/c/0") == b"first"
    store.delete_sync("a/c/0")
    sync(store.set_if_not_exists("a/c/0", buffer(b"again")))
    assert value_of(store, "a/c/0") == b"again"


@KINDS
def test_arrays_without_dimensions_and_at_the_root_are_stored(repository: Any, session: Any, *, split: bool) -> None:
    store = ps.PartsStore.from_session(session)
    parts = [ps.Part(".h", size=1), ps.Part(""), ps.Part(".t", size=1)]
    scalar = ps.create_array(store, None, parts=parts, split=split, shape=(), dtype="float64", compressors=None)
    scalar[...] = 2.5
    session.commit("a number")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    assert zarr.open_array(reader)[...] == 2.5
    assert keys_of(reader.list()) == {"zarr.json", "c"}
    assert reader.verify().is_clean


@pytest.mark.sampled(3)
@KINDS
@pytest.mark.parametrize("suffix", [".x", ".a.b", "%2E", "~", " x", "ü", "-" * 60, ":", "?", "#"])
def test_any_suffix_that_the_specification_allows_is_kept(store: ps.PartsStore, suffix: str, *, split: bool) -> None:
    make_bytes(store, ["", ps.Part(suffix, size=2)], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    assert value_of(store, "a/c/0") == b"12345"
    store.session.commit("a chunk")
    assert value_of(store, "a/c/0", SuffixByteRequest(3)) == b"345"
    assert keys_of(store.list()) == {"zarr.json", "a/zarr.json", "a/c/0"}
    assert store.verify().is_clean


def test_any_range_of_referenced_parts_reads_as_a_slice(
    referring: tuple[icechunk.Repository, str], tmp_path: Path
) -> None:
    repository, location = referring
    content = bytes(range(100, 140))
    (tmp_path / "files" / "file").write_bytes(content)
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    make_bytes(store, LAYOUTS["both"], split=True)
    middle = Reference(f"{location}file", 7, 5)
    store.set_parts("a/c/0", [b"h", middle, b"ta"])
    store.set_parts("a/c/1", [Reference(f"{location}file", 1, 1), b"m", Reference(f"{location}file", 38, 2)])
    expected = {"a/c/0": b"h" + content[7:12] + b"ta", "a/c/1": content[1:2] + b"m" + content[38:]}
    session.commit("references")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    for key, value in expected.items():
        for wanted, cut in requests(len(value)):
            assert value_of(reader, key, wanted) == value[cut], (key, wanted)
        assert sync(reader.getsize(key)) == len(value)
    assert reader.verify(checksums=True).is_clean


def test_references_that_cannot_be_read_are_refused(referring: tuple[icechunk.Repository, str], tmp_path: Path) -> None:
    repository, location = referring
    (tmp_path / "files" / "file").write_bytes(bytes(40))
    store = ps.PartsStore.from_session(repository.writable_session("main"))
    make_bytes(store, LAYOUTS["both"], split=True)
    make_bytes(store, LAYOUTS["both"], "whole", split=False)
    store.set_sync("a/c/0", buffer(b"12345"))
    good = Reference(f"{location}file", 0, 5)
    with pytest.raises(SessionError, match="no virtual chunk container"):
        store.set_parts("a/c/0", [b"h", Reference("s3://elsewhere/file", 0, 5), b"ta"])
    with pytest.raises(ChunkSizeError):
        store.set_parts("a/c/0", [b"hh", good, b"ta"])
    with pytest.raises(ChunkSizeError):
        store.set_parts("a/c/0", [b"h", b"", b"ta"])
    with pytest.raises(PartsConfigError):
        store.set_parts("a/c/0", [b"h", good])
    with pytest.raises(SessionError, match="split=True"):
        store.set_parts("whole/c/0", [b"h", good, b"ta"])
    assert value_of(store, "a/c/0") == b"12345"


def test_reference_to_a_missing_or_changed_file_is_an_error(
    referring: tuple[icechunk.Repository, str], tmp_path: Path
) -> None:
    repository, location = referring
    file = tmp_path / "files" / "file"
    file.write_bytes(bytes(range(1, 41)))
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    array = ps.create_array(
        store, "a", parts=["", ps.Part(".t", size=2)], split=True, shape=(8,), chunks=(8,), dtype="u1", compressors=None
    )
    store.set_parts("a/c/0", [Reference(f"{location}file", 0, 6), b"tt"])
    np.testing.assert_array_equal(array[:], [1, 2, 3, 4, 5, 6, 116, 116])
    file.unlink()
    with pytest.raises(SessionError):
        array[:]
    report = store.verify(checksums=True)
    assert [finding.problem for finding in report.findings] == [Problem.UNREADABLE]
    assert report.is_damaged
