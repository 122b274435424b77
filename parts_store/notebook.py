"""HTML for notebooks: tables, trees and drawings, readable on light and on dark pages.

All text is escaped here. Colours are those of the page, with some transparency, so that no theme is needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from parts_store.text import printable

# A notebook page may contain many outputs, so that each one has its own style.
_TABLE: Final = "border-collapse:collapse;font-size:0.9em;background:transparent"
_CELL: Final = "text-align:left;vertical-align:top;padding:0.15em 0.8em 0.15em 0"
_HEAD: Final = f"{_CELL};font-weight:600;border-bottom:1px solid color-mix(in srgb,currentColor 30%,transparent)"
_CAPTION: Final = "text-align:left;font-weight:600;padding:0.2em 0;color:inherit;caption-side:top;white-space:nowrap"
_QUIET: Final = "opacity:0.7"
_NOTE: Final = f"{_QUIET};white-space:pre-wrap"
# Colours that can be read on light and on dark pages.
COLOURS: Final = {"good": "#2f9e5b", "open": "#c27c0e", "bad": "#d64545"}
_READ: Final = "#d9822b"
# The width of a drawing in pixels, and the height of one of its rows.
_WIDTH, _NAMES, _ROW = 720, 260, 22
_LINE: Final = 40


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a drawing: a byte range of an object, and what it is."""

    start: int
    stop: int
    what: str


def table(caption: str, rows: Mapping[str, object]) -> str:
    """Return a table with a name and a value in each row."""
    cells = "".join(
        f'<tr><th style="{_CELL}">{_text(name)}</th><td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table style="{_TABLE}">{_caption(caption)}<tbody>{cells}</tbody></table>'


def grid(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    note: str = "",
    states: Sequence[str] = (),
    state: str = "",
) -> str:
    """Return a table with named columns, and a note below it; without rows, the caption and the note alone.

    `states` has the state of each row, which colours its first cell, and `state` is that of the caption.
    """
    lines = []
    for number, row in enumerate(rows):
        styles = [_CELL] * len(row)
        if number < len(states):
            styles[0] += _coloured(states[number])
        cells = zip(styles, row, strict=True)
        lines.append("".join(f'<td style="{style}">{_text(value)}</td>' for style, value in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    head = "".join(f'<th style="{_HEAD}">{_text(name)}</th>' for name in columns) if body else ""
    text = "\n".join(map(_text, note.splitlines()))
    shown = f'<div style="{_NOTE}">{text}</div>' if note else ""
    title = _caption(caption, state)
    return f'<table style="{_TABLE}">{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{shown}'


def tree(caption: str, nodes: Iterable[tuple[int, str, str]]) -> str:
    """Return a tree: for each node its depth, its name, and the facts about it."""
    lines = "".join(
        f'<div style="padding-left:{1.4 * depth}em"><b>{_text(name)}</b> '
        f'<span style="{_QUIET}">{_text(facts)}</span></div>'
        for depth, name, facts in nodes
    )
    return f'<div style="font-size:0.9em"><div style="font-weight:600">{_text(caption)}</div>{lines}</div>'


def drawing(caption: str, rows: Sequence[tuple[str, int, Sequence[Bar]]]) -> str:
    """Return a drawing with a row for each object: its name, its size, and the bars of the bytes that are read."""
    height = _ROW * (len(rows) + 1) + 4
    shapes = [_legend(_ROW * len(rows) + 4)]
    for number, (name, nbytes, bars) in enumerate(rows):
        top = _ROW * number + 4
        shapes.append(
            f'<text x="0" y="{top + 12}" font-size="12" fill="currentColor">{_text(_shortened(name))}'
            f"<title>{_text(name)}</title></text>"
            f'<rect x="{_NAMES}" y="{top}" width="{_WIDTH - _NAMES}" height="15" fill="currentColor" opacity="0.12"/>'
        )
        scale = (_WIDTH - _NAMES) / max(nbytes, 1)
        for bar in bars:
            # A range of few bytes in a large object must still be seen.
            width = max(3.0, (bar.stop - bar.start) * scale)
            at = min(_NAMES + bar.start * scale, _WIDTH - width)
            shapes.append(
                f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="15" fill="{_READ}">'
                f"<title>{_text(f'bytes {bar.start:,} to {bar.stop:,}: {bar.what}')}</title></rect>"
            )
    return (
        f'<svg role="img" aria-label="{_text(caption)}" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" style="max-width:100%;font-family:monospace">{"".join(shapes)}</svg>'
    )


def _legend(top: int) -> str:
    """Return what the colours of a drawing mean."""
    entries = ((_NAMES, f'fill="{_READ}"', "read"), (_NAMES + 90, 'fill="currentColor" opacity="0.12"', "not read"))
    return "".join(
        f'<rect x="{at}" y="{top + 4}" width="14" height="10" {style}/>'
        f'<text x="{at + 20}" y="{top + 13}" font-size="11" fill="currentColor">{meaning}</text>'
        for at, style, meaning in entries
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _LINE - 4 else f"…{name[-(_LINE - 5) :]}"


def _caption(text: str, state: str = "") -> str:
    return f'<caption style="{_CAPTION}{_coloured(state)}">{_text(text)}</caption>'


def _coloured(state: str) -> str:
    return f";color:{COLOURS[state]};font-weight:600" if state else ""


def _text(value: object) -> str:
    return escape(printable(str(value)))
