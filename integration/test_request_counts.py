"""What reads, writes and listings cost: counted on the wire, range by range, and equal to our own counters."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import MemoryStore, S3Store
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import ObjectStore

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy, Seen
from integration.server import Server
from integration.writers import Death, abandon, buffer, disturb
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.options import Concurrency

PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
}
SHARD_PARTS = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
# Four by four inner chunks of 256 bytes in each of two by two shards.
SHARDED: dict[str, Any] = {"shape": (128, 128), "chunks": (16, 16), "shards": (64, 64), "dtype": "uint8"}
INNER_NBYTES = 16 * 16
INDEX_NBYTES = 16 * 16 + 4
HEADER_NBYTES = 64
# No value is the fill value, so that no inner chunk is left out.
VALUES: NDArray[Any] = (np.arange(128 * 128) % 251 + 1).astype("uint8").reshape(128, 128)

type Log = list[tuple[str, str, tuple[int | None, int | None]]]


@pytest.fixture(params=sorted(PIPELINES), autouse=True)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
        yield name


@pytest.fixture
def proxy(server: Server) -> Iterator[CountingProxy]:
    with CountingProxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def objects(bucket: Bucket, proxy: CountingProxy) -> S3Store:
    """The bucket, through the proxy."""
    return objects_below(bucket, proxy, None)


@pytest.fixture
def store(objects: S3Store) -> PartsStore:
    return PartsStore(objects)


def objects_below(bucket: Bucket, proxy: CountingProxy, prefix: str | None) -> S3Store:
    user = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
    return bucket.store(prefix, user=user)


@contextmanager
def counted(proxy: CountingProxy, store: PartsStore) -> Iterator[list[Seen]]:
    """The requests made inside, of which every one is counted by the store too."""
    seen: list[Seen] = []
    proxy.requests.clear()
    store.stats.reset()
    yield seen
    seen += proxy.requests
    ours = {kind: count for kind, count in store.stats.calls.items() if count}
    assert Counter(each.kind for each in seen) == ours


def log_of(seen: list[Seen], prefix: str = "") -> Log:
    """Kind, key and byte range of each request, in an order that does not depend on chance."""
    log = [(each.kind, (each.key or each.listed or "").removeprefix(prefix).strip("/"), each.bounds) for each in seen]
    return sorted(log, key=repr)


def as_log(requests: list[ps.Request]) -> Log:
    return sorted([(each.kind, each.key, (each.start, each.stop)) for each in requests], key=repr)


def gets(*wanted: tuple[str, tuple[int | None, int | None]]) -> Log:
    return sorted([("get", key, bounds) for key, bounds in wanted], key=repr)


def expected_log(*requests: tuple[str, str, tuple[int | None, int | None]]) -> Log:
    return sorted(requests, key=repr)


WHOLE = (None, None)


# --- chunks ---------------------------------------------------------------------------------------------------------

LAYOUTS: dict[int, list[Part]] = {
    1: [Part("")],
    2: [Part(""), Part(".tail", size=4)],
    3: [Part(".head", size=10), Part(""), Part(".tail", size=4)],
    4: [Part(".head", size=10), Part(".more", size=0), Part(""), Part(".tail", size=4)],
}


def create_chunk(store: PartsStore, parts: list[Part]) -> zarr.Array[Any]:
    return ps.create_array(store, "a", parts=parts, shape=(64, 64), chunks=(64, 64), dtype="uint8", compressors=None)


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


@pytest.mark.parametrize("count", LAYOUTS)
def test_a_full_read_of_a_chunk_is_one_get_for_each_part(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    array = create_chunk(store, LAYOUTS[count])
    array[...] = VALUES[:64, :64]
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[...], VALUES[:64, :64])
    assert sorted(each.key for each in seen) == sorted(f"a/c/0/0{part.key_suffix}" for part in LAYOUTS[count])
    assert {each.method for each in seen} == {"GET"}


@pytest.mark.parametrize("count", LAYOUTS)
def test_a_full_read_by_a_store_that_knows_nothing_reads_the_document_once(
    objects: S3Store, proxy: CountingProxy, count: int
) -> None:
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


# --- transactions: the table of the design --------------------------------------------------------------------------

type Costs = dict[str, int]

LEVELS: tuple[Concurrency, ...] = ("exclusive", "writers", "full")
KEY = "a/c/0/0"
NBYTES = 64 * 64
OLD, NEW = bytes(NBYTES), b"\x01" * NBYTES


@dataclass(frozen=True, slots=True)
class Place:
    """Objects of which every request is counted: by the proxy where there is one, and always by the store."""

    objects: Any
    # The same, not counted on the wire.
    uncounted: Any
    proxy: CountingProxy | None

    @property
    def has_unique_etags(self) -> bool:
        return self.proxy is None

    def column(self, level: Concurrency) -> str:
        """The column of the table."""
        if level == "exclusive":
            return level
        return f"{level}, {'unique' if self.has_unique_etags else 'content'}"

    def below(self, name: str) -> "Place":
        """A place of its own, as empty as this one was."""
        if self.proxy is None:
            memory = MemoryStore()
            return Place(memory, memory, None)
        objects, uncounted = (S3Store(prefix=name, **_options_of(each)) for each in (self.objects, self.uncounted))
        return Place(objects, uncounted, self.proxy)

    def cost(self, store: PartsStore, act: Callable[[], object]) -> Costs:
        """The requests of each kind that an act takes."""
        if not store.read_only:
            # The first write through a store asks the server what it supports: that is counted in `test_server_check`.
            store.check()
        if self.proxy is not None:
            with counted(self.proxy, store):
                act()
        else:
            store.stats.reset()
            act()
        return {kind: count for kind, count in store.stats.calls.items() if count}


def _options_of(store: S3Store) -> dict[str, Any]:
    return {**store.config, "client_options": store.client_options}


@pytest.fixture(params=["S3", "memory"])
def place(request: pytest.FixtureRequest) -> Place:
    """MinIO, whose ETags are digests; or memory, where no ETag comes back."""
    if request.param == "memory":
        memory = MemoryStore()
        return Place(memory, memory, None)
    bucket: Bucket = request.getfixturevalue("bucket")
    return Place(request.getfixturevalue("objects"), bucket.store(), request.getfixturevalue("proxy"))


@dataclass(frozen=True, slots=True)
class Caller:
    """What zarr does with a store: in the event loop, or without one."""

    store: PartsStore
    is_async: bool

    def get(self, wanted: ByteRequest | None = None) -> bytes | None:
        prototype = default_buffer_prototype()
        if self.is_async:
            found = sync(self.store.get(KEY, prototype, wanted))
        else:
            found = self.store.get_sync(KEY, prototype=prototype, byte_range=wanted)
        return None if found is None else found.to_bytes()

    def set(self, value: bytes) -> None:
        if self.is_async:
            sync(self.store.set(KEY, buffer(value)))
        else:
            self.store.set_sync(KEY, buffer(value))

    def set_if_absent(self, value: bytes) -> None:
        sync(self.store.set_if_not_exists(KEY, buffer(value)))

    def change(self, value: bytes) -> None:
        """Read the chunk, then write it, as one who changes some of it."""
        if self.is_async:
            sync(self._change(value))
        else:
            self.get()
            self.set(value)

    async def _change(self, value: bytes) -> None:
        await self.store.get(KEY, default_buffer_prototype())
        await self.store.set(KEY, buffer(value))

    def change_to_nothing(self) -> None:
        """Read the chunk, then delete it, as one who fills it with the fill value."""
        if self.is_async:
            sync(self._change_to_nothing())
        else:
            self.get()
            self.delete()

    async def _change_to_nothing(self) -> None:
        await self.store.get(KEY, default_buffer_prototype())
        await self.store.delete(KEY)

    def delete(self) -> None:
        if self.is_async:
            sync(self.store.delete(KEY))
        else:
            self.store.delete_sync(KEY)

    def exists(self) -> None:
        sync(self.store.exists(KEY))


def caller(place: Place, level: Concurrency, k: int, pipeline: str) -> Caller:
    store = PartsStore(place.objects, concurrency=level)
    create_chunk(store, LAYOUTS[k])
    return Caller(store, pipeline == "batched")


def stored_parts(place: Place) -> set[str]:
    return {entry["path"] for batch in obstore.list(place.objects) for entry in batch} - {"zarr.json", "a/zarr.json"}


# Each with whether the chunk is there before.
ACTS: dict[str, tuple[bool, Callable[[Caller], object]]] = {
    "create": (False, lambda caller: caller.set(NEW)),
    "overwrite": (True, lambda caller: caller.set(NEW)),
    "change": (True, lambda caller: caller.change(NEW)),
    "change of nothing": (False, lambda caller: caller.change(NEW)),
    "create if absent": (False, lambda caller: caller.set_if_absent(NEW)),
    "create if absent, and it is not": (True, lambda caller: caller.set_if_absent(NEW)),
    "read": (True, lambda caller: caller.get()),
    "read of nothing": (False, lambda caller: caller.get()),
    "delete": (True, lambda caller: caller.delete()),
    "change to nothing": (True, lambda caller: caller.change_to_nothing()),
    "exists": (True, lambda caller: caller.exists()),
    "exists not": (False, lambda caller: caller.exists()),
}
COLUMNS = ("exclusive", "writers, unique", "writers, content", "full, unique", "full, content")


def table(k: int) -> dict[str, tuple[Costs, ...]]:
    """The costs of each act, in the order of the columns."""
    bare = {"put": k}
    # The staged copy and k parts; a look at each part before, and where ETags come back, at the anchor and at the
    # others who write.
    staged = {"put": k + 1, "head": k, "delete": 1}
    looked = {"put": k + 1, "head": k + 1, "list": 1, "delete": 1}
    # What is there is found by k - 1 refusals.
    refused = k - 1
    # Who has read all parts need not look at them, but at the anchor where its ETag may have come back.
    known = {"get": k, "put": k + 1, "delete": 1}
    known_by_content = {**known, "head": 2, "list": 1}
    # The anchor of nothing is known, its orphans are not.
    new = {"get": k, "put": k + 1, "head": 1 + (k - 1), "delete": 1}
    return {
        "create": (bare, bare, bare, staged, looked),
        "overwrite": (
            {"put": k + 1 + refused, "delete": 1},
            {**staged, "put": k + 1 + refused},
            {**looked, "put": k + 1 + refused},
            staged,
            looked,
        ),
        "change": (known, known, known_by_content, known, known_by_content),
        "change of nothing": (
            *[{"get": k, "put": k}] * 3,
            new,
            {**new, "head": new["head"] + 1, "list": 1},
        ),
        "create if absent": (bare, bare, bare, staged, looked),
        "create if absent, and it is not": (*[{"put": refused, "head": 1}] * 3, *[{"head": 1}] * 2),
        "read": ({"get": k},) * 5,
        "read of nothing": ({"get": k},) * 5,
        "delete": ({"delete": 2}, *[{"delete": 1}] * 2, *[{"delete": 2, "head": 1}] * 2),
        # There is no conditional delete: whether the chunk is what was read is asked for before.
        "change to nothing": (
            {"get": k, "delete": 2, "head": 1},
            *[{"get": k, "delete": 1, "head": 1}] * 2,
            *[{"get": k, "delete": 2, "head": 2}] * 2,
        ),
        "exists": ({"head": 1},) * 5,
        "exists not": ({"head": 1},) * 5,
    }


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_done_with_a_chunk_costs_what_the_design_says(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    for act, (is_there, do) in ACTS.items():
        here = place.below(act)
        ours = caller(here, level, k, pipeline)
        if is_there:
            ours.set(OLD)
        expected = table(k)[act][COLUMNS.index(place.column(level))]
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
def test_a_chunk_of_one_object_is_one_put_at_every_level(place: Place, pipeline: str, level: Concurrency) -> None:
    ours = caller(place, level, 1, pipeline)
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


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["at rest", "interrupted"])
def test_a_range_costs_one_get_of_each_part_it_touches_and_one_of_the_staged_copy_where_it_must(
    place: Place, pipeline: str, *, is_interrupted: bool
) -> None:
    ours = caller(place, "writers", 3, pipeline)
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


@pytest.mark.parametrize("level", LEVELS)
def test_a_read_after_an_interrupted_overwrite_costs_one_get_more_or_none(
    place: Place, pipeline: str, level: Concurrency
) -> None:
    for k, death in itertools.product([2, 3], [Death.COPY, Death.ANCHOR, Death.ALL_PARTS]):
        here = place.below(f"{k} {death.value}")
        ours = caller(here, level, k, pipeline)
        ours.set(OLD)
        abandon(ours.store, KEY, NEW, death)
        more = 1 if death is Death.ANCHOR else 0
        assert here.cost(ours.store, ours.get) == {"get": k + more}
        assert ours.get() == (OLD if death is Death.COPY else NEW)


def test_a_read_whose_first_look_had_no_bytes_of_the_anchor_costs_one_get_of_it(place: Place, pipeline: str) -> None:
    store = PartsStore(place.objects)
    parts = [Part("", size=10), Part(".rest")]
    ps.create_array(store, "a", parts=parts, shape=(64, 64), chunks=(64, 64), dtype="uint8")
    ours = Caller(store, pipeline == "batched")
    ours.set(bytes(40))
    # Less than what is asked for is in the other part now.
    abandon(store, KEY, bytes(range(15)), Death.ANCHOR)
    read: list[bytes | None] = []
    cost = place.cost(store, lambda: read.append(ours.get(SuffixByteRequest(12))))
    assert cost == {"get": 1 + 1 + 1, "head": 1}
    assert read == [bytes(range(3, 15))]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("k", [2, 3])
def test_a_change_after_an_interrupted_overwrite_looks_at_the_parts_that_it_did_not_read(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    ours = caller(place, level, k, pipeline)
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


@pytest.mark.parametrize("level", ["writers", "full"])
@pytest.mark.parametrize("k", [2, 3])
def test_a_part_that_somebody_else_wrote_meanwhile_costs_two_heads_and_one_put(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    ours = caller(place, level, k, pipeline)
    ours.set(OLD)
    tail = f"{KEY}.tail"

    def write() -> None:
        disturb(ours.store, KEY, NEW, before=Death.ALL_PARTS, act=lambda: obstore.put(place.uncounted, tail, b"else"))

    usual = table(k)["overwrite"][COLUMNS.index(place.column(level))]
    assert place.cost(ours.store, write) == {**usual, "head": usual["head"] + 2, "put": usual["put"] + 1}
    assert ours.get() == NEW


@pytest.mark.parametrize("level", ["writers", "full"])
@pytest.mark.parametrize("k", [2, 3])
def test_a_write_that_comes_too_late_for_the_anchor_costs_a_look_and_is_finished(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    ours = caller(place, level, k, pipeline)
    ours.set(OLD)
    theirs = PartsStore(place.uncounted, concurrency=level)

    def write() -> None:
        disturb(ours.store, KEY, NEW, before=Death.ANCHOR, act=lambda: theirs.set_sync(KEY, buffer(b"\x02" * NBYTES)))

    refused = 0 if level == "full" else k - 1
    assert place.cost(ours.store, write) == {"put": refused + 2, "head": k + 1, "delete": 1}
    assert ours.get() == b"\x02" * NBYTES
    # Whoever found us registered kept his copy where ETags come back.
    assert len(stored_parts(place)) == (k if place.has_unique_etags else k + 2)
    # The next who is alone tidies up.
    ours.set(NEW)
    assert len(stored_parts(place)) == k


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("level", ["writers", "full"])
def test_a_dead_writer_beside_the_chunk_costs_one_put_in_place_of_a_delete_where_etags_come_back(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    ours = caller(place, level, k, pipeline)
    ours.set(OLD)
    abandon(ours.store, KEY, NEW, Death.COPY)
    usual = table(k)["overwrite"][COLUMNS.index(place.column(level))]
    expected = dict(usual)
    if not place.has_unique_etags:
        expected["put"] += 1
        del expected["delete"]
    assert place.cost(ours.store, lambda: ours.set(NEW)) == expected
    # Our copy stays beside the dead writer's, with the note that we have finished.
    assert len(stored_parts(place)) == k + (1 if place.has_unique_etags else 3)


# --- shards ---------------------------------------------------------------------------------------------------------


def create_shards(store: PartsStore) -> zarr.Array[Any]:
    return ps.create_array(store, "a", parts=SHARD_PARTS, compressors=None, **SHARDED)


def offsets_of(bucket: Bucket, shard: str) -> NDArray[Any]:
    """Where the shard's inner chunks begin, as its stored index says."""
    index = np.frombuffer(bucket.read(f"{shard}.index")[:-4], "<u8").reshape(4, 4, 2)
    assert (index[..., 1] == INNER_NBYTES).all()
    return index[..., 0].astype(int)


