"""The package as a user meets it: found by zarr, typed, layered, with an example that works."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import zarr

import parts_store

ROOT = Path(__file__).parent.parent
PACKAGE = Path(parts_store.__file__).parent

# Who may import what is not the standard library or parts_store itself.
FOREIGN = {
    "codecs": {"numpy", "zarr"},
    "headers": {"numpy"},
    "demo": {"numpy", "zarr", "PIL"},
    "errors": set(),
    "__init__": set(),
}
# Who may import which other modules of parts_store.
OWN = {
    "codecs": {"codecs", "errors"},
    "headers": {"headers", "errors"},
    "demo": {"codecs", "headers", "errors"},
    "errors": set(),
    "__init__": {"codecs", "headers", "errors"},
}


def imported_modules(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module="parts_store", names=names):
                yield from (f"parts_store.{name.name}" for name in names)
            case ast.ImportFrom(module=str(module)):
                yield module


@pytest.mark.parametrize("source", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_layers(source: Path) -> None:
    layer = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imported = set(imported_modules(source))
    roots = {name.split(".")[0] for name in imported}
    own = {name.split(".")[1] for name in imported if name.startswith("parts_store.")}
    assert roots - sys.stdlib_module_names - {"parts_store"} <= FOREIGN[layer]
    assert own <= OWN[layer]


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


def test_the_package_says_its_version_and_that_it_is_typed() -> None:
    assert parts_store.__version__ == metadata.version("parts_store")
    assert (PACKAGE / "py.typed").exists()
    for name in parts_store.__all__:
        assert hasattr(parts_store, name)


def test_the_example_in_the_readme_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    monkeypatch.chdir(tmp_path)
    for example in examples:
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    # The example's picture, as it says, is on disk as TIFF files that make up the array.
    array = zarr.open_array(tmp_path / "picture.zarr")
    assert np.asarray(array[...]).any()


def test_the_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_nothing_names_a_package_index() -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for name in filter(None, files.split("\0")):
        assert not re.search(r"(^|/)(uv|poetry|pdm)\.lock$", name)
    assert not re.search(r"index-url|find-links|https?://", (ROOT / "constraints.txt").read_text())
