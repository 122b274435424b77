"""What reads and writes of shards without parts cost, which any program may have written."""

from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from zarr.storage import ObjectStore

from integration.request_counts.counting import VALUES
from integration.request_counts.places import KEY, Costs, Place
from parts_store import PartsStore

SHARD = np.s_[:64, :64]
FIRST = VALUES[SHARD]
SECOND = FIRST + 1
WITH_HOLE, WITH_OTHER_HOLE = FIRST + 2, FIRST + 3
WITH_HOLE[:16, :16] = WITH_OTHER_HOLE[:32, :32] = 0
CORNER = np.s_[50:53, 50:55]


@pytest.fixture(params=["start", "end"])
def array(request: pytest.FixtureRequest, place: Place) -> Any:
    """An array of another program."""
    shards: Any = {"shape": (64, 64), "index_location": request.param}
    made: dict[str, Any] = {"shape": VALUES.shape, "chunks": (16, 16), "dtype": "uint8", "compressors": None}
    return zarr.create_array(ObjectStore(place.uncounted), name="a", shards=shards, **made)


class Reader:
    """Reads of one shard, and what they cost."""

    def __init__(self, place: Place) -> None:
        self.place, self.store = place, PartsStore(place.objects)
        self.array: Any = zarr.open_array(self.store, path="a")

    def cost(self, expected: NDArray[Any], region: Any = CORNER) -> Costs:
        read: list[Any] = []
        cost = self.place.cost(self.store, lambda: read.append(self.array[region]))
        np.testing.assert_array_equal(read[0], expected[region])
        return cost


def test_known_shard_is_one_get_until_it_is_replaced(place: Place, array: Any) -> None:
    array[SHARD] = FIRST
    reader = Reader(place)
    assert reader.cost(FIRST) == {"get": 2}
    assert reader.cost(FIRST) == {"get": 1}
    assert reader.cost(FIRST, np.s_[2:5, 18:19]) == {"get": 1}
    # The data, which is refused; the index; the data.
    array[SHARD] = SECOND
    assert reader.cost(SECOND) == {"get": 3}
    assert reader.cost(SECOND) == {"get": 1}
    obstore.delete(place.uncounted, KEY)
    assert reader.cost(np.zeros_like(FIRST)) == {"get": 1}
    assert reader.cost(np.zeros_like(FIRST)) == {"get": 1}


def test_known_shard_with_holes_costs_as_much_as_an_unknown_one(place: Place, array: Any) -> None:
    array[SHARD] = WITH_HOLE
    reader = Reader(place)
    assert reader.cost(WITH_HOLE) == {"get": 2}
    assert reader.cost(WITH_HOLE) == {"get": 1, "head": 1}
    assert reader.cost(WITH_HOLE, np.s_[3:5, 3:5]) == {"head": 1}
    # The head tells that the index is old.
    array[SHARD] = WITH_OTHER_HOLE
    assert reader.cost(WITH_OTHER_HOLE) == {"get": 2, "head": 1}
    array[SHARD] = FIRST
    assert reader.cost(FIRST, np.s_[3:5, 3:5]) == {"get": 2, "head": 1}
    assert reader.cost(FIRST, np.s_[3:5, 3:5]) == {"get": 1}


def test_whole_shards_are_one_request_each(place: Place, array: Any) -> None:
    array[...] = VALUES
    reader = Reader(place)
    assert reader.cost(VALUES) == {"get": 2}
    assert reader.cost(VALUES, np.s_[...]) == {"get": 4}
    assert place.cost(reader.store, lambda: reader.array.__setitem__(..., VALUES + 1)) == {"put": 4}
    # A write forgets the index.
    assert reader.cost(VALUES + 1) == {"get": 2}
    assert reader.cost(VALUES + 1) == {"get": 1}
