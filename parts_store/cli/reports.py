"""How the report of `verify` and `repair` is printed, and which exit code it means."""

from typing import TYPE_CHECKING

from parts_store.cli.exits import DAMAGED, LEFTOVERS, OK, NothingFoundError, visible
from parts_store.cli.output import Output
from parts_store.redaction import hide_in_url

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parts_store.maintenance.report import Report


def require_something(report: "Report", url: str, prefix: str) -> None:
    """Raise if a report is about nothing: no array with parts was found."""
    if report.arrays or report.not_understood:
        return
    below = f" below {prefix!r}" if prefix else ""
    shown = hide_in_url(url)
    raise NothingFoundError(
        f"{shown}: no array with parts was found there{below}, nothing was checked; "
        "`parts-store inspect` shows what is there"
    )


def show_report(report: "Report", output: Output) -> int:
    """Print a report, and return the exit code that it means."""
    output.show(report.to_json(), str(report).splitlines(), lambda: _tables(report))
    if report.is_damaged:
        return DAMAGED
    return OK if report.is_clean else LEFTOVERS


def _tables(report: "Report") -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    first, *_, last = str(report).splitlines()
    shown: list[RenderableType] = [Text(first)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("problem", "chunk", "what was found"):
        table.add_column(name, overflow="fold")
    for path, problem in report.not_understood:
        table.add_row(Text("not understood", style="red"), Text(visible(path or "/")), Text(visible(problem)))
    for each in report.worst_first:
        style = "green" if each.is_repaired else "red" if each.problem.is_damage else "yellow"
        problem = f"{each.problem.value}{', repaired' if each.is_repaired else ''}"
        found = f"{each.detail}: {', '.join(each.keys)}"
        table.add_row(Text(problem, style=style), Text(visible(each.chunk_key)), Text(visible(found)))
    if table.row_count:
        shown.append(table)
    if report.omitted:
        shown.append(Text(report.omitted))
    style = "bold red" if report.is_damaged else "bold green" if report.is_clean else "bold yellow"
    return [*shown, Text(last, style=style)]
