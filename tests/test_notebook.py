"""What a notebook shows: well-formed HTML, with everything escaped, for every object that shows itself."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.engine.stats import Request, Requests
from parts_store.maintenance.report import Finding, Problem
from parts_store.notebook import COLOURS
from parts_store.store.inspection import Node, Tree
from parts_store.text import size


def parsed(shown: Any) -> ET.Element:
    """Return the HTML of an object, which is well-formed XML."""
    return ET.fromstring(f"<div>{shown._repr_html_()}</div>")


def text_of(shown: Any) -> str:
    return " ".join(" ".join(parsed(shown).itertext()).split())


def make_store() -> ps.PartsStore:
    store = ps.PartsStore.from_url("memory://")
    parts = [ps.Part(".data"), ps.Part(".index", size=ps.SHARD_INDEX)]
    array = ps.create_array(
        store, "group/a", parts=parts, shape=(16,), chunks=(4,), shards=(8,), dtype="int16", compressors=None
    )
    array[:] = np.arange(1, 17)
    return store


def test_store_shows_its_arrays_and_calls() -> None:
    assert "parts of group/a '.data', '.index'" in text_of(make_store())


def test_requests_show_a_table_and_a_bar_for_each_range() -> None:
    shown = parsed(make_store().explain("group/a", np.s_[0:4]))
    cells = [cell.text for cell in shown.iter("td")]
    assert "group/a/c/0.data" in cells
    titles = [title.text for title in shown.iter("title")]
    assert "bytes 0 to 8: data" in titles
    assert [each.text for each in shown.iter("text")][:2] == ["read", "not read"]


def test_journals_of_a_local_disk_are_one_line(tmp_path: Path) -> None:
    array = ps.create_array(
        ps.PartsStore.from_url(tmp_path), "a", parts=["", ps.Part(".b", size=1)], shape=(8,), chunks=(4,), dtype="u1"
    )
    array[:] = 1
    requests = ps.PartsStore.from_url(tmp_path).explain("a", np.s_[:])
    journals = [each for each in requests if each.key.endswith(".journal")]
    assert len(journals) > 1
    *lines, last, total = str(requests).splitlines()
    assert last == f"GET  {len(journals)} journals (whether the chunk is being written)"
    assert total == f"{len(requests)} requests"
    assert len(lines) == len(requests) - len(journals)
    assert "journals" in text_of(requests)


def test_bar_of_a_suffix_ends_where_the_object_ends() -> None:
    shown = parsed(Requests([Request("get", "a", -20, None, "index"), Request("get", "a", 0, 100, "data")]))
    _legend, *bars = [bar for bar in shown.iter("rect") if bar.get("fill") != "currentColor"]
    ends = [float(bar.attrib["x"]) + float(bar.attrib["width"]) for bar in bars]
    assert ends == pytest.approx([720, 720], abs=0.2)
    starts = [float(bar.attrib["x"]) for bar in bars]
    assert starts == pytest.approx([260 + 0.8 * 460, 260], abs=0.2)


def test_stats_show_calls_and_bytes() -> None:
    store = make_store()
    assert f"read {size(store.stats.bytes_read)}" in text_of(store.stats)


def test_report_shows_its_verdict_and_findings() -> None:
    report = make_store().verify()
    assert "Report: no problems found" in text_of(report)
    damaged = ps.Report((Finding(Problem.INCOMPLETE, "a/c/0", ("a/c/0.index",), "a part is missing"),), 1, 1, 1)
    assert "incomplete a/c/0 a part is missing: a/c/0.index write the chunk again" in text_of(damaged)
    styles = [each.get("style", "") for each in parsed(damaged).iter() if each.tag in ("caption", "td")]
    assert [COLOURS["bad"] in style for style in styles] == [True, True, False, False, False]
    assert COLOURS["good"] in report._repr_html_()


def test_tree_shows_groups_and_arrays() -> None:
    tree = make_store().tree(sizes=True)
    assert "2 chunks in 4 objects" in text_of(tree)
    assert str(tree).splitlines()[1:3] == ["/: group", "  group: group"]


@pytest.mark.slow
def test_adoption_and_its_arrays_show_themselves(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000.0), chunks=(100,))
    session = ps.open_repository(tmp_path / "repository", virtual=[tmp_path]).writable_session("main")
    report = ps.adopt(tmp_path / "a.h5", into=session)
    assert "complete" in text_of(report)
    assert "float64 [1000]" in text_of(report)
    for line in str(report).splitlines()[1:]:
        assert line in text_of(report)
    assert "to open it: ps.open_repository(" in text_of(report)
    array = ps.PartsStore.from_session(session).manifest("x")
    assert "shape (1000,)" in text_of(array)
    assert "a.h5" in text_of(array)
    group = ps.manifests.PartsGroup(arrays={"x": array})
    assert "x float64 (1000,)" in text_of(group)


def test_text_is_escaped_in_every_form() -> None:
    hostile = '<script>alert(1)</script>\x1b[31m&"'
    shown: list[Any] = [
        Requests([Request("get", hostile, 0, 4, hostile)]),
        ps.Report((Finding(Problem.INCOMPLETE, hostile, (hostile,), hostile),), 1, 1, 1, ((hostile, hostile),)),
        Tree(hostile, (Node(hostile, "unknown", problem=hostile),)),
    ]
    for each in shown:
        html = each._repr_html_()
        assert "<script" not in html
        assert "\x1b" not in html
        assert "alert(1)" in "".join(parsed(each).itertext())


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3_400_000_000, "3.4 GB"),
        (10**19, "10,000.0 PB"),
    ],
)
def test_sizes_have_a_unit_of_which_there_is_at_least_one(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_zarr_shows_a_store_in_an_array_without_its_html() -> None:
    array = zarr.open_array(make_store(), path="group/a")
    assert "group/a" in repr(array)