def in_main(offset: int) -> tuple[int, int]:
    """The bytes of the main part that hold what is left of an inner chunk after the header."""
    return max(0, offset - HEADER_NBYTES), offset + INNER_NBYTES - HEADER_NBYTES


def test_an_inner_chunk_costs_one_get_of_each_object_it_touches_and_the_first_one_of_the_index(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore
) -> None:
    array = create_shards(store)
    array[...] = VALUES
    offsets = offsets_of(bucket, "a/c/0/0")
    assert 0 in offsets
    index = [("a/c/0/0.index", (0, INDEX_NBYTES))]
    for row, column in np.ndindex(4, 4):
        selection = np.s_[16 * row + 2 : 16 * row + 9, 16 * column + 3 : 16 * column + 4]
        with counted(proxy, store) as seen:
            np.testing.assert_array_equal(array[selection], VALUES[selection])
        offset = int(offsets[row, column])
        data = [("a/c/0/0", in_main(offset))]
        if offset == 0:
            data.append(("a/c/0/0.header", (0, HEADER_NBYTES)))
        assert log_of(seen) == gets(*index, *data)
        assert store.stats.saved_by_index_cache == (0 if index else 1)
        index = []


def test_near_inner_chunks_cost_one_get_of_each_object_together(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore
) -> None:
    array = create_shards(store)
    array[...] = VALUES
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[0:64, 0:32], VALUES[0:64, 0:32])
    offsets = offsets_of(bucket, "a/c/0/0")[:, :2]
    start, stop = in_main(offsets.min())[0], in_main(offsets.max())[1]
    assert log_of(seen) == gets(
        ("a/c/0/0.index", (0, INDEX_NBYTES)), ("a/c/0/0.header", (0, HEADER_NBYTES)), ("a/c/0/0", (start, stop))
    )
    # Eight ranges of the main part were read as one.
    assert store.stats.saved_by_coalescing == 7


