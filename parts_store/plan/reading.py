"""The read of a chunk as steps: never a mixture of two writes.

Decides when what came back is one write, when to look again, and when to give up:

- All parts that a read touches carry the same tag: it is one write. All untagged counts as the same.
- The anchor is missing: there is no chunk, whatever orphans lie about.
- Anything else is read again, with the anchor. If the anchor did not change meanwhile, the chunk is damaged; if it did
  every time, somebody keeps writing it.

On a backend without tags, ETags serve: what was touched is looked at a second time, and must not have changed.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from zarr.abc.store import RangeByteRequest

from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, PartSizeError, PartsStoreError
from parts_store.plan.coalesce import coalesce
from parts_store.plan.keys import Chunk
from parts_store.plan.layout import Located, NeedSizes, Probe, Slice, plan_read
from parts_store.plan.ranges import Span, Wanted
from parts_store.plan.steps import (
    AlreadyExists,
    Done,
    Found,
    Get,
    Head,
    Lost,
    Missing,
    Outcome,
    OutOfRange,
    Request,
    Steps,
    Wait,
)
from parts_store.plan.why import DATA


@dataclass(frozen=True, slots=True)
class Knobs:
    """How reads are merged and repeated, and whether the backend keeps tags."""

    max_gap: int
    max_nbytes: int
    retries: int
    has_tags: bool


@dataclass(frozen=True, slots=True)
class Version:
    """Which write of a chunk a read saw: its generation if tagged, and the anchor's ETag if the read touched it."""

    generation: str | None
    anchor_etag: str | None


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of each request, in pieces, all of one write; and how many requests merging saved."""

    values: tuple[tuple[memoryview, ...], ...]
    version: Version
    saved: int


@dataclass(slots=True)
class _Attempt:
    """What one attempt has fetched so far."""

    chunk: Chunk
    sizes: list[int | None]
    found: dict[int, list[Found]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    plans: dict[Wanted, Located] = field(default_factory=dict)
    damage: PartSizeError | None = None
    saved: int = 0

    def take(self, part: int, outcome: Found) -> None:
        key = self.chunk.part_keys[part]
        declared = self.chunk.parts.sizes[part]
        tagged = outcome.tag.sizes if outcome.tag is not None else ()
        if declared is not None and outcome.nbytes != declared:
            self.damage = PartSizeError(key, declared, outcome.nbytes)
        if len(tagged) == len(self.sizes):
            if tagged[part] != outcome.nbytes:
                self.damage = PartSizeError(key, tagged[part], outcome.nbytes)
            self.sizes = [size if size is not None else tagged[index] for index, size in enumerate(self.sizes)]
        self.sizes[part] = outcome.nbytes
        insort(self.found.setdefault(part, []), outcome, key=_start)

    def piece(self, wanted: Slice) -> memoryview | None:
        pieces = self.found.get(wanted.part, [])
        # The last one that begins early enough, or the first, which may be the whole part.
        for at in (bisect_right(pieces, wanted.span.start, key=_start) - 1, 0):
            if 0 <= at < len(pieces) and pieces[at].span.covers(wanted.span):
                start = wanted.span.start - pieces[at].span.start
                return memoryview(pieces[at].data)[start : start + wanted.span.nbytes]
        return None

    def plan(self, wanted: Wanted) -> Located | NeedSizes:
        if (known := self.plans.get(wanted)) is not None:
            return known
        plan = plan_read(self.sizes, wanted)
        if isinstance(plan, Located):
            self.plans[wanted] = plan
        return plan

    @property
    def is_one_write(self) -> bool:
        everything = [each for pieces in self.found.values() for each in pieces]
        one_generation = len({each.generation for each in everything}) <= 1
        # A part that was replaced between two of its ranges is torn, whatever its tag.
        untorn = all(len({each.etag for each in pieces}) == 1 for pieces in self.found.values())
        return not self.missing and self.damage is None and one_generation and untorn

    @property
    def version(self) -> Version:
        anchor = self.found.get(self.chunk.parts.anchor)
        generations = [each.generation for pieces in self.found.values() for each in pieces]
        return Version(generations[0] if generations else None, anchor[0].etag if anchor else None)


def _start(found: Found) -> int:
    return found.span.start


def read(
    chunk: Chunk, wanted: Sequence[Wanted], *, knobs: Knobs, with_anchor: bool = False, why: str = DATA
) -> Steps[Read | None]:
    """The bytes of every request, all of one write; None if there is no chunk.

    `with_anchor` makes the anchor part of the read where its bytes are not asked for, so that a part which outlived its
    chunk, or is not of the anchor's write, is found out.
    """
    anchor = chunk.parts.anchor
    damage: PartsStoreError | None = None
    # At least once with the anchor: without it, nobody can tell damage from a write under way.
    attempts = max(knobs.retries, 1) + 1
    for repeat in range(attempts):
        if repeat:
            yield (Wait(repeat),)
        attempt = yield from _attempt(chunk, wanted, knobs, why, with_anchor=with_anchor or repeat > 0)
        if anchor in attempt.missing:
            return None
        if attempt.is_one_write and (yield from _is_unchanged(attempt, knobs, why)):
            return Read(tuple(_assemble(attempt, each) for each in wanted), attempt.version, attempt.saved)
        before = attempt.found.get(anchor)
        after = yield from _head(chunk.anchor_key, "whether the chunk is being written")
        if after is None:
            return None
        if attempt.damage is not None:
            raise attempt.damage
        is_stable = before is not None and _same(before[0], after) and not attempt.is_one_write
        damage = _describe_damage(attempt, after) if is_stable else None
    if damage is not None:
        raise damage
    raise ConcurrentWriteError(chunk.chunk_key, f"it changed {attempts} times while it was read")


def head(chunk: Chunk) -> Steps[Found | None]:
    """The anchor's size, ETag and tag; None if there is no chunk."""
    return (yield from _head(chunk.anchor_key, "whether the chunk exists"))


