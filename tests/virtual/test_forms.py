"""The form of adopted arrays: plain references by default, shards above a limit; an append keeps it."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import ManifestError, StoreConfigError
from parts_store.virtual import stored_arrays
from parts_store.virtual.manifests.shards import MAX_PLAIN_CHUNKS, cut
from tests.virtual import raw_files
from tests.virtual.adopting import repository, settle, stored


def days(folder: Path, number: int, count: int, *, chunks: tuple[int, int] = (1, 400), **filters: Any) -> Path:
    """Write a file of some rows of 1,600 compressed numbers."""
    values = np.random.default_rng(number).integers(0, 1000, (count, 1600), "i4")
    path = folder / f"{number}.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("t", data=values, chunks=chunks, **({"compression": "gzip"} | filters))
        time = file.create_dataset("time", data=np.arange(count) + 1000 * number)
        time.make_scale("time")
        dataset.dims[0].attach_scale(time)
    settle(path)
    return path


def values_of(*files: Path) -> Any:
    found = []
    for path in files:
        with h5py.File(path) as file:
            found.append(file["t"][()])
    return np.concatenate(found)


def array_of(report: Any, path: str = "t") -> Any:
    (found,) = [each for each in report.arrays if each.path == path]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("count", "form"), [(MAX_PLAIN_CHUNKS, "plain"), (MAX_PLAIN_CHUNKS + 1, "shards")])
def test_arrays_are_plain_up_to_a_limit_and_in_shards_above(tmp_path: Path, count: int, form: str) -> None:
    (tmp_path / "a.raw").write_bytes(b"")
    document = {
        "shape": [count],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
    }
    entries = {str(at): {"path": (tmp_path / "a.raw").as_uri(), "offset": at, "length": 1} for at in range(count)}
    array = ps.manifests.PartsArray(document, [entries])
    sharded = cut(array.references, None)
    assert sharded.is_cut == (form != "plain")


def test_default_is_plain_and_the_report_says_what_shards_would_take(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    file = days(tmp_path, 0, 40)
    report = ps.adopt(file, into=session)
    found = array_of(report)
    assert (found.form, found.references, found.readers) == ("plain", 160, ("zarr", "icechunk"))
    assert (found.other.form, found.other.references) == ("shards", 1)
    assert np.array_equal(zarr.open_array(session.store, path="t", mode="r")[:], values_of(file))
    json = report.to_json()["arrays"]
    (shown,) = [each for each in json if each["path"] == "t"]
    assert (shown["form"], shown["readers"]) == ("plain", ["zarr", "icechunk"])
    assert shown["other"] == {"form": "shards", "references": 1, "bytes_manifests": found.other.nbytes_manifests}
    text = str(report)
    assert "plain references: 2 arrays, 161 references, about 3.1 kB, readable with zarr and icechunk" in text
    assert "in shards (`shard_chunks=4095`) 160 of them would be 1, about 819 bytes, for parts_store only" in text
    assert "plain" in report._repr_html_()


def test_a_number_chooses_shards_and_the_report_says_what_plain_references_would_take(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(days(tmp_path, 0, 40), into=session, shard_chunks=4095)
    found = array_of(report)
    assert (found.form, found.references, found.readers) == ("shards", 1, ("parts_store",))
    assert (found.other.form, found.other.references) == ("plain", 160)
    assert "for parts_store only; as plain references (`shard_chunks=1`) they would be 160, about 3.0 kB" in str(report)


def test_a_plain_array_stays_plain_when_many_chunks_are_appended(tmp_path: Path) -> None:
    files = [days(tmp_path, number, count) for number, count in enumerate((2, 40, 80))]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session)
    for number, file in enumerate(files[1:], start=2):
        report = ps.adopt(file, into=session, append_dim="time")
        assert array_of(report).form == "plain"
        found = zarr.open_array(session.store, path="t", mode="r")
        assert np.array_equal(found[:], values_of(*files[:number]))


def test_an_array_beyond_the_limit_keeps_its_form_and_the_report_says_what_shards_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_arrays, "MAX_PLAIN_CHUNKS", 200)
    files = [days(tmp_path, number, 40) for number in range(2)]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session)
    found = array_of(ps.adopt(files[1], into=session, append_dim="time"))
    assert found.form == "plain"
    assert "320 now; adopted again in shards" in found.plan
    assert np.array_equal(zarr.open_array(session.store, path="t", mode="r")[:], values_of(*files))


def test_an_array_in_shards_stays_in_shards_without_an_option(tmp_path: Path) -> None:
    files = [days(tmp_path, number, count) for number, count in enumerate((31, 28, 31, 30, 1))]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session, shard_chunks=4095)
    for number, file in enumerate(files[1:], start=2):
        assert array_of(ps.adopt(file, into=session, append_dim="time")).form == "shards"
        assert np.array_equal(stored(session)["t"], values_of(*files[:number]))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "codecs": ({"compression": None}, "expected the codecs .* found .*; if it is small, load it"),
    "chunks": ({"chunks": (1, 800)}, r"expected the chunk shape \(1, 400\), found \(1, 800\); if it is small, load it"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("shard_chunks", [None, 4095])
def test_chunks_that_do_not_fit_are_refused_with_the_name_of_their_file(
    tmp_path: Path, case: str, shard_chunks: int | None
) -> None:
    change, text = REFUSED[case]
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    ps.adopt(days(tmp_path, 0, 40), into=session, shard_chunks=shard_chunks)
    session.commit("stored")
    session = repo.writable_session("main")
    if shard_chunks is not None:
        text = text.replace("if it is small, load it", "adopt all files again, together")
    other = days(tmp_path, 1, 40, **change)
    with pytest.raises(ManifestError, match=rf"1\.h5, array 't': {text}"):
        ps.adopt(other, into=session, append_dim="time")
    assert not session.has_uncommitted_changes


def test_what_the_error_advises_is_possible(tmp_path: Path) -> None:
    files = [days(tmp_path, 0, 40), days(tmp_path, 1, 40, chunks=(1, 800))]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session)
    report = ps.adopt(files[1], into=session, append_dim="time", loadable_variables=["t"])
    assert (array_of(report).form, array_of(report).nbytes_copied) == ("values", 40 * 1600 * 4)
    assert np.array_equal(zarr.open_array(session.store, path="t", mode="r")[:], values_of(*files))


def test_a_dimension_that_is_misspelled_is_named_with_the_one_that_is_stored(tmp_path: Path) -> None:
    files = [days(tmp_path, number, 4) for number in range(2)]
    session = repository(tmp_path).writable_session("main")
    ps.adopt(files[0], into=session)
    with pytest.raises(
        StoreConfigError, match=r"append_dim: expected a dimension .*'time'.*'tim'; did you mean 'time'"
    ):
        ps.adopt(files[1], into=session, append_dim="tim")


def test_chunks_that_are_not_in_files_are_not_added_to_shards(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    values = np.arange(160, dtype="<i4").reshape(20, 8)
    array = raw_files.write(tmp_path, "0.raw", values, (1, 2))
    ps.to_icechunk(raw_files.dataset(array), session, shard_chunks=4095)
    entries: dict[Any, Any] = dict(raw_files.write(tmp_path, "1.raw", values, (1, 2)).manifests[0].dict())
    entries["3.0"] = {"path": "", "offset": 0, "length": 8, "data": bytes(8)}
    inlined = ps.manifests.PartsArray(array.metadata, [entries])
    with pytest.raises(ManifestError, match=r"1\.raw, array 't': expected chunks that can be added .* not in files"):
        ps.to_icechunk(raw_files.dataset(inlined, first=20), session, append_dim="time")


@pytest.mark.parametrize("shard_chunks", [None, 4095])
@pytest.mark.parametrize("change", ["nothing", "changed", "deleted"])
def test_verify_finds_each_file_that_was_changed_or_lost(tmp_path: Path, shard_chunks: int | None, change: str) -> None:
    files = [days(tmp_path, number, 4) for number in range(3)]
    place = repository(tmp_path)
    session = place.writable_session("main")
    ps.adopt(files, into=session, concat_dim="time", shard_chunks=shard_chunks)
    session.commit("adopted")
    if change == "changed":
        files[1].write_bytes(b"other")
        os.utime(files[1], (2e9, 2e9))
    elif change == "deleted":
        files[1].unlink()
    report = ps.PartsStore.from_session(place.readonly_session("main")).verify(checksums=True)
    assert report.arrays > 0
    assert report.is_damaged == (change != "nothing")
    for finding in report.findings:
        assert files[1].name in finding.detail
        assert ("which no longer exists" if change == "deleted" else "changed or deleted") in finding.detail
