"""A journal that a power failure has cut off: it is recognised, and nothing else is read in its place."""

from collections.abc import Iterator

import pytest

from parts_store.engine.steps import Found
from parts_store.format.keys import Chunk
from parts_store.format.ranges import Span
from parts_store.transactions.journal import Journal, journal_key
from parts_store.transactions.rules import Level
from tests.transactions.interruptions import (
    LAYOUTS,
    Layout,
    Operation,
    Place,
    delete,
    every_interruption,
    holds_old,
    ids,
    parts_of,
    stored_as,
    value_of,
    what_is_read,
    write,
    write_if_absent,
)
from tests.transactions.objects import Objects, chunk_of

DISK = Place(Level.WRITERS, has_tags=False)
IN_PARTS = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1], ids=ids)
UNREADABLE = "nothing is wrong"


def found(data: bytes) -> Found:
    return Found(data, Span(0, len(data)), len(data), "etag", None, None)


@pytest.mark.parametrize("rest", [b"", b"\0", b"\xff", b" "])
def test_a_journal_that_is_cut_off_is_not_valid(rest: bytes) -> None:
    journal = Journal("c/0/0", "0123456789abcdef" * 2, (3, 260))
    whole = journal.dump()
    assert Journal.parse(found(whole)) == journal
    for length in range(len(whole)):
        # The blocks of a file that were not written are absent, or have any content.
        assert Journal.parse(found(whole[:length] + rest * (len(whole) - length))) is None


def torn(layout: Layout, chunk: Chunk) -> Iterator[Objects]:
    """Yield the disk after each step of an overwrite that has a journal, with the journal cut off."""
    start = holds_old(DISK, layout, tuple(layout))
    for stopped in every_interruption(start, write(chunk, parts_of(layout, 3), DISK.protocol())):
        if (journal := stopped.stored.get(journal_key(chunk))) is not None:
            for length in (0, len(journal.data) // 2, len(journal.data) - 1):
                objects = stopped.copy()
                objects.put(journal_key(chunk), journal.data[:length])
                yield objects


@IN_PARTS
@pytest.mark.parametrize("operation", [write, write_if_absent, delete])
def test_an_interrupted_change_of_a_chunk_with_a_torn_journal_reveals_no_mixture(
    layout: Layout, operation: Operation
) -> None:
    chunk = chunk_of(layout)
    new, _ = value_of(layout, 1, 201)
    after: dict[Operation, bytes | str | None] = {write: new, write_if_absent: UNREADABLE, delete: None}
    allowed = after[operation]
    count = 0
    for objects in torn(layout, chunk):
        assert what_is_read(objects, chunk, None) == UNREADABLE
        steps = operation(chunk, parts_of(layout, 1, 201), DISK.protocol(100))
        for stopped in every_interruption(objects, steps):
            assert what_is_read(stopped, chunk, None) in (UNREADABLE, allowed)
            count += 1
        assert what_is_read(stopped, chunk, None) == allowed
    assert count > 10


@IN_PARTS
def test_an_interrupted_write_of_a_deleted_chunk_with_a_torn_journal_can_be_repeated(layout: Layout) -> None:
    chunk = chunk_of(layout)
    for objects in torn(layout, chunk):
        objects.stored.pop(chunk.anchor_key, None)
        for stopped in every_interruption(objects, write(chunk, parts_of(layout, 1, 201), DISK.protocol(100))):
            stopped.run(write(chunk, parts_of(layout, 3, 101), DISK.protocol(200)))
            written = {key: stopped.contents[key] for key in chunk.part_keys}
            assert written == stored_as(layout, 3, 101)
            assert journal_key(chunk) not in stopped.stored
