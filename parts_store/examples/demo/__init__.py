"""The program of `parts-store demo`: five steps that need no server, and a page with what they did and measured."""

import re
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parts_store.errors import StoreConfigError

if TYPE_CHECKING:
    from parts_store.examples.demo.page import Demo

__all__ = ["prepare_folder", "run"]

# The packages that the extra `demo` installs, by the names that are imported.
_PACKAGES: Final = ("h5netcdf", "h5py", "hdf5plugin", "PIL", "tifffile", "virtualizarr", "xarray")
_PAGE: Final = "index.html"
# All that the demo writes to its folder. The last two names are those of earlier demos.
NAMES: Final = (_PAGE, "images.zarr", "shared", "archive", "requests", "crash.zarr", "history")
# A file by which a folder is recognised as that of a demo. It is written first.
MARK: Final = ".parts-store-demo"


def run(folder: Path, say: Callable[[str], object]) -> "Demo":
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

    from parts_store.examples.demo.page import Demo, Step, write_page  # noqa: PLC0415 (as above)
    from parts_store.examples.demo.steps import STEPS  # noqa: PLC0415 (as above)

    # Hide the warning that concurrent commits on a local disk are unsafe: this is the only process that commits.
    icechunk.set_logs_filter("error")
    place = prepare_folder(folder)
    steps: list[Step] = []
    for number, (title, show) in enumerate(STEPS, start=1):
        say(f"{number}/{len(STEPS)}  {title}")
        start = time.perf_counter()
        result = show(place)
        seconds = time.perf_counter() - start
        say(f"     {'ok' if result.is_right else 'WRONG'}: {result.summary} ({seconds:.1f} s)")
        steps.append(Step(title, result, seconds))
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
