"""However often a chunk is overwritten beside a dead writer, few objects stay beside it, without a repair."""

import random
from collections import Counter
from datetime import timedelta

import pytest

from parts_store.engine.steps import Steps
from parts_store.format.keys import Chunk
from parts_store.transactions.rules import Level
from tests.maintenance.aged_objects import Aged, in_array, what_is_read
from tests.transactions.interruptions import IN_PARTS, Layout, Place, holds_old, parts_of, value_of
from tests.transactions.objects import Client

# ETags that come back with the bytes, as on S3: there writers keep their copies while others may be at work.
S3 = [Place(level, has_tags=True, has_unique_etags=False) for level in (Level.WRITERS, Level.FULL)]
ON_S3 = pytest.mark.parametrize("place", S3, ids=str)
# The last writer's copy, that it has finished, and that the one before has.
MOST_OF_THE_FINISHED = 3


def die(bucket: Aged, chunk: Chunk, layout: Layout, place: Place, generation: int) -> None:
    """Stage a copy, and nothing else."""
    writer = Client(bucket, place.protocol(first_generation=generation).write(chunk, parts_of(layout, 1)))
    before = len(bucket.beside())
    while len(bucket.beside()) == before:
        writer.go_batches(1)


@pytest.mark.sampled(25)
@ON_S3
@IN_PARTS
@pytest.mark.parametrize("dead", [1, 3])
def test_objects_beside_a_chunk_do_not_grow_with_its_overwrites(layout: Layout, place: Place, dead: int) -> None:
    chunk, bucket = in_array(layout), Aged(holds_old(place, layout, tuple(layout)))
    for number in range(dead):
        die(bucket, chunk, layout, place, 10_000 + 100 * number)
    rules = place.protocol()
    for number in range(500):
        first = number % 7
        bucket.run(rules.write(chunk, parts_of(layout, number % 3, first)))
        assert len(bucket.beside()) <= dead + MOST_OF_THE_FINISHED, number
        if number % 50 == 0:
            assert what_is_read(bucket, chunk) == value_of(layout, number % 3, first)[0]


@ON_S3
@IN_PARTS
def test_overwrite_beside_leftovers_costs_two_requests_more(layout: Layout, place: Place) -> None:
    def cost(bucket: Aged) -> tuple[Counter[str], int]:
        chunk, rules = in_array(layout), place.protocol()
        for number in range(20):
            bucket.asked.clear()
            bucket.batches = 0
            bucket.run(rules.write(chunk, parts_of(layout, 1, number)))
        return Counter(type(each).__name__ for each in bucket.asked), bucket.batches

    alone, beside = (Aged(holds_old(place, layout, tuple(layout))) for _ in range(2))
    die(beside, in_array(layout), layout, place, 10_000)
    (requests, round_trips), (more_requests, more_round_trips) = cost(alone), cost(beside)
    # It looks whether the chunk is still its own, and writes that it has finished. It removes the copy of the writer
    # before it instead of its own.
    assert more_requests - requests == Counter({"Head": 1, "Put": 1})
    assert more_round_trips == round_trips + 1


@ON_S3
def test_a_day_later_the_next_writer_removes_what_dead_writers_left(place: Place) -> None:
    layout: Layout = {".h": 1, "": None, ".i": 2}
    chunk, bucket = in_array(layout), Aged(holds_old(place, layout, tuple(layout)))
    for number in range(20):
        die(bucket, chunk, layout, place, 10_000 + 100 * number)
    bucket.now += timedelta(hours=23)
    bucket.run(place.protocol().write(chunk, parts_of(layout, 1)))
    assert len(bucket.beside()) == 22
    bucket.now += timedelta(hours=25)
    bucket.run(place.protocol(first_generation=500).write(chunk, parts_of(layout, 2)))
    assert bucket.beside() == []
    assert what_is_read(bucket, chunk) == value_of(layout, 2, 101)[0]


@ON_S3
@pytest.mark.parametrize("seed", range(2))
def test_writers_at_once_in_any_order_leave_few_objects(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    layout: Layout = {".h": 1, "": None, ".i": 2}
    chunk, bucket = in_array(layout), Aged(holds_old(place, layout, tuple(layout)))
    die(bucket, chunk, layout, place, 10_000)
    writers, rounds = 4, 30
    for number in range(rounds):
        rules = place.protocol(first_generation=1000 * number)
        firsts = [chance.randrange(3) for _ in range(writers)]
        interleave(bucket, [rules.write(chunk, parts_of(layout, 1, first)) for first in firsts], chance)
        assert len(bucket.beside()) <= 1 + MOST_OF_THE_FINISHED * writers
        assert what_is_read(bucket, chunk) in {value_of(layout, 1, first)[0] for first in firsts}
    bucket.run(place.protocol(first_generation=10**6).write(chunk, parts_of(layout, 1)))
    bucket.run(place.protocol(first_generation=10**7).write(chunk, parts_of(layout, 1)))
    assert len(bucket.beside()) <= 1 + MOST_OF_THE_FINISHED


def interleave(bucket: Aged, several: list[Steps[None]], chance: random.Random) -> None:
    """Carry out steps of several clients in turns, one batch at a time."""
    at_work = [Client(bucket, steps) for steps in several]
    while at_work := [each for each in at_work if each.take()]:
        chance.choice(at_work).go_batches(1)
