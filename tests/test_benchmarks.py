"""The benchmark: every peer on this machine reads and writes the same values, and reports follow from results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.places import Bucket, Disk, Place
from benchmarks.speed.archives import ARCHIVE_PEERS, peer_of
from benchmarks.speed.goals import OURS, check, compared, not_measured
from benchmarks.speed.handles import Handle
from benchmarks.speed.layouts import TIFF, Archive, Layout
from benchmarks.speed.measuring import Result, by_row, measure, prepare
from benchmarks.speed.peers import PEERS
from benchmarks.speed.plot import GROUPS, plot
from benchmarks.speed.report import BEGIN, END, comparison_of, from_json, markdown, publish, to_json
from benchmarks.speed.work import ABOUT, DISK, ON_ARCHIVES, S3, WORK, Operation, Work
from integration.server import Server

TINY = Layout("shards", 128, 16, 32)
NAMES = (
    *("zarr", "tensorstore", "ours, no parts", "ours, 2 parts", "icechunk", "icechunk, zarrs", "ours, session"),
    *("ours, zarr.open", "ours, xr.open_zarr", "ours, TIFF shards", "ours, HDF5 shards", "ours, 8 threads"),
)
CASES = [
    (name, operation)
    for name in NAMES
    for operation in ABOUT
    if operation not in ON_ARCHIVES and peer_of(name, TINY).does(operation, Disk(Path()))
]
ARCHIVES = (
    Archive("months", 16, 16, rows=8, kind="netCDF", days=60),
    Archive("tiles", 128, 32, kind="TIFF"),
)
ROW = ("S3 +0 ms", "shards", "read")
RESULTS = [Result(*ROW, "zarr", 0.4), Result(*ROW, "tensorstore", 0.05), Result(*ROW, OURS, 0.04)]


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:Array is unsupported by ZarrsCodecPipeline")
@pytest.mark.parametrize(("name", "operation"), CASES)
def test_peer_returns_the_values_that_every_operation_expects(name: str, operation: Operation, tmp_path: Path) -> None:
    peer = peer_of(name, TINY)
    with peer.configured():
        task = prepare(operation, peer, Disk(tmp_path), TINY, 0, set())
        result = task.run()
        found = result if task.read_back is None else task.read_back()
    assert (found == task.expected).all()


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
@pytest.mark.parametrize("name", ARCHIVE_PEERS)
def test_reader_of_an_archive_returns_the_values_of_the_files(name: str, archive: Archive, tmp_path: Path) -> None:
    written: set[str] = set()
    for operation in ON_ARCHIVES if archive.kind == "netCDF" else ("full read", "random tiles"):
        task = prepare(operation, ARCHIVE_PEERS[name], Disk(tmp_path), archive, 0, written)
        assert (task.run() == task.expected).all()


def test_every_goal_about_arrays_has_rows_with_all_peers_that_it_compares() -> None:
    bucket = Bucket(Server("", "", ""), "")
    places: dict[str, Place] = {DISK: Disk(Path()), **dict.fromkeys(S3, bucket)}
    results = [
        Result(work.where, work.layout.name, operation, peer.name, 1.0)
        for work in WORK
        for operation in work.operations
        for peer in [peer_of(name, work.layout) for name in work.peers] or PEERS.values()
        if peer.name not in work.without and peer.does(operation, places[work.where])
    ]
    layouts = {work.layout.name for work in WORK}
    missing = [(goal.text, name) for goal, name in not_measured(check(by_row(results))) if layouts & {*goal.layouts}]
    # Requests are counted in a part of their own.
    counted = ("requests", "shards", "random reads, known shard", TIFF.name, "random tiles")
    assert set(missing) == {("1 request", name) for name in counted}
    # Every row is shown as a comparison, and those of the picture exist.
    table = by_row(results)
    assert all(comparison_of(found) is not None for found in table.values())
    for group in GROUPS:
        base, *_, ours = group.shown
        assert all({base, ours} <= table[row].keys() for row in group.rows)
    assert plot(table).count('class="panel"') == sum(len(group.rows) for group in GROUPS)
    left_out = [(work, operation) for work in WORK for operation in work.operations if work.without]
    for work, operation in left_out:
        assert not compared((work.where, work.layout.name, operation)) & {*work.without}


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "repeated"), [(0.0, 1), (60.0, 3)], ids=["used up", "enough"])
def test_peer_is_repeated_until_its_budget_is_used_up(tmp_path: Path, budget: float, repeated: int) -> None:
    created = []

    def create(place: Place, layout: Layout) -> Handle:
        created.append(place)
        return PEERS["zarr"].create(place, layout)

    peer = replace(PEERS["zarr"], create=create)
    (result,) = measure(Work(DISK, TINY, ("first write",)), Disk(tmp_path), [peer], 2, lambda *_: budget)
    assert (result.peer, result.operation, len(created)) == ("zarr", "first write", repeated)


def test_stored_results_are_published_between_the_markers(tmp_path: Path) -> None:
    stored, page = tmp_path / "speed.json", tmp_path / "page.md"
    stored.write_text(json.dumps(to_json(RESULTS)))
    machine, results = from_json(stored)
    assert results == RESULTS
    row = "| S3 +0 ms, shards, read | 400 ms | 8.0 | 10 |"
    assert row in markdown(machine, by_row(results))
    page.write_text("before")
    with pytest.raises(ValueError, match="must contain"):
        publish(page, row)
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    publish(page, row)
    assert page.read_text() == f"before\n{BEGIN}\n\n{row}\n\n{END}\nafter\n"
