"""Run the programs of the matrix on the rows: one process of each program reads all rows."""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np

from tests.interoperability import installed
from tests.interoperability.rows import ROWS, VALUES, Row

type Outcome = Literal["reads", "refuses", "fill value"]

SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Program:
    """A program that reads arrays, or the files of their chunks and shards; `command` raises `MissingError`."""

    title: str
    reads: Literal["zarr", "tiff", "hdf5", "n5"]
    command: Callable[[], list[str]]
    # What pip installs for it, if it is not among the packages of the tests.
    requirement: str | None = None

    def applies_to(self, row: Row) -> bool:
        """Return whether the program is one for rows of this form."""
        match self.reads:
            case "zarr":
                return True
            case "n5":
                return row.form.startswith("N5")
            case format_name:
                return row.files is not None and row.form.startswith(format_name.upper())


def _python(
    name: str, title: str, reads: Literal["zarr", "tiff", "hdf5", "n5"], requirement: str | None = None
) -> Program:
    return Program(title, reads, partial(installed.python, name, requirement), requirement)


PROGRAMS: Final = {
    "zarr": _python("zarr", "zarr", "zarr"),
    "xarray": _python("xarray", "xarray", "zarr"),
    "tensorstore": _python("tensorstore", "tensorstore", "zarr"),
    "zarrs": _python("zarrs", "zarrs", "zarr"),
    "zarrita": Program("zarrita.js", "zarr", installed.zarrita),
    "gdal_zarr": _python("gdal_zarr", "GDAL 3.12", "zarr"),
    "tifffile": _python("tifffile", "tifffile", "tiff"),
    "pillow": _python("pillow", "Pillow", "tiff"),
    "gdal_gtiff": _python("gdal_gtiff", "GDAL", "tiff"),
    "opencv": _python("opencv", "OpenCV", "tiff", "opencv-python-headless==5.0.0.93"),
    "imagej": Program("ImageJ 1.x", "tiff", installed.imagej),
    "h5py": _python("h5py", "h5py", "hdf5"),
    "h5py_with_plugins": _python("h5py_with_plugins", "h5py and hdf5plugin", "hdf5"),
    "xarray_hdf5": _python("xarray_hdf5", "xarray, h5netcdf and hdf5plugin", "hdf5"),
    "gdal_hdf5": _python("gdal_hdf5", "GDAL", "hdf5"),
    "netcdf4": _python("netcdf4", "netCDF4", "hdf5", "netCDF4==1.7.5.1.post1"),
    "tensorstore_n5": _python("tensorstore_n5", "tensorstore", "n5"),
    "z5py": _python("z5py", "z5py", "n5"),
}


# Which programs read which compressions of a form. What is not here is refused: an error, never wrong values.
READS: Final[dict[str, dict[str, str]]] = {
    "plain array": {
        "zarr, xarray, zarrs, zarrita": "none, zstd, deflate, gzip",
        "tensorstore, gdal_zarr": "none, zstd, gzip",
    },
    "plain array with shards": {
        "zarr, xarray, zarrs, zarrita": "none, zstd, deflate, gzip",
        "tensorstore": "none, zstd, gzip",
    },
    "shards, index as a part": {},
    "TIFF chunks, `.tif`": {
        "tifffile, pillow, gdal_gtiff": "none, zstd, deflate",
        "opencv, imagej": "none, deflate",
    },
    "TIFF chunks, `pad`": {
        "tifffile, pillow, gdal_gtiff": "none, zstd, deflate",
        "opencv, imagej": "none, deflate",
    },
    "TIFF shards": {
        "zarr, xarray, zarrs, zarrita": "none, zstd, deflate",
        "tensorstore": "none, zstd",
        "tifffile, pillow, gdal_gtiff": "none, zstd, deflate",
        "opencv": "none, deflate",
    },
    "TIFF shards of strips": {
        "zarr, xarray, zarrs, zarrita": "none, zstd, deflate",
        "tensorstore": "none, zstd",
        "tifffile, pillow, gdal_gtiff": "none, zstd, deflate",
        "opencv, imagej": "none, deflate",
    },
    "TIFF shards, `.tif` and index": {
        "tifffile, pillow, gdal_gtiff": "none, zstd, deflate",
        "opencv": "none, deflate",
    },
    "HDF5 shards": {
        "zarr, xarray, zarrs, zarrita": "none, zstd, deflate, shuffle + deflate, shuffle + zstd",
        "tensorstore": "none, zstd",
        "h5py_with_plugins, xarray_hdf5, netcdf4": "none, zstd, deflate, shuffle + deflate, shuffle + zstd",
        "h5py, gdal_hdf5": "none, deflate, shuffle + deflate",
    },
    "HDF5 shards, `.h5` and index": {
        "h5py_with_plugins, xarray_hdf5, netcdf4": "none, zstd, deflate, shuffle + deflate, shuffle + zstd",
        "h5py, gdal_hdf5": "none, deflate, shuffle + deflate",
    },
    "adopted HDF5 file": {"zarr, xarray": "none, deflate"},
    "adopted HDF5 file, in shards": {},
    "adopted TIFF file": {"zarr, xarray": "none, zstd, deflate"},
    "adopted TIFF file, in shards": {},
    "adopted HDF5 files, rectilinear grid": {},
    "adopted N5 container": {},
    "N5 in place": {"tensorstore_n5": "none, gzip"},
}
# Programs that ignore storage transformers, which they must not, look for chunks at keys without a suffix, find none,
# and show the fill value. The documentation warns of it. All other wrong values fail the tests.
SHOWS_FILL_VALUE: Final = {
    "zarrita": ("TIFF chunks, `.tif`", "TIFF shards, `.tif` and index", "HDF5 shards, `.h5` and index"),
}