def test_far_inner_chunks_cost_one_get_for_each_group(bucket: Bucket, proxy: CountingProxy, store: PartsStore) -> None:
    with zarr.config.set({"array.sharding_coalesce_max_gap_bytes": INNER_NBYTES - 1}):
        create_shards(store)[...] = VALUES
        array = zarr.open_array(store, path="a")
    offsets = offsets_of(bucket, "a/c/0/0")
    places = [tuple(np.argwhere(offsets == slot * INNER_NBYTES)[0]) for slot in (0, 1, 3, 5, 6)]
    rows, columns = ([16 * int(place[axis]) for place in places] for axis in (0, 1))
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array.vindex[rows, columns], VALUES[rows, columns])
    groups = [(0, 2), (3, 4), (5, 7)]
    main = [(in_main(first * INNER_NBYTES)[0], in_main((stop - 1) * INNER_NBYTES)[1]) for first, stop in groups]
    assert log_of(seen) == gets(
        ("a/c/0/0.index", (0, INDEX_NBYTES)),
        ("a/c/0/0.header", (0, HEADER_NBYTES)),
        *(("a/c/0/0", bounds) for bounds in main),
    )


def test_a_selection_over_many_shards_costs_each_of_them_the_same(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    array[...] = VALUES
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[40:70, 40:70], VALUES[40:70, 40:70])
    shards = ("a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1")
    assert Counter(each.key for each in seen if each.key.endswith(".index")) == Counter(
        f"{key}.index" for key in shards
    )
    assert Counter(each.key for each in seen if not each.key.endswith((".index", ".header"))) == Counter(shards)
    assert {each.method for each in seen} == {"GET"}


