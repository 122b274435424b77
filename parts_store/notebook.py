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


def grid(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "") -> str:
    """Return a table with named columns, and a note below it; without rows, the caption and the note alone."""
    body = "".join(f"<tr>{''.join(f'<td style="{_CELL}">{_text(value)}</td>' for value in row)}</tr>" for row in rows)
    head = "".join(f'<th style="{_HEAD}">{_text(name)}</th>' for name in columns) if body else ""
    shown = f'<div style="{_QUIET}">{_text(note)}</div>' if note else ""
    return (
        f'<table style="{_TABLE}">{_caption(caption)}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{shown}'
    )


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
    height = _ROW * len(rows) + 4
    shapes: list[str] = []
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
                f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="15" fill="#d9822b">'
                f"<title>{_text(f'bytes {bar.start:,} to {bar.stop:,}: {bar.what}')}</title></rect>"
            )
    return (
        f'<svg role="img" aria-label="{_text(caption)}" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" style="max-width:100%;font-family:monospace">{"".join(shapes)}</svg>'
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _LINE - 4 else f"…{name[-(_LINE - 5) :]}"


def _caption(text: str) -> str:
    return f'<caption style="{_CAPTION}">{_text(text)}</caption>'


def _text(value: object) -> str:
    return escape(printable(str(value)))
