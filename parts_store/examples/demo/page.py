"""What the steps of the demo found, and the page about it: one HTML file without external resources."""

import inspect
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_STYLE: Final = """
:root { color-scheme: light dark; }
body { max-width: 64rem; margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; }
.result { border-left: 4px solid green; padding-left: 0.7rem; font-weight: 600; }
.wrong { border-color: red; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; max-width: 20rem; }
img { width: 100%; image-rendering: pixelated; }
pre { border: 1px solid; border-radius: 6px; padding: 0.7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step found.

    `summary` is one line for the terminal. `text` are sentences for the page. `code` are the functions whose source the
    page shows: they have run. `figures` are pixels with a caption. `printed` is what the library, or the step, printed.
    """

    summary: str
    is_right: bool
    text: str
    code: tuple[Callable[..., Any], ...]
    figures: tuple[tuple[NDArray[np.uint8], str], ...] = ()
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the demo that has run."""

    title: str
    result: StepResult
    seconds: float


@dataclass(frozen=True, slots=True)
class Demo:
    """All steps, and the page about them."""

    page: Path
    steps: tuple[Step, ...]

    @property
    def is_right(self) -> bool:
        """Whether every step found what it should find."""
        return all(step.result.is_right for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document for `parts-store demo --json`."""
        steps = [
            {
                "title": step.title,
                "result": step.result.summary,
                "is_right": step.result.is_right,
                "seconds": round(step.seconds, 3),
            }
            for step in self.steps
        ]
        return {"page": str(self.page), "is_right": self.is_right, "steps": steps}


def write_page(demo: Demo) -> None:
    """Write the page as HTML."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("parts_store", "zarr", "icechunk", "xarray"))
    sections = "".join(_section(number, step) for number, step in enumerate(demo.steps, start=1))
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>parts_store: what it does</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>parts_store: what it does</h1>
<p>Zarr arrays whose chunks are stored in several objects, as files that other programs open, or in files that already
exist. All pictures and numbers on this page were made by one run of <code>parts-store demo</code>, and all code on it
is code that ran, with {escape(packages)}.</p>
{sections}
</body>
</html>
"""
    demo.page.write_text(page, encoding="utf-8")


def _section(number: int, step: Step) -> str:
    result = step.result
    figures = "".join(
        f"<figure>{png(pixels, caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        for pixels, caption in result.figures
    )
    code = "\n\n".join(inspect.getsource(function).rstrip() for function in result.code)
    printed = f"<h3>What was printed</h3><pre>{escape(result.printed)}</pre>" if result.printed else ""
    return f"""<section>
<h2>{number}. {escape(step.title)}</h2>
<p class="result{"" if result.is_right else " wrong"}">{escape(result.summary)} ({step.seconds:.1f} s)</p>
<p>{escape(result.text)}</p>
<div class="figures">{figures}</div>
<h3>The code that ran</h3><pre><code>{escape(code)}</code></pre>
{printed}
</section>
"""


def png(pixels: NDArray[np.uint8], alt: str) -> str:
    """Return an `img` element with the pixels as a PNG in a data URI, reduced to a width of 320 pixels."""
    image = Image.fromarray(pixels)
    image.thumbnail((320, 320))
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{b64encode(file.getvalue()).decode()}">'
