"""Print what was measured as tables, with ratios to the first row, and which goals hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.archive.measuring import Figures

GIB: Final = 1 << 30
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the figure in it, and how the figure is shown."""

    title: str
    value: Callable[[Figures], float]
    show: Callable[[float], str]


def adoption_time(figures: Figures) -> float:
    """Return the seconds until the archive is in the repository."""
    return figures["parse"] + figures["write"] + figures["commit"]


COLUMNS: Final = (
    Column("references", lambda each: each["references"], "{:,.0f}".format),
    Column("objects", lambda each: each["objects"], "{:,.0f}".format),
    Column("bytes stored", lambda each: each["nbytes"], "{:,.0f}".format),
    Column("parse, s", lambda each: each["parse"], "{:,.2f}".format),
    Column("write, s", lambda each: each["write"], "{:,.2f}".format),
    Column("commit, s", lambda each: each["commit"], "{:,.2f}".format),
    Column("CPU of commit, s", lambda each: each["commit cpu"], "{:,.2f}".format),
    Column("in all, s", adoption_time, "{:,.2f}".format),
    Column("CPU, s", lambda each: each["cpu"], "{:,.2f}".format),
    Column("peak, MiB", lambda each: each["peak"] / MIB, "{:,.0f}".format),
    Column("open, ms", lambda each: each["open"] * 1e3, "{:,.0f}".format),
    Column("one chunk, ms", lambda each: each["chunk"] * 1e3, "{:,.0f}".format),
    Column("slab, ms", lambda each: each["slab"] * 1e3, "{:,.0f}".format),
    Column("peak of reading, MiB", lambda each: each["peak of reading"] / MIB, "{:,.0f}".format),
)


def table(rows: Mapping[str, Figures]) -> str:
    """Return a table in Markdown: the figures of each row, then how many times smaller they are than the first."""
    lines = [["", *(each.title for each in COLUMNS)]]
    lines.append(["---", *("--:" for _ in COLUMNS)])
    first = next(iter(rows.values()))
    for name, figures in rows.items():
        lines.append([name, *(each.show(each.value(figures)) for each in COLUMNS)])
        if figures is not first:
            ratios = [_ratio(each.value(first), each.value(figures)) for each in COLUMNS]
            lines.append(["times smaller", *ratios])
    return "\n".join(f"| {' | '.join(each)} |" for each in lines)


def _ratio(theirs: float, ours: float) -> str:
    # A contestant that does it in another step has next to nothing here.
    if min(theirs, ours) < 0.0005:
        return ""
    ratio = theirs / ours
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:,.1f}" if ratio >= 1 else f"{ratio:.2f}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that should be at least, or at most, a limit."""

    text: str
    found: float
    limit: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure is within the limit."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit

    def __str__(self) -> str:
        what = "at most" if self.at_most else "at least"
        return f"{'holds' if self.holds else 'MISSED':<8}{self.found:>10,.2f} ({what} {self.limit:,.2f})  {self.text}"


def goals_of_files(where: str, theirs: Figures, ours: Figures) -> list[Goal]:
    """Return the goals for files that both have adopted."""
    return [
        Goal(f"{where}: times fewer references", theirs["references"] / ours["references"], 100.0),
        Goal(f"{where}: times faster commit", theirs["commit"] / ours["commit"], 5.0),
        Goal(
            f"{where}: times VirtualiZarr's time in all", adoption_time(ours) / adoption_time(theirs), 1.0, at_most=True
        ),
        Goal(f"{where}: times VirtualiZarr's CPU time", ours["cpu"] / theirs["cpu"], 1.0, at_most=True),
    ]


def goals_of_groups(theirs: Figures, ours: Figures) -> list[Goal]:
    """Return the goals for files that become a group each. The number of objects does not depend on the machine."""
    where = "a group for each file: times VirtualiZarr's"
    return [
        Goal(f"{where} objects", ours["objects"] / theirs["objects"], 1.0, at_most=True),
        Goal(f"{where} bytes", ours["nbytes"] / theirs["nbytes"], 1.0, at_most=True),
        Goal(f"{where} commit", ours["commit"] / theirs["commit"], 1.0, at_most=True),
        Goal(f"{where} CPU time of the commit", ours["commit cpu"] / theirs["commit cpu"], 1.0, at_most=True),
    ]


def goals_of_stream(chunks: int, ours: Figures) -> list[Goal]:
    """Return the goals for the largest archive."""
    return [Goal(f"{chunks:,} chunks: GiB of memory", ours["peak"] / GIB, 4.0, at_most=True)]
