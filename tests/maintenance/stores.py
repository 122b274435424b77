"""Stores with arrays in parts, and ways to change what they hold."""

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore

import parts_store as ps
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.maintenance.report import Problem, Report

VALUES: NDArray[Any] = np.arange(1, 17, dtype="uint16")
INDEXED = [ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
TWO = [ps.Part(""), ps.Part(".tail", size=2)]


def disk(folder: Path) -> LocalStore:
    return LocalStore(folder / "objects", mkdir=True, automatic_cleanup=True)


def contents(objects: Any) -> dict[str, bytes]:
    keys = sorted(each["path"] for each in obstore.list(objects).collect())
    return {key: bytes(obstore.get(objects, key).bytes()) for key in keys}


def create(store: ps.PartsStore, name: str = "a", parts: Any = TWO, **arguments: Any) -> zarr.Array[Any]:
    """Write an uncompressed array of 16 numbers in four chunks."""
    chosen: dict[str, Any] = {"shape": (16,), "chunks": (4,), "dtype": "uint16", "compressors": None}
    array = ps.create_array(store, name, parts=parts, **(chosen | arguments))
    array[...] = VALUES
    return array


def create_indexed(store: ps.PartsStore, name: str = "shards") -> zarr.Array[Any]:
    """Write the same array in two shards, with the first bytes of the data as a header part."""
    return create(store, name, INDEXED, chunks=(2,), shards=(8,), filters=None)


def change(objects: Any, key: str, data: bytes | None) -> None:
    """Write an object as another program would, without a tag; delete it if `data` is None."""
    if data is None:
        obstore.delete(objects, key)
    else:
        obstore.put(objects, key, data)


def flip(objects: Any, key: str, at: int = 0) -> None:
    """Flip a bit of an object, and keep its tag."""
    found = obstore.get(objects, key)
    data = bytearray(found.bytes())
    data[at] ^= 1
    if isinstance(objects, LocalStore):
        obstore.put(objects, key, bytes(data))
    else:
        obstore.put(objects, key, bytes(data), attributes=found.attributes)


def found_in(report: Report) -> list[tuple[Problem, str, tuple[str, ...]]]:
    return [(each.problem, each.chunk_key, each.keys) for each in report.findings]


def document_nbytes(objects: Any) -> int:
    """Return the size of all metadata documents."""
    return sum(len(data) for key, data in contents(objects).items() if key.endswith("zarr.json"))


def side_folder(array: str, relative: str) -> str:
    return Chunk(f"{array}/{relative}", ConcatParts([""]), array).side_folder
