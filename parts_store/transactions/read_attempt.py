"""One look at a chunk: which requests it takes to get the bytes asked for, and what they found.

Decides what to ask for next while sizes are missing. Whether what was found is one write it can tell; what to do if it
is not is `reading`'s to say.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from zarr.abc.store import RangeByteRequest

from parts_store.engine.backend import Means
from parts_store.engine.coalesce import coalesce
from parts_store.engine.steps import (
    Done,
    Failed,
    Found,
    Get,
    Head,
    IfMatch,
    Listed,
    Lost,
    Missing,
    Outcome,
    OutOfRange,
    Refused,
    Request,
    Steps,
)
from parts_store.errors import ConcurrentWriteError, PartSizeError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Located, NeedSizes, Probe, Slice, plan_read
from parts_store.format.ranges import Span, Wanted
from parts_store.transactions.versions import Version, is_of_layout, require_layout

type Pieces = tuple[memoryview, ...]
"""Bytes in the order in which they make up a value."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How reads are merged and repeated, and by what the backend tells one write from another."""

    max_gap: int
    max_nbytes: int
    retries: int
    means: Means


@dataclass(slots=True)
class Attempt:
    """What one look has found so far."""

    chunk: Chunk
    # Where the parts are looked for.
    keys: tuple[str, ...]
    sizes: list[int | None]
    found: dict[int, list[Found]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    plans: dict[Wanted, Located] = field(default_factory=dict)
    damage: PartSizeError | None = None
    saved: int = 0
    # The objects that the parts must still be, where that is known.
    pinned: Mapping[int, IfMatch] = field(default_factory=dict)
    # A part is another object than the one that it must be.
    is_outdated: bool = False

    def take(self, part: int, outcome: Found) -> None:
        """Add what was found of a part, and the sizes that it tells.

        Raises `LayoutChangedError` if it is the anchor, and of another layout: the anchor decides which write it is.
        """
        if part == self.chunk.parts.anchor:
            require_layout(self.chunk, outcome)
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
        # Not every server keeps the condition that the request carried.
        self.is_outdated |= part in self.pinned and outcome.unchanged != self.pinned[part]
        insort(self.found.setdefault(part, []), outcome, key=_start)

    def piece(self, wanted: Slice) -> memoryview | None:
        """Bytes of a part, None if they were not found yet."""
        pieces = self.found.get(wanted.part, [])
        # The last one that begins early enough, or the first, which may be the whole part.
        for at in (bisect_right(pieces, wanted.span.start, key=_start) - 1, 0):
            if 0 <= at < len(pieces) and pieces[at].span.covers(wanted.span):
                start = wanted.span.start - pieces[at].span.start
                return memoryview(pieces[at].data)[start : start + wanted.span.nbytes]
        return None

    def plan(self, wanted: Wanted) -> Located | NeedSizes:
        """Where the bytes are, by the sizes known so far."""
        if (known := self.plans.get(wanted)) is not None:
            return known
        plan = plan_read(self.sizes, wanted)
        if isinstance(plan, Located):
            self.plans[wanted] = plan
        return plan

    @property
    def is_one_write(self) -> bool:
        """Whether everything that was found is of one write, and nothing is missing or of a wrong size."""
        everything = [each for pieces in self.found.values() for each in pieces]
        one_generation = len({each.generation for each in everything}) <= 1
        # A part that was replaced between two of its ranges is torn, whatever its tag.
        untorn = all(len({each.etag for each in pieces}) == 1 for pieces in self.found.values())
        # What an earlier array of this path has left is not of the anchor's write, whatever else it carries.
        one_layout = all(is_of_layout(pieces[0], self.chunk) for pieces in self.found.values())
        is_one = one_generation and untorn and one_layout
        return not self.missing and self.damage is None and is_one and not self.is_outdated

    @property
    def version(self) -> Version:
        """The write, if it is one."""
        anchor = self.chunk.parts.anchor
        # The anchor tells best, but all of them tell the same.
        first = next(iter(self.found.get(anchor) or [pieces[0] for pieces in self.found.values()]), None)
        touched = {part: pieces[0] for part, pieces in self.found.items()}
        parts = [touched[part].unchanged if part in touched else None for part in range(len(self.sizes))]
        known = tuple(None if part is None or part.etag is None else part for part in parts)
        return Version(None if first is None else first.tag, known, anchor)


def _start(found: Found) -> int:
    return found.span.start


def look(
    chunk: Chunk,
    wanted: Sequence[Wanted],
    settings: ReadSettings,
    why: str,
    *,
    with_anchor: bool,
    given: Mapping[int, Sequence[Found]] | None = None,
    keys: Sequence[str] | None = None,
    pinned: Version | None = None,
) -> Steps[Attempt]:
    """What one look at the chunk finds, beyond what is `given`; under other `keys` than the parts' own, if any.

    The parts that `pinned` names must still be the same objects: otherwise the attempt is outdated.
    """
    pins = {part: each for part, each in enumerate(() if pinned is None else pinned.parts) if each is not None}
    attempt = Attempt(chunk, tuple(keys or chunk.part_keys), list(chunk.parts.sizes), pinned=pins)
    for part, pieces in (given or {}).items():
        for piece in pieces:
            attempt.take(part, piece)
    anchor_asked = False
    # Every round learns the size of a part, or is the last; more of them means that a writer keeps changing it.
    for _ in range(2 * len(attempt.sizes) + 2):
        requests = _requests(attempt, wanted, settings, why)
        touched = {part for part, _ in requests} | set(attempt.found)
        # A read of no bytes still has to say whether there is a chunk.
        if not anchor_asked and chunk.parts.anchor not in touched and (with_anchor or not touched):
            anchor_asked = True
            requests.append((chunk.parts.anchor, Head(attempt.keys[chunk.parts.anchor], why)))
        if not requests:
            return attempt
        outcomes = yield tuple(request for _, request in requests)
        beyond = _take_all(attempt, requests, outcomes)
        if beyond:
            heads = [(part, Head(attempt.keys[part], "size of a part")) for part in beyond]
            _take_all(attempt, heads, (yield tuple(request for _, request in heads)))
        # With parts of two writes, where the bytes are is anybody's guess.
        if not attempt.is_one_write:
            return attempt
    raise ConcurrentWriteError(chunk.chunk_key, "the sizes of its parts keep changing")


def _take_all(
    attempt: Attempt, requests: Sequence[tuple[int, Request]], outcomes: Sequence[Outcome]
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
            case Refused() if part in attempt.pinned:
                attempt.is_outdated = True
            case Listed() | Done() | Refused() | Lost() | Failed():
                raise TypeError(f"a read was answered with {outcome}")
            case never:
                assert_never(never)
    return tuple(dict.fromkeys(beyond))


def _requests(
    attempt: Attempt, wanted: Sequence[Wanted], settings: ReadSettings, why: str
) -> list[tuple[int, Request]]:
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
    etags = {part: each.etag for part, each in attempt.pinned.items()}
    requests: list[tuple[int, Request]] = [
        (probe.part, Get(attempt.keys[probe.part], probe.wanted, why, etags.get(probe.part))) for probe in probes
    ]
    for part, of_part in sorted(spans.items()):
        merged = coalesce(of_part, max_gap=settings.max_gap, max_nbytes=settings.max_nbytes)
        attempt.saved += len(of_part) - len(merged)
        key = attempt.keys[part]
        ranges = [RangeByteRequest(span.start, span.stop) for span in merged]
        requests += [(part, Get(key, each, why, etags.get(part))) for each in ranges]
    return requests


def assemble(attempt: Attempt, wanted: Wanted) -> Pieces:
    """The bytes of a request, all of which were found."""
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