def test_a_whole_shard_costs_one_get_for_each_part(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    array[...] = VALUES
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:64, 64:], VALUES[:64, 64:])
    assert Counter(each.key for each in seen) == Counter(f"a/c/0/1{part.key_suffix}" for part in SHARD_PARTS)
    assert {each.method for each in seen} == {"GET"}


def test_an_index_at_the_start_costs_the_same(proxy: CountingProxy, store: PartsStore) -> None:
    codec = zarr.codecs.ShardingCodec(chunk_shape=(16, 16), index_location="start")
    arguments: dict[str, Any] = {
        "shape": (64, 64),
        "chunks": (64, 64),
        "dtype": "uint8",
        "serializer": codec,
        "compressors": None,
    }
    array = ps.create_array(store, "a", parts=[Part(".index", size=SHARD_INDEX), Part("")], **arguments)
    array[...] = VALUES[:64, :64]
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, :5], VALUES[:5, :5])
    assert [key for _, key, _ in log_of(seen)] == ["a/c/0/0", "a/c/0/0.index"]
    assert {each.method for each in seen} == {"GET"}


def test_a_shard_with_holes_costs_one_head_more(bucket: Bucket, proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    array[:16, :32] = VALUES[:16, :32]
    index = ("get", "a/c/0/0.index", (0, INDEX_NBYTES))
    head = ("head", "a/c/0/0", WHOLE)
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 16:20], VALUES[:5, 16:20])
    assert log_of(seen) == expected_log(index, head, ("get", "a/c/0/0", in_main(INNER_NBYTES)))
    # What is known is known to be so still; and of a hole, that it is one.
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 16:20], VALUES[:5, 16:20])
    assert log_of(seen) == expected_log(head, ("get", "a/c/0/0", in_main(INNER_NBYTES)))
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, 40:45], np.zeros((5, 5), "uint8"))
    assert log_of(seen) == expected_log(head)
    stranger = zarr.open_array(other := PartsStore(store.store), path="a")
    with counted(proxy, other) as seen:
        np.testing.assert_array_equal(stranger[:5, 40:45], np.zeros((5, 5), "uint8"))
    assert log_of(seen) == expected_log(index, head)


