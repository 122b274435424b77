"""What writes of many small chunks in one call cost with `PartsCodecPipeline`."""

from typing import Any

import numpy as np
import pytest

import parts_store as ps
from integration.request_counts.counting import LAYOUTS
from integration.request_counts.places import Costs, Place, stored_parts
from parts_store import PartsStore

SIDE = 16
MANY = SIDE**2


def create(place: Place, k: int) -> Any:
    return ps.create_array(
        PartsStore(place.objects),
        "a",
        parts=LAYOUTS[k],
        shape=(SIDE * 4, SIDE * 4),
        chunks=(4, 4),
        dtype="uint8",
        compressors=None,
    )


def cost(place: Place, array: Any, fill: int) -> Costs:
    def write() -> None:
        array[...] = fill

    found = place.cost(array.store_path.store, write)
    assert (array[...] == np.full((SIDE * 4, SIDE * 4), fill)).all()
    # Nothing stays beside the chunks.
    assert not [key for key in stored_parts(place) if ".parts-txn" in key]
    return found


@pytest.mark.parametrize("k", [2, 3])
def test_first_writes_of_many_chunks_are_one_put_for_each_part(place: Place, k: int) -> None:
    assert cost(place, create(place, k), 1) == {"put": k * MANY}


@pytest.mark.parametrize("k", [2, 3])
def test_overwrites_of_many_chunks_take_one_put_for_each_part_and_share_the_rest(place: Place, k: int) -> None:
    array = create(place, k)
    array[...] = 1
    # The mark of the batch, and the parts. A listing of each row of chunks, one of other marks before, one of notes
    # after; a look at one object, to compare its ETag, and at the document.
    shared = {"put": k * MANY + 1, "list": SIDE + 2, "head": 1, "get": 1, "delete": 1}
    alone = {"put": k * MANY, "head": k * MANY}
    assert cost(place, array, 2) == (alone if place.has_unique_etags else shared)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.usefixtures("large_parts")
def test_overwrites_of_large_parts_share_their_listings_and_the_removal(place: Place, k: int) -> None:
    array = create(place, k)
    array[...] = 1
    # For each chunk a staged copy, and its parts. A listing of each row of chunks, and one of all writers; a look
    # at one object, to compare its ETag, and at the document.
    shared = {"put": (k + 1) * MANY, "list": SIDE + 1, "head": 1, "get": 1, "delete": 1}
    alone = {"put": (k + 1) * MANY, "head": k * MANY, "delete": MANY}
    assert cost(place, array, 2) == (alone if place.has_unique_etags else shared)


def test_first_overwrites_by_a_new_client_begin_with_one_chunk(place: Place) -> None:
    create(place, 2)[...] = 1
    array = ps.open_array(PartsStore(place.objects), path="a", mode="r+")
    found = cost(place, array, 2)
    if not place.has_unique_etags:
        # The refused create, and one overwrite that shares nothing, with a look at the anchor after.
        assert found == {"put": 1 + 2 * MANY + 1, "list": SIDE + 2, "head": 2 + 1 + 1, "get": 1, "delete": 1}
