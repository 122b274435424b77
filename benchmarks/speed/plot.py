"""The most telling rows as a picture, an SVG for light and dark pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.speed.goals import OURS
from benchmarks.speed.measuring import Result, Row, Table

# Six panels, each with a bar for every peer; longer is faster.
PANELS: Final[Mapping[Row, tuple[str, str]]] = {
    ("S3 +0 ms", "shards", "read"): ("Read shards", "S3 on the same machine"),
    ("S3 +0 ms", "zstd", "read"): ("Read zstd shards", "S3 on the same machine"),
    ("S3 +0 ms", "shards", "first write"): ("Write shards", "S3 on the same machine"),
    ("S3 +20 ms", "shards", "random reads, known shard"): ("Random inner chunks", "S3, 20 ms away"),
    ("S3 +20 ms", "small", "read"): ("Read 1,024 small chunks", "S3, 20 ms away"),
    ("disk", "shards", "read"): ("Read shards", "local disk"),
}
SHOWN: Final = {
    "zarr": "zarr",
    "icechunk": "icechunk",
    "zarrs": "zarrs",
    "tensorstore": "tensorstore",
    OURS: "parts_store",
}
_WIDTH, _COLUMNS, _MARGIN, _HEAD = 960, 3, 40, 84
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_NAME, _BAR, _PITCH, _VALUE, _GAP = 96, 16, 24, 50, 28
_PANEL_WIDTH: Final = (_WIDTH - 2 * _MARGIN - (_COLUMNS - 1) * _GAP) / _COLUMNS
_PANEL_HEIGHT: Final = 50 + len(SHOWN) * _PITCH + 30
_TITLE: Final = "Speed, as a multiple of zarr's own store"
_NOTE: Final = "longer is faster; parts_store stores every shard and every chunk in two objects"
_FONT: Final = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
_STYLE: Final = f"""
    .page {{ fill: #ffffff; stroke: #d0d7de; }}
    .title {{ font: 600 18px {_FONT}; fill: #1f2328; }}
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
      .title, .panel {{ fill: #e6edf3; }}
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
    found: Mapping[str, Result]
    x: float
    y: float

    def draw(self) -> str:
        """Return the panel as elements of an SVG."""
        speeds = {peer: self.found["zarr"].value / self.found[peer].value for peer in SHOWN if peer in self.found}
        longest, left = max(speeds.values()), self.x + _NAME
        lines = [
            f'<text class="panel" x="{self.x:.1f}" y="{self.y + 14:.1f}">{escape(self.title)}</text>',
            f'<text class="note" x="{self.x:.1f}" y="{self.y + 33:.1f}">{escape(self.note)}</text>',
        ]
        y = self.y + 48
        for peer, speed in speeds.items():
            length = max(2.0, (_PANEL_WIDTH - _NAME - _VALUE) * speed / longest)
            own, bar = (" ours", "own") if peer == OURS else ("", "bar")
            lines += [
                f'<text class="name{own}" x="{left - 10:.1f}" y="{y + 13:.1f}">{SHOWN[peer]}</text>',
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
    """Return an SVG with a panel for each of the most telling rows that were measured."""
    rows = [row for row in PANELS if "zarr" in table.get(row, {})]
    panels = [
        _Panel(
            *PANELS[row],
            table[row],
            _MARGIN + number % _COLUMNS * (_PANEL_WIDTH + _GAP),
            _HEAD + number // _COLUMNS * _PANEL_HEIGHT,
        )
        for number, row in enumerate(rows)
    ]
    height = _HEAD + -(-len(panels) // _COLUMNS) * _PANEL_HEIGHT + 6
    described = "; ".join(
        f"{each.title}, {each.note}: "
        + ", ".join(
            f"{SHOWN[peer]} {each.found['zarr'].value / each.found[peer].value:.1f}"
            for peer in SHOWN
            if peer in each.found
        )
        for each in panels
    )
    drawn = "\n  ".join(each.draw() for each in panels)
    box = f"0 0 {_WIDTH} {height}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-labelledby="title desc">
  <title id="title">{escape(_TITLE)}</title>
  <desc id="desc">{escape(described)}</desc>
  <style>{_STYLE}</style>
  <rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="12"/>
  <text class="title" x="{_MARGIN}" y="42">{escape(_TITLE)}</text>
  <text class="note" x="{_MARGIN}" y="63">{_NOTE}</text>
  {drawn}
</svg>
"""
