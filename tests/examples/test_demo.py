"""The demo does what its page says: its files are compared with what the libraries of their formats read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import icechunk
import numpy as np
import pytest
import rasterio
import tifffile
import xarray as xr
import zarr
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning

import parts_store as ps
from parts_store.examples import demo
from parts_store.examples.demo.figures import julia_set
from parts_store.examples.demo.outcome import Demo
from parts_store.examples.demo.program import STEPS

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Ran:
    """A demo that has run."""

    folder: Path
    said: str
    found: Demo

    @property
    def page(self) -> str:
        return (self.folder / "index.html").read_text(encoding="utf-8")

    def table(self, step: int) -> Sequence[Sequence[str]]:
        table = self.found.steps[step - 1].outcome.table
        assert table is not None
        return table.rows


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("demo") / "below" / "output"
    texts: list[str] = []
    found = demo.run(folder, texts.append)
    return Ran(folder, "".join(texts), found)


def test_every_step_is_right_and_has_a_line(ran: Ran) -> None:
    assert ran.found.is_right
    lines = ran.said.splitlines()
    assert len(lines) == 2 * len(STEPS) == 12
    assert all(line.startswith("     ok: ") for line in lines[1::2])
    assert [line[:4] for line in lines[::2]] == [f"{number}/6 " for number in range(1, 7)]


def test_shards_open_in_three_tiff_readers(ran: Ran) -> None:
    expected = julia_set(1024)[:512, 512:]
    file = ran.folder / "images.zarr/image/c/0/1/0.tif"
    np.testing.assert_array_equal(tifffile.imread(file), expected)
    with Image.open(file) as image:
        np.testing.assert_array_equal(np.asarray(image), expected)
    with pytest.warns(NotGeoreferencedWarning), rasterio.open(file) as dataset:
        np.testing.assert_array_equal(np.moveaxis(dataset.read(), 0, -1), expected)


def test_killed_writers_leave_one_whole_image_and_nothing_else(ran: Ran) -> None:
    before, after = ran.table(2)
    # The old image if the writer had not committed, the new one if it had.
    assert (tuple(before[2:4]), tuple(after[2:4])) == (("589,824", "0"), ("0", "589,824"))
    # They were killed in the middle: something was left, and `verify` found it. Before the commit these are two staged
    # objects and an unfinished journal, then the journal and one staged object.
    assert (before[1], after[1]) == ("3", "2")
    assert int(before[4]) > 0 < int(after[4])
    left = {path.name for path in (ran.folder / "crash.zarr/image").rglob("*") if path.is_file()}
    assert left - {"array.lock"} == {"zarr.json", "0.tif", "0.index"}
    picture = julia_set(768)
    found = tifffile.imread(ran.folder / "crash.zarr/image/c/0/0/0.tif")
    np.testing.assert_array_equal(found, 255 - picture)


def test_rows_of_eight_writers_are_counted(ran: Ran) -> None:
    expected = np.arange(64) % 8 + 1
    rows = {row[0]: int(row[2]) for row in ran.table(3)}
    assert rows["PartsStore"] == 0
    for name, lost in rows.items():
        # Both are plain Zarr arrays, which zarr reads by itself.
        found = zarr.open_array(str(ran.folder / "shared" / name / "shared"), mode="r")
        assert np.count_nonzero(np.asarray(found[:])[:, 0] != expected) == lost


def test_archive_is_read_from_the_netcdf_files(ran: Ran) -> None:
    archive = ran.folder / "archive"
    files = sorted(archive.glob("*.nc"))
    assert len(files) == 13
    repository = ps.open_repository(archive / "repository", virtual=[archive], create=False)
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    found = xr.open_zarr(store, consolidated=False, chunks=None)
    expected = xr.concat([xr.open_dataset(file, engine="h5netcdf") for file in files], "time", data_vars="minimal")
    xr.testing.assert_equal(found.load(), expected.load())
    assert found.sizes["time"] == 396
    assert ("bytes copied", "0") in ran.table(4)


def test_history_has_both_versions(ran: Ran) -> None:
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(ran.folder / "history")))
    second, first, _ = repository.ancestry(branch="main")
    assert (first.message, second.message) == ("the image", "a region inverted")
    expected = julia_set(512)
    for snapshot in (first, second):
        store = ps.PartsStore.from_session(repository.readonly_session(snapshot_id=snapshot.id))
        found = np.asarray(zarr.open_array(store, path="image", mode="r")[:])
        np.testing.assert_array_equal(found, expected)
        expected[100:300, 200:330] = 255 - expected[100:300, 200:330]


def test_request_table_counts_one_request_for_each_known_shard(ran: Ran) -> None:
    rows = {row[0]: row[1:] for row in ran.table(6)}
    # The requests of zarr's own store, of PartsStore, and of TIFF shards.
    assert rows["100 more tiles"][::2] == ("200", "100", "200")
    assert rows["write the image"][::2][:2] == ("4", "4")
    assert all(float(cell.replace(",", "")) > 0 for row in rows.values() for cell in row[1::2])


class Tags(HTMLParser):
    """The tags of a page that are open, and the addresses that the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "polyline"):
            self.open.append(tag)
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("img", "polyline")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_refers_to_nothing_outside_of_it(ran: Ran) -> None:
    tags = Tags()
    tags.feed(ran.page)
    tags.close()
    assert tags.open == []
    assert {each[1:] for each in tags.addresses if each.startswith("#")} <= set(tags.ids)
    others = [each for each in tags.addresses if not each.startswith("#")]
    assert len(others) == 10
    assert all(each.startswith("data:image/png;base64,") for each in others)
    style = ran.page.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url|@import", style)
    assert not re.search(r"<script|<link", ran.page)
    assert "prefers-color-scheme: dark" in ran.page


def test_earlier_output_is_replaced_and_other_files_stay(ran: Ran) -> None:
    before = ran.page
    (ran.folder / "notes.txt").write_text("mine")
    (ran.folder / "images.zarr/old").write_text("of an earlier demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parts_store.examples.demo.program.STEPS", STEPS[:1])
        demo.run(ran.folder, lambda text: None)
    assert (ran.folder / "notes.txt").read_text() == "mine"
    assert not (ran.folder / "images.zarr/old").exists()
    assert not (ran.folder / "history").exists()
    assert ran.page != before
