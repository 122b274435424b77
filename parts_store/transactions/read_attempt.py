"""One attempt to read byte ranges of a chunk: which requests it takes, and what they found.

The attempt asks for sizes that are not known yet, merges nearby ranges, and tells whether everything that was found
belongs to one write. What happens if it does not is decided by the protocols.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zarr.abc.store import RangeByteRequest

from parts_store.engine import steps
from parts_store.engine.coalesce import coalesce
from parts_store.engine.steps import Found, Outcome, Request, Steps
from parts_store.errors import ConcurrentWriteError, PartSizeError
from parts_store.format.keys import Chunk
from parts_store.format.layout import Located, NeedSizes, Probe, Slice, plan_read
from parts_store.format.ranges import Span, Wanted
from parts_store.transactions.versions import Version, is_of_layout, require_layout

type Pieces = tuple[memoryview, ...]
"""Pieces of bytes that make up a value, in order."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How the ranges of a read are merged, and how often a read is repeated."""

    max_gap: int
    max_nbytes: int
    retries: int

    @property
    def least_repeats(self) -> int:
        """Return how often a read is repeated at least: without a repetition, damage looks like a write in progress."""
        return max(self.retries, 1)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The byte ranges to read from a chunk, and how to read them."""

    chunk: Chunk
    wanted: Sequence[Wanted]
    settings: ReadSettings
    why: str


@dataclass(slots=True)
class Attempt:
    """What one attempt to read a chunk has found so far."""

    chunk: Chunk
    # The keys at which the parts are read.
    keys: tuple[str, ...]
    sizes: list[int | None]
    found: dict[int, list[Found]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    plans: dict[Wanted, Located] = field(default_factory=dict)
    damage: PartSizeError | None = None
    # How many requests were saved by merging ranges.
    saved: int = 0
    # The objects that the parts must still be, where they are known.
    expected: Mapping[int, steps.IfMatch] = field(default_factory=dict)
    # A part is not the expected object.
    is_outdated: bool = False
    # A HEAD request was sent for the anchor.
    asked_for_anchor: bool = False

    def add(self, part: int, outcome: Found) -> None:
        """Add what was found of a part, and the sizes that it tells.

        Raises `LayoutChangedError` if the part is the anchor, which decides the write, and it has another layout.
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
        # Some servers ignore the condition of the request, so the ETag is compared here, too.
        self.is_outdated |= part in self.expected and outcome.unchanged != self.expected[part]
        insort(self.found.setdefault(part, []), outcome, key=_start)

    def piece(self, wanted: Slice) -> memoryview | None:
        """Return bytes of a part, None if they were not read yet."""
        pieces = self.found.get(wanted.part, [])
        # The last piece that begins early enough, or the first piece, which may be the whole part.
        for at in (bisect_right(pieces, wanted.span.start, key=_start) - 1, 0):
            if 0 <= at < len(pieces) and pieces[at].span.covers(wanted.span):
                start = wanted.span.start - pieces[at].span.start
                return memoryview(pieces[at].data)[start : start + wanted.span.nbytes]
        return None

    def plan(self, wanted: Wanted) -> Located | NeedSizes:
        """Return where the bytes are, by the sizes known so far."""
        if (known := self.plans.get(wanted)) is not None:
            return known
        plan = plan_read(self.sizes, wanted)
        if isinstance(plan, Located):
            self.plans[wanted] = plan
        return plan

    @property
    def is_anchor_missing(self) -> bool:
        """Return whether the anchor was asked for and does not exist, so that there is no chunk."""
        return self.chunk.parts.anchor in self.missing

    @property
    def is_one_write(self) -> bool:
        """Return whether everything that was found belongs to one write, and nothing is missing or of a wrong size."""
        one_generation = len({each.generation for pieces in self.found.values() for each in pieces}) <= 1
        is_one = one_generation and all(map(self._is_untorn, self.found.values()))
        return not self.missing and self.damage is None and is_one and not self.is_outdated

    def _is_untorn(self, pieces: Sequence[Found]) -> bool:
        """Return whether the pieces of a part are of one object, which has the layout of the array.

        A part that was replaced between two of its ranges is torn, even if both have the same tag. A part of another
        layout remains from an earlier array at this path.
        """
        return len({each.etag for each in pieces}) == 1 and is_of_layout(pieces[0], self.chunk)

    @property
    def version(self) -> Version:
        """Return the write that was read, if it is one."""
        anchor = self.chunk.parts.anchor
        # All parts carry the same tag if they belong to one write.
        first = next(iter(self.found.get(anchor) or [pieces[0] for pieces in self.found.values()]), None)
        touched = {part: pieces[0] for part, pieces in self.found.items()}
        parts = [touched[part].unchanged if part in touched else None for part in range(len(self.sizes))]
        known = tuple(None if part is None or part.etag is None else part for part in parts)
        return Version(None if first is None else first.tag, known, anchor)


