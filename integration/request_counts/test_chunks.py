"""What reads and writes of a whole chunk cost."""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import obstore
import pytest
from obstore.store import S3Store
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync

import parts_store as ps
from integration.proxy import CountingProxy
from integration.request_counts.counting import LAYOUTS, VALUES, WHOLE, counted, create_chunk, log_of
from integration.request_counts.places import (
    ACTS,
    COLUMNS,
    KEY,
    LEVELS,
    NBYTES,
    NEW,
    OLD,
    Caller,
    Costs,
    Place,
    caller,
    stored_parts,
    table,
)
from integration.writers import Death, abandon, buffer, disturb
from parts_store import Part, PartsStore
from parts_store.store.options import Concurrency


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("count", LAYOUTS)
def test_the_first_write_of_a_chunk_is_one_put_for_each_part(
    proxy: CountingProxy, store: PartsStore, count: int
) -> None:
    array = create_chunk(store, LAYOUTS[count])
    with counted(proxy, store) as seen:
        array[...] = VALUES[:64, :64]
    assert sorted(each.key for each in seen) == sorted(f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count])
    # One object is written whole or not at all, whatever is there.
    condition = "*" if count > 1 else None
    assert {(each.method, each.if_none_match, each.status) for each in seen} == {("PUT", condition, 200)}
    # The anchor last: until then there is no chunk.
    assert seen[-1].key == "a/c/0/0"


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("count", LAYOUTS)
def test_full_read_of_a_chunk_is_one_get_for_each_part(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    array = create_chunk(store, LAYOUTS[count])
    array[...] = VALUES[:64, :64]
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[...], VALUES[:64, :64])
    assert sorted(each.key for each in seen) == sorted(f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count])
    assert {each.method for each in seen} == {"GET"}


@pytest.mark.parametrize("count", LAYOUTS)
def test_full_read_by_a_new_store_reads_the_document_once(objects: S3Store, proxy: CountingProxy, count: int) -> None:
    create_chunk(PartsStore(objects), LAYOUTS[count])[...] = VALUES[:64, :64]
    stranger = PartsStore(objects)
    for documents in (1, 0):
        with counted(proxy, stranger) as seen:
            assert stranger.get_sync("a/c/0/0") is not None
        assert Counter(each.key for each in seen) == Counter({"a/zarr.json": documents} if documents else {}) + Counter(
            f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count]
        )


