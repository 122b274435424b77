"""The modules of `parts_store.plan`, as they are or with a text in their source replaced.

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

import parts_store.plan

PACKAGE = "parts_store.plan"
FOLDER = Path(next(iter(parts_store.plan.__path__)))


@dataclass(frozen=True, slots=True)
class Patch:
    """A text that occurs once in the source of a module, and what takes its place."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        if source.count(self.old) != 1:
            raise LookupError(f"{self.old!r} occurs {source.count(self.old)} times in {PACKAGE}.{self.module}")
        return source.replace(self.old, self.new)


class Plan:
    """The modules of the plan, all of one set, by their names."""

    def __init__(self) -> None:
        names = [path.stem for path in sorted(FOLDER.glob("[a-z]*.py"))]
        self._modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in names}

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
    originals = {name: each for name, each in sys.modules.items() if name.startswith(f"{PACKAGE}.")}
    package = sys.modules[PACKAGE]
    attributes = dict(vars(package))
    finder = _Finder(patches)
    for name in originals:
        del sys.modules[name]
        vars(package).pop(name.rpartition(".")[2], None)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [each for each in sys.modules if each.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        sys.modules.update(originals)
        vars(package).clear()
        vars(package).update(attributes)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of the plan before Python does."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self.patches = patches
        for patch in patches:
            patch.apply(_source(patch.module))

    @override
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == PACKAGE and name.isidentifier() else None

    @override
    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        patches = tuple(patch for patch in self.patches if patch.module == name)
        exec(_compiled(name, patches), vars(module))


@lru_cache(maxsize=256)
def _compiled(name: str, patches: tuple[Patch, ...]) -> CodeType:
    source = _source(name)
    for patch in patches:
        source = patch.apply(source)
    return compile(source, str(FOLDER / f"{name}.py"), "exec")


@lru_cache(maxsize=64)
def _source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")
