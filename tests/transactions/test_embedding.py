"""Small parts in the tag of the anchor: how many requests an overwrite takes, and what a crash leaves behind."""

from collections import Counter

import pytest

from parts_store.engine.steps import Head, Put, StepRequest, Steps
from parts_store.errors import IncompleteChunkError
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts
from parts_store.format.tags import ATTRIBUTE, Tag
from parts_store.transactions import staging
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.rules import MAX_EMBEDDED, Level
from tests.transactions.objects import Client, Objects, protocol, settings

PARTS = ConcatParts([{"key_suffix": ""}, {"key_suffix": ".i", "size": 2}])


def chunk_of(parts: ConcatParts = PARTS) -> Chunk:
    return Chunk("a/c/0", parts, "a")


def value(chunk: Chunk, write: int) -> bytes:
    return f"{chunk.chunk_key}, write {write}, {write:02}".encode()


def data(chunk: Chunk, write: int) -> list[memoryview]:
    whole = memoryview(value(chunk, write))
    return [whole[:-2], whole[-2:]]


def client(number: int = 0, level: Level = Level.WRITERS, *, has_unique_etags: bool = False) -> ChunkProtocol:
    return protocol(
        has_tags=True,
        level=level,
        has_unique_etags=has_unique_etags,
        first_generation=1000 * number,
        max_embedded=MAX_EMBEDDED,
    )


def bucket(*, has_unique_etags: bool = False) -> Objects:
    objects = Objects(has_tags=True, has_unique_etags=has_unique_etags)
    objects.put("a/zarr.json", b"document")
    return objects


def read(objects: Objects, chunk: Chunk) -> bytes | None:
    found = objects.run(client(9).read(chunk, [None], settings()))
    return None if found is None else b"".join(found.values[0] or ())


def cost(objects: Objects, steps: Steps[None]) -> tuple[dict[type[StepRequest], int], int]:
    """The requests by their kind, and how many follow one after the other."""
    objects.asked.clear()
    objects.batches = 0
    objects.run(steps)
    return dict(Counter(type(each) for each in objects.asked)), objects.batches


@pytest.mark.parametrize(
    ("level", "has_unique_etags", "first", "second"),
    [
        # The anchor, then the other part.
        (Level.EXCLUSIVE, True, ({Put: 2}, 2), ({Put: 2}, 2)),
        (Level.WRITERS, True, ({Head: 2, Put: 2}, 3), ({Head: 2, Put: 2}, 3)),
        (Level.FULL, True, ({Head: 2, Put: 2}, 3), ({Head: 2, Put: 2}, 3)),
        # A last look at the anchor; or, if both parts are written at once, at both.
        (Level.WRITERS, False, ({Head: 3, Put: 2}, 4), ({Head: 4, Put: 2}, 3)),
        (Level.FULL, False, ({Head: 3, Put: 2}, 4), ({Head: 4, Put: 2}, 3)),
    ],
    ids=["exclusive", "unique", "unique, full", "content", "content, full"],
)
def test_overwrite_takes_one_put_per_part(
    level: Level,
    has_unique_etags: bool,
    first: tuple[dict[type[StepRequest], int], int],
    second: tuple[dict[type[StepRequest], int], int],
) -> None:
    objects, chunk = bucket(has_unique_etags=has_unique_etags), chunk_of()
    # At the level "full", a chunk is never created without a look.
    objects.run(client(1, has_unique_etags=has_unique_etags).write(chunk, data(chunk, 1)))
    each = client(2, level, has_unique_etags=has_unique_etags)
    objects.run(each.read(chunk, [None], settings()))
    for write, expected in enumerate((first, second), 2):
        assert cost(objects, each.write(chunk, data(chunk, write))) == expected
        assert read(objects, chunk) == value(chunk, write)
        plain = dict(zip(chunk.part_keys, map(bytes, data(chunk, write)), strict=True))
        assert objects.contents == plain | {"a/zarr.json": b"document"}


def test_parts_of_any_or_too_many_bytes_are_staged() -> None:
    for others in ([{"key_suffix": ".i"}], [{"key_suffix": ".i", "size": MAX_EMBEDDED + 1}]):
        chunk = chunk_of(ConcatParts([{"key_suffix": ""}, *others]))
        assert not client().writes_without_trace(chunk)
    chunk = chunk_of(ConcatParts([{"key_suffix": ""}, *({"key_suffix": f".p{at}", "size": 1} for at in range(9))]))
    assert not client().writes_without_trace(chunk)


def test_longest_tag_is_short_enough_for_s3() -> None:
    sizes = [MAX_EMBEDDED - 7, 1, 1, 1, 1, 1, 1, 1]
    suffixes = [{"key_suffix": f".p{at}", "size": size} for at, size in enumerate(sizes)]
    chunk = chunk_of(ConcatParts([{"key_suffix": ""}, *suffixes]))
    assert client().writes_without_trace(chunk)
    tag = Tag("f" * 32, "m", (2**63 - 1, *sizes), "01234567", bytes(range(240)) * 5)
    text = str(staging.with_replaced(tag, [f"etag {number}" for number in range(8)]))
    assert Tag.parse(text) is not None
    # 2 KB is what S3 allows for all user metadata together.
    assert len(ATTRIBUTE) + len(text) < 2048
    assert text.isascii()


@pytest.mark.parametrize("has_unique_etags", [True, False])
@pytest.mark.parametrize("level", Level, ids=lambda level: level.value)
def test_untagged_part_is_replaced_or_else_foreign(level: Level, *, has_unique_etags: bool) -> None:
    chunk = chunk_of()
    for stop in range(10):
        objects = bucket(has_unique_etags=has_unique_etags)
        for key, part in zip(chunk.part_keys, data(chunk, 1), strict=True):
            objects.put(key, bytes(part))
        each = client(1, level, has_unique_etags=has_unique_etags)
        objects.run(each.read(chunk, [None], settings()))
        writer = Client(objects, each.write(chunk, data(chunk, 2)))
        has_ended = writer.go(stop) or not writer.take()
        assert read(objects, chunk) in {value(chunk, 1), value(chunk, 2)}
        if has_ended:
            break
    assert read(objects, chunk) == value(chunk, 2)
    objects.put(chunk.other_keys[0], b"!!")
    if level is Level.EXCLUSIVE:
        # Its writers do not look at what they replace.
        assert read(objects, chunk) == value(chunk, 2)
    else:
        with pytest.raises(IncompleteChunkError):
            read(objects, chunk)
