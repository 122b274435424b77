"""The most telling rows as a picture, an SVG for light and dark pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.speed.goals import OURS, REFERENCES, SESSION, SHARDED
from benchmarks.speed.layouts import MONTHS, TIFF
from benchmarks.speed.measuring import Result, Row, Table

_HERE, _FAR, _ON_DISK = "S3 on the same machine", "S3, 20 ms away", "local disk"


@dataclass(frozen=True, slots=True)
class Group:
    """The rows that matter to some users: a panel for each, with a bar for every peer; longer is faster."""

    title: str
    note: str
    # Names of the peers; the first one is that which all are relative to, and the last ones are ours.
    shown: Mapping[str, str]
    rows: Mapping[Row, tuple[str, str]]


GROUPS: Final = (
    Group(
        "Arrays of Zarr",
        "as a multiple of zarr's own store; parts_store stores every shard and every chunk in two objects",
        {
            "zarr": "zarr",
            "icechunk": "icechunk",
            "zarrs": "zarrs",
            "tensorstore": "tensorstore",
            OURS: "parts_store",
        },
        {
            ("S3 +0 ms", "shards", "read"): ("Read shards", _HERE),
            ("S3 +0 ms", "zstd", "read"): ("Read zstd shards", _HERE),
            ("S3 +0 ms", "shards", "first write"): ("Write shards", _HERE),
            ("S3 +20 ms", "shards", "random reads, known shard"): ("Random inner chunks", _FAR),
            ("S3 +20 ms", "small", "read"): ("Read 1,024 small chunks", _FAR),
            ("disk", "shards", "read"): ("Read shards", _ON_DISK),
        },
    ),
    Group(
        "Archives that were adopted",
        "as a multiple of one reference for each chunk, as VirtualiZarr writes them, read by zarr from Icechunk",
        {
            "icechunk": "VirtualiZarr",
            "files": "the files",
            REFERENCES: "references",
            SHARDED: "shards",
        },
        {
            ("S3 +0 ms", MONTHS.name, "full read"): ("Read 24 netCDF files", _HERE),
            ("S3 +20 ms", MONTHS.name, "time series"): ("A time series of 24 files", _FAR),
            ("disk", TIFF.name, "random tiles"): ("Random tiles of a TIFF", _ON_DISK),
        },
    ),
    Group(
        "Arrays in a session of Icechunk",
        "as a multiple of Icechunk's own store with zarr's pipeline; a write ends with a commit",
        {"icechunk": "icechunk", "icechunk, zarrs": "with zarrs", SESSION: "parts_store"},
        {
            ("S3 +0 ms", "Icechunk, zstd", "first write"): ("Write zstd shards", _HERE),
            ("S3 +0 ms", "Icechunk, zstd", "read"): ("Read zstd shards", _HERE),
            ("S3 +0 ms", "Icechunk, small", "read"): ("Read 1,024 small chunks", _HERE),
        },
    ),
)
_WIDTH, _COLUMNS, _MARGIN, _HEAD = 960, 3, 40, 56
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_NAME, _BAR, _PITCH, _VALUE, _GAP = 96, 16, 24, 50, 28
_PANEL_WIDTH: Final = (_WIDTH - 2 * _MARGIN - (_COLUMNS - 1) * _GAP) / _COLUMNS
# Of the title and the note of a group.
_GROUP_HEIGHT: Final = 58
_TITLE: Final = "Speed; longer is faster"
_FONT: Final = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
_STYLE: Final = f"""
    .page {{ fill: #ffffff; stroke: #d0d7de; }}
    .title {{ font: 600 18px {_FONT}; fill: #1f2328; }}
    .group {{ font: 600 16px {_FONT}; fill: #1f2328; }}
    .panel {{ font: 600 14px {_FONT}; fill: #1f2328; }}
    .note {{ font: 13px {_FONT}; fill: #59636e; }}
    .name {{ font: 13px {_FONT}; fill: #59636e; text-anchor: end; }}
    .value {{ font: 13px {_FONT}; fill: #59636e; }}
    .ours {{ font-weight: 600; fill: #0969da; }}
    .bar {{ fill: #afb8c1; }}
    .own {{ fill: #0969da; }}
    .axis {{ stroke: #d0d7de; }}
    @media (prefers-color-scheme: dark) {{
      .page {{ fill: #0d1117; stroke: #30363d; }}
      .title, .group, .panel {{ fill: #e6edf3; }}
      .note, .name, .value {{ fill: #9198a1; }}
      .ours {{ fill: #4493f8; }}
      .bar {{ fill: #484f58; }}
      .own {{ fill: #4493f8; }}
      .axis {{ stroke: #30363d; }}
    }}
  """


@dataclass(frozen=True, slots=True)
class _Panel:
    """A row of the results, and where its panel is."""

    title: str
    note: str
    shown: Mapping[str, str]
    found: Mapping[str, Result]
    x: float
    y: float

    @property
    def speeds(self) -> dict[str, float]:
        """The speeds of the peers that were measured, relative to the first one."""
        base = self.found[next(iter(self.shown))].value
        return {peer: base / self.found[peer].value for peer in self.shown if peer in self.found}

    @property
    def described(self) -> str:
        """The panel in words."""
        speeds = ", ".join(f"{self.shown[peer]} {speed:.1f}" for peer, speed in self.speeds.items())
        return f"{self.title}, {self.note}: {speeds}"

    def draw(self) -> str:
        """Return the panel as elements of an SVG."""
        speeds = self.speeds
        longest, left = max(speeds.values()), self.x + _NAME
        lines = [
            f'<text class="panel" x="{self.x:.1f}" y="{self.y + 14:.1f}">{escape(self.title)}</text>',
            f'<text class="note" x="{self.x:.1f}" y="{self.y + 33:.1f}">{escape(self.note)}</text>',
        ]
        y = self.y + 48
        for peer, speed in speeds.items():
            length = max(2.0, (_PANEL_WIDTH - _NAME - _VALUE) * speed / longest)
            own, bar = (" ours", "own") if peer in (OURS, SHARDED, REFERENCES, SESSION) else ("", "bar")
            lines += [
                f'<text class="name{own}" x="{left - 10:.1f}" y="{y + 13:.1f}">{self.shown[peer]}</text>',
                f'<rect class="{bar}" x="{left:.1f}" y="{y:.1f}" width="{length:.1f}" height="{_BAR}" rx="2"/>',
                f'<text class="value{own}" x="{left + length + 6:.1f}" y="{y + 13:.1f}">{_multiple(speed)}</text>',
            ]
            y += _PITCH
        top = self.y + 44
        lines.append(f'<line class="axis" x1="{left:.1f}" y1="{top:.1f}" x2="{left:.1f}" y2="{y - 4:.1f}"/>')
        return "\n  ".join(lines)


def _multiple(speed: float) -> str:
    return f"{speed:.0f}{_TIMES}" if speed >= 9.95 else f"{speed:.1f}{_TIMES}"


def plot(table: Table) -> str:
    """Return an SVG with the most telling rows that were measured, for each group of users."""
    drawn, described, y = [], [], _HEAD
    for group in GROUPS:
        rows = [row for row in group.rows if next(iter(group.shown)) in table.get(row, {})]
        if not rows:
            continue
        drawn += [
            f'<text class="group" x="{_MARGIN}" y="{y + 18}">{escape(group.title)}</text>',
            f'<text class="note" x="{_MARGIN}" y="{y + 37}">{escape(group.note)}</text>',
        ]
        y += _GROUP_HEIGHT
        height = 50 + len(group.shown) * _PITCH + 30
        for number, row in enumerate(rows):
            x = _MARGIN + number % _COLUMNS * (_PANEL_WIDTH + _GAP)
            panel = _Panel(*group.rows[row], group.shown, table[row], x, y + number // _COLUMNS * height)
            drawn.append(panel.draw())
            described.append(panel.described)
        y += -(-len(rows) // _COLUMNS) * height
    height = y + 6
    elements, box = "\n  ".join(drawn), f"0 0 {_WIDTH} {height}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-labelledby="title desc">
  <title id="title">{escape(_TITLE)}</title>
  <desc id="desc">{escape("; ".join(described))}</desc>
  <style>{_STYLE}</style>
  <rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="12"/>
  <text class="title" x="{_MARGIN}" y="38">{escape(_TITLE)}</text>
  {elements}
</svg>
"""
