"""Pictures for the page: the example image, PNG images as data URIs, and a line chart."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# The width of a line chart and its height, with the space for its labels.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 44, 24
_PALETTE: Final = (
    *((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40)),
    *((148, 103, 189), (140, 86, 75), (227, 119, 194), (188, 189, 34)),
)
_EMPTY: Final = (20, 20, 20)


def julia_set(side: int) -> NDArray[np.uint8]:
    """Return an RGB image of a Julia set, `side` pixels high and wide."""
    axis = np.linspace(-1.35, 1.35, side)
    z = axis[np.newaxis, :] + 1j * axis[:, np.newaxis]
    steps = np.zeros(z.shape)
    constant = -0.79 + 0.15j
    for step in range(120):
        inside = np.abs(z) < 4
        z[inside] = z[inside] ** 2 + constant
        steps[inside] = step
    # The colours are three phases of one wave.
    waves = [np.sin(steps / 16 + phase) for phase in (0.0, 0.9, 1.8)]
    return np.stack([(wave * 127.5 + 127.5).astype(np.uint8) for wave in waves], axis=-1)


def png(pixels: NDArray[np.uint8], alt: str, *, side: int = 320) -> str:
    """Return an `img` element with the pixels as a PNG in a data URI, reduced or enlarged to a width of `side`."""
    image = Image.fromarray(pixels)
    height = max(1, round(side * image.height / image.width))
    is_smaller = image.width > side
    image = image.resize((side, height), Image.Resampling.LANCZOS if is_smaller else Image.Resampling.NEAREST)
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    data = b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(alt)}" width="{side}" height="{height}" src="data:image/png;base64,{data}">'


def writers_image(rows: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return an image in which the colour of a row says which writer wrote it: 1 to 8, or 0 for none."""
    colours = np.array([_EMPTY, *_PALETTE], dtype=np.uint8)
    return np.repeat(colours[np.asarray(rows, dtype=int)][:, np.newaxis], len(rows), axis=1)


def line_chart(values: Sequence[float], labels: Sequence[tuple[int, str]], marked_from: int, unit: str) -> str:
    """Return an SVG line chart. The line has another colour from the position `marked_from` on.

    `labels` are the texts below the horizontal axis, each with its position.
    """
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def point(position: int) -> str:
        x = _LEFT + position / (len(values) - 1) * (_WIDTH - _LEFT - 4)
        y = 10 + (high - values[position]) / span * (_HEIGHT - _BOTTOM - 20)
        return f"{x:.1f},{y:.1f}"

    def line(start: int, stop: int, name: str) -> str:
        return f'<polyline class="{name}" points="{" ".join(point(each) for each in range(start, stop))}"/>'

    texts = [f'<text x="0" y="{y}">{value:.0f} {escape(unit)}</text>' for value, y in ((high, 16), (low, _HEIGHT - 32))]
    # The last text ends at the end of the line; the others begin at their positions.
    texts += [
        f'<text x="{point(position).partition(",")[0]}" y="{_HEIGHT - 6}">{escape(text)}</text>'
        for position, text in [*labels[:-1], (len(values) - 1, labels[-1][1])]
    ]
    lines = line(0, marked_from + 1, "line") + line(marked_from, len(values), "line marked")
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg class="chart" role="img" {box} aria-label="line chart">{lines}{"".join(texts)}</svg>'
