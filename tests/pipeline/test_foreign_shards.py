"""Shards of other programs: with shared or missing inner chunks, in any order, or with a damaged index."""

from itertools import product
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import MemoryStore
from zarr.codecs import Crc32cCodec

import parts_store as ps

NO_CHUNK = 2**64 - 1
FILL = 99
# The bytes of four inner chunks.
DATA = bytes(range(16))


def opened(objects: MemoryStore, compressors: Any = None) -> zarr.Array[Any]:
    store = ps.PartsStore(objects)
    zarr.create_array(
        store, shape=(4, 4), chunks=(2, 2), shards=(4, 4), dtype="u1", compressors=compressors, fill_value=FILL
    )
    return ps.open_array(store)


def shard(places: list[tuple[int, int]], data: bytes = DATA) -> bytes:
    table = np.array(places, "<u8").tobytes()
    return data + table + int(google_crc32c.value(table)).to_bytes(4, "little")


def expected(places: list[int | None]) -> NDArray[np.uint8]:
    values = np.full((4, 4), FILL, "u1")
    for slot, place in enumerate(places):
        if place is not None:
            row, column = 2 * (slot // 2), 2 * (slot % 2)
            inner = np.frombuffer(DATA[place : place + 4], "u1").reshape(2, 2)
            values[row : row + 2, column : column + 2] = inner
    return values


@pytest.mark.slow
def test_inner_chunks_may_share_bytes_overlap_and_have_any_order() -> None:
    objects = MemoryStore()
    opened(objects)
    # Of two places that overlap, 4 and 6, the second is not a multiple of the size of an inner chunk.
    for places in product((None, 0, 4, 6, 12), repeat=4):
        objects.put("c/0/0", shard([(NO_CHUNK, NO_CHUNK) if each is None else (each, 4) for each in places]))
        values = expected(list(places))
        array = ps.open_array(ps.PartsStore(objects))
        np.testing.assert_array_equal(array[...], values, str(places))
        np.testing.assert_array_equal(array[:3, 1:], values[:3, 1:], str(places))


@pytest.mark.parametrize("compressors", [None, Crc32cCodec()])
@pytest.mark.parametrize("selection", [..., (slice(3), slice(1, 4))])
@pytest.mark.parametrize("place", [(NO_CHUNK, 4), (NO_CHUNK, 0), (0, NO_CHUNK)])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_an_index_with_half_of_a_place_is_damage_and_not_fill_values(
    place: tuple[int, int], selection: Any, compressors: Any
) -> None:
    objects = MemoryStore()
    array = opened(objects, compressors)
    objects.put("c/0/0", shard([place, (0, 4), (4, 4), (8, 4)]))
    with pytest.raises(Exception, match=r"."):
        array[selection]
