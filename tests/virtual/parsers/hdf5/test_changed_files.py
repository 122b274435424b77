"""Files that are changed, truncated or damaged are refused, and never misread."""

import itertools
import os
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest

import parts_store as ps
from parts_store.errors import AdoptionError, PartsStoreError, SessionError
from parts_store.virtual.adopt import adopt
from parts_store.virtual.parsers import hdf5
from tests.effort import examples
from tests.virtual.adopting import adopted, array, arrays, bits, repository, settle
from tests.virtual.parsers.hdf5.files import reasons, write

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("layout", ["chunked", "contiguous"])
def test_a_file_that_was_changed_is_never_misread(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "a.h5"
    write(path, data=np.arange(100), chunks=(10,) if layout == "chunked" else None)
    session = repository(tmp_path).writable_session("main")
    # Not an old one: it was changed in this very second.
    adopt(path, into=session)
    store = ps.PartsStore.from_session(session)
    assert array(store, "a")[:].tolist() == list(range(100))
    with h5py.File(path, "r+") as file:
        file["a"][...] = 0
    for selection, changed in itertools.product((np.s_[:], np.s_[3], np.s_[95:]), arrays(store, "a")):
        with pytest.raises(SessionError, match="was changed or deleted"):
            changed[selection]
    path.unlink()
    with pytest.raises(SessionError):
        array(store, "a")[:]


def test_a_file_that_changes_while_it_is_looked_at_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100))
    settle(path)
    inner = hdf5.describe

    def describe_and_touch(file: Any, nbytes: int, other: Any) -> Any:
        found = inner(file, nbytes, other)
        os.utime(path)
        return found

    monkeypatch.setattr(hdf5, "describe", describe_and_touch)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError, match="while it was read"):
        adopt(path, into=session)
    assert not session.has_uncommitted_changes


def test_a_failed_read_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parts_store.virtual.existing_files import StoredFile

    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(5):
            file.create_dataset(f"{number}", data=np.full(2**18, number), chunks=(2**14,))
            file[f"strings {number}"] = ["x" * 1000] * 1000
    settle(path)
    inner, calls = StoredFile.read, itertools.count()

    for allowed in (0, 1, 2, 3):
        calls = itertools.count()

        def read(stored: StoredFile, start: int, stop: int, calls: Any = calls, allowed: int = allowed) -> bytes:
            if next(calls) >= allowed:
                raise RuntimeError("the network is gone")
            return inner(stored, start, stop)

        monkeypatch.setattr(StoredFile, "read", read)
        session = repository(tmp_path).writable_session("main")
        with pytest.raises(AdoptionError, match="the network is gone"):
            adopt(path, into=session)
        assert not session.has_uncommitted_changes


@pytest.mark.parametrize("wrong", ["past the file", "past the span", "far away", "half a hole", "empty", "checksum"])
def test_an_index_that_points_elsewhere_is_an_error_and_never_values(tmp_path: Path, wrong: str) -> None:
    import google_crc32c

    path = write(tmp_path / "a.h5", data=np.arange(8000, dtype="i4"), chunks=(100,), compression="gzip")
    _, store = adopted(path, shard_chunks=4095)
    table = np.zeros((80, 2), "<u8")
    with h5py.File(path) as file:
        chunks: list[Any] = []
        file["a"].id.chunk_iter(chunks.append)
    first, stop = min(each.byte_offset for each in chunks), max(each.byte_offset + each.size for each in chunks)
    table[:, 0] = [each.byte_offset - first for each in chunks]
    table[:, 1] = [each.size for each in chunks]
    rows = {
        "past the file": (path.stat().st_size, 50),
        "past the span": (stop - first - 3, 50),
        "far away": (2**63, 50),
        "half a hole": (2**64 - 1, 50),
        "empty": (5, 0),
        "checksum": (0, 10),
    }
    table[4] = rows[wrong]
    data = table.tobytes()
    index = data + (0 if wrong == "checksum" else google_crc32c.value(data)).to_bytes(4, "little")
    length = stop - first
    reference = ps.Reference(path.resolve().as_uri(), first, length)
    store.set_parts("a/c/0", [reference, index])
    for opened in arrays(store, "a"):
        for selection in (np.s_[:], np.s_[400:450], 420):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                opened[selection]
            assert not isinstance(caught.value, AssertionError)
        if wrong != "checksum":
            assert opened[0:50].tolist() == list(range(50))


def small_file(path: Path, libver: str = "earliest") -> Path:
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("checked", data=np.arange(200, dtype="i4"), chunks=(50,), fletcher32=True)
        file.create_dataset("packed", data=np.arange(200, dtype=">f8"), chunks=(64,), compression="gzip", shuffle=True)
        file.create_dataset("g/plain", data=np.arange(50, dtype="u2"))
        file.create_dataset("grown", (30, 5), "i2", chunks=(7, 3), maxshape=(None, None), fillvalue=9)[3:9] = 4
        file["scalar"] = 2.5
        file["scale"] = np.arange(30)
        file["scale"].make_scale()
        file["grown"].dims[0].attach_scale(file["scale"])
        file.attrs["title"] = "small"
        file["g"].attrs["numbers"] = np.arange(3)
    return path


def h5py_values(path: Path, name: str) -> Any:
    try:
        with h5py.File(path) as file:
            return file[name][()]
    except Exception:
        return None


def require_right_or_refused(path: Path, session: icechunk.Session) -> str:
    """A damaged file is refused by an error of ours, or adopted; what is then read is right, or an error."""
    settle(path)
    try:
        report = adopt(path, into=session, overwrite=True)
    except PartsStoreError:
        assert not session.has_uncommitted_changes
        return "refused"
    store = ps.PartsStore.from_session(session)
    for each in report.arrays:
        if np.prod(each.shape, dtype=float) > 2**20:
            continue
        try:
            found = array(store, each.path)[...]
        except Exception:
            continue
        expected, before = h5py_values(path, each.path), h5py_values(path.parent / "whole.h5", each.path)
        if expected is None or bits(found, expected.dtype) == bits(expected, expected.dtype):
            continue
        # HDF5 fills in for a chunk that it lists and, by a damaged bound of its index, does not find again.
        assert bits(found, expected.dtype) == bits(before, expected.dtype), each.path
    session.discard_changes()
    return "adopted"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    data = small_file(tmp_path / "whole.h5").read_bytes()
    path = tmp_path / "a.h5"
    session = repository(tmp_path).writable_session("main")
    for length in [0, 1, 7, 8, 9, 50, 95, 96, 97, *range(100, len(data), 257), len(data) - 1]:
        path.write_bytes(data[:length])
        assert require_right_or_refused(path, session) == "refused"


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_flipped_bits_never_become_other_values_than_h5py_reads(tmp_path: Path, libver: str) -> None:
    copies = examples(150)
    data = small_file(tmp_path / "whole.h5", libver).read_bytes()
    random = np.random.default_rng(copies)
    path = tmp_path / "a.h5"
    session = repository(tmp_path).writable_session("main")
    outcomes = []
    for _ in range(copies):
        damaged = bytearray(data)
        for at in random.integers(0, len(data), random.integers(1, 9)):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        outcomes.append(require_right_or_refused(path, session))
    assert outcomes.count("adopted") > copies // 5


def test_chunks_past_the_end_of_the_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100), chunks=(10,))
    write(path, "b", data=np.arange(100))
    inner = hdf5.describe
    monkeypatch.setattr(hdf5, "describe", lambda file, nbytes, other: inner(file, nbytes - 1500, other))
    report, _ = adopted(path)
    assert all("and the file at" in reason for reason in reasons(report).values())
    assert reasons(report)
