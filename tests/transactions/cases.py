"""The layouts and places that tests of tagged writes run with."""

import pytest

from parts_store.transactions.reading import Absent, Seen
from tests.transactions.interruptions import LAYOUTS, PLACES, Layout, Operation, delete, ids, write
from tests.transactions.objects import Objects, chunk_of, protocol, settings

EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
IN_PARTS = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1], ids=ids)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES, ids=str)
WITH_TAGS = pytest.mark.parametrize("place", [place for place in PLACES if place.has_tags], ids=str)
SIDE = ".parts-txn/"


def wanted_by(operation: Operation, new: bytes, start: bytes | str | None) -> bytes | str | None:
    """What there is when the operation has ended."""
    if operation is delete:
        return None
    return new if operation is write or start is None else start


def beside(objects: Objects) -> set[str]:
    """The keys of what the protocol keeps beside the chunk."""
    return {key for key in objects.stored if SIDE in key}


def seen_in(objects: Objects, layout: Layout) -> Seen:
    """Return what a client sees of the chunk when it reads the chunk to change it."""
    known = objects.copy().run(protocol(has_tags=objects.has_tags).read(chunk_of(layout), [None], settings()))
    return Absent() if known is None else known.version
