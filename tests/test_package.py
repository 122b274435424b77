"""The package as a user meets it: found by zarr, typed, layered, with an example that works."""

import ast
import doctest
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

import parts_store

ROOT = Path(__file__).parent.parent
PACKAGE = Path(parts_store.__file__).parent

# Private names of other libraries have one home.
PRIVATE = ("zarr.core", "zarr.storage._", "xarray.backends", "virtualizarr.manifests.")

# Which packages a folder or a module of parts_store may import, besides the standard library.
FOREIGN = {
    "_compat": {"numpy", "virtualizarr", "xarray", "zarr"},
    "backends": {"icechunk", "obstore", "zarr"},
    "cli": {"distributed", "numpy", "obstore", "rich", "typer", "zarr"},
    "cluster": {"dask", "distributed", "icechunk", "xarray", "zarr"},
    "codecs": {"numcodecs", "numpy", "zarr", "zstandard"},
    "copying": {"zarr"},
    "engine": {"zarr"},
    "demo": {"PIL", "icechunk", "numpy", "rasterio", "tensorstore", "tifffile", "xarray", "zarr"},
    "executors": {"distributed", "lithops", "virtualizarr"},
    "format": {"google_crc32c", "h5py", "numcodecs", "numpy", "zarr"},
    "headers": {"numpy"},
    "maintenance": {"zarr"},
    "manifests": {"virtualizarr"},
    "parsers": {"virtualizarr"},
    "pipeline": {"numcodecs", "numpy", "zarr", "zstandard"},
    "pictures": {"numpy"},
    "progress": {"rich"},
    "store": {"icechunk", "numpy", "obstore", "zarr"},
    "transactions": {"zarr"},
    "views": {"h5py", "numpy", "zarr"},
    "virtual": {
        *("h5py", "icechunk", "imagecodecs", "numcodecs", "numpy", "obspec_utils", "obstore", "tifffile"),
        *("virtualizarr", "xarray", "zarr"),
    },
    "web": {"icechunk", "numpy", "starlette", "uvicorn", "zarr"},
}
# What every folder may import.
COMMON = {"_compat", "errors", "executors", "notebook", "pictures", "progress", "redaction", "text", "forks"}
# Which other folders a folder may import. A chunk goes one way through the code, and no import leads back: store,
# transactions, engine, backends; format is below all of them. Nothing of the store imports `virtual`.
OWN: dict[str, set[str]] = {
    "_compat": set(),
    "backends": {"engine", "format", "transactions"},
    "cli": {"copying", "engine", "demo", "maintenance", "pipeline", "store", "views", "virtual", "web"},
    "cluster": {"engine", "store"},
    "codecs": {"format", "headers"},
    "copying": {"backends", "engine", "format", "store", "transactions"},
    "engine": {"format"},
    "demo": {"format"},
    "format": set(),
    "headers": {"format"},
    "maintenance": {"engine", "format", "transactions"},
    "adoption": {"virtual"},
    "manifests": {"virtual"},
    "parsers": {"virtual"},
    "pipeline": {"codecs", "engine", "format", "store"},
    "progress": {"engine"},
    "store": {"backends", "codecs", "engine", "format", "headers", "maintenance", "pipeline", "transactions"},
    "transactions": {"engine", "format"},
    "views": {"backends", "engine", "format", "store"},
    "web": {"engine", "format", "pipeline", "store"},
    "virtual": {"backends", "codecs", "engine", "format", "headers", "pipeline", "store"},
    "__init__": {
        *("codecs", "copying", "engine", "format", "headers", "maintenance", "manifests", "parsers", "pipeline"),
        *("store", "views", "virtual", "web"),
    },
}


def imported_modules(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module="parts_store" as package, names=names):
                yield from (f"{package}.{name.name}" for name in names)
            case ast.ImportFrom(module=str(module)):
                yield module


SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_imports_follow_the_layers() -> None:
    wrong: dict[str, set[str]] = {}
    for source in SOURCES:
        layer = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
        imported = set(imported_modules(source))
        roots = {name.split(".")[0] for name in imported}
        own = {name.split(".")[1] for name in imported if name.startswith("parts_store.")}
        private = {name for name in imported if name.startswith(PRIVATE) and layer != "_compat"}
        foreign = roots - sys.stdlib_module_names - {"parts_store"} - FOREIGN.get(layer, set())
        if found := foreign | private | own - OWN.get(layer, set()) - COMMON - {layer}:
            wrong[str(source.relative_to(PACKAGE))] = found
    assert wrong == {}


# The names that tell which kind of backend a store has. `store` makes backends, and asks none what it is.
KINDS = {"WriteIdentity", "TaggedProtocol", "JournaledProtocol", "SessionProtocol", "ReadOnlyProtocol"}
BACKENDS = {"ObjectBackend", "LocalBackend", "SessionBackend"}
MAY_ASK = ("transactions", "backends", "engine/backend")


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@pytest.mark.slow
def test_only_the_choice_of_a_protocol_asks_for_the_kind_of_backend() -> None:
    for source in SOURCES:
        module = str(source.relative_to(PACKAGE).with_suffix(""))
        if module.startswith(MAY_ASK):
            continue
        tree = ast.parse(source.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "isinstance" in names_in(node.func)]
        assert not {name for call in calls for name in names_in(call)} & BACKENDS, module
        assert not names_in(tree) & (KINDS if module == "store/store" else KINDS | BACKENDS), module
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not attributes & {"capabilities", "identifies_writes_by"}, module


def test_dir_lists_public_names_and_nothing_else() -> None:
    assert dir(parts_store) == sorted(parts_store.__all__)
    # Also after names were imported.
    assert parts_store.PartsStore is not None
    assert dir(parts_store) == sorted(parts_store.__all__)


@pytest.mark.slow
def test_zarr_alone_finds_the_codecs_with_nothing_imported(tmp_path: Path) -> None:
    codecs = [
        {"name": "packbits", "configuration": {"padding_encoding": "none"}},
        {"name": "pad", "configuration": {"location": "end", "nbytes": 2, "padding": "YWI="}},
        {"name": "offset", "configuration": {"offset": 3, "prefix": "YWJj"}},
    ]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8],
        "data_type": "bool",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": False,
        "codecs": codecs,
    }
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    program = "import sys, zarr; zarr.open_array(sys.argv[1], mode='r+')[...] = [1, 1, 0, 0, 0, 0, 0, 0]"
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True)
    assert (tmp_path / "c/0").read_bytes() == b"abc\x03ab"
    assert json.loads((tmp_path / "zarr.json").read_text())["codecs"] == codecs


def test_package_has_a_version_and_type_information() -> None:
    assert parts_store.__version__ == metadata.version("parts_store")
    assert (PACKAGE / "py.typed").exists()
    for name in parts_store.__all__:
        assert hasattr(parts_store, name)


def test_every_name_is_imported_from_where_type_checkers_find_it() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    found = {
        name.name: each.module
        for each in block.body
        if isinstance(each, ast.ImportFrom) and each.module is not None
        for name in each.names
    }
    modules = dict.fromkeys(parts_store._SUBPACKAGES, "parts_store")
    assert found == parts_store._MODULES | modules
    assert {*found, "__version__"} == set(parts_store.__all__)
    assert set(parts_store.__all__) <= set(dir(parts_store))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = parts_store.no_such_name


def test_importing_the_package_imports_nothing_that_takes_time() -> None:
    program = "import parts_store, sys; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert not {"zarr", "numpy", "icechunk", "obstore"} & set(printed.split())


# The modules of the extras, and of what they install.
EXTRA_MODULES = (
    *("PIL", "cftime", "dask", "distributed", "h5netcdf", "h5py", "hdf5plugin", "imagecodecs", "obspec_utils"),
    *("pandas", "rich", "tensorstore", "tifffile", "typer", "virtualizarr", "xarray", "xxhash"),
)
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
import icechunk, zarr
import parts_store as ps

