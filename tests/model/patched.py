"""The pure modules of parts_store, as they are or with a text in their source replaced.

A mutant is made from the source that is there, and so is out of date as soon as it does not fit: then it is refused.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import override

import parts_store

ROOT = Path(parts_store.__file__).parent
PACKAGES = ("format", "engine", "transactions", "maintenance")
# These modules do IO, and the model does not use them.
WITH_IO = {"executor", "explain", "execution"}
# Where each module is, by its name, which is unique among these packages.
SOURCES = {
    path.stem: path
    for package in PACKAGES
    for path in sorted((ROOT / package).glob("[a-z]*.py"))
    if path.stem not in WITH_IO
}
NAMES = {f"parts_store.{path.parent.name}.{name}": name for name, path in SOURCES.items()}


@dataclass(frozen=True, slots=True)
class Patch:
    """A text that occurs once in the source of a module, and what takes its place."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        if source.count(self.old) != 1:
            raise LookupError(f"{self.old!r} occurs {source.count(self.old)} times in {self.module}")
        return source.replace(self.old, self.new)


class Plan:
    """The modules of the plan, all of one set, by their names."""

    def __init__(self) -> None:
        self._modules = {name: importlib.import_module(full) for full, name in NAMES.items()}

    def __getattr__(self, name: str) -> ModuleType:
        try:
            return self._modules[name]
        except KeyError:
            raise AttributeError(name) from None


@lru_cache(maxsize=256)
def load(patches: tuple[Patch, ...]) -> Plan:
    """The plan with these texts replaced; the very modules that everybody uses if there are none."""
    if not patches:
        return Plan()
    with _as_if_never_imported(patches):
        return Plan()


@contextmanager
def _as_if_never_imported(patches: Sequence[Patch]) -> Iterator[None]:
    # First, because it raises if a text does not occur: nothing must have been changed then.
    finder = _Finder(patches)
    originals = {full: sys.modules.pop(full) for full in NAMES if full in sys.modules}
    packages = [importlib.import_module(f"parts_store.{name}") for name in PACKAGES]
    attributes = [dict(vars(package)) for package in packages]
    for package in packages:
        for name in NAMES.values():
            vars(package).pop(name, None)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for full in NAMES:
            sys.modules.pop(full, None)
        sys.modules.update(originals)
        for package, before in zip(packages, attributes, strict=True):
            vars(package).clear()
            vars(package).update(before)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of the plan before Python does."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self.patches = patches
        for patch in patches:
            patch.apply(_source(patch.module))

    @override
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in NAMES else None

    @override
    def exec_module(self, module: ModuleType) -> None:
        name = NAMES[module.__name__]
        patches = tuple(patch for patch in self.patches if patch.module == name)
        exec(_compiled(name, patches), vars(module))


@lru_cache(maxsize=256)
def _compiled(name: str, patches: tuple[Patch, ...]) -> CodeType:
    source = _source(name)
    for patch in patches:
        source = patch.apply(source)
    return compile(source, str(SOURCES[name]), "exec")


@lru_cache(maxsize=64)
def _source(name: str) -> str:
    return SOURCES[name].read_text(encoding="utf-8")
