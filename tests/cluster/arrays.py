"""Arrays in a session, and dask arrays to write to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from icechunk import Repository, Session
from numpy.typing import NDArray

import parts_store as ps

HEAD = (ps.Part(".head", size=100), ps.Part(""))
SHARDS = (ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX))
VALUES: NDArray[np.int32] = np.arange(1, 81, dtype="int32").reshape(8, 10)
# How an array is stored: its parts, and whether each part is a chunk of a node of its own.
KINDS: dict[str, tuple[tuple[ps.Part, ...] | None, bool]] = {
    "no parts": (None, False),
    "whole": (SHARDS, False),
    "split": (SHARDS, True),
}
by_kind = pytest.mark.parametrize("kind", KINDS)


def begin(repo: Repository) -> tuple[Session, ps.PartsStore]:
    """Return a writable session, and a store on it."""
    session = repo.writable_session("main")
    return session, ps.PartsStore.from_session(session)


def create(store: ps.PartsStore, kind: str = "no parts", name: str = "a", **more: Any) -> zarr.Array[Any]:
    """Create an array of shape (8, 10) in shards of (4, 5)."""
    arguments: dict[str, Any] = {"shape": (8, 10), "shards": (4, 5), "chunks": (2, 5), "dtype": "int32"} | more
    parts, split = KINDS[kind]
    if parts is None:
        return zarr.create_array(store, name=name, **arguments)
    return ps.create_array(store, name, parts=parts, split=split, **arguments)


def begin_with(repo: Repository, kind: str = "no parts", **more: Any) -> tuple[Session, zarr.Array[Any]]:
    """Commit an empty array, and return a new session with that array."""
    session, store = begin(repo)
    create(store, kind, **more)
    session.commit("an array")
    session, store = begin(repo)
    return session, zarr.open_array(store, path="a")


def committed(repo: Repository, name: str = "a") -> zarr.Array[Any]:
    return zarr.open_array(ps.PartsStore.from_session(repo.readonly_session("main")), path=name, mode="r")


def messages(repo: Repository) -> list[str]:
    """Return the messages of all commits, newest first, without the initial commit."""
    return [each.message for each in repo.ancestry(branch="main")][:-1]


def chunked(values: Any, chunks: Any) -> Any:
    return dask.array.from_array(values, chunks=chunks)


def watched(path: Path) -> Any:
    """Return a dask array that creates a file when a block is computed."""

    def touch(block: NDArray[Any]) -> NDArray[Any]:
        path.touch()
        return block

    return chunked(VALUES, (4, 5)).map_blocks(touch, meta=VALUES[:0, :0])


def failing(values: NDArray[Any], chunks: Any, should_fail: Callable[[NDArray[Any]], bool]) -> Any:
    """Return a dask array with blocks that raise when they are computed."""

    def check(block: NDArray[Any]) -> NDArray[Any]:
        if should_fail(block):
            raise ArithmeticError(f"no block from {block.flat[0]}")
        return block

    return chunked(values, chunks).map_blocks(check, meta=values[:0, :0])


def commit_elsewhere(repo: Repository, region: Any, value: int) -> None:
    """Write and commit in another session."""
    session, store = begin(repo)
    zarr.open_array(store, path="a")[region] = value
    session.commit("meanwhile")
