"""The demo does what its page says: its files are compared with what the libraries of their formats read."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parts_store import demo
from parts_store.demo import Demo
from parts_store.demo.steps import STEPS, julia_set

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Ran:
    """A demo that has run."""

    folder: Path
    said: list[str]
    found: Demo

    @property
    def page(self) -> str:
        return (self.folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("demo") / "below" / "output"
    lines: list[str] = []
    found = demo.run(folder, lines.append)
    return Ran(folder, lines, found)


def test_every_step_is_right_and_has_a_line(ran: Ran) -> None:
    assert ran.found.is_right
    assert len(ran.said) == 2 * len(STEPS) == 10
    assert all(line.startswith("     ok: ") for line in ran.said[1::2])
    assert [line[:4] for line in ran.said[::2]] == [f"{number}/5 " for number in range(1, 6)]


def test_one_array_is_read_by_programs_without_a_plugin(ran: Ran) -> None:
    said = ran.found.steps[0].result.summary
    programs = ["zarr", "tensorstore", "zarrs", "tifffile", "Pillow", "GDAL"]
    assert said == f"6 programs without a plugin read the right pixels: {', '.join(programs)}"


def test_killed_writers_leave_one_whole_write_and_nothing_else(ran: Ran) -> None:
    step = ran.found.steps[1].result
    before, after = step.figures
    picture = julia_set(1024)[:512, :512]
    # The old image if the writer had not committed, the new one if it had.
    np.testing.assert_array_equal(before[0], picture)
    np.testing.assert_array_equal(after[0], 255 - picture)
    # They were killed in the middle. Before the commit, two staged objects and an unfinished journal are left.
    killed_before, killed_after = step.printed.split("Killed after its commit")
    assert re.search("leftovers: in_parts/c/0/0/0: .*journal", killed_before)
    assert "interrupted" not in killed_before
    assert "interrupted: in_parts/c/0/0/0: an overwrite was interrupted" in killed_after
    left = {path.name for path in (ran.folder / "images.zarr/in_parts").rglob("*") if path.is_file()}
    assert left - {"array.lock"} == {"zarr.json", "0.tif", "0.index"}


def test_known_shards_take_one_request_for_each_tile(ran: Ran) -> None:
    step = ran.found.steps[4].result
    assert "PartsStore 100 requests, zarr's LocalStore 200" in step.summary
    # The selection is in four shards, in one inner chunk of each.
    assert step.printed.count("GET ") == 4


def test_page_refers_to_nothing_outside_of_it(ran: Ran) -> None:
    addresses = re.findall(r"(?:src|href|action)=[\"']([^\"']*)", ran.page)
    assert len(addresses) == 6
    assert all(each.startswith("data:image/png;base64,") for each in addresses)
    style = ran.page.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url|@import", style)
    assert not re.search(r"<script|<link", ran.page)


def test_earlier_output_is_replaced_and_other_files_stay(ran: Ran) -> None:
    before = ran.page
    (ran.folder / "notes.txt").write_text("mine")
    (ran.folder / "images.zarr/old").write_text("of an earlier demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parts_store.demo.steps.STEPS", STEPS[:1])
        demo.run(ran.folder, lambda line: None)
    assert (ran.folder / "notes.txt").read_text() == "mine"
    assert not (ran.folder / "images.zarr/old").exists()
    assert not (ran.folder / "archive").exists()
    assert ran.page != before
