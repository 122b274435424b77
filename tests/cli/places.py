"""Stores in every state, and functions that call a command."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5netcdf
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.cli import main
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from tests.virtual.adopting import settle

OK, DAMAGED, WRONG, LEFTOVERS, CRASHED, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 3, 70, 130, 141
TWO = [ps.Part(""), ps.Part(".tail", size=2)]
THREE = [ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SIDE = "a/.parts-txn/" + Chunk("a/c/0", ConcatParts([""]), "a").side_folder.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Result:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str


def call(arguments: Sequence[str | Path], capsys: pytest.CaptureFixture[str]) -> Result:
    """Run a command in this process."""
    capsys.readouterr()
    code = main([str(each) for each in arguments])
    printed = capsys.readouterr()
    return Result(code, printed.out, printed.err)


def fails(arguments: Sequence[str | Path], capsys: pytest.CaptureFixture[str], code: int = WRONG) -> str:
    """Return the one line on standard error with which a command fails; nothing else is printed."""
    result = call(arguments, capsys)
    assert (result.code, result.out) == (code, "")
    require_one_line(result.err)
    return result.err


def require_one_line(err: str) -> None:
    assert err.startswith("parts-store")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def write_arrays(store: ps.PartsStore) -> None:
    """Write an array of two parts, a sharded one of three in a group, and one without parts."""
    array = ps.create_array(store, "a", parts=TWO, shape=(16,), chunks=(4,), dtype="uint16", compressors=None)
    array[...] = np.arange(1, 17)
    shards = ps.create_array(
        *(store, "images/img"),
        parts=THREE,
        shape=(64, 64),
        chunks=(8, 8),
        shards=(32, 32),
        dtype="uint8",
        compressors=None,
    )
    shards[...] = 3
    zarr.create_array(store, name="plain", shape=(4,), chunks=(2,), dtype="uint8", compressors=None)[...] = 1


def make_store(folder: Path, spoil: Callable[[Path], None] | None = None) -> Path:
    """Make a store of objects on disk, and damage it with `spoil`."""
    write_arrays(ps.PartsStore.from_url(folder))
    if spoil is not None:
        spoil(folder)
    return folder


def make_repository(folder: Path) -> Path:
    """Make an Icechunk repository with the same arrays, a tag `v1` and a branch `dev`."""
    repository = ps.open_repository(folder)
    session = repository.writable_session("main")
    write_arrays(ps.PartsStore.from_session(session))
    snapshot = session.commit("arrays")
    repository.create_tag("v1", snapshot)
    repository.create_branch("dev", snapshot)
    return folder


def make_file(path: Path) -> Path:
    """Make a netCDF4 file with one variable."""
    with h5netcdf.File(path, "w") as dataset:
        dataset.dimensions = {"x": 100}
        dataset.create_variable("x", ("x",), "f4")[...] = np.arange(100)
        dataset.create_variable("t", ("x",), "f4", chunks=(1,))[...] = np.arange(100)
    settle(path)
    return path


# --- states ----------------------------------------------------------------------------------------------------------


def leave_file(folder: Path) -> None:
    """Write a file as a dead writer leaves it beside a chunk."""
    path = folder / SIDE / f"{'0a' * 16}.0"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")


def lose_part(folder: Path) -> None:
    (folder / "a/c/0.tail").unlink()


def lose_anchor(folder: Path) -> None:
    (folder / "a/c/0").unlink()


def break_document(folder: Path) -> None:
    (folder / "a/zarr.json").write_text("{")


def hide_document(folder: Path) -> None:
    """Leave one array with parts, whose document is a link to a file that does not exist."""
    shutil.rmtree(folder / "images")
    (folder / "a/zarr.json").unlink()
    (folder / "a/zarr.json").symlink_to(folder / "nothing")


def remove_parts_arrays(folder: Path) -> None:
    shutil.rmtree(folder / "a")
    shutil.rmtree(folder / "images")


def contents(folder: Path) -> dict[Path, bytes]:
    """Return every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
