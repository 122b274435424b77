"""Staged copies are restored exactly or refused, and the registry tells which writers are at work."""

import itertools
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from parts_store.engine.steps import Entry, Found
from parts_store.format.layout import Span
from parts_store.format.tags import Tag
from parts_store.transactions.staging import FORGOTTEN_AFTER, Registry, key_of, stage, unstage
from tests.transactions.interruptions import EVERY_LAYOUT, Layout, parts_of
from tests.transactions.objects import KEY, chunk_of

GENERATION = "0123456789abcdef" * 2


def found(data: bytes) -> Found:
    return Found(data, Span(0, len(data)), len(data), "etag", None, None)


def staged(layout: Layout, unsized: int = 3) -> tuple[Tag, bytes]:
    data = parts_of(layout, unsized)
    tag = Tag(GENERATION, "s", tuple(part.nbytes for part in data))
    return tag, bytes(memoryview(stage(chunk_of(layout), data, tag).data))


@EVERY_LAYOUT
def test_staged_copy_has_the_documented_format(layout: Layout) -> None:
    data = parts_of(layout, 3)
    tag, copy = staged(layout)
    assert copy[:10] == b"PARTSTXN1\n"
    length = int.from_bytes(copy[10:14], "little")
    assert json.loads(copy[14 : 14 + length]) == {
        "key": KEY,
        "gen": GENERATION,
        "sizes": list(tag.sizes),
        "suffixes": list(layout),
        "kind": "write",
    }
    anchor = chunk_of(layout).anchor_key.removeprefix(KEY)
    assert copy[14 + length :] == b"".join(part for part, suffix in zip(data, layout, strict=True) if suffix != anchor)


@EVERY_LAYOUT
def test_staged_copy_is_written_unconditionally_under_its_generation(layout: Layout) -> None:
    data = parts_of(layout, 3)
    tag = Tag(GENERATION, "s", tuple(part.nbytes for part in data))
    put = stage(chunk_of(layout), data, tag)
    assert put.key == key_of(chunk_of(layout), GENERATION) == f"{chunk_of(layout).side_folder}/{GENERATION}"
    assert (put.tag, put.condition) == (tag, None)


@EVERY_LAYOUT
@pytest.mark.parametrize("unsized", [0, 1, 3])
def test_all_parts_but_the_anchor_are_restored_from_a_copy(layout: Layout, unsized: int) -> None:
    tag, copy = staged(layout, unsized)
    parts = unstage(chunk_of(layout), found(copy), tag)
    assert parts is not None
    expected = dict(enumerate(parts_of(layout, unsized)))
    del expected[chunk_of(layout).parts.anchor]
    assert {part: bytes(memoryview(each.data)) for part, each in parts.items()} == {
        part: bytes(each) for part, each in expected.items()
    }
    for part, each in parts.items():
        assert (each.span, each.nbytes) == (Span(0, tag.sizes[part]), tag.sizes[part])
        assert each.generation == GENERATION
        # It tells nothing of the object at the part's own key.
        assert each.etag is None


@EVERY_LAYOUT
def test_copy_that_is_too_short_or_too_long_is_refused(layout: Layout) -> None:
    tag, copy = staged(layout)
    for length in range(len(copy)):
        assert unstage(chunk_of(layout), found(copy[:length]), tag) is None, length
    assert unstage(chunk_of(layout), found(copy + b"x"), tag) is None


@EVERY_LAYOUT
def test_copy_with_a_changed_header_byte_is_refused_or_equal(layout: Layout) -> None:
    tag, copy = staged(layout)
    header = 14 + int.from_bytes(copy[10:14], "little")
    whole = unstage(chunk_of(layout), found(copy), tag)
    assert whole is not None
    for at, byte in itertools.product(range(header), (0, 0x20, 0x31, 0x7B, 0xFF)):
        changed = copy[:at] + bytes([byte]) + copy[at + 1 :]
        parts = unstage(chunk_of(layout), found(changed), tag)
        if parts is not None:
            same = {part: bytes(memoryview(each.data)) for part, each in parts.items()}
            assert same == {part: bytes(memoryview(each.data)) for part, each in whole.items()}


@pytest.mark.parametrize("header", [b"[]", b"null", b"3", b'"x"', b"{}", b"{", b"\xff", b'{"gen": 1}'])
def test_object_with_another_header_is_not_a_copy(header: bytes) -> None:
    body = b"PARTSTXN1\n" + len(header).to_bytes(4, "little") + header
    assert unstage(chunk_of({"": None, ".i": 2}), found(body + b"ab"), Tag(GENERATION, "s", (3, 2))) is None


NAMES = ["a", "b", "c"]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entries(present: Iterable[str], done: Iterable[str] = (), *, modified: datetime = NOW) -> list[Entry]:
    names = [*present, *(f"{name}.done" for name in done)]
    return [Entry(f"x/.parts-txn/h/{name}", 1, None, modified) for name in names]


def test_registry_tells_writers_at_work_and_finished_writers() -> None:
    for present, done in itertools.product(range(8), repeat=2):
        here = {name for bit, name in enumerate(NAMES) if present >> bit & 1}
        finished = {name for bit, name in enumerate(NAMES) if done >> bit & 1}
        registry = Registry.of(entries(here, finished))
        for me, dead in itertools.product(NAMES, repeat=2):
            at_work = {name for name in here if name not in finished and name != me}
            assert registry.others_at_work((me,)) == at_work
            assert registry.others_at_work((me,), (dead,)) == at_work - {dead}
            # Those that left nothing but the word that they have finished are tidied up too.
            assert registry.finished((me,)) == tuple(sorted((here | finished) - {me} - at_work))
            assert registry.finished((me,), (dead,)) == tuple(sorted((here | finished) - {me} - (at_work - {dead})))


def test_writer_registered_a_day_earlier_is_dead() -> None:
    longer, shorter = NOW - FORGOTTEN_AFTER - timedelta(seconds=1), NOW - FORGOTTEN_AFTER
    listed = [*entries(["a"]), *entries(["b"], modified=shorter), *entries(["c"], modified=longer)]
    assert Registry.of(listed).others_at_work(("a",)) == {"b"}
    assert Registry.of(listed).finished(("a",)) == ("c",)
    # The newest own object tells the time of the store. Without one, no writer counts as dead.
    assert Registry.of(listed).others_at_work(("a", "c")) == {"b"}
    assert Registry.of(listed).others_at_work(("d",)) == {"a", "b", "c"}
