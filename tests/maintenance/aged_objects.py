"""Objects with a clock, and repairs of the array that they store."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Self

from parts_store.engine.steps import (
    List,
    Listed,
    Outcome,
    StepRequest,
    Steps,
)
from parts_store.errors import IncompleteChunkError, PartSizeError
from parts_store.format.keys import Chunk, ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.parts import ConcatParts
from parts_store.format.tags import Tag
from parts_store.maintenance import execution
from parts_store.maintenance.repair import RepairOptions
from parts_store.maintenance.report import Finding
from parts_store.maintenance.survey import Survey, group_by_chunk
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.reading import ReadSettings
from tests.transactions.interruptions import Layout, stored_as, value_of
from tests.transactions.objects import KEY, Objects, chunk_of, protocol, settings

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
A_DAY_LATER = LONG_AGO + timedelta(days=1)
NOTHING_ASKED = RepairOptions(drops_incomplete=False, retags=False)
DROP = RepairOptions(drops_incomplete=True, retags=False)
RETAG = RepairOptions(drops_incomplete=False, retags=True)


class Aged(Objects):
    """Objects with a clock: the first ones are old, those that are written are a day younger."""

    def __init__(self, objects: Objects) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.stored = dict(objects.stored)
        self._etags = itertools.count(5000)
        self.now = A_DAY_LATER
        self.modified: dict[str, datetime] = {}

    def put(self, key: str, data: bytes, tag: Tag | None = None) -> None:
        super().put(key, data, tag)
        self.modified[key] = self.now

    def perform(self, request: StepRequest) -> Outcome:
        outcome = super().perform(request)
        if not isinstance(outcome, Listed):
            return outcome
        return Listed(tuple(replace(each, modified=self.modified.get(each.key, LONG_AGO)) for each in outcome.entries))

    def start_watch(self) -> Callable[[], float]:
        begin = self.now

        def watch() -> float:
            return (self.now - begin).total_seconds()

        return watch

    def beside(self) -> list[str]:
        """Return the keys of all objects of the write protocol."""
        return [key for key in self.stored if "/.parts-txn/" in key]


@dataclass(frozen=True)
class Maintained:
    """A store of these objects, whose server needs no check."""

    objects: Objects
    protocol: ChunkProtocol
    read_settings: ReadSettings = field(default_factory=settings)
    must_understand: bool = True

    def carry_out[T](self, steps: Steps[T]) -> T:
        return self.objects.run(steps)

    def for_workers(self) -> Self:
        return self

    def chunks_of_files(self, path: str) -> Mapping[str, str]:
        return {}

    def require_server(self, path: str, parts: ConcatParts) -> None:
        raise NotImplementedError

    def with_own_catalog(self) -> Self:
        return self


def in_array(layout: Layout) -> Chunk:
    """Return the chunk, in an array at `a`."""
    return replace(chunk_of(layout), array="a")


def repair(
    objects: Aged,
    layout: Layout,
    by: ChunkProtocol,
    options: RepairOptions = NOTHING_ASKED,
    min_age: timedelta | float = 0,
) -> list[Finding]:
    """Repair the array at `a`, with `min_age=0` unless another age is given, and return the findings."""
    arrays = {"a": ArrayRecord({}, chunk_of(layout).parts, ChunkKeyEncoding("default", "/", 1), None)}
    listed = objects.perform(List("", ""))
    assert isinstance(listed, Listed)
    survey = Survey(arrays, group_by_chunk(listed.entries, arrays), ())
    return execution.repair_chunks(Maintained(objects, by), survey, min_age, options)


def what_is_read(objects: Objects, chunk: Chunk) -> bytes | str | None:
    reading = protocol(has_tags=objects.has_tags)
    try:
        result = objects.copy().run(reading.read(chunk, [None], settings(), with_anchor=True))
    except (IncompleteChunkError, PartSizeError):
        return "damaged"
    return None if result is None else b"".join(result.values[0] or ())


def plain_of(value: bytes | None, layout: Layout, unsized: int) -> dict[str, bytes]:
    """Return the objects that store this value, without leftovers."""
    if value is None:
        return {}
    old, new = value_of(layout, 2, 1)[0], value_of(layout, unsized, 101)[0]
    return {old: stored_as(layout, 2, 1), new: stored_as(layout, unsized, 101)}[value]


def is_about_chunk(finding: Finding) -> bool:
    return finding.chunk_key == KEY or "/.parts-txn/" in finding.chunk_key


def chunk_others(layout: Layout) -> tuple[str, ...]:
    """Return the suffixes of the parts that are not the anchor."""
    return tuple(key.removeprefix(KEY) for key in chunk_of(layout).other_keys)
