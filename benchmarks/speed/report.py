"""The results as text, as Markdown for the documentation, and as JSON."""

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.speed import growth
from benchmarks.speed.goals import DEFAULT_PLAIN, GOALS, OURS, OURS_PLAIN, check, not_measured
from benchmarks.speed.measuring import Result, Table, Unit
from benchmarks.speed.work import THREADS

BEGIN, END = "<!-- results of make bench -->", "<!-- end of results -->"
# The columns of the table in the documentation, and what they are called there.
COLUMNS = {
    "zarr": "zarr",
    "zarr fused": "zarr fused",
    "zarrs": "zarrs",
    "tensorstore": "tensorstore",
    "icechunk": "icechunk",
    "fsspec": "fsspec",
    DEFAULT_PLAIN: "PartsStore, zarr's pipeline",
    OURS_PLAIN: "parts_store",
    OURS: "parts_store, 2 parts",
    "limit, 2 parts": "limit, 2 parts",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows that are shown as speed relative to the peer of the first column."""

    text: str
    columns: Mapping[str, str]

    @property
    def base(self) -> str:
        """The peer that all others are relative to."""
        return next(iter(self.columns))

    def has(self, found: Mapping[str, Result]) -> bool:
        """Return whether a row belongs here. Of what all peers do, some columns are not shown."""
        return self.base in found and (self.columns is COLUMNS or found.keys() <= self.columns.keys())


COMPARISONS = (
    Comparison("Speed relative to zarr's own store; larger is better. The first column is zarr's time.", COLUMNS),
    Comparison(
        "Arrays in a session of Icechunk: speed relative to Icechunk's own store with zarr's pipeline.",
        {"icechunk": "icechunk", "icechunk, zarrs": "icechunk, zarrs", "ours, session": "parts_store"},
    ),
    Comparison(
        "Adopted archives: speed relative to one reference for each chunk in Icechunk, read with zarr's pipeline.",
        {
            "icechunk": "icechunk",
            "ours, references": "parts_store, references",
            "ours, shards": "parts_store, shards",
            "files": "h5py, tifffile",
            "icechunk, dask": "icechunk, dask",
            "ours, references, dask": "parts_store, references, dask",
            "ours, shards, dask": "parts_store, shards, dask",
            "files, dask": "open_mfdataset, tifffile with dask",
        },
    ),
    Comparison(
        "Shards that are files: speed relative to the same shards that are not.",
        {OURS_PLAIN: "shards", "ours, TIFF shards": "TIFF", "ours, HDF5 shards": "HDF5"},
    ),
    Comparison(
        "Opened without another call: speed relative to `ps.open_array`.",
        {OURS_PLAIN: "ps.open_array", "ours, zarr.open": "zarr.open_array", "ours, xr.open_zarr": "xr.open_zarr"},
    ),
    Comparison(
        "Requests in flight: speed of fixed numbers of threads relative to what the pipeline chooses.",
        {OURS_PLAIN: "chosen", **{f"ours, {count} threads": str(count) for count in THREADS}},
    ),
    Comparison(
        "Reads from `ps.serve`: speed relative to direct reads with the same client.",
        {"direct": "direct", "over HTTP": "over HTTP"},
    ),
)
_NONE = "\N{EN DASH}"
_LIBRARIES = (
    *("zarr", "obstore", "tensorstore", "zarrs", "icechunk", "virtualizarr", "s3fs"),
    *("h5py", "tifffile", "xarray", "dask", "numpy"),
)


def amount(value: float, unit: Unit) -> str:
    """Return a value with its unit, short."""
    match unit:
        case "seconds" if value < 1e-3:
            return f"{value * 1e6:.0f} µs"
        case "seconds":
            return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"
        case "requests":
            return f"{value:.3g}"
        case "MiB":
            return f"{value:,.0f} MiB"
        case "copies" | "ratio":
            return f"{value:.2f}"


def text(table: Table, peers: Sequence[str]) -> str:
    """Return all results; times also as speed relative to zarr's own store, and to the limit."""
    lines = ["speed relative to zarr's own store, or to the first peer, larger is better;"]
    lines += ["time relative to the limit, smaller is better"]
    width = max(map(len, peers)) + 2
    for (where, layout, operation), found in table.items():
        unit = next(iter(found.values())).unit
        note = {"copies": " (copies of the chunk besides the array)", "ratio": " (last relative to best)"}.get(unit, "")
        lines += ["", f"{where}, {layout}, {operation}{note}"]
        comparison = comparison_of(found)
        base = "zarr" if comparison is None else comparison.base
        order = list(peers) if comparison is None or comparison.columns is COLUMNS else list(comparison.columns)
        for peer in sorted(found, key=lambda name: order.index(name) if name in order else -1):
            each = found[peer]
            shown = f"  {peer:<{width}}{amount(each.value, unit):>14}"
            if unit == "seconds":
                limit = found.get("limit, 2 parts" if "2 parts" in peer else "limit, 1 part")
                shown += _ratio(found.get(base), each) + _ratio(each, limit)
            lines.append(shown)
    return "\n".join(lines)


def _ratio(first: Result | None, second: Result | None) -> str:
    return f"{'-':>9}" if first is None or second is None else f"{first.value / second.value:9.2f}"


def goals(table: Table) -> str:
    """Return every goal with every row that it was measured on, whether it holds, and what was not measured."""
    lines = ["goals: what we take relative to the best of the peers that the goal names, or a number"]
    checked = list(check(table))
    missing = [(goal.work, f"{name}: {goal.ours}, {goal.text}") for goal, name in not_measured(checked)]
    for work in dict.fromkeys(goal.work for goal in GOALS):
        lines += ["", f"{work}:"]
        for each in checked:
            if each.goal.work == work:
                state = "holds " if each.holds else "MISSED"
                limit = f"{each.found:7.2f} (at most {each.goal.at_most:.2f})"
                lines.append(f"  {state} {limit}  {each.name}, {each.goal.text}")
        lines += [f"  NO ROW {text}" for of, text in missing if of == work]
    lines += ["", f"{sum(each.holds for each in checked)} of {len(checked)} hold; {len(missing)} without a row"]
    return "\n".join(lines)


def to_json(results: Iterable[Result]) -> dict[str, Any]:
    """Return the results with what they were measured on."""
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in _LIBRARIES if _is_installed(name)},
        "results": [asdict(each) for each in results],
    }


