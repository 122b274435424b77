"""The folder that the demo writes to: only what an earlier demo wrote there is ever deleted."""

import re
import shutil
from pathlib import Path
from typing import Final

from parts_store.errors import StoreConfigError

PAGE: Final = "index.html"
# All that the demo writes to its folder.
NAMES: Final = (PAGE, "images.zarr", "crash.zarr", "shared", "archive", "history", "requests")
# A file by which a folder is recognised as that of a demo. It is written first.
MARK: Final = ".parts-store-demo"


def prepare(folder: Path) -> Path:
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
    for name in NAMES:
        _remove(folder / name)
    return place


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