def size(chunk: Chunk) -> Steps[int | None]:
    """The size of the whole chunk, None if there is none: from the anchor's tag, or else from the parts."""
    anchor = yield from head(chunk)
    if anchor is None:
        return None
    if anchor.tag is not None and len(anchor.tag.sizes) == len(chunk.part_keys):
        return sum(anchor.tag.sizes)
    sizes = list(chunk.parts.sizes)
    declared = sizes[chunk.parts.anchor]
    if declared is not None and declared != anchor.nbytes:
        raise PartSizeError(chunk.anchor_key, declared, anchor.nbytes)
    sizes[chunk.parts.anchor] = anchor.nbytes
    unknown = [part for part, each in enumerate(sizes) if each is None]
    heads = tuple(Head(chunk.part_keys[part], "size of a part") for part in unknown)
    outcomes = (yield heads) if heads else ()
    for part, outcome in zip(unknown, outcomes, strict=True):
        if not isinstance(outcome, Found):
            raise IncompleteChunkError(chunk.chunk_key, (chunk.part_keys[part],), ())
        sizes[part] = outcome.nbytes
    return sum(each for each in sizes if each is not None)


def _attempt(chunk: Chunk, wanted: Sequence[Wanted], knobs: Knobs, why: str, *, with_anchor: bool) -> Steps[_Attempt]:
    attempt = _Attempt(chunk, list(chunk.parts.sizes))
    anchor_asked = False
    # Every round learns the size of a part, or is the last; more of them means that a writer keeps changing it.
    for _ in range(2 * len(attempt.sizes) + 2):
        requests = _requests(attempt, wanted, knobs, why)
        touched = {part for part, _ in requests} | set(attempt.found)
        # A read of no bytes still has to say whether there is a chunk.
        if not anchor_asked and chunk.parts.anchor not in touched and (with_anchor or not touched):
            anchor_asked = True
            requests.append((chunk.parts.anchor, Head(chunk.anchor_key, why)))
        if not requests:
            return attempt
        outcomes = yield tuple(request for _, request in requests)
        beyond = _take_all(attempt, requests, outcomes)
        if beyond:
            heads = [(part, Head(chunk.part_keys[part], "size of a part")) for part in beyond]
            _take_all(attempt, heads, (yield tuple(request for _, request in heads)))
        # With parts of two writes, where the bytes are is anybody's guess.
        if not attempt.is_one_write:
            return attempt
    raise ConcurrentWriteError(chunk.chunk_key, "the sizes of its parts keep changing")