def _start(found: Found) -> int:
    return found.span.start


def attempt_read(
    task: ReadTask,
    *,
    with_anchor: bool,
    given: Mapping[int, Sequence[Found]] | None = None,
    keys: Sequence[str] | None = None,
    expected: Version | None = None,
) -> Steps[Attempt]:
    """Read the ranges of a task once, and return what was found.

    `given` is what is known of the parts already, `keys` are the keys of the parts if they are not their own. The parts
    that `expected` names must still be the same objects: otherwise the attempt is outdated.
    """
    chunk, parts = task.chunk, () if expected is None else expected.parts
    known = {part: each for part, each in enumerate(parts) if each is not None}
    attempt = Attempt(chunk, tuple(keys or chunk.part_keys), list(chunk.parts.sizes), expected=known)
    for part, pieces in (given or {}).items():
        for piece in pieces:
            attempt.add(part, piece)
    if not given and (yield from _read_at_once(attempt, task, with_anchor=with_anchor)):
        return attempt
    # Every round but the last learns the size of a part. More rounds mean that a writer keeps changing the sizes.
    for _ in range(2 * len(attempt.sizes) + 2):
        requests = _next_requests(attempt, task, with_anchor=with_anchor)
        if not requests:
            return attempt
        yield from _carry_out(attempt, requests)
        # With parts of two writes, the positions of the bytes are not known.
        if not attempt.is_one_write:
            return attempt
    raise ConcurrentWriteError(chunk.chunk_key, "the sizes of its parts keep changing")


def _read_at_once(attempt: Attempt, task: ReadTask, *, with_anchor: bool) -> Steps[bool]:
    """Read what most tasks want: a whole chunk, or one range; return whether this was all that the task needs.

    These reads take as few steps as possible.
    """
    if len(task.wanted) != 1:
        return False
    if task.wanted[0] is None and None in attempt.sizes:
        return (yield from _read_whole(attempt, task))
    return (yield from _read_only_range(attempt, task, with_anchor=with_anchor))


def _read_whole(attempt: Attempt, task: ReadTask) -> Steps[bool]:
    """Read all parts of a chunk, because the size of a part is not known."""
    etags = {part: each.etag for part, each in attempt.expected.items()}
    gets = [(part, steps.Get(key, None, task.why, etags.get(part))) for part, key in enumerate(attempt.keys)]
    yield from _carry_out(attempt, gets)
    if not attempt.is_one_write:
        return True
    found = [(part, pieces[0]) for part, pieces in sorted(attempt.found.items())]
    if any(each.span.nbytes != each.nbytes for _, each in found):
        return False
    attempt.plans[None] = Located(tuple(Slice(part, each.span) for part, each in found if each.nbytes))
    return True


def _read_only_range(attempt: Attempt, task: ReadTask, *, with_anchor: bool) -> Steps[bool]:
    """Read the only range of a task if it is in one part, such as an inner chunk of a known shard."""
    place = _only_place(attempt, task.wanted[0])
    if place is None or (with_anchor and place.part != attempt.chunk.parts.anchor):
        return False
    part, span = place.part, place.span
    expected = attempt.expected.get(part)
    etag = None if expected is None else expected.etag
    request = steps.Get(attempt.keys[part], RangeByteRequest(span.start, span.stop), task.why, etag)
    yield from _carry_out(attempt, ((part, request),))
    found = attempt.found.get(part)
    if found is not None and found[0].span.covers(span):
        attempt.plans[task.wanted[0]] = Located((place,))
        return True
    return not attempt.is_one_write


def _only_place(attempt: Attempt, wanted: Wanted) -> Slice | None:
    """Return where the only range is, None if it is in several parts; a part of unknown size may be too short."""
    if not isinstance(wanted, RangeByteRequest) or wanted.end <= wanted.start:
        return None
    start, end = wanted.start, wanted.end
    for part, size in enumerate(attempt.sizes):
        if size is None or start < size:
            return Slice(part, Span(start, end)) if size is None or end <= size else None
        start, end = start - size, end - size
    return None


