"""A bucket with a clock that all its writers read."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from parts_store.engine.steps import List, Listed, Outcome, Request
from parts_store.format.keys import Chunk, ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.format.shard_index import ShardIndex
from parts_store.format.tags import Tag
from parts_store.maintenance import execution
from parts_store.maintenance.repair import RepairOptions
from parts_store.maintenance.report import Finding
from parts_store.maintenance.survey import Survey, group_by_chunk
from parts_store.transactions.protocol import ChunkProtocol
from tests.maintenance.aged_objects import Maintained
from tests.transactions.interruptions import Layout
from tests.transactions.objects import Objects, chunk_of


class Bucket(Objects):
    """Objects that are as old as they are by the clock of the bucket."""

    def __init__(self, objects: Objects) -> None:
        super().__init__(has_tags=objects.has_tags, has_unique_etags=objects.has_unique_etags)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.modified: dict[str, datetime] = {}
        for key, each in objects.stored.items():
            self.put(key, each.data, each.tag)

    def put(self, key: str, data: bytes, tag: Tag | None = None) -> None:
        super().put(key, data, tag)
        self.modified[key] = self.now

    def perform(self, request: Request) -> Outcome:
        outcome = super().perform(request)
        if not isinstance(outcome, Listed):
            return outcome
        return Listed(tuple(replace(each, modified=self.modified[each.key]) for each in outcome.entries))

    def start_watch(self) -> Callable[[], float]:
        begin = self.now

        def watch() -> float:
            return (self.now - begin).total_seconds()

        return watch

    def beside(self) -> list[str]:
        """The keys of all objects of the write protocol."""
        return [key for key in self.stored if "/.parts-txn/" in key]


def in_array(layout: Layout) -> Chunk:
    """The chunk, in an array at `a`."""
    return replace(chunk_of(layout), array="a")


def repair(
    bucket: Bucket,
    layout: Layout,
    by: ChunkProtocol,
    *,
    min_age: timedelta | float = 0,
    options: RepairOptions | None = None,
    index: ShardIndex | None = None,
) -> list[Finding]:
    """What a repair of the array at `a` says."""
    arrays = {"a": ArrayRecord({}, chunk_of(layout).parts, ChunkKeyEncoding("default", "/", 1), index)}
    listed = bucket.perform(List("", ""))
    assert isinstance(listed, Listed)
    survey = Survey(arrays, group_by_chunk(listed.entries, arrays), ())
    options = options or RepairOptions(drops_incomplete=False, retags=False)
    return execution.repair_chunks(Maintained(bucket, by), survey, min_age, options)
