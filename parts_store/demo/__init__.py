"""The program of `parts-store demo`: five steps that need no server, and a page about what they did and found."""

import inspect
import re
import shutil
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parts_store.errors import StoreConfigError

if TYPE_CHECKING:
    from parts_store.demo.steps import StepResult

__all__ = ["prepare_folder", "run"]

# The packages that the extra `demo` installs, by the names that are imported.
_PACKAGES: Final = ("h5netcdf", "h5py", "hdf5plugin", "PIL", "tifffile", "virtualizarr", "xarray")
_PAGE: Final = "index.html"
# All that the demo writes to its folder. The last two names are those of earlier demos.
NAMES: Final = (_PAGE, "images.zarr", "shared", "archive", "requests", "crash.zarr", "history")
# A file by which a folder is recognised as that of a demo. It is written first.
MARK: Final = ".parts-store-demo"
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
class Step:
    """A step of the demo that has run."""

    title: str
    text: str
    result: "StepResult"
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


def run(folder: Path, say: Callable[[str], object]) -> Demo:
    """Run all steps, write what they store and the page `index.html` to `folder`, and return what they found.

    Parameters
    ----------
    folder
        A folder that does not exist, that is empty, or that contains the output of an earlier demo, which is replaced.
    say
        A function that is called with lines for the terminal.
    """
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ImportError(f"the demo needs {name}: pip install 'parts_store[demo]'", name=name)
    import icechunk  # noqa: PLC0415 (the packages have to be there)

    from parts_store.demo.steps import STEPS  # noqa: PLC0415 (as above)

    # Hide the warning that concurrent commits on a local disk are unsafe: this is the only process that commits.
    icechunk.set_logs_filter("error")
    place = prepare_folder(folder)
    steps: list[Step] = []
    for number, (title, show) in enumerate(STEPS, start=1):
        say(f"{number}/{len(STEPS)}  {title}")
        start = time.perf_counter()
        result = show(place)
        step = Step(title, inspect.getdoc(show) or "", result, time.perf_counter() - start)
        say(f"     {'ok' if result.is_right else 'WRONG'}: {result.summary} ({step.seconds:.1f} s)")
        steps.append(step)
    demo = Demo(place / _PAGE, tuple(steps))
    write_page(demo)
    return demo


def prepare_folder(folder: Path) -> Path:
    """Create the folder, or remove what an earlier demo wrote there, and return its absolute path.

    Raises
    ------
    StoreConfigError
        If the path is not that of a folder, if it has special characters, or if the folder contains something and was
        not made by the demo. Nothing was deleted.
    """
    if re.match(r"\w\w+:/", str(folder)):
        raise StoreConfigError("FOLDER", "a folder of this machine", f"{str(folder)!r}")
    place = folder.resolve()
    if place.as_uri() != f"file://{place}":
        # Icechunk does not find files for references with %20 and the like.
        expected = "a path without spaces and special characters, in which Icechunk does not find files"
        raise StoreConfigError("FOLDER", expected, f"{str(place)!r}")
    if folder.exists() and not folder.is_dir():
        raise StoreConfigError("FOLDER", "a folder", f"a file at {str(folder)!r}")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARK).is_file() and any(folder.iterdir()):
        expected = "an empty folder, or the output of an earlier demo"
        raise StoreConfigError("FOLDER", expected, f"other files in {str(folder)!r}; nothing was changed")
    (folder / MARK).write_text("`parts-store demo` made this folder, and replaces what it wrote here.\n")
    for path in (folder / name for name in NAMES):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return place


# --- the page: one HTML file without external resources ---------------------------------------------------------------


def write_page(demo: Demo) -> None:
    """Write the page as HTML."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("parts_store", "zarr", "icechunk", "xarray"))
    sections = "".join(_section(number, step) for number, step in enumerate(demo.steps, start=1))
    page = f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>parts_store: what it does</title><style>{_STYLE}</style></head>
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
        f"<figure>{_picture(pixels, caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        for pixels, caption in result.figures
    )
    code = "\n\n".join(inspect.getsource(function).rstrip() for function in result.code)
    return f"""<section>
<h2>{number}. {escape(step.title)}</h2>
<p class="result{"" if result.is_right else " wrong"}">{escape(result.summary)} ({step.seconds:.1f} s)</p>
<p>{escape(step.text)}</p>
<div class="figures">{figures}</div>
<h3>The code that ran</h3><pre><code>{escape(code)}</code></pre>
<pre>{escape(result.printed)}</pre>
</section>
"""


def _picture(pixels: Any, alt: str) -> str:
    """Return an `img` element with the pixels as a PNG in a data URI, reduced to a width of 320 pixels."""
    from PIL import Image  # noqa: PLC0415 (an extra)

    image = Image.fromarray(pixels)
    image.thumbnail((320, 320))
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{b64encode(file.getvalue()).decode()}">'
