"""The pure modules of parts_store, as they are or with a piece of their syntax tree replaced.

A mutant is made from the code that is there, and so is out of date as soon as it does not fit: then it is refused.
"""

import ast
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
WITH_IO = {"concurrency", "executor", "execution"}
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
    """Code that occurs once in a function, and what takes its place: an expression, or statements in a row."""

    # As in `Class.method`, or `module.function` if several modules have a function of this name.
    function: str
    old: str
    new: str

    @property
    def module(self) -> str:
        """Return the name of the module that has the function; raise unless there is exactly one."""
        found = [name for name in SOURCES if self.function in _names(name)]
        if len(found) != 1:
            raise LookupError(f"{self.function} is in {found}")
        return found[0]

    def apply(self, tree: ast.Module) -> None:
        """Change the syntax tree of the module."""
        replacing = _Replacing(_parse(self.old), _parse(self.new))
        replacing.visit(_functions(tree)[self.function.removeprefix(f"{self.module}.")])
        if replacing.count != 1:
            raise LookupError(f"{self.old!r} occurs {replacing.count} times in {self.function}")
        ast.fix_missing_locations(tree)


class _Replacing(ast.NodeTransformer):
    """Replaces an expression, or a row of statements, where it occurs, and counts how often that is."""

    def __init__(self, old: list[ast.stmt], new: list[ast.stmt]) -> None:
        self.count = 0
        self._new = new
        self._statements = [ast.dump(each) for each in old]
        self._expression: str | None = None
        match old, new:
            case [ast.Expr(before)], [ast.Expr(after)]:
                self._expression, self._value = ast.dump(before), after

    @override
    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._expression is not None:
            if isinstance(node, ast.expr) and ast.dump(node) == self._expression:
                self.count += 1
                return self._value
            return super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, self._replaced(block))
        return super().generic_visit(node)

    def _replaced(self, block: list[ast.stmt]) -> list[ast.stmt]:
        length = len(self._statements)
        for at in range(len(block) - length + 1):
            if [ast.dump(each) for each in block[at : at + length]] == self._statements:
                self.count += 1
                return [*block[:at], *self._new, *self._replaced(block[at + length :])] or [ast.Pass()]
        return block


def _parse(code: str) -> list[ast.stmt]:
    return ast.parse(code).body


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions and methods of a module by their names."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


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
    """The plan with these changes; the very modules that everybody uses if there are none."""
    if not patches:
        return Plan()
    with _as_if_never_imported(patches):
        return Plan()


@contextmanager
def _as_if_never_imported(patches: Sequence[Patch]) -> Iterator[None]:
    # First, because it raises if the code does not occur: nothing must have been changed then.
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
            patch.apply(_tree(patch.module))

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
    tree = _tree(name)
    for patch in patches:
        patch.apply(tree)
    return compile(tree, str(SOURCES[name]), "exec")


@lru_cache(maxsize=64)
def _names(module: str) -> frozenset[str]:
    """Return the names of the functions of a module, also with that of the module before them."""
    names = _functions(_tree(module))
    return frozenset(names) | {f"{module}.{name}" for name in names}


def _tree(name: str) -> ast.Module:
    return ast.parse(_source(name))


@lru_cache(maxsize=64)
def _source(name: str) -> str:
    return SOURCES[name].read_text(encoding="utf-8")
