"""The results as text, as Markdown for the documentation, and as JSON."""

import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.speed.goals import DEFAULT_PLAIN, GOALS, OURS, OURS_PLAIN, check, not_measured
from benchmarks.speed.measuring import Result, Table, Unit

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
_NONE = "\N{EN DASH}"
_LIBRARIES = ("zarr", "obstore", "tensorstore", "zarrs", "icechunk", "s3fs", "numpy")


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
    lines = ["speed relative to zarr's own store, larger is better; time relative to the limit, smaller is better"]
    width = max(map(len, peers)) + 2
    for (where, layout, operation), found in table.items():
        unit = next(iter(found.values())).unit
        note = {"copies": " (copies of the chunk besides the array)", "ratio": " (last relative to best)"}.get(unit, "")
        lines += ["", f"{where}, {layout}, {operation}{note}"]
        for peer in sorted(found, key=lambda name: peers.index(name) if name in peers else -1):
            each = found[peer]
            shown = f"  {peer:<{width}}{amount(each.value, unit):>14}"
            if unit == "seconds":
                limit = found.get("limit, 2 parts" if "2 parts" in peer else "limit, 1 part")
                shown += _ratio(found.get("zarr"), each) + _ratio(each, limit)
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
    lines += ["Speed relative to zarr's own store; larger is better. The first column is zarr's time.", ""]
    shown = [peer for peer in COLUMNS if any(peer in found for found in table.values())]
    timed = {row: found for row, found in table.items() if _is_compared(found)}
    lines += _table(["work", *(COLUMNS[peer] for peer in shown)], timed, shown, is_relative=True)
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
        lines += _table(["", *map(_shown, _peers(held))], held, _peers(held), is_relative=False)
    grown = {row: found for row, found in table.items() if row[0] == "growth" and "per chunk" in row[2]}
    if grown:
        lines += ["", "Time per chunk as the number of chunks grows, in memory.", ""]
        lines += _table(["", *map(_shown, _peers(grown))], grown, _peers(grown), is_relative=False)
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


def _is_compared(found: Any) -> bool:
    return "zarr" in found and found["zarr"].unit == "seconds" and next(iter(found.values())).where != "growth"


def _table(heads: Sequence[str], rows: Table, peers: Sequence[str], *, is_relative: bool) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for row, found in rows.items():
        cells = []
        for peer in peers:
            if peer not in found:
                cells.append(_NONE)
            elif is_relative and peer != "zarr":
                cells.append(_multiple(found["zarr"].value / found[peer].value))
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
