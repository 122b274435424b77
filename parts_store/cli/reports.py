"""Print the report of `verify` or `repair`, and choose the exit code."""

from typing import TYPE_CHECKING

from parts_store.cli.exits import DAMAGED, LEFTOVERS, OK, NothingFoundError
from parts_store.cli.output import Output
from parts_store.cli.suggestions import did_you_mean
from parts_store.redaction import hide_in_url
from parts_store.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from parts_store.maintenance.report import Report
    from parts_store.store import PartsStore


def require_something(report: "Report", store: "PartsStore", url: str, prefix: str) -> None:
    """Raise unless a report is about at least one array with parts, or about damage."""
    if report.arrays or report.is_damaged:
        return
    below = f" below {prefix!r}" if prefix else ""
    shown = hide_in_url(url)
    raise NothingFoundError(
        f"{shown}: no array with parts was found there{below}, nothing was checked"
        f"{did_you_mean(store, prefix) or '; `parts-store inspect` shows what is there'}"
    )


def show_report(report: "Report", output: Output) -> int:
    """Print a report, and return the exit code for it."""
    output.show(report.to_json(), str(report).splitlines(), lambda: _tables(report))
    if report.is_damaged:
        return DAMAGED
    return OK if report.is_clean else LEFTOVERS


def _tables(report: "Report") -> "list[RenderableType]":
    from rich.text import Text

    first, *_, last = str(report).splitlines()
    table = _findings_table(report)
    style = "bold red" if report.is_damaged else "bold green" if report.is_clean else "bold yellow"
    return [
        Text(first),
        *([table] if table.row_count else []),
        *([Text(report.omitted)] if report.omitted else []),
        Text(last, style=style),
    ]


def _findings_table(report: "Report") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("problem", "chunk", "what was found"):
        table.add_column(name, overflow="fold")
    for path, problem in report.not_understood:
        table.add_row(Text("not understood", style="red"), Text(printable(path or "/")), Text(printable(problem)))
    for each in report.worst_first:
        style = "green" if each.is_repaired else "red" if each.problem.is_damage else "yellow"
        problem = f"{each.problem.value}{', repaired' if each.is_repaired else ''}"
        found = f"{each.detail}: {', '.join(each.keys)}"
        table.add_row(Text(problem, style=style), Text(printable(each.chunk_key)), Text(printable(found)))
    return table
