"""Virtual datasets that are appended: the same as if all files had been written at once."""

import itertools
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.core.sync import sync

import parts_store as ps
from parts_store.virtual.report import Adoption
from tests.effort import examples
from tests.virtual import raw_files
from tests.virtual.adopting import repository, stored
from tests.virtual.monthly import join


class Appended:
    """A repository to which files are appended, and the values that are expected."""

    def __init__(self, folder: Path, *, row: int = 8, chunks: tuple[int, ...] = (1, 2), commits: bool = True) -> None:
        self.folder, self.row, self.chunks, self.commits = folder, row, chunks, commits
        self.repo = repository(folder)
        self.session = self.repo.writable_session("main")
        self.values: NDArray[Any] = np.zeros((0, row), "<i4")
        self.numbers = itertools.count()

    def source(self, days: int, **attrs: Any) -> xr.Dataset:
        """Write another file, which continues the values."""
        number = next(self.numbers)
        values = np.random.default_rng(number).integers(1, 1000, (days, self.row)).astype("<i4")
        array = raw_files.write(self.folder, f"{number}.raw", values, self.chunks)
        virtual = raw_files.dataset(array, first=len(self.values), **attrs)
        self.values = np.concatenate([self.values, values])
        return virtual

    def append(self, days: int, **options: Any) -> Adoption:
        return self.append_all([days], **options)

    def append_all(self, days: list[int], **options: Any) -> Adoption:
        is_new = not len(self.values)
        source = join([self.source(each) for each in days])
        options = {"shard_chunks": 4095} | options
        report = ps.to_icechunk(source, self.session, append_dim=None if is_new else "time", **options)
        if self.commits:
            self.session.commit("appended")
            self.session = self.repo.writable_session("main")
        self.check()
        return report

    def check(self) -> None:
        found = stored(self.session)
        expected = xr.Dataset({"t": (("time", "x"), self.values)}, coords={"time": np.arange(len(self.values))})
        xr.testing.assert_identical(found, expected)
        assert ps.PartsStore.from_session(self.session).verify().is_clean


def plan_of(report: Adoption) -> str:
    (plan,) = [each.plan for each in report.arrays if each.path == "t"]
    return plan


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    first=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    more=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), max_size=6),
    shard_chunks=st.sampled_from([1, 2, 7, 20, 4095]),
    commits=st.booleans(),
)
def test_any_sequence_of_appends_is_the_concatenation(
    first: list[int], more: list[list[int]], shard_chunks: int, commits: bool, tmp_path_factory: Any
) -> None:
    given = Appended(tmp_path_factory.mktemp("files"), commits=commits)
    for days in [first, *more]:
        given.append_all(days, shard_chunks=shard_chunks)


@pytest.mark.slow
def test_months_that_began_as_one_file(tmp_path: Path) -> None:
    given = Appended(tmp_path)
    plans = [plan_of(given.append(days)) for days in (31, 28, 31, 30, 31, 30)]
    assert plans == [
        "1 shard of 124 chunks, in one file",
        "appended: 1 shard new",
        # The second shard has 28 of 31 days. It is full of one file, and has no place for a second.
        "cut again: 4 shards of about 90 chunks, each in at most 2 files",
        "appended: 2 shards new, 1 shard continued",
        "appended: 1 shard new, 1 shard continued",
        "appended: 1 shard new, 1 shard continued",
    ]


def test_continued_shard_keeps_its_first_part(tmp_path: Path) -> None:
    given = Appended(tmp_path)
    given.append_all([31, 28, 31])
    before = references(given.session)
    report = given.append(30)
    after = references(given.session)
    (written,) = [each for each in report.arrays if each.path == "t"]
    # Shards of 23 days: the fourth has 21 days, and is continued; two more begin in the new file.
    assert plan_of(report) == "appended: 2 shards new, 1 shard continued"
    assert written.references == 3
    assert {key: after[key] for key in before if key[0] == "t"} == {
        key: value for key, value in before.items() if key[0] == "t"
    }
    assert [key for key in after if key[0] == "t/__parts__/.next" and key not in before] == [
        ("t/__parts__/.next", (3, 0))
    ]


def references(session: icechunk.Session) -> dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]:
    """Return all references of a session to files, by the paths of their nodes."""

    async def read() -> dict[Any, Any]:
        found = {}
        for node in ("t", "t/__parts__/.next"):
            async for places, kinds, paths, offsets, lengths, _ in session.store.array_chunk_iterator(f"/{node}"):
                rows = zip(places.tolist(), kinds, paths, offsets.tolist(), lengths.tolist(), strict=True)
                for place, kind, path, offset, length in rows:
                    if kind == icechunk.ChunkType.virtual:
                        found[node, tuple(place)] = (path, offset, length)
        return found

    return sync(read())


def test_small_array_stays_plain_when_it_grows(tmp_path: Path) -> None:
    given = Appended(tmp_path)
    assert plan_of(given.append(2)) == "too few chunks for shards: 8"
    for days in (3, 20):
        assert plan_of(given.append(days)) == "appended as references of their own"


def test_reads_of_a_continued_shard_read_only_what_is_needed(tmp_path: Path) -> None:
    given = Appended(tmp_path)
    given.append_all([31, 28, 31])
    given.append(30)
    # The fourth shard has days 69 to 91: 21 of the third file, and two of the fourth. A chunk has 8 bytes, and there is
    # one byte between two chunks.
    index, day = 23 * 4 * 16 + 4, 4 * 9 - 1
    for selection, nbytes in (
        (np.s_[70:71, :2], index + 8),
        (np.s_[90:91, :2], index + 8),
        (np.s_[89:91], index + 2 * day),
    ):
        store = ps.PartsStore.from_session(given.repo.readonly_session("main"))
        array = zarr.open_array(store, path="t", mode="r")
        store.stats.reset()
        assert np.array_equal(array[selection], given.values[selection])
        assert store.stats.bytes_read == nbytes, selection


def test_array_with_native_chunks_is_continued(tmp_path: Path) -> None:
    given = Appended(tmp_path)
    given.append(2)
    array = zarr.open_array(ps.PartsStore.from_session(given.session), path="t")
    array[0] = given.values[0] = 7
    # Some of the stored chunks are no references.
    assert plan_of(given.append(25)) == "appended as references of their own"
