"""Chunks of one array that are written together: each is a transaction of its own, and they share requests."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from parts_store.engine.steps import (
    MAX_TRIES,
    Delete,
    Entry,
    Found,
    Get,
    Head,
    IfMatch,
    List,
    Listed,
    Lost,
    Outcome,
    Put,
    Refused,
    Request,
    Steps,
    get,
)
from parts_store.errors import LayoutChangedError
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.transactions import staging
from parts_store.transactions.batch import LEAST_LISTED
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.rules import MAX_EMBEDDED, Level
from tests.transactions.objects import Objects, protocol, settings

PARTS = ConcatParts([{"key_suffix": ""}, {"key_suffix": ".i", "size": 2}])
MANY = 20
LEVELS = pytest.mark.parametrize("level", [Level.WRITERS, Level.FULL], ids=lambda level: level.value)


def chunks(count: int = MANY, *, layout: str | None = None) -> list[Chunk]:
    return [Chunk(f"a/c/{number}", PARTS, "a", layout=layout) for number in range(count)]


def value(chunk: Chunk, write: int) -> bytes:
    return f"{chunk.chunk_key}, write {write}, {write:02}".encode()


def data(chunk: Chunk, write: int) -> list[memoryview]:
    whole = memoryview(value(chunk, write))
    return [whole[:-2], whole[-2:]]


def s3() -> Objects:
    objects = Objects(has_tags=True, has_unique_etags=False)
    objects.put("a/zarr.json", b"document")
    return objects


def client(number: int = 0, level: Level = Level.WRITERS, *, embeds: bool = False) -> ChunkProtocol:
    return protocol(
        has_tags=True,
        level=level,
        has_unique_etags=False,
        first_generation=1000 * number,
        max_embedded=MAX_EMBEDDED if embeds else 0,
    )


def confirm() -> Steps[object]:
    return get("a/zarr.json", "document")


def write_many(objects: Objects, each: ChunkProtocol, of: Sequence[Chunk], write: int) -> None:
    objects.run(each.write_many([(chunk, data(chunk, write)) for chunk in of], confirm))


def stored(of: Sequence[Chunk], write: int) -> dict[str, bytes]:
    """The objects at rest if this write was the last one of these chunks."""
    return {key: bytes(part) for chunk in of for key, part in zip(chunk.part_keys, data(chunk, write), strict=True)} | {
        "a/zarr.json": b"document"
    }


def cost(objects: Objects) -> dict[type[Request], int]:
    return dict(Counter(type(each) for each in objects.asked))


@LEVELS
def test_overwrites_share_all_requests_but_those_for_copies_and_parts(level: Level) -> None:
    objects, of = s3(), chunks()
    write_many(objects, client(1, level), of, 1)
    objects.asked.clear()
    objects.batches = 0
    write_many(objects, client(2, level), of, 2)
    assert cost(objects) == {List: 2, Head: 1, Get: 1, Put: 3 * MANY, Delete: 1}
    # The listing, a look at one object and the document, copies, anchors, other parts, other writers, the removal.
    assert objects.batches == 7
    assert objects.contents == stored(of, 2)


def test_new_chunks_take_one_put_per_part_after_one_listing() -> None:
    objects, of = s3(), chunks()
    write_many(objects, client(), of, 1)
    assert cost(objects) == {List: 1, Put: 2 * MANY}
    assert objects.contents == stored(of, 1)


def test_new_and_existing_chunks_can_be_written_together() -> None:
    objects, of = s3(), chunks()
    write_many(objects, client(1), of[::2], 1)
    objects.asked.clear()
    write_many(objects, client(2), of, 2)
    assert cost(objects)[Put] == 3 * (MANY // 2) + 2 * (MANY // 2)
    assert objects.contents == stored(of, 2)


def test_few_chunks_of_a_folder_are_looked_at_one_by_one() -> None:
    objects, of = s3(), chunks(LEAST_LISTED - 1)
    write_many(objects, client(1), of, 1)
    objects.asked.clear()
    write_many(objects, client(2), of, 2)
    assert cost(objects) == {Head: 2 * len(of), Put: 3 * len(of), List: 1, Delete: 1}
    assert objects.contents == stored(of, 2)


class OtherListing(Objects):
    """Objects whose listings of neighbours are refused, or have ETags of another form."""

    is_refused = False

    def perform(self, request: Request) -> Outcome:
        outcome = super().perform(request)
        if isinstance(request, List) and request.only is not None and isinstance(outcome, Listed):
            if self.is_refused:
                return Refused()
            return Listed(
                tuple(Entry(each.key, each.nbytes, f"W/{each.etag}", each.modified) for each in outcome.entries)
            )
        return outcome


@pytest.mark.parametrize("is_refused", [True, False], ids=["too long", "other ETags"])
def test_parts_are_looked_at_if_the_listing_is_of_no_use(*, is_refused: bool) -> None:
    objects, of = OtherListing(has_tags=True, has_unique_etags=False), chunks()
    objects.is_refused = is_refused
    objects.put("a/zarr.json", b"document")
    write_many(objects, client(1), of, 1)
    objects.asked.clear()
    write_many(objects, client(2), of, 2)
    assert cost(objects)[Put] == 3 * MANY
    assert cost(objects)[Head] == 2 * MANY + (0 if is_refused else 1)
    assert objects.contents == stored(of, 2)


class StaleListing(Objects):
    """Objects whose listings have the right ETag of the first anchor, and earlier ETags of all other objects."""

    def perform(self, request: Request) -> Outcome:
        outcome = super().perform(request)
        if isinstance(request, List) and request.only is not None and isinstance(outcome, Listed):
            entries = [each if each.key == "a/c/0" else replace(each, etag="earlier") for each in outcome.entries]
            return Listed(tuple(entries))
        return outcome


class Versioned(Objects):
    """Objects that have versions, which a listing does not show; the first PUT of an anchor fails."""

    failure: Outcome = Refused()

    def __init__(self) -> None:
        super().__init__(has_tags=True, has_unique_etags=False)
        self.failing: set[str] = set()

    def perform(self, request: Request) -> Outcome:
        if isinstance(request, Put) and request.key in self.failing:
            self.failing.remove(request.key)
            return self.failure
        if isinstance(request, Put) and isinstance(request.condition, IfMatch):
            request = replace(request, condition=replace(request.condition, version=None))
        outcome = super().perform(request)
        return replace(outcome, version="1") if isinstance(outcome, Found) else outcome


@pytest.mark.parametrize("embeds", [True, False], ids=["small parts", "large parts"])
def test_listing_alone_never_tells_that_another_client_has_written_a_chunk(*, embeds: bool) -> None:
    objects, of = StaleListing(has_tags=True, has_unique_etags=False), chunks()
    objects.put("a/zarr.json", b"document")
    for number in (1, 2):
        write_many(objects, client(number, embeds=embeds), of, number)
        assert objects.contents == stored(of, number)


@pytest.mark.parametrize("failure", [Refused(), Lost(TimeoutError())], ids=["refused", "lost"])
@pytest.mark.parametrize("embeds", [True, False], ids=["small parts", "large parts"])
def test_failed_put_to_a_bucket_with_versions_is_repeated(failure: Outcome, *, embeds: bool) -> None:
    objects, of = Versioned(), chunks()
    objects.put("a/zarr.json", b"document")
    write_many(objects, client(1, embeds=embeds), of, 1)
    # A write that does not know of this one and is followed by it cannot be told from one that comes after it.
    objects.run(change(of[3], 7))
    objects.failing, objects.failure = {chunk.anchor_key for chunk in of[3:7]}, failure
    write_many(objects, client(2, embeds=embeds), of, 2)
    assert not objects.failing
    for chunk in of:
        assert [objects.contents[key] for key in chunk.part_keys] == list(map(bytes, data(chunk, 2)))


def test_another_layout_is_found_before_anything_is_written() -> None:
    for count in (MANY, LEAST_LISTED - 1):
        objects = s3()
        write_many(objects, client(1), chunks(count, layout="00000000"), 1)
        before = objects.contents

        def is_another() -> Steps[object]:
            yield from confirm()
            raise LayoutChangedError("a", "it was created again")

        writes = [(chunk, data(chunk, 2)) for chunk in chunks(count, layout="11111111")]
        with pytest.raises(LayoutChangedError):
            objects.run(client(2).write_many(writes, is_another))
        assert objects.contents == before


def test_copy_stays_only_beside_a_chunk_with_another_writer() -> None:
    objects, of = s3(), chunks()
    write_many(objects, client(1), of, 1)
    contended = of[3]
    foreign = staging.key_of(contended, "f" * 32)
    objects.put(foreign, b"of another writer")
    write_many(objects, client(2), of, 2)
    beside = objects.contents.keys() - stored(of, 2).keys()
    assert foreign in beside
    # The copy of this writer, and the mark that it has finished.
    assert len(beside) == 3
    assert all(key.startswith(contended.side_folder) for key in beside)


class WithRivals(Objects):
    """Objects of which other clients write one chunk just before this client does, a given number of times."""

    rivals: Iterator[Steps[None]] = iter(())
    anchor = ""

    def perform(self, request: Request) -> Outcome:
        if isinstance(request, Put) and request.key == self.anchor:
            rivals, self.rivals = self.rivals, iter(())
            if (rival := next(rivals, None)) is not None:
                self.run(rival)
            self.rivals = rivals
        return super().perform(request)


def change(chunk: Chunk, number: int) -> Steps[None]:
    """Read a chunk, and write it if it has not changed: a write that does not know of this one comes after it."""
    rival = client(number)
    read = yield from rival.read(chunk, [None], settings())
    assert read is not None
    yield from rival.write(chunk, data(chunk, number), read.version)


@pytest.mark.parametrize("races", [0, 1, MAX_TRIES - 1, MAX_TRIES, MAX_TRIES + 1, 4 * MAX_TRIES])
def test_chunk_is_written_again_after_lost_races_and_the_others_once(races: int) -> None:
    objects, of = WithRivals(has_tags=True, has_unique_etags=False), chunks()
    objects.put("a/zarr.json", b"document")
    write_many(objects, client(1), of, 1)
    objects.asked.clear()
    objects.anchor = of[3].anchor_key
    objects.rivals = (change(of[3], 10 + number) for number in range(races))
    write_many(objects, client(2), of, 2)
    for chunk in of:
        found = objects.run(client(3).read(chunk, [None], settings()))
        assert found is not None
        assert b"".join(found.values[0] or ()) == value(chunk, 2)
        puts = [each for each in objects.asked if isinstance(each, Put) and each.key == chunk.anchor_key]
        assert len(puts) == (1 + 2 * races if chunk == of[3] else 1)


class Failing(Objects):
    """Objects of which one is never confirmed to be written."""

    key = ""

    def perform(self, request: Request) -> Outcome:
        if isinstance(request, Put) and request.key.startswith(self.key):
            self.asked.append(request)
            return Lost(TimeoutError(request.key))
        return super().perform(request)


def test_error_of_one_chunk_is_raised_when_all_others_are_written() -> None:
    objects, of = Failing(has_tags=True, has_unique_etags=False), chunks()
    objects.key = "nothing"
    objects.put("a/zarr.json", b"document")
    write_many(objects, client(1), of, 1)
    objects.key = of[5].side_folder
    with pytest.raises(TimeoutError):
        write_many(objects, client(2), of, 2)
    others = [chunk for chunk in of if chunk != of[5]]
    assert objects.contents == stored(others, 2) | stored([of[5]], 1)


@pytest.mark.parametrize(("has_tags", "level"), [(True, Level.EXCLUSIVE), (False, Level.WRITERS)])
def test_chunks_are_written_one_by_one_where_nothing_can_be_shared(*, has_tags: bool, level: Level) -> None:
    objects, of = Objects(has_tags=has_tags), chunks(3)
    objects.put("a/zarr.json", b"document")
    each = protocol(has_tags=has_tags, level=level)
    assert not each.shares_work
    write_many(objects, each, of, 1)
    write_many(objects, each, of, 2)
    assert objects.contents == stored(of, 2)
