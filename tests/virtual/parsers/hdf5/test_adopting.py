"""Where an adopted file goes, what is reported, and what a read costs."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import AdoptionError, SessionError, StoreConfigError
from parts_store.virtual.adopt import adopt
from tests.virtual.adopting import adopted, array, repository, require_equal, settle
from tests.virtual.parsers.hdf5.files import write

pytestmark = pytest.mark.slow


def test_files_of_any_name_are_found_again(tmp_path: Path) -> None:
    for name in ("a b.h5", "ü.h5", "a%20b.h5", "a#b.h5", "a?b.h5", "[x].h5", "noextension"):
        path = write(tmp_path / name, data=np.arange(9), chunks=(2,))
        report, store = adopted(path)
        assert require_equal(report, store, path) == 1


def test_what_is_there_already_is_kept_or_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", "g/a", data=np.arange(9), chunks=(2,))
    write(path, "s", data=1)
    settle(path)
    session = repository(tmp_path).writable_session("main")
    store = ps.PartsStore.from_session(session)
    adopt(path, into=store)
    with pytest.raises(StoreConfigError, match="overwrite"):
        adopt(path, into=store)
    with h5py.File(path, "r+") as file:
        file["g/a"][:] = 7
    settle(path)
    adopt(path, into=store, overwrite=True)
    assert array(store, "g/a")[:].tolist() == [7] * 9
    # An array where a group has to be, and above it.
    zarr.create_array(store, name="in/g", shape=(3,), dtype="i4")
    with pytest.raises(StoreConfigError, match="in/g"):
        adopt(path, into=store, path="in")
    assert zarr.open_array(store, path="in/g").shape == (3,)
    with pytest.raises(StoreConfigError, match="a path that is not in an array"):
        adopt(path, into=store, path="in/g/below")
    adopt(path, into=store, path="in", overwrite=True)
    assert array(store, "in/g/a")[:].tolist() == [7] * 9
    session.commit("adopted")


def test_a_wrong_call_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(9))
    settle(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    session = repository(elsewhere).writable_session("main")
    with pytest.raises(SessionError, match="container"):
        adopt(path, into=session)
    with pytest.raises(StoreConfigError, match="session"):
        adopt(path, into=ps.PartsStore.from_url("memory://"))
    with pytest.raises(StoreConfigError, match="expected a file that exists"):
        adopt(tmp_path / "nothing.h5", into=session)
    with pytest.raises(ValueError, match="read-only"):
        adopt(path, into=repository(tmp_path).readonly_session("main"))
    wrong: Any
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(StoreConfigError, match="shard_chunks"):
            adopt(path, into=session, shard_chunks=wrong)
    for data, found in (
        (b"", "an empty file"),
        (b"CDF\x03" + bytes(2000), "a format that is not known"),
        (b"x" * 5000, "a format that is not known"),
    ):
        path.write_bytes(data)
        with pytest.raises(AdoptionError, match=found):
            adopt(path, into=session)
    assert not session.has_uncommitted_changes


def test_the_report_and_progress_tell_what_was_done(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(1000, dtype="i4"), chunks=(10,))
    write(path, "b", data=np.arange(5, dtype=">f8"))
    write(path, "s", data=np.int16(4))
    write(path, "t", data="text")
    write(path, "l", data=np.longdouble(1))
    seen: list[tuple[int, int]] = []
    report, _ = adopted(path, shard_chunks=40, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    # A hundred chunks in three shards, of 34 slots of 16 bytes each and a checksum.
    (chunked, contiguous, scalar, text) = report.arrays
    assert (chunked.chunks, chunked.references, chunked.nbytes_referenced) == (100, 3, 4000)
    assert chunked.nbytes_written == 3 * (34 * 16 + 4)
    assert (contiguous.references, contiguous.nbytes_referenced, contiguous.nbytes_written) == (1, 40, 0)
    assert (scalar.references, scalar.nbytes_written, scalar.loaded) == (0, 2, "")
    # One text: the number of texts, its length, and its letters.
    assert (text.references, text.nbytes_written, text.loaded) == (0, 12, "texts of a variable length")
    assert report.loaded == (text,)
    assert report.references == 4
    # The scalar, and the text.
    assert report.nbytes_copied == 14
    assert report.to_json()["skipped"] == [{"name": "l", "reason": "numbers of 16 bytes, which Zarr has no type for"}]
    forms = [(each.form, each.nbytes_copied) for each in report.arrays]
    assert forms == [("shards", 0), ("plain", 0), ("values", 2), ("values", 12)]
    assert "4 arrays adopted, 2 with copied values, 1 skipped; 4 references to 4,040 bytes, " in str(report)
    stored = "t: string[], 12 bytes copied (a single value)"
    assert f"{stored}; copied because: texts of a variable length" in str(report)


def interleaved(path: Path, variables: int, chunks: int, nbytes: int) -> Path:
    """A file whose variables take turns, chunk by chunk."""
    with h5py.File(path, "w", libver="latest") as file:
        made = [
            file.create_dataset(f"v{each}", (chunks * nbytes,), "u1", chunks=(nbytes,), maxshape=(None,))
            for each in range(variables)
        ]
        for at in range(chunks):
            for number, each in enumerate(made):
                each[at * nbytes : (at + 1) * nbytes] = (at * variables + number) % 251
            file.flush()
    return path


def test_a_whole_shard_is_read_without_the_other_variables_in_between(tmp_path: Path) -> None:
    nbytes, chunks = 40_000, 70
    path = interleaved(tmp_path / "a.h5", 3, chunks, nbytes)
    report, store = adopted(path, shard_chunks=4095)
    assert report.references == 3
    index = chunks * 16 + 4
    with h5py.File(path) as file:
        for name in ("v0", "v2"):
            opened = array(store, name)
            store.stats.reset()
            assert np.array_equal(opened[:], file[name][:])
            assert store.stats.bytes_read == chunks * nbytes + index, name
            assert store.stats.get == chunks + 1
            store.stats.reset()
            assert np.array_equal(opened[nbytes * 5 + 1 : nbytes * 6], file[name][nbytes * 5 + 1 : nbytes * 6])
            assert store.stats.bytes_read <= nbytes + index


def test_chunks_side_by_side_are_read_together(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(10_000, dtype="i4"), chunks=(100,))
    write(path, "b", data=np.arange(10_000, dtype="i4"), chunks=(100,))
    _, store = adopted(path, shard_chunks=4095)
    opened = array(store, "a")
    store.stats.reset()
    assert opened[:].tolist() == list(range(10_000))
    assert store.stats.get <= 4
    assert store.stats.bytes_read < 40_000 + 100 * 16 + 4 + 2 * 2**14


def test_a_shard_with_holes_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", (100,), "i4", chunks=(10,), fillvalue=-1, maxshape=(None,))
        for start in (90, 20, 50):
            made[start : start + 10] = start
    report, store = adopted(path)
    assert require_equal(report, store, path) == 1


def test_an_old_file_is_adopted_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100), chunks=(10,))
    settle(path)
    session = repository(tmp_path).writable_session("main")
    waited: list[float] = []
    monkeypatch.setattr("parts_store.virtual.existing_files.time.sleep", waited.append)
    adopt(path, into=session)
    assert waited == []


def nested(path: Path, levels: int) -> Path:
    """A file with so many groups in one another, each with an attribute, and a dataset in the innermost."""
    with h5py.File(path, "w") as root:
        group: h5py.Group = root
        for level in range(levels):
            group = group.create_group("g")
            group.attrs["level"] = level
        group["x"] = [1, 2, 3]
    settle(path)
    return path


def requests_of(folder: Path, levels: int, path: str = "") -> int:
    """How many requests the adoption of such a file makes."""
    store = ps.PartsStore.from_session(repository(folder).writable_session("main"))
    adopt(nested(folder / f"{levels}.h5", levels), into=store, path=path)
    made = sum(store.stats.calls.values())
    below = zarr.open_group(store, path=path, mode="r")
    for level in range(levels):
        below = below["g"]  # type: ignore[assignment]
        assert below.attrs["level"] == level
    assert below["x"][:].tolist() == [1, 2, 3]  # type: ignore[index, union-attr]
    return made


@pytest.mark.parametrize("path", ["", "above/it"])
def test_nested_groups_take_as_many_requests_each_at_every_depth(path: str, tmp_path: Path) -> None:
    counts = [requests_of(tmp_path, levels, path) for levels in (10, 20, 40)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    # What is there, and the document.
    assert counts[1] - counts[0] == 10 * 2


def test_attributes_of_groups_that_are_there_are_kept(tmp_path: Path) -> None:
    store = ps.PartsStore.from_session(repository(tmp_path).writable_session("main"))
    zarr.create_group(store, path="into", attributes={"title": "mine"})
    zarr.create_group(store, path="into/g", attributes={"level": 9, "old": True})
    adopt(nested(tmp_path / "file.h5", 2), into=store, path="into")
    root = zarr.open_group(store, mode="r")
    assert dict(root["into"].attrs) == {"title": "mine"}
    assert dict(root["into/g"].attrs) == {"level": 0, "old": True}
    assert dict(root["into/g/g"].attrs) == {"level": 1}