def test_a_part_of_an_absent_shard_costs_two_requests(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    with counted(proxy, store) as seen:
        np.testing.assert_array_equal(array[:5, :5], np.zeros((5, 5), "uint8"))
    assert log_of(seen) == expected_log(
        ("get", "a/c/0/0.index", (0, INDEX_NBYTES)),
        ("head", "a/c/0/0", WHOLE),
    )
    assert {each.status for each in seen} == {404}


# Values of a shard, all of them different from what they are in the others, and inner chunks that are elsewhere in it.
FIRST = VALUES[:64, :64]
SECOND = FIRST + 1
WITH_HOLE, WITH_OTHER_HOLE = FIRST + 2, FIRST + 3
WITH_HOLE[:16, :16] = WITH_OTHER_HOLE[:32, :32] = 0
CORNER = np.s_[50:53, 50:55]


def write_shard(place: Place, values: NDArray[Any], *, death: Death | None = None) -> None:
    """Write a shard of a main part and an index, not counted; to the end or not."""
    elsewhere = PartsStore(MemoryStore())
    arguments: dict[str, Any] = {**SHARDED, "parts": SHARD_PARTS[1:], "compressors": None}
    ps.create_array(elsewhere, "a", **arguments)[:64, :64] = values
    whole = elsewhere.get_sync(KEY)
    assert whole is not None
    store = PartsStore(place.uncounted)
    if store.parts_of("a") is None:
        ps.create_array(store, "a", **arguments)
    if death is None:
        store.set_sync(KEY, whole)
    else:
        abandon(store, KEY, whole.to_bytes(), death)


class Reader:
    """Reads a corner of the shard, and tells what it costs."""

    def __init__(self, place: Place) -> None:
        self.place, self.store = place, PartsStore(place.objects)
        self.array = zarr.open_array(self.store, path="a")

    def cost(self, expected: NDArray[Any]) -> Costs:
        read: list[Any] = []
        cost = self.place.cost(self.store, lambda: read.append(self.array[CORNER]))
        np.testing.assert_array_equal(read[0], expected[CORNER])
        return cost


def test_a_known_shard_costs_one_get_and_what_it_takes_to_find_it_after_each_overwrite(place: Place) -> None:
    write_shard(place, FIRST)
    reader = Reader(place)
    assert reader.cost(FIRST) == {"get": 2}
    assert reader.cost(FIRST) == {"get": 1}
    # The data, which is another write's; its index, and whether it is the anchor's; the data again.
    write_shard(place, SECOND)
    assert reader.cost(SECOND) == {"get": 3, "head": 1}
    assert reader.cost(SECOND) == {"get": 1}
    # The same, and the staged copy, where the index is.
    write_shard(place, FIRST, death=Death.ANCHOR)
    assert reader.cost(FIRST) == {"get": 4, "head": 1}
    assert reader.cost(FIRST) == {"get": 1}
    # Who does not know it finds the old index, and then the same.
    stranger = Reader(place)
    assert stranger.cost(FIRST) == {"get": 5, "head": 1}
    assert stranger.cost(FIRST) == {"get": 1}


def test_a_known_shard_with_holes_costs_one_head_more(place: Place) -> None:
    write_shard(place, WITH_HOLE)
    reader = Reader(place)
    assert reader.cost(WITH_HOLE) == {"get": 2, "head": 1}
    assert reader.cost(WITH_HOLE) == {"get": 1, "head": 1}
    # The head tells that the index is old: another one, with its anchor, and the data.
    write_shard(place, WITH_OTHER_HOLE)
    assert reader.cost(WITH_OTHER_HOLE) == {"get": 2, "head": 2}
    assert reader.cost(WITH_OTHER_HOLE) == {"get": 1, "head": 1}
    write_shard(place, WITH_HOLE, death=Death.ANCHOR)
    assert reader.cost(WITH_HOLE) == {"get": 3, "head": 2}
    assert reader.cost(WITH_HOLE) == {"get": 1, "head": 1}
    # The old index is not the anchor's: it is read again, and the staged copy.
    stranger = Reader(place)
    assert stranger.cost(WITH_HOLE) == {"get": 4, "head": 2}
    # And from a hole to none, and to nothing.
    write_shard(place, FIRST)
    assert reader.cost(FIRST) == {"get": 2, "head": 2}
    assert reader.cost(FIRST) == {"get": 1}
    PartsStore(place.uncounted).delete_sync(KEY)
    assert reader.cost(np.zeros_like(FIRST)) == {"get": 1}
    # The index has outlived its shard; that it has, the data tells.
    assert reader.cost(np.zeros_like(FIRST)) == {"get": 2}


@pytest.mark.parametrize("level", LEVELS)
def test_an_inner_chunk_that_is_written_costs_what_a_change_of_its_shard_costs(
    place: Place, level: Concurrency
) -> None:
    write_shard(place, FIRST)
    store = PartsStore(place.objects, concurrency=level)
    array = zarr.open_array(store, path="a")

    def write() -> None:
        array[20:25, 3:7] = 77

    assert place.cost(store, write) == table(2)["change"][COLUMNS.index(place.column(level))]
    expected = FIRST.copy()
    expected[20:25, 3:7] = 77
    np.testing.assert_array_equal(array[:64, :64], expected)
    assert stored_parts(place) == {KEY, f"{KEY}.index"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("k", [2, 3])
def test_a_part_of_a_chunk_that_is_written_costs_a_read_and_a_write(
    place: Place, pipeline: str, level: Concurrency, k: int
) -> None:
    store = PartsStore(place.objects, concurrency=level)
    array = create_chunk(store, LAYOUTS[k])
    array[...] = FIRST

    def write() -> None:
        array[20:25, 3:7] = 77

    # zarr's batched pipeline reads all chunks, and writes all of them, in tasks that know nothing of each other.
    row = "change" if pipeline == "fused" else "overwrite"
    expected = table(k)[row][COLUMNS.index(place.column(level))]
    assert place.cost(store, write) == {**expected, "get": k}
    assert stored_parts(place) == {f"{KEY}{part.key_suffix}" for part in LAYOUTS[k]}


def test_the_first_write_of_shards_is_one_put_for_each_part(proxy: CountingProxy, store: PartsStore) -> None:
    array = create_shards(store)
    with counted(proxy, store) as seen:
        array[:64, :] = VALUES[:64, :]
    assert sorted(each.key for each in seen) == sorted(
        f"a/c/0/{column}{part.key_suffix}" for column in range(2) for part in SHARD_PARTS
    )
    assert {(each.method, each.if_none_match, each.status) for each in seen} == {("PUT", "*", 200)}


# --- the same as zarr's own store -----------------------------------------------------------------------------------

type Act = Callable[[Store], Any]


def both_logs(bucket: Bucket, proxy: CountingProxy, prepare: Act, act: Act, *, parts: bool = False) -> tuple[Log, Log]:
    """What the same act costs with zarr's store and with ours, each on the same objects below a prefix of its own.

    `prepare` writes what `act` finds, through another store, so that neither knows anything beforehand. With `parts`,
    ours finds arrays with parts where zarr's finds arrays without.
    """
    patterns = {"*": LAYOUTS[3]} if parts else None
    logs = []
    for name in ("theirs", "ours"):
        below = objects_below(bucket, proxy, name)
        prepare(ObjectStore(below) if name == "theirs" else PartsStore(below, parts=patterns))
        proxy.requests.clear()
        if name == "theirs":
            act(ObjectStore(below))
            logs.append(log_of(proxy.requests, f"{name}/"))
        else:
            with counted(proxy, store := PartsStore(below)) as seen:
                act(store)
            logs.append(log_of(seen, f"{name}/"))
    theirs, ours = logs
    return theirs, ours


def write_tree(store: Store) -> None:
    root = zarr.create_group(store)
    group = root.create_group("group")
    for name in ("a", "b"):
        array: zarr.Array[Any] = group.create_array(name, shape=(64, 64), chunks=(32, 64), dtype="uint8")
        array[...] = VALUES[:64, :64]


def write_consolidated_tree(store: Store) -> None:
    write_tree(store)
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(store)


OPENINGS: dict[str, tuple[Act, Act]] = {
    "array": (write_tree, lambda store: zarr.open_array(store, path="group/a", mode="r")),
    "array to write": (write_tree, lambda store: zarr.open_array(store, path="group/a", mode="r+")),
    "array of any format": (write_tree, lambda store: zarr.open(store, path="group/a", mode="r")),
    "array of format 3": (write_tree, lambda store: zarr.open_array(store, path="group/a", mode="r", zarr_format=3)),
    "group": (write_tree, lambda store: zarr.open_group(store, mode="r")["group/a"]),
    "members": (write_tree, lambda store: list(zarr.open_group(store, path="group", mode="r").arrays())),
    "consolidated": (write_consolidated_tree, lambda store: zarr.open_consolidated(store)["group/a"]),
    "nothing": (write_tree, lambda store: store_has_no_array(store, "group/nothing")),
}


def store_has_no_array(store: Store, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        zarr.open_array(store, path=path, mode="r")


@pytest.mark.parametrize("parts", [False, True], ids=["plain", "parts"])
@pytest.mark.parametrize("opening", OPENINGS)
def test_opening_costs_what_it_costs_with_zarrs_own_store(
    bucket: Bucket, proxy: CountingProxy, opening: str, *, parts: bool
) -> None:
    prepare, act = OPENINGS[opening]
    theirs, ours = both_logs(bucket, proxy, prepare, act, parts=parts)
    assert len(theirs) >= 1
    assert ours == theirs


def write_sharded(store: Store) -> None:
    zarr.create_array(store, name="a", compressors=None, **SHARDED)[...] = VALUES


def open_a(store: Store) -> zarr.Array[Any]:
    return zarr.open_array(store, path="a", mode="r")


async def _listed(store: Store, prefix: str) -> list[str]:
    return sorted([key async for key in store.list_prefix(prefix)] + [key async for key in store.list_dir(prefix)])


def nothing(store: Store) -> None:
    """There is nothing before."""


def write_some(store: Store) -> None:
    zarr.open_array(store, path="a", mode="r+")[10:80, 10:80] = 7


def change_metadata(store: Store) -> None:
    array = zarr.open_array(store, path="a", mode="r+")
    array.attrs["colour"] = "red"
    array.resize((200, 128))


PLAIN: dict[str, tuple[Act, Act]] = {
    "create": (nothing, lambda store: zarr.create_array(store, name="a", **SHARDED)),
    "write": (nothing, write_sharded),
    "write a tree": (nothing, write_tree),
    "write a part": (write_sharded, write_some),
    "change the metadata": (write_sharded, change_metadata),
    "full read": (write_sharded, lambda store: open_a(store)[...]),
    "inner chunk": (write_sharded, lambda store: open_a(store)[:5, :5]),
    "inner chunks": (write_sharded, lambda store: open_a(store)[10:100, 30:50]),
    "absent": (
        lambda store: zarr.create_array(store, name="a", **SHARDED),
        lambda store: open_a(store)[:5, :5],
    ),
    "list": (write_sharded, lambda store: sync(_listed(store, "a"))),
    "list a folder": (write_sharded, lambda store: sync(_listed(store, "a/c/"))),
    "list everything": (write_sharded, lambda store: sync(_listed(store, ""))),
    "exists": (write_sharded, lambda store: [open_a(store), sync(store.exists("a/c/0/0"))]),
    "size": (write_sharded, lambda store: [open_a(store), sync(store.getsize("a/c/0/0"))]),
    "size of everything": (write_sharded, lambda store: sync(store.getsize_prefix("a"))),
    "delete a chunk": (write_sharded, lambda store: [open_a(store), sync(store.delete("a/c/0/0"))]),
}


@pytest.mark.parametrize("act", PLAIN)
def test_arrays_without_parts_cost_what_they_cost_with_zarrs_own_store(
    bucket: Bucket, proxy: CountingProxy, act: str
) -> None:
    theirs, ours = both_logs(bucket, proxy, *PLAIN[act])
    assert len(theirs) >= 1
    assert ours == theirs


# --- listings -------------------------------------------------------------------------------------------------------

CHUNKS = 1200
PAGE = 1000


async def _put_all(objects: S3Store, keys: list[str]) -> None:
    at_once = asyncio.Semaphore(64)

    async def put(key: str) -> None:
        async with at_once:
            await obstore.put_async(objects, key, b"x")

    await asyncio.gather(*map(put, keys))


# A listing has no pipeline.
@pytest.mark.parametrize("pipeline", ["batched"], indirect=True)
@pytest.mark.parametrize("count", [1, 3])
def test_listing_chunks_costs_pages_and_nothing_else(
    bucket: Bucket, proxy: CountingProxy, store: PartsStore, count: int
) -> None:
    suffixes = ["", ".one", ".two"][:count]
    arguments: dict[str, Any] = {"shape": (CHUNKS,), "chunks": (1,), "dtype": "uint8"}
    if count == 1:
        zarr.create_array(store, name="a", **arguments)
    else:
        ps.create_array(store, "a", parts=suffixes, **arguments)
    chunk_keys = [f"a/c/{number}" for number in range(CHUNKS)]
    part_keys = [key + suffix for key in chunk_keys for suffix in suffixes]
    direct = bucket.store()
    try:
        asyncio.run(_put_all(direct, part_keys))
        for prefix, documents in (("", ["zarr.json", "a/zarr.json"]), ("a", ["a/zarr.json"]), ("a/c", [])):
            proxy.requests.clear()
            store.stats.reset()
            listed = sync(_all_below(store, prefix))
            assert sorted(listed) == sorted(chunk_keys + documents)
            pages = math.ceil((len(part_keys) + len(documents)) / PAGE)
            assert Counter(each.kind for each in proxy.requests) == {"list": pages}
            # A call of ours is as many pages as it takes.
            assert store.stats.calls["list"] == sum(store.stats.calls.values()) == 1
    finally:
        # Many at once, for the bucket's own cleaning is one by one.
        for start in range(0, len(part_keys), 1000):
            obstore.delete(direct, part_keys[start : start + 1000])


async def _all_below(store: Store, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix)]


def test_listing_by_a_store_that_knows_nothing_reads_each_document_once(objects: S3Store, proxy: CountingProxy) -> None:
    create_shards(PartsStore(objects))[...] = VALUES
    stranger = PartsStore(objects)
    for documents in (1, 0):
        with counted(proxy, stranger) as seen:
            assert len(sync(_all_below(stranger, "a"))) == 5
        assert Counter(each.kind for each in seen) == Counter(
            {"list": 1, "get": documents} if documents else {"list": 1}
        )


# --- explain --------------------------------------------------------------------------------------------------------

SELECTIONS: dict[str, Any] = {
    "everything": np.s_[...],
    "one value": np.s_[3, 3],
    "first inner chunk": np.s_[:16, :16],
    "another inner chunk": np.s_[20:25, 40:45],
    "inner chunks of one shard": np.s_[0:64, 0:32],
    "a whole shard": np.s_[64:, :64],
    "corners of all shards": np.s_[40:70, 40:70],
    "every 50th": np.s_[::50, ::50],
    "nothing": np.s_[0:0, :],
}


def write_dense(array: zarr.Array[Any]) -> None:
    array[...] = VALUES


def write_holes(array: zarr.Array[Any]) -> None:
    array[10:30, 10:80] = VALUES[10:30, 10:80]


@pytest.mark.parametrize("write", [write_dense, write_holes])
@pytest.mark.parametrize(
    "parts",
    [
        SHARD_PARTS,
        # The first inner chunk lies in the header and nowhere else.
        [Part(".header", size=INNER_NBYTES), Part(""), Part(".index", size=SHARD_INDEX)],
        [Part("")],
    ],
    ids=["header", "large header", "one part"],
)
def test_explain_lists_the_requests_that_the_read_then_makes(
    proxy: CountingProxy, store: PartsStore, parts: list[Part], write: Callable[[zarr.Array[Any]], None]
) -> None:
    array = ps.create_array(store, "a", parts=parts, compressors=None, **SHARDED)
    write(array)
    for name, selection in SELECTIONS.items():
        proxy.requests.clear()
        explained = store.explain("a", selection)
        # Documents and indexes are read, and data is not.
        indexes = {each.key for each in explained if each.why == "index of the shard"}
        assert {each.key for each in proxy.requests if each.kind == "get"} <= {"a/zarr.json", *indexes}, name
        with counted(proxy, store) as seen:
            array[selection]
        assert as_log(explained) == log_of(seen), name


@pytest.mark.parametrize("count", LAYOUTS)
def test_explain_lists_the_parts_of_chunks_without_shards(proxy: CountingProxy, store: PartsStore, count: int) -> None:
    array = create_chunk(store, LAYOUTS[count])
    array[...] = 1
    explained = store.explain("a", np.s_[:3, :3])
    with counted(proxy, store) as seen:
        array[:3, :3]
    assert len(seen) == count
    assert as_log(explained) == log_of(seen)
