"""A power cut at any moment leaves the old value or the new one on a durable store, and the new one after the call."""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest

from parts_store.backends import local_disk, local_files
from parts_store.backends.local_disk import LocalBackend
from parts_store.backends.local_files import DiskSync
from parts_store.engine import steps
from tests.power_cuts.cuts import Result, cut_everywhere, record
from tests.power_cuts.recording import Synced
from tests.power_cuts.scenarios import KILLED, SCENARIOS

# More contents of the disk than there are after any cut, except after those of the longest scenarios.
LIMIT = 4096
LONG = {"merge of a shard", "delete an array", "one part", "overwrite three parts", "overwrite twice", "two chunks"}
# There are many moments at which a writer can be killed, so that few contents of the disk are read for each of them.
KILLED_LIMIT = 8
# The scenario of the source code's own use of `os.link`, on a filesystem that has no hard links.
WITHOUT_LINKS = "no parts, if absent"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if there is one, where thousands of small folders are made in a short time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def _cases() -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SCENARIOS]


def _run(name: str, folder: Path, *, stops: bool = False) -> Result:
    trace = record(SCENARIOS[name], folder / "recorded")
    assert trace is not None
    return cut_everywhere(SCENARIOS[name], trace, folder / "cut", limit=LIMIT, stops=stops)


def _run_killed(name: str, folder: Path, *, limit: int, stops: bool = False) -> Iterator[Result]:
    """Kill the first call of a scenario after each of its events, and yield what the next calls leave."""
    for lives in range(1000):
        trace = record(KILLED[name], folder / f"recorded{lives}", lives=lives)
        if trace is None:
            return
        yield cut_everywhere(KILLED[name], trace, folder / f"cut{lives}", limit=limit, seed=lives, stops=stops)
    raise AssertionError("the call never ends")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", _cases())
def test_a_power_cut_leaves_the_old_value_or_the_new_one(name: str, folder: Path) -> None:
    result = _run(name, folder)
    assert not result.violations
    assert result.cuts == result.events + 1
    assert result.read > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KILLED))
def test_a_power_cut_after_a_killed_writer_leaves_one_value(name: str, folder: Path) -> None:
    results = list(_run_killed(name, folder, limit=3))
    assert [each for result in results for each in result.violations] == []
    assert len(results) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["create", "overwrite", "delete and create", "document", "no parts"])
def test_a_store_that_is_not_durable_loses_values(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskSync, "file", lambda _sync, _descriptor: None)
    monkeypatch.setattr(DiskSync, "folder", lambda _sync, _folder: None)
    assert _run(name, folder, stops=True).violations


def test_a_create_on_a_filesystem_without_hard_links_is_durable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _no_link)
    assert not _run(WITHOUT_LINKS, folder).violations


def _no_link(*_: object) -> None:
    raise PermissionError(1, "no hard links")


# --- every synchronisation is needed ------------------------------------------------------------------------------

# The scenario that finds a value lost without a call of `file` or `folder`, by the function with the call and its place
# among such calls there.
NEEDED = {
    ("write_new", 0): "overwrite",
    ("write", 0): "no parts",
    ("_put_in_place", 0): "document",
    ("_put_in_place", 1): "overwrite",
    ("_put_in_place", 2): "overwrite",
    ("_create_by_rename", 0): WITHOUT_LINKS,
    ("_move", 0): "create",
    ("_delete_files", 0): "delete",
}


def _sites() -> dict[tuple[str, int], tuple[str, int]]:
    """Return the file and the line of each call of `file` and `folder` in the backend."""
    sites: dict[tuple[str, int], tuple[str, int]] = {}
    for module in (local_disk, local_files):
        file = inspect.getfile(module)
        for function in ast.walk(ast.parse(Path(file).read_text())):
            if isinstance(function, ast.FunctionDef):
                lines = [each.lineno for each in ast.walk(function) if isinstance(each, ast.Call) and _is_sync(each)]
                sites |= {(function.name, place): (file, line) for place, line in enumerate(sorted(lines))}
    return sites


def _is_sync(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in ("file", "folder") and ast.unparse(node.func.value) in ("sync", "self._sync")


def _leave_out(monkeypatch: pytest.MonkeyPatch, file: str, line: int) -> None:
    """Leave out the synchronisations that one line of the source code asks for."""

    def unless_called_there(real: Callable[..., None]) -> Callable[..., None]:
        def call(sync: DiskSync, what: Any) -> None:
            caller: FrameType | None = sys._getframe(1)
            assert caller is not None
            if (caller.f_code.co_filename, caller.f_lineno) != (file, line):
                real(sync, what)

        return call

    for name in ("file", "folder"):
        monkeypatch.setattr(DiskSync, name, unless_called_there(getattr(DiskSync, name)))


def test_every_synchronisation_has_a_test_that_it_is_needed() -> None:
    assert set(_sites()) == set(NEEDED)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("site", sorted(NEEDED), ids=lambda site: f"{site[0]}-{site[1]}")
def test_a_value_is_lost_without_the_synchronisation(
    site: tuple[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave_out(monkeypatch, *_sites()[site])
    name = NEEDED[site]
    if name == WITHOUT_LINKS:
        monkeypatch.setattr(os, "link", _no_link)
    assert _run(name, folder, stops=True).violations


@pytest.mark.slow
def test_a_value_is_lost_if_the_folders_above_are_not_synchronised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files._KnownFolders, "has", lambda *_: True)
    assert _run("create in a new folder", folder, stops=True).violations


@pytest.mark.slow
@pytest.mark.parametrize("name", ["delete, then create", "overwrite, then delete"])
def test_a_value_is_lost_if_the_removal_of_an_absent_file_is_not_synchronised(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalBackend._delete_files

    def delete_present(backend: LocalBackend, keys: tuple[str, ...]) -> steps.Outcome:
        root = backend.store.prefix
        return real(backend, [key for key in keys if os.path.lexists(f"{root}/{key}")])

    monkeypatch.setattr(LocalBackend, "_delete_files", delete_present)
    assert any(each.violations for each in _run_killed(name, folder, limit=KILLED_LIMIT, stops=True))


@pytest.mark.slow
def test_a_value_is_lost_if_the_journal_of_a_killed_writer_is_not_synchronised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalBackend._put

    def put_new(backend: LocalBackend, put: steps.Put) -> steps.Outcome:
        if put.why == "journal" and os.path.lexists(f"{backend.store.prefix}/{put.key}"):
            return steps.Refused()
        return real(backend, put)

    monkeypatch.setattr(LocalBackend, "_put", put_new)
    name = "overwrite, then overwrite"
    assert any(each.violations for each in _run_killed(name, folder, limit=KILLED_LIMIT, stops=True))


@pytest.mark.parametrize(("name", "most"), [("create", 8), ("overwrite", 11), ("delete", 6)])
def test_the_number_of_synchronisations_is_known(name: str, most: int, folder: Path) -> None:
    trace = record(SCENARIOS[name], folder / "recorded")
    assert trace is not None
    assert sum(isinstance(each, Synced) for each in trace.events) <= most
