"""What writes of many small chunks in one call cost with `PartsCodecPipeline`."""

from typing import Any

import numpy as np
import pytest

import parts_store as ps
from integration.request_counts.counting import LAYOUTS
from integration.request_counts.places import Costs, Place, stored_parts
from parts_store import PartsStore

SIDE = 6
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
def test_overwrites_of_many_chunks_take_the_requests_of_each_chunk(place: Place, k: int) -> None:
    array = create(place, k)
    array[...] = 1
    # The first time, a last look at the anchor. Later, all parts are written at once, and looked at afterwards.
    for fill, after in ((2, 1), (3, k)):
        heads = k if place.has_unique_etags else k + after
        assert cost(place, array, fill) == {"put": k * MANY, "head": heads * MANY}


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.usefixtures("large_parts")
def test_overwrites_of_large_parts_take_the_requests_of_each_chunk(place: Place, k: int) -> None:
    array = create(place, k)
    array[...] = 1
    # The staged copy, and a listing of other writers.
    expected = {"put": (k + 1) * MANY, "head": k * MANY, "delete": MANY}
    assert cost(place, array, 2) == expected | ({} if place.has_unique_etags else {"list": MANY})


def test_first_overwrites_by_a_new_client_try_to_create_every_chunk(place: Place) -> None:
    create(place, 2)[...] = 1
    array = ps.open_array(PartsStore(place.objects), path="a", mode="r+")
    heads = 2 if place.has_unique_etags else 3
    assert cost(place, array, 2) == {"put": 3 * MANY, "head": heads * MANY}


@pytest.mark.parametrize("k", [2, 3])
def test_deleting_many_chunks_is_one_request_for_each(place: Place, k: int) -> None:
    array = create(place, k)
    array[...] = 1
    assert cost(place, array, 0) == {"delete": MANY}