# Why programs refuse, in their words: a program that was asked in a wrong way says something else.
_ZARR: Final = (
    r"disallowed extra fields: \['parts_store'\]|codec '(pad|n5_default)' is not available|Rectilinear chunk grids are"
)
REASONS: Final = {
    "zarr": _ZARR,
    "xarray": _ZARR,
    "zarrs": f"{_ZARR}|zarr reads this array with BatchedCodecPipeline",
    "tensorstore": r'"[\w.]+" is not registered|No storage transformers supported|zarr.json" does not exist',
    "zarrita": "Unknown codec: (pad|n5_default)|no such range in|Not found: v3 array or group",
    "gdal_zarr": "Unsupported codec: |storage_transformers are not supported|No such file or directory",
    "opencv": "OpenCV cannot read it",
    "imagej": "ImageJ cannot open it",
    "h5py": "filter|plugin",
    "gdal_hdf5": "Read failed",
    "z5py": "Zarr and N5 specification are not both supported",
}


def expected(name: str, row: Row) -> Outcome:
    """Return what happens when a program reads a row."""
    if row.form in SHOWS_FILL_VALUE.get(name, ()):
        return "fill value"
    for programs, compressions in READS[row.form].items():
        if name in programs.split(", ") and row.compression in compressions.split(", "):
            return "reads"
    return "refuses"


@dataclass(frozen=True, slots=True)
class Cell:
    """What happened when a program read a row, and why."""

    outcome: Outcome | Literal["wrong values"]
    why: str


def write_rows(folder: Path) -> dict[str, Path]:
    """Write all rows; return the folder of each."""
    written = {}
    for number, row in enumerate(ROWS):
        written[row.name] = folder / str(number)
        row.write(written[row.name], row.compression)
    return written


def run(name: str, written: dict[str, Path]) -> dict[str, Cell]:
    """Let a program read all rows that it is for; raise `MissingError` if it is not installed."""
    program = PROGRAMS[name]
    command = program.command()
    asked: list[tuple[Row, str, Path, np.ndarray]] = []
    for row in filter(program.applies_to, ROWS):
        folder = written[row.name]
        if program.reads in ("zarr", "n5"):
            asked.append((row, "repository" if row.is_repository else "array", folder, VALUES))
        else:
            asked += [(row, "file", file, values) for file, values in row.expected_files(folder).items()]
    lines = "".join(f"{number}\t{kind}\t{path}\t{row.array}\n" for number, (row, kind, path, _) in enumerate(asked))
    with tempfile.TemporaryDirectory() as out:
        ran = subprocess.run(
            [argument.replace(installed.OUT, out) for argument in command],
            input=lines,
            env=installed.environment(),
            cwd=out,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        answers = [line.split("\t") for line in ran.stdout.splitlines()]
        if ran.returncode or [number for number, *_ in answers] != [str(number) for number in range(len(asked))]:
            raise AssertionError(f"{program.title} did not read all rows:\n{ran.stdout[-500:]}\n{ran.stderr[-3000:]}")
        found: dict[str, list[Cell]] = {}
        for (row, _, _, values), (number, said, why) in zip(asked, answers, strict=True):
            cell = Cell("refuses", why) if said == "refuses" else _compared(values, why, Path(out) / number)
            found.setdefault(row.name, []).append(cell)
    return {name: _worst(cells) for name, cells in found.items()}


def _compared(values: np.ndarray, kind: str, path: Path) -> Cell:
    wanted = f"{values.dtype.str} {'x'.join(map(str, values.shape))}"
    if kind != wanted:
        return Cell("wrong values", f"{kind} instead of {wanted}")
    found = np.frombuffer(path.read_bytes(), values.dtype).reshape(values.shape)
    if np.array_equal(found, values):
        return Cell("reads", "")
    return Cell("wrong values" if found.any() else "fill value", f"{np.mean(found != values):.0%} of the values differ")


def _worst(cells: list[Cell]) -> Cell:
    """Return the cell of a row of which several files were read."""
    order = ("reads", "refuses", "fill value", "wrong values")
    return max(cells, key=lambda cell: order.index(cell.outcome))