def _next_requests(attempt: Attempt, task: ReadTask, *, with_anchor: bool) -> list[tuple[int, Request]]:
    """Return the requests for what is still missing, with a HEAD of the anchor where it is needed."""
    requests = _data_requests(attempt, task)
    anchor = attempt.chunk.parts.anchor
    touched = {part for part, _ in requests} | set(attempt.found)
    # A read of no bytes still has to tell whether the chunk exists.
    is_needed = anchor not in touched and (with_anchor or not touched)
    if is_needed and not attempt.asked_for_anchor:
        attempt.asked_for_anchor = True
        requests.append((anchor, steps.Head(attempt.keys[anchor], task.why)))
    return requests


def _carry_out(attempt: Attempt, requests: Sequence[tuple[int, Request]]) -> Steps[None]:
    """Send requests for parts, and add what they find. A part that is shorter than expected is asked for its size."""
    outcomes = yield tuple(request for _, request in requests)
    too_short = _add_all(attempt, requests, outcomes)
    if too_short:
        heads = [(part, steps.Head(attempt.keys[part], "size of a part")) for part in too_short]
        _add_all(attempt, heads, (yield tuple(request for _, request in heads)))


def _add_all(attempt: Attempt, requests: Sequence[tuple[int, Request]], outcomes: Sequence[Outcome]) -> tuple[int, ...]:
    """Add what was found, and return the parts that are too short for the range that was asked for."""
    too_short = []
    for (part, _), outcome in zip(requests, outcomes, strict=True):
        match outcome:
            case Found():
                attempt.add(part, outcome)
            case steps.Missing():
                attempt.missing.add(part)
            case steps.OutOfRange():
                too_short.append(part)
            case steps.Refused() if part in attempt.expected:
                attempt.is_outdated = True
            case _:
                raise TypeError(f"a read was answered with {outcome}")
    return tuple(dict.fromkeys(too_short))


def _data_requests(attempt: Attempt, task: ReadTask) -> list[tuple[int, Request]]:
    """Return the requests for bytes that are still missing, with nearby ranges merged."""
    spans, probes = _unread(attempt, task.wanted)
    etags = {part: each.etag for part, each in attempt.expected.items()}
    requests: list[tuple[int, Request]] = [
        (probe.part, steps.Get(attempt.keys[probe.part], probe.wanted, task.why, etags.get(probe.part)))
        for probe in probes
    ]
    for part, of_part in sorted(spans.items()):
        merged = coalesce(of_part, max_gap=task.settings.max_gap, max_nbytes=task.settings.max_nbytes)
        attempt.saved += len(of_part) - len(merged)
        key = attempt.keys[part]
        ranges = [RangeByteRequest(span.start, span.stop) for span in merged]
        requests += [(part, steps.Get(key, each, task.why, etags.get(part))) for each in ranges]
    return requests


def _unread(attempt: Attempt, wanted: Sequence[Wanted]) -> tuple[dict[int, set[Span]], list[Probe]]:
    """Return the spans of each part that are still to be read, and the reads that tell the size of a part."""
    slices: list[Slice] = []
    probes: dict[Probe, None] = {}
    for each in wanted:
        plan = attempt.plan(each)
        if isinstance(plan, Located):
            slices += plan.slices
            continue
        for probe in plan.probes:
            match probe.wanted:
                case RangeByteRequest(start=start, end=end):
                    slices.append(Slice(probe.part, Span(start, end)))
                case _ if probe.part not in attempt.found:
                    probes[probe] = None
    spans: dict[int, set[Span]] = {}
    for unread in slices:
        if attempt.piece(unread) is None:
            spans.setdefault(unread.part, set()).add(unread.span)
    return spans, list(probes)


def assemble(attempt: Attempt, wanted: Wanted) -> Pieces:
    """Return the bytes of a byte request, all of which were found."""
    plan = attempt.plan(wanted)
    if not isinstance(plan, Located):
        raise TypeError("sizes are still unknown after reading")
    pieces = []
    for each in plan.slices:
        piece = attempt.piece(each)
        # A value must never have a hole.
        if piece is None:
            raise TypeError(f"{each} was not read")
        pieces.append(piece)
    return tuple(pieces)