def from_json(path: Path) -> tuple[dict[str, Any], list[Result]]:
    """Return what a file of `to_json` holds."""
    document = json.loads(path.read_text())
    return document, [Result(**each) for each in document["results"]]


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def markdown(document: dict[str, Any], table: Table) -> str:
    """Return the results as tables of the documentation."""
    machine, versions = document["machine"], document["versions"]
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [f"Measured with Python {machine['python']} on {machine['cores']} cores: {named}.", ""]
    for comparison in COMPARISONS:
        rows = {row: found for row, found in table.items() if comparison_of(found) is comparison}
        if rows:
            lines += [comparison.text, "", *_table(rows, comparison.columns, comparison.base), ""]
    lines.pop()
    counted = {row: found for row, found in table.items() if next(iter(found.values())).unit == "requests"}
    if counted:
        lines += ["", "Requests that are made; for random reads, of one read.", ""]
        # A row for each peer, since there are many of them and few operations.
        lines += ["| | " + " | ".join(row[2] for row in counted) + " |", "|---|" + "---:|" * len(counted)]
        for peer in _peers(counted):
            cells = [amount(found[peer].value, "requests") if peer in found else _NONE for found in counted.values()]
            lines.append(f"| {_shown(peer)} | " + " | ".join(cells) + " |")
    held = {row: found for row, found in table.items() if next(iter(found.values())).unit == "copies"}
    if held:
        lines += ["", "Copies of a chunk of 64 MiB that were in memory at once, besides the array.", ""]
        lines += _table(held)
    work = {row: found for row, found in table.items() if next(iter(found.values())).unit == "MiB"}
    if work:
        lines += ["", "The most memory that work took, besides the array that is written or returned.", ""]
        lines += _table(work)
    grown = {row: found for row, found in table.items() if row[0] == "growth" and "per chunk" in row[2]}
    if grown:
        lines += ["", "Time per chunk as the number of chunks grows, in memory.", ""]
        lines += _table(grown)
    checked = list(check(table))
    lines += ["", f"{sum(each.holds for each in checked)} of {len(checked)} goals hold. The others:", ""]
    lines += ["| work | goal | measured | at most |", "|---|---|---:|---:|"]
    for each in checked:
        if not each.holds:
            lines.append(f"| {each.name} | {each.goal.text} | {each.found:.2f} | {each.goal.at_most:.2f} |")
    return "\n".join(lines)


def _peers(table: Table) -> list[str]:
    return list(dict.fromkeys(peer for found in table.values() for peer in found))


def _shown(peer: str) -> str:
    return COLUMNS.get(peer, peer.replace("ours", "parts_store"))


def _multiple(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 9.95 else f"{speed:.1f}" if speed >= 0.95 else f"{speed:.2f}"


def comparison_of(found: Mapping[str, Result]) -> Comparison | None:
    """Return what the times of a row are compared as, None if they are not times, or are shown as they are."""
    if any(each.unit != "seconds" or each.where == growth.WHERE for each in found.values()):
        return None
    return next((each for each in COMPARISONS if each.has(found)), None)


def _table(rows: Table, columns: Mapping[str, str] | None = None, base: str | None = None) -> list[str]:
    """Return a table with a column for each peer; times relative to that of a base, if there is one."""
    named = {peer: _shown(peer) for peer in _peers(rows)} if columns is None else columns
    peers = [peer for peer in named if any(peer in found for found in rows.values())]
    heads = ["" if columns is None else "work", *(named[peer] for peer in peers)]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * len(peers)]
    for row, found in rows.items():
        cells = []
        for peer in peers:
            if peer not in found:
                cells.append(_NONE)
            elif base is not None and peer != base:
                cells.append(_multiple(found[base].value / found[peer].value))
            else:
                cells.append(amount(found[peer].value, found[peer].unit))
        lines.append("| " + " | ".join([", ".join(row), *cells]) + " |")
    return lines


def publish(page: Path, tables: str) -> None:
    """Replace what is between the two markers of a page."""
    found = page.read_text()
    if not re.search(f"{BEGIN}.*{END}", found, re.DOTALL):
        raise ValueError(f"{page} must contain {BEGIN!r} and then {END!r}")
    before, after = found.split(BEGIN)[0], found.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}")
