"""The record of a path: what follows from each event, without a store."""

import pytest

from parts_store.catalog.records import Entry, PathRecord, Plain, PlainArray, Served, Source, digest_of
from parts_store.format.keys import ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts

UNKNOWN = PathRecord()
ENCODING = ChunkKeyEncoding("default", "/", 1)


def array(digest: str) -> ArrayRecord:
    return ArrayRecord({}, ConcatParts([""]), ENCODING, None, digest=digest)


def test_document_replaces_consolidated_metadata() -> None:
    served = UNKNOWN.served_by_group(array("old"))
    assert (served.source, served.served) == (Source.CONSOLIDATED, Served("old", is_consolidated=True))
    learnt = served.learnt(array("new"), None)
    assert (learnt.entry, learnt.source) == (array("new"), Source.DOCUMENT)
    # zarr still decodes with what it was served.
    assert not learnt.is_as_served(array("new"))
    assert learnt.is_as_served(array("old"))


def test_consolidated_metadata_replaces_no_document_but_makes_it_be_read_again() -> None:
    known = UNKNOWN.learnt(array("new"), None)
    assert known.served_by_group(array("new")).entry == array("new")
    differing = known.served_by_group(array("old"))
    assert differing.entry is None
    assert differing.served_digest == "old"


@pytest.mark.parametrize("entry", [array("x"), PlainArray(b"{}"), Plain.ARRAY])
def test_array_ends_that_zarr_was_told_of_its_absence(entry: Entry) -> None:
    absent = UNKNOWN.served_no_array(is_missing=True)
    assert absent.was_absent
    assert absent.served_digest is None
    assert absent.is_as_served(entry)
    assert not absent.learnt(entry, None).was_absent
    assert absent.served_array(entry).served == Served(digest_of(entry))


def test_absence_is_not_kept_as_an_entry() -> None:
    known = UNKNOWN.learnt(array("x"), (1,)).served_array(array("x"))
    gone = known.learnt(Plain.NO_ARRAY, (2,))
    assert (gone.entry, gone.stamp, gone.served_digest) == (None, (2,), "x")


def test_array_of_zarr_v2_replaces_no_array_of_v3() -> None:
    assert UNKNOWN.learnt_plain(None).entry is Plain.ARRAY
    known = UNKNOWN.learnt(array("x"), None)
    assert known.learnt_plain(None) is known


def test_use_of_an_array_notes_its_digest_once() -> None:
    used = UNKNOWN.relied_on(array("x"), may_vanish=False)
    assert used.is_used
    assert used.served == Served("x")
    assert used.relied_on(array("y"), may_vanish=False) is used


def test_only_a_session_forgets_what_zarr_was_served_of_a_deleted_array() -> None:
    served = UNKNOWN.served_array(array("x"))
    assert served.relied_on(Plain.NO_ARRAY, may_vanish=False).served == Served("x")
    assert served.relied_on(Plain.NO_ARRAY, may_vanish=True).served is None


def test_what_is_kept_of_a_record() -> None:
    known = UNKNOWN.learnt(array("x"), (1,)).served_array(array("x")).relied_on(array("x"), may_vanish=False)
    doubted, other, forgotten = known.doubted(), known.in_other_snapshot(), known.forgotten()
    assert [each.entry for each in (doubted, other, forgotten)] == [None, None, None]
    assert [each.served_digest for each in (doubted, other, forgotten)] == ["x", "x", None]
    absent = UNKNOWN.served_no_array(is_missing=True)
    assert absent.doubted().was_absent
    assert not absent.in_other_snapshot().was_absent
