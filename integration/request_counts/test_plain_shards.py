"""What reads and writes of shards without parts cost, which any program may have written."""

from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from zarr.storage import ObjectStore

from integration.request_counts.places import KEY, Costs, Place
from parts_store import PartsStore

pytestmark = pytest.mark.usefixtures("pipeline")

# Shards of 400 KiB, of which an index and an inner chunk are read by themselves.
VALUES = np.random.default_rng(0).integers(1, 250, (640, 1280)).astype("uint8")
SHARD = np.s_[:640, :640]
FIRST = VALUES[SHARD]
SECOND = FIRST + 1
WITH_HOLE, WITH_OTHER_HOLE = FIRST + 2, FIRST + 3
WITH_HOLE[:160, :160] = WITH_OTHER_HOLE[:320, :320] = 0
CORNER = np.s_[500:530, 500:550]


@pytest.fixture(params=["start", "end"])
def array(request: pytest.FixtureRequest, place: Place) -> Any:
    """An array of another program."""
    return create(place, VALUES, 640, request.param)


def create(place: Place, values: NDArray[Any], shard: int, index_location: str) -> Any:
    shards: Any = {"shape": (shard, shard), "index_location": index_location}
    chunks = (shard // 4, shard // 4)
    made: dict[str, Any] = {"shape": values.shape, "chunks": chunks, "dtype": "uint8", "compressors": None}
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
    assert reader.cost(FIRST, np.s_[2:5, 180:190]) == {"get": 1}
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
    assert reader.cost(VALUES, np.s_[...]) == {"get": 2}
    assert place.cost(reader.store, lambda: reader.array.__setitem__(..., VALUES + 1)) == {"put": 2}
    # A write forgets the index.
    assert reader.cost(VALUES + 1) == {"get": 2}
    assert reader.cost(VALUES + 1) == {"get": 1}


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_inner_chunk_of_a_small_shard_is_one_request_known_or_not(place: Place, index_location: str) -> None:
    first = VALUES[:64, :64]
    with_hole = first.copy()
    with_hole[:16, :16] = 0
    array = create(place, first, 64, index_location)
    reader = Reader(place)
    assert reader.cost(np.zeros_like(first), np.s_[2:5, 2:5]) == {"get": 1}
    array[...] = first
    for _ in range(3):
        assert reader.cost(first, np.s_[2:5, 2:5]) == {"get": 1}
    array[...] = with_hole
    # What is known is refused. Afterwards, it has a hole, and is read whole.
    assert reader.cost(with_hole, np.s_[50:55, 2:5]) == {"get": 3}
    for _ in range(2):
        assert reader.cost(with_hole, np.s_[2:5, 2:5]) == {"get": 1}
        assert reader.cost(with_hole, np.s_[50:55, 2:20]) == {"get": 1}