size = {"shape": (64, 64), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint16"}
session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
stores = [ps.PartsStore.from_url(url) for url in ("memory://", sys.argv[2])]
for store in [*stores, ps.PartsStore.from_session(session)]:
    zarr.create_array(store, name="plain", **size)[:] = 1
    ps.create_array(store, "parts", parts=["", ps.Part(".index", size=ps.SHARD_INDEX)], **size)[:] = 2
    ps.create_array(store, "tiles", shard_file="tiff", **size)[:] = 3
    assert [int(zarr.open_group(store)[name][63, 63]) for name in ("plain", "parts", "tiles")] == [1, 2, 3]
    store.explain("parts", (slice(8), slice(8)))
    store.verify()
    store.repair()
    store.tree(sizes=True)
    ps.copy(store, ps.PartsStore.from_url("memory://"))
"""


@pytest.mark.slow
def test_package_works_without_extras(tmp_path: Path) -> None:
    call = [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS, ",".join(EXTRA_MODULES), str(tmp_path / "data.zarr")]
    subprocess.run(call, check=True)


def link_installed(extra: str, folder: Path) -> None:
    """Link to all that an extra of the package installs, as a folder of an environment that has nothing else."""
    wanted, found = [(canonicalize_name("parts_store"), extra)], set[tuple[NormalizedName, str]]()
    known = {canonicalize_name(each.name): each for each in metadata.distributions()}
    while wanted:
        name, extras = pair = wanted.pop()
        if pair in found or name not in known:
            continue
        found.add(pair)
        for needed in map(Requirement, known[name].requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extras}):
                wanted += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    for distribution in {known[name] for name, _ in found}:
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(distribution.locate_file(top)))


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["the README", "the demo"])
def test_extra_demo_installs_what_is_shown(tmp_path: Path, shown: str) -> None:
    (site := tmp_path / "site").mkdir()
    link_installed("demo", site)
    if shown == "the README":
        write_archive(tmp_path / "archive")
        examples = [example for example, _ in python_examples(ROOT / "README.md")]
        # No example needs what another one imports.
        assert all("import parts_store as ps\n" in example for example in examples)
        program = "\n".join(examples)
    else:
        program = "import sys; from parts_store.cli import main; sys.exit(main(['demo', 'shown']))"
    found = subprocess.run(
        # Without the packages of this environment.
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr + found.stdout


def python_examples(page: Path) -> list[tuple[str, str]]:
    """Return the Python examples of a page, each with the block `output` that follows it, or an empty text."""
    block = r"^```python\n(.*?)^```$(?:\n\n^```output\n(.*?)^```$)?"
    return re.findall(block, page.read_text(), re.DOTALL | re.MULTILINE)


def write_archive(folder: Path) -> None:
    """Write the 24 months of the README: netCDF files with a chunk for each day."""
    folder.mkdir()
    days = np.arange("2024-01-01", "2026-01-01", dtype="M8[D]")
    coordinates = {"latitude": np.linspace(87, -87, 30), "longitude": np.arange(0.0, 360, 6)}
    for month in np.unique(days.astype("M8[M]")):
        time = days[days.astype("M8[M]") == month].astype("M8[ns]")
        values = np.full((len(time), 30, 60), 280, "f4")
        data = xr.Dataset({"t2m": (("time", *coordinates), values)}, {"time": time, **coordinates})
        encoding: dict[str, Any] = {
            "t2m": {"chunksizes": (1, 30, 60), "zlib": True},
            "time": {"units": "days since 2024-01-01"},
        }
        data.to_netcdf(folder / f"{month}.nc", engine="h5netcdf", encoding=encoding)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_examples(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name == "README.md":
        write_archive(tmp_path / "archive")
    names: dict[str, object] = {"__name__": "example"}
    for example, output in python_examples(page):
        exec(compile(example, page.name, "exec"), names)
        printed = capsys.readouterr().out
        # Three dots stand for what is different in every run.
        assert not output or doctest.OutputChecker().check_output(output, printed, doctest.ELLIPSIS), printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_output_follows_an_example(page: Path) -> None:
    shown = page.read_text().count("\n```output\n")
    assert shown == sum(1 for _, output in python_examples(page) if output)