def _take_all(
    attempt: _Attempt, requests: Sequence[tuple[int, Request]], outcomes: Sequence[Outcome]
) -> tuple[int, ...]:
    """Takes in what was found, and returns the parts that are shorter than they were asked for."""
    beyond = []
    for (part, _), outcome in zip(requests, outcomes, strict=True):
        match outcome:
            case Found():
                attempt.take(part, outcome)
            case Missing():
                attempt.missing.add(part)
            case OutOfRange():
                beyond.append(part)
            case Done() | AlreadyExists() | Lost():
                raise TypeError(f"a read was answered with {outcome}")
            case never:
                assert_never(never)
    return tuple(dict.fromkeys(beyond))


def _requests(attempt: _Attempt, wanted: Sequence[Wanted], knobs: Knobs, why: str) -> list[tuple[int, Request]]:
    """The requests for what is still missing, nearby ranges merged."""
    spans: dict[int, set[Span]] = {}
    probes: dict[Probe, None] = {}
    for each in wanted:
        plan = attempt.plan(each)
        if isinstance(plan, Located):
            for one in plan.slices:
                if attempt.piece(one) is None:
                    spans.setdefault(one.part, set()).add(one.span)
            continue
        for probe in plan.probes:
            match probe.wanted:
                case RangeByteRequest(start=start, end=end):
                    if attempt.piece(Slice(probe.part, Span(start, end))) is None:
                        spans.setdefault(probe.part, set()).add(Span(start, end))
                case _ if probe.part not in attempt.found:
                    probes[probe] = None
    requests: list[tuple[int, Request]] = [
        (probe.part, Get(attempt.chunk.part_keys[probe.part], probe.wanted, why)) for probe in probes
    ]
    for part, of_part in sorted(spans.items()):
        merged = coalesce(of_part, max_gap=knobs.max_gap, max_nbytes=knobs.max_nbytes)
        attempt.saved += len(of_part) - len(merged)
        key = attempt.chunk.part_keys[part]
        requests += [(part, Get(key, RangeByteRequest(span.start, span.stop), why)) for span in merged]
    return requests


def _assemble(attempt: _Attempt, wanted: Wanted) -> tuple[memoryview, ...]:
    plan = attempt.plan(wanted)
    if not isinstance(plan, Located):
        raise TypeError("sizes are still unknown after reading")
    pieces = []
    for each in plan.slices:
        piece = attempt.piece(each)
        # Never a value with a hole in it.
        if piece is None:
            raise TypeError(f"{each} was not read")
        pieces.append(piece)
    return tuple(pieces)


def _is_unchanged(attempt: _Attempt, knobs: Knobs, why: str) -> Steps[bool]:
    """Whether what was read is still there, where only a second look can tell."""
    if knobs.has_tags or sum(len(pieces) for pieces in attempt.found.values()) < 2:
        return True
    parts = list(attempt.found)
    outcomes = yield tuple(Head(attempt.chunk.part_keys[part], why) for part in parts)
    return all(
        isinstance(now, Found) and _same(attempt.found[part][0], now) for part, now in zip(parts, outcomes, strict=True)
    )


def _head(key: str, why: str) -> Steps[Found | None]:
    (outcome,) = yield (Head(key, why),)
    return outcome if isinstance(outcome, Found) else None


def _same(one: Found, other: Found) -> bool:
    """Whether two looks at a part saw the same write of it."""
    return one.generation == other.generation and one.etag == other.etag


def _describe_damage(attempt: _Attempt, anchor: Found) -> IncompleteChunkError | None:
    keys = attempt.chunk.part_keys
    mixed = [part for part, pieces in attempt.found.items() if pieces[0].generation != anchor.generation]
    missing = tuple(keys[part] for part in sorted(attempt.missing))
    if not missing and not mixed:
        return None
    return IncompleteChunkError(attempt.chunk.chunk_key, missing, tuple(keys[part] for part in sorted(mixed)))
