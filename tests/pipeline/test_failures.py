"""The first error of a selection is raised once, and nothing further is begun."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from parts_store.errors import IncompleteChunkError

SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (4, 4), "shards": (16, 16), "dtype": "i4"}


def test_a_damaged_chunk_in_the_middle_is_raised_with_its_key(tmp_path: Path) -> None:
    parts: list[Any] = ["", ps.Part(".index", size=ps.SHARD_INDEX)]
    store = ps.PartsStore(LocalStore(tmp_path))
    ps.create_array(store, "a", parts=parts, **SHARDED)
    array = ps.open_array(store, "a", mode="r+")
    array[...] = np.arange(64 * 64).reshape(64, 64)
    (tmp_path / "a/c/1/2.index").unlink()
    with pytest.raises(IncompleteChunkError, match=r"a/c/1/2"):
        array[...]
    np.testing.assert_array_equal(array[:16], np.arange(64 * 64).reshape(64, 64)[:16])


def test_a_damaged_shard_raises_what_zarr_raises() -> None:
    objects = MemoryStore()
    settings: list[Any] = [ps.fast(), nullcontext()]
    for setting in settings:
        with setting:
            array = zarr.create_array(ps.PartsStore(objects), overwrite=True, compressors=None, **SHARDED)
            array[...] = 1
            stored = bytes(objects.get("c/0/0").bytes())
            objects.put("c/0/0", stored[:-1] + bytes([stored[-1] ^ 1]))
            with pytest.raises(ValueError, match="checksum"):
                array[...]
