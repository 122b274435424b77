"""Docstrings: public names are described in one form, and their examples run."""

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zarr

import parts_store as ps

ROOT = Path(__file__).parent.parent
MODULES = (
    "parts_store",
    *(f"parts_store.{name}" for name in ("adoption", "manifests", "cluster", "codecs", "headers")),
)
SECTIONS = r"(?:Parameters|Returns|Yields|Raises|Attributes|Notes|Examples|See Also)\n-+\n"


def public_names() -> dict[str, object]:
    found: dict[str, object] = {}
    for module in MODULES:
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            if not isinstance(value, ModuleType | Enum | str):
                found.setdefault(getattr(value, "__qualname__", name), value)
    return found


NAMES = public_names()


def methods(cls: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public methods of a class that no base class of another library describes."""
    foreign = [base for base in cls.__mro__[1:] if not base.__module__.startswith("parts_store")]
    for name in vars(cls):
        if name.startswith("_") or any(hasattr(base, name) for base in foreign):
            continue
        value = getattr(cls, name)
        if inspect.isfunction(value) or inspect.ismethod(value):
            yield f"{cls.__name__}.{name}", value


def section(text: str, title: str) -> str | None:
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^{SECTIONS}|\Z)", text, re.DOTALL | re.MULTILINE)
    return None if found is None else found[1]


def described_parameters(text: str) -> list[str]:
    lines = [line for line in (section(text, "Parameters") or "").splitlines() if re.match(r"[*\w]", line)]
    return [name.strip().lstrip("*") for line in lines for name in line.partition(" : ")[0].split(",")]


def problems_of_function(name: str, function: Callable[..., object], *, needs_example: bool) -> Iterator[str]:
    text = inspect.getdoc(function) or ""
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    if parameters != described_parameters(text):
        yield f"{name}: Parameters describe {described_parameters(text)}, the signature has {parameters}"
    if needs_example and section(text, "Examples") is None:
        yield f"{name}: no Examples"


def problems_of_class(name: str, cls: type) -> Iterator[str]:
    text = inspect.getdoc(cls) or ""
    if not issubclass(cls, Exception):
        parameters = [*inspect.signature(cls).parameters]
        if parameters != described_parameters(text):
            yield f"{name}: Parameters describe {described_parameters(text)}, the signature has {parameters}"
        if section(text, "Examples") is None:
            yield f"{name}: no Examples"
    for qualified, method in methods(cls):
        yield from problems_of_function(qualified, method, needs_example=False)


@pytest.mark.parametrize("value", NAMES.values(), ids=NAMES)
def test_public_name_is_described(value: object) -> None:
    if isinstance(value, type):
        problems = [*problems_of_class(value.__name__, value)]
    else:
        assert inspect.isfunction(value)
        problems = [*problems_of_function(value.__name__, value, needs_example=True)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("value", NAMES.values(), ids=NAMES)
def test_examples_run(value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name: str = getattr(value, "__qualname__", "example")
    for test in doctest.DocTestFinder().find(value, name, globs={"ps": ps, "np": np, "zarr": zarr}):
        said: list[str] = []
        failed = doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed
        assert not failed, "".join(said)


def test_reference_page_lists_every_public_name() -> None:
    page = (ROOT / "docs/reference.md").read_text()
    listed = {name.strip() for names in re.findall(r"members: \[(.*)\]", page) for name in names.split(",")}
    assert set(NAMES) <= listed | {"PartsStoreError"}
    assert "::: parts_store.errors" in page
