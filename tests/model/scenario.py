"""What a scenario is, and what its clients do."""

from dataclasses import dataclass
from typing import Literal

from tests.model.patched import Patch
from tests.model.values import SHARD, Layout, Value

type Name = Literal["write", "overwrite", "write if absent", "delete", "change", "change slot", "read", "repair"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a client does."""

    name: Name
    value: Value = None
    mark: bytes = b""
    view: str | tuple[int, ...] = "full"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What each client does, on which store, and which failures may occur."""

    name: str
    clients: tuple[tuple[Operation, ...], ...]
    layout: Layout = SHARD
    level: str = "writers"
    is_local: bool = False
    has_conditions: bool = True
    has_unique_etags: bool = True
    retries: int = 1
    # Whether ranges of a part next to each other are one request.
    merges_ranges: bool = True
    # Whether the anchor of an overwrite contains the other parts.
    embeds: bool = False
    # What is there at the beginning, and whether it is tagged.
    initial: Value = None
    is_tagged: bool = True
    # Whether the anchor of the chunk that is there at the beginning contains the other parts.
    is_embedded: bool = False
    # Parts that are there at the beginning although the chunk is not.
    orphans: Value = None
    # What a writer committed before the beginning, and died: its staged copy is there, and no part but the anchor.
    interrupted: Value = None
    # What a writer staged shortly before the beginning and did not commit. It is dead, but looks like one at work.
    registered: Value = None
    # How often so much time passes that a repair takes what was written before for a dead writer's.
    stalls: int = 0
    # How many requests get no answer, or are refused for no reason.
    faults: int = 0
    # Whether deletes may get no answer, too.
    loses_deletes: bool = False
    # Whether a PUT without an answer may be carried out at any later time.
    has_late_puts: bool = False
    # Which clients may crash, and begin again with their next operation.
    crashes: tuple[int, ...] = ()
    ignores_match_of_missing: bool = False
    # Whether a chunk may be found damaged while a delete overlaps a write.
    allows_damage: bool = False
    # Whether damage may stay until it is repaired: the callers break their promise.
    allows_lasting_damage: bool = False
    # Whether a late PUT may apply its write a second time.
    repeats_writes: bool = False
    # Whether a write under way may act again: its create was carried out, the answer lost, and the chunk deleted.
    rewrites: bool = False
    # Whether the objects at rest have to be what is read.
    ends_tidy: bool = True
    # Whether nothing may be left beside the chunk when all have ended well.
    leaves_nothing: bool = True
    # How many objects there may be beside the chunk while writers are at work, and when all have ended.
    most_beside: int | None = None
    most_beside_at_rest: int | None = None
    patches: tuple[Patch, ...] = ()