@pytest.mark.parametrize("count", LAYOUTS)
def test_whether_a_chunk_exists_is_one_head(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    create_chunk(store, LAYOUTS[count])[...] = 1
    for key, answer in (("a/c/0/0", True), ("a/c/0/1", False)):
        with counted(proxy, store) as seen:
            assert sync(store.exists(key)) is answer
        assert log_of(seen) == [("head", key, WHOLE)]


@pytest.mark.parametrize("count", LAYOUTS)
def test_the_size_of_a_chunk_is_one_head(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    create_chunk(store, LAYOUTS[count])[...] = 1
    with counted(proxy, store) as seen:
        assert sync(store.getsize("a/c/0/0")) == 64 * 64
    assert log_of(seen) == [("head", "a/c/0/0", WHOLE)]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("embeds", [True, False], ids=["small parts", "large parts"])
def test_operations_on_a_chunk_cost_the_documented_requests(
    place: Place, level: Concurrency, k: int, request: pytest.FixtureRequest, *, is_async: bool, embeds: bool
) -> None:
    if not embeds:
        request.getfixturevalue("large_parts")
    for act, (is_there, do) in ACTS.items():
        here = place.below(act)
        ours = caller(here, level, k, is_async=is_async)
        if is_there:
            ours.set(OLD)
        expected = table(k, embeds=embeds)[act][COLUMNS.index(place.column(level))]
        assert here.cost(ours.store, partial(do, ours)) == expected, act
        # And nothing stays beside the chunk, or of one that is deleted but at the level at which it has to.
        parts = {f"{KEY}{part.key_suffix}" for part in LAYOUTS[k]}
        match act:
            case "delete" | "change to nothing":
                assert stored_parts(here) == (parts - {KEY} if level == "writers" else set()), act
                assert ours.get() is None, act
            case "read of nothing" | "exists not":
                assert stored_parts(here) == set(), act
            case "read" | "exists" | "create if absent, and it is not":
                assert stored_parts(here) == parts, act
                assert ours.get() == OLD, act
            case _:
                assert stored_parts(here) == parts, act
                assert ours.get() == NEW, act


@pytest.mark.parametrize("level", LEVELS)
def test_chunk_of_one_object_is_one_put_at_every_level(place: Place, level: Concurrency, *, is_async: bool) -> None:
    ours = caller(place, level, 1, is_async=is_async)
    for value in (OLD, NEW):
        assert place.cost(ours.store, partial(ours.set, value)) == {"put": 1}
    assert place.cost(ours.store, ours.get) == {"get": 1}
    assert place.cost(ours.store, lambda: ours.change(OLD)) == {"get": 1, "put": 1}
    assert place.cost(ours.store, ours.delete) == {"delete": 1} | ({"head": 1} if level == "full" else {})


# Of ten bytes, some in the middle, and four: what they cost at rest, and after an overwrite that ended with the anchor.
# A part alone does not tell whether it is the chunk's, but the anchor does; and what is in the staged copy is read from
# there alone.
RANGES: dict[str, tuple[ByteRequest, Costs, Costs]] = {
    "of the anchor": (RangeByteRequest(10, 50), {"get": 1}, {"get": 1}),
    "over two parts": (RangeByteRequest(5, 50), {"get": 2}, {"get": 2 + 1}),
    "over all parts": (RangeByteRequest(9, NBYTES - 3), {"get": 3}, {"get": 2 + 1}),
    "of the first part": (RangeByteRequest(2, 10), {"get": 1, "head": 1}, {"get": 1 + 1, "head": 1}),
    "of the last bytes": (SuffixByteRequest(3), {"get": 1, "head": 1}, {"get": 1 + 1, "head": 1}),
    "more of the last bytes": (SuffixByteRequest(50), {"get": 2}, {"get": 2 + 1}),
    "to the end": (OffsetByteRequest(100), {"get": 2}, {"get": 2 + 1}),
}


def cut(whole: bytes, byte_range: ByteRequest) -> bytes:
    match byte_range:
        case RangeByteRequest(start=start, end=end):
            return whole[start:end]
        case OffsetByteRequest(offset=offset):
            return whole[offset:]
        case SuffixByteRequest(suffix=suffix):
            return whole[-suffix:]


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("is_interrupted", [False, True], ids=["at rest", "interrupted"])
def test_range_read_is_one_get_for_each_part_it_touches(place: Place, *, is_async: bool, is_interrupted: bool) -> None:
    ours = caller(place, "writers", 3, is_async=is_async)
    ours.set(OLD)
    if is_interrupted:
        abandon(ours.store, KEY, NEW, Death.ANCHOR)
    whole = NEW if is_interrupted else OLD
    for name, (byte_range, at_rest, interrupted) in RANGES.items():
        read: list[bytes | None] = []
        for _ in range(2):
            cost = place.cost(ours.store, lambda: read.append(ours.get(byte_range)))  # noqa: B023 - called at once
            assert cost == (interrupted if is_interrupted else at_rest), name
        assert read == [cut(whole, byte_range)] * 2, name


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("level", LEVELS)
def test_read_after_interrupted_overwrite_costs_at_most_one_get_more(
    place: Place, level: Concurrency, *, is_async: bool
) -> None:
    for k, death in itertools.product([2, 3], [Death.COPY, Death.ANCHOR, Death.ALL_PARTS]):
        here = place.below(f"{k} {death.value}")
        ours = caller(here, level, k, is_async=is_async)
        ours.set(OLD)
        abandon(ours.store, KEY, NEW, death)
        more = 1 if death is Death.ANCHOR else 0
        assert here.cost(ours.store, ours.get) == {"get": k + more}
        assert ours.get() == (OLD if death is Death.COPY else NEW)


def test_read_without_bytes_of_the_anchor_gets_it_once(place: Place, *, is_async: bool) -> None:
    store = PartsStore(place.objects)
    parts = [Part("", size=10), Part(".rest")]
    ps.create_array(store, "a", parts=parts, shape=(64, 64), chunks=(64, 64), dtype="uint8")
    ours = Caller(store, is_async)
    ours.set(bytes(40))
    # Less than what is asked for is in the other part now.
    abandon(store, KEY, bytes(range(15)), Death.ANCHOR)
    read: list[bytes | None] = []
    cost = place.cost(store, lambda: read.append(ours.get(SuffixByteRequest(12))))
    assert cost == {"get": 1 + 1 + 1, "head": 1}
    assert read == [bytes(range(3, 15))]


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("k", [2, 3])
def test_change_after_interrupted_overwrite_checks_the_other_parts(
    place: Place, level: Concurrency, k: int, *, is_async: bool
) -> None:
    ours = caller(place, level, k, is_async=is_async)
    ours.set(OLD)
    abandon(ours.store, KEY, NEW, Death.ANCHOR)
    looks: dict[str, Costs] = {
        "exclusive": {"delete": 1},
        "writers, unique": {"head": k - 1, "delete": 1},
        "full, unique": {"head": k - 1, "delete": 1},
        # The dead writer may be alive: the copy stays, and says that it is done with.
        "writers, content": {"head": k - 1 + 2, "list": 1},
        "full, content": {"head": k - 1 + 2, "list": 1},
    }
    expected = {"get": k + 1, "put": k + 1} | looks[place.column(level)]
    if "list" in expected:
        expected["put"] += 1
    assert place.cost(ours.store, lambda: ours.change(OLD)) == expected
    assert ours.get() == OLD


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("level", ["writers", "full"])
@pytest.mark.parametrize("k", [2, 3])
def test_part_written_by_another_client_costs_two_heads_and_one_put(
    place: Place, level: Concurrency, k: int, *, is_async: bool
) -> None:
    ours = caller(place, level, k, is_async=is_async)
    ours.set(OLD)
    tail = f"{KEY}.tail"

    def write() -> None:
        disturb(ours.store, KEY, NEW, before=Death.ALL_PARTS, act=lambda: obstore.put(place.uncounted, tail, b"else"))

    usual = table(k, embeds=False)["overwrite"][COLUMNS.index(place.column(level))]
    assert place.cost(ours.store, write) == {**usual, "head": usual["head"] + 2, "put": usual["put"] + 1}
    assert ours.get() == NEW


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("level", ["writers", "full"])
@pytest.mark.parametrize("k", [2, 3])
def test_write_that_lost_the_anchor_costs_one_look_and_is_finished(
    place: Place, level: Concurrency, k: int, *, is_async: bool
) -> None:
    ours = caller(place, level, k, is_async=is_async)
    ours.set(OLD)
    theirs = PartsStore(place.uncounted, concurrency=level)

    def write() -> None:
        disturb(ours.store, KEY, NEW, before=Death.ANCHOR, act=lambda: theirs.set_sync(KEY, buffer(b"\x02" * NBYTES)))

    assert place.cost(ours.store, write) == {"put": 2, "head": k + 1, "delete": 1}
    assert ours.get() == b"\x02" * NBYTES
    # A writer that found this one registered kept its copy if ETags recur.
    assert len(stored_parts(place)) == (k if place.has_unique_etags else k + 2)
    # The next single writer removes the leftovers.
    ours.set(NEW)
    assert len(stored_parts(place)) == k


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("level", ["writers", "full"])
def test_leftovers_cost_one_put_instead_of_a_delete_if_etags_recur(
    place: Place, level: Concurrency, k: int, *, is_async: bool
) -> None:
    ours = caller(place, level, k, is_async=is_async)
    ours.set(OLD)
    abandon(ours.store, KEY, NEW, Death.COPY)
    usual = table(k, embeds=False)["overwrite"][COLUMNS.index(place.column(level))]
    expected = dict(usual)
    if not place.has_unique_etags:
        # The trace of another writer: the anchor may be of that writer.
        expected["head"] += 1
        expected["put"] += 1
        del expected["delete"]
    assert place.cost(ours.store, lambda: ours.set(NEW)) == expected
    # Our copy stays beside the dead writer's, with the note that we have finished.
    assert len(stored_parts(place)) == k + (1 if place.has_unique_etags else 3)
