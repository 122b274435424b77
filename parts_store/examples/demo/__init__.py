"""The program of `make demo`: six steps that need no server, and a page with what they did and measured."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parts_store.examples.demo.outcome import Demo

__all__ = ["run"]

# The packages that the extra `demo` installs, by the names that are imported.
_PACKAGES = ("h5netcdf", "h5py", "hdf5plugin", "PIL", "tifffile", "virtualizarr", "xarray")


def run(folder: Path, say: Callable[[str], object]) -> "Demo":
    """Run all steps, write what they store and the page `index.html` to `folder`, and return what they found.

    Parameters
    ----------
    folder
        A folder that does not exist, that is empty, or that contains the output of an earlier demo, which is replaced.
    say
        A function that is called with pieces of text for the terminal, which contain their line ends.
    """
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ImportError(f"the demo needs {name}: pip install 'parts_store[demo]'", name=name)
    from parts_store.examples.demo.program import run_steps  # noqa: PLC0415 (the packages have to be there)

    return run_steps(folder, say)
