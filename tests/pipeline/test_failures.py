"""A damaged shard raises what zarr raises."""

from contextlib import nullcontext
from typing import Any

import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps

SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (4, 4), "shards": (16, 16), "dtype": "i4"}


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
