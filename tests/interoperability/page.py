"""The tables of docs/interoperability.md, made from the expected outcomes."""

import json
from pathlib import Path
from typing import Final

from tests.interoperability.installed import IMAGEJ
from tests.interoperability.matrix import PROGRAMS, Program, expected
from tests.interoperability.rows import ROWS, Row

ROOT: Final = Path(__file__).parent.parent.parent
PAGE: Final = ROOT / "docs/interoperability.md"
START, END = "<!-- tables: python -m tests.interoperability -->\n", "<!-- end of the tables -->\n"
TITLES: Final = {
    "zarr": "Programs that read Zarr",
    "tiff": "Programs that open chunks and shards as TIFF files",
    "hdf5": "Programs that open shards as HDF5 files",
    "n5": "Programs that read N5",
}
CELLS: Final = {"reads": "yes", "refuses": "no", "fill value": "**fill value**"}


def tables() -> str:
    """Return the tables, one for each kind of program, and the versions of the programs."""
    return "\n".join([*(f"## {title}\n\n{_table(kind)}" for kind, title in TITLES.items()), _versions()])


def _table(kind: str) -> str:
    columns = {name: program for name, program in PROGRAMS.items() if program.reads == kind}
    # Compressions of a form with the same outcomes share a line.
    outcomes: dict[tuple[str, ...], list[str]] = {}
    for row in ROWS:
        if any(program.applies_to(row) for program in columns.values()):
            cells = [_cell(name, program, row) for name, program in columns.items()]
            outcomes.setdefault((row.form, *cells), []).append(row.compression)
    table = [["what", "compression", *(program.title for program in columns.values())]]
    table.append(["---"] * len(table[0]))
    table += [[form, ", ".join(compressions), *cells] for (form, *cells), compressions in outcomes.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def _cell(name: str, program: Program, row: Row) -> str:
    return CELLS[expected(name, row)] if program.applies_to(row) else ""


def _versions() -> str:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    lock = json.loads((ROOT / "conformance/readers/javascript/package-lock.json").read_text())
    used = ("zarr", "xarray", "icechunk", "tensorstore", "zarrs", "tifffile", "imagecodecs", "pillow", "rasterio")
    installed = [f"{name} {pins[name]}" for name in (*used, "h5py", "hdf5plugin", "h5netcdf", "z5py")]
    pip = [program.requirement.replace("==", " ") for program in PROGRAMS.values() if program.requirement]
    more = [f"zarrita {lock['packages']['node_modules/zarrita']['version']}", *pip, f"ImageJ {IMAGEJ}"]
    return f"Versions: {', '.join([*installed, *more])}.\n"


def written() -> str:
    """Return the page with the tables in it."""
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{tables()}\n{END}{after}"
