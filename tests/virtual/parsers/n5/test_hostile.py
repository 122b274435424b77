"""Containers that are made to take much memory or time: each is refused, or skipped by name, with bounds on both."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import PartsStoreError
from parts_store.virtual.parsers.n5 import container as reader
from parts_store.virtual.report import Adoption
from tests.virtual.adopting import adopted
from tests.virtual.parsers.n5.containers import numbers, settle, write_java, write_root


@pytest.fixture
def container(tmp_path: Path) -> Path:
    folder = tmp_path / "a.n5"
    write_java(folder / "good", numbers((6, 6), "uint16"), (4, 4))
    write_root(folder)
    return folder


def in_session(folder: Path) -> Adoption:
    return adopted(folder)[0]


def skipped(report: Adoption) -> dict[str, str]:
    assert "good" in [each.path for each in report.arrays]
    return {each.name: each.reason for each in report.skipped}


@pytest.mark.slow
def test_a_named_pipe_in_place_of_attributes_is_not_read(container: Path) -> None:
    (container / "pipe").mkdir()
    os.mkfifo(container / "pipe/attributes.json")
    (container / "device").mkdir()
    (container / "device/attributes.json").symlink_to("/dev/zero")
    found = skipped(ps.adopt_in_place(container))
    assert sorted(found) == ["device", "pipe"]
    assert all("attributes.json is no file" in reason for reason in found.values())
    # A listing of all files has neither.
    assert skipped(in_session(container)) == {}


def test_folders_below_a_hundred_others_are_named(container: Path) -> None:
    deep = "/".join("d" * 120)
    write_java(container / deep / "x", numbers((4, 4), "uint8"), (4, 4))
    settle(container)
    assert skipped(in_session(container)) == {f"{deep}/x": "more than 99 folders in one another"}
    assert skipped(ps.adopt_in_place(container)) == {f"{deep[:199]}/*": "more than 99 folders in one another"}


@pytest.mark.slow
def test_ten_thousand_folders_in_one_another_are_refused_or_named(container: Path) -> None:
    # No path can be as long.
    make = "import os\nfor _ in range(10_000):\n    os.mkdir('d')\n    os.chdir('d')"
    subprocess.run([sys.executable, "-c", make], cwd=container, check=True)
    try:
        with pytest.raises(PartsStoreError, match="Unable to walk dir"):
            in_session(container)
        assert list(skipped(ps.adopt_in_place(container)).values()) == ["more than 99 folders in one another"]
    finally:
        subprocess.run(["rm", "-rf", container / "d"], check=True)


def test_many_large_attributes_are_not_kept_in_memory(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_NBYTES", 1 << 20)
    monkeypatch.setattr(reader, "_MAX_NBYTES_IN_ALL", 1 << 22)
    for number in range(20):
        (container / f"group {number}").mkdir()
        (container / f"group {number}/attributes.json").write_text(json.dumps({"a": "x" * ((1 << 20) - 100)}))
    settle(container)
    for adopt in (in_session, ps.adopt_in_place):
        found = skipped(adopt(container))
        assert len(found) in (16, 17)
        assert all("with the others of the container" in reason for reason in found.values())


def test_many_datasets_without_blocks_take_bounded_memory(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_BLOCKS", 1 << 16)
    attributes = {"dimensions": [1 << 16], "blockSize": [1], "dataType": "uint8", "compression": {"type": "raw"}}
    for number in range(50):
        (container / f"empty {number}").mkdir()
        (container / f"empty {number}/attributes.json").write_text(json.dumps(attributes))
    settle(container)
    tracemalloc.start()
    found = skipped(in_session(container))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 49
    assert all("65,536 of 65,536 blocks do not exist" in reason for reason in found.values())
    # The table of one dataset has 2 MiB.
    assert peak < 1 << 24
    # In place, there are no tables.
    assert skipped(ps.adopt_in_place(container)) == {}


@pytest.mark.parametrize("ndim", [32, 33])
def test_up_to_32_axes_are_read(tmp_path: Path, ndim: int) -> None:
    # With more, some functions of NumPy crash.
    folder, values = tmp_path / "a.n5", numbers((2, *(1 for _ in range(ndim - 1))), "uint16")
    write_java(folder / "x", values, (1,) * ndim)
    write_root(folder)
    report, store = adopted(folder)
    if ndim > 32:
        assert "with 1 to 32 lengths" in report.skipped[0].reason
        return
    array: Any = zarr.open_array(store, path="x", mode="r")
    np.testing.assert_array_equal(array[...], values)


def test_a_link_to_itself_is_refused(container: Path) -> None:
    (container / "self").symlink_to("self")
    for adopt in (in_session, ps.adopt_in_place):
        with pytest.raises(PartsStoreError, match="Too many levels of symbolic links"):
            adopt(container)
