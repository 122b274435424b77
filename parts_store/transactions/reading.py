"""Reading a chunk so that its bytes never mix two writes: what all protocols have in common.

- If the anchor is missing, there is no chunk, even if other parts exist.
- All parts that a read touches must belong to one write. If they do not, the read is repeated.
- If the anchor stays the same and the other parts still do not belong to its write, the chunk is damaged.

A `Version` is the write that a client has seen. An `Attempt` is one attempt to read byte ranges of a chunk: it asks for
sizes that are not known yet, merges nearby ranges, and tells whether everything that was found belongs to one write.
What happens if it does not is decided by the protocols.

Reading writes nothing. A client with read-only access therefore sees every committed write, also that of a writer that
crashed after its commit.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from zarr.abc.store import RangeByteRequest

from parts_store.engine import steps
from parts_store.engine.steps import (
    Condition,
    Found,
    Get,
    Head,
    IfAbsent,
    IfMatch,
    Outcome,
    StepRequest,
    Steps,
    Trial,
    Wait,
    content,
    get_all,
    head,
)
from parts_store.errors import (
    CodecError,
    ConcurrentWriteError,
    IncompleteChunkError,
    LayoutChangedError,
    PartSizeError,
    PartsStoreError,
    ShardFileError,
)
from parts_store.format.coordinates import Coordinates
from parts_store.format.files import seal
from parts_store.format.keys import DOCUMENT, Chunk, join
from parts_store.format.layout import Located, NeedSizes, Probe, Slice, Span, Wanted, coalesce, plan_read
from parts_store.format.metadata import (
    Around,
    Document,
    attributes_of,
    coordinate_array,
    coordinates_around,
    nodes_around,
    parse,
)
from parts_store.format.shard_index import ShardIndex, places_in
from parts_store.format.tags import Tag


@dataclass(frozen=True, slots=True)
class Absent:
    """The observation that there was no chunk."""

    @property
    def condition(self) -> Condition:
        """Return the condition that there is still no anchor."""
        return IfAbsent()

    def conditions(self, chunk: Chunk) -> list[Condition | None]:
        """Return the condition for every part, None where it is not known."""
        known: list[Condition | None] = [None] * len(chunk.part_keys)
        known[chunk.parts.anchor] = self.condition
        return known

    def is_still(self, anchor: Found | None) -> bool:
        """Return whether the chunk has not changed, judging by its anchor."""
        return anchor is None


@dataclass(frozen=True, slots=True)
class Version:
    """A write of a chunk: its tag, if it has one, and the objects that it was read from."""

    tag: Tag | None
    # The object of every part; None if the part was not read, or was read from a staged copy.
    parts: tuple[IfMatch | None, ...]
    anchor: int

    @property
    def generation(self) -> str | None:
        """Return its generation, None if it has no tag."""
        return None if self.tag is None else self.tag.generation

    @property
    def condition(self) -> Condition | None:
        """Return the condition that the anchor has not changed, None if the anchor was not read."""
        return self.parts[self.anchor]

    @property
    def strong_etag(self) -> str | None:
        """Return the ETag of the anchor; None if the anchor was not read, or two writes may have this ETag."""
        anchor = self.parts[self.anchor]
        etag = None if anchor is None else anchor.etag
        return None if etag is None or etag.startswith("W/") else etag

    def conditions(self, _: Chunk) -> list[Condition | None]:
        """Return the condition for every part, None where it is not known."""
        return list(self.parts)

    def is_still(self, anchor: Found | None) -> bool:
        """Return whether the chunk has not changed, judging by its anchor."""
        seen = self.parts[self.anchor]
        if anchor is None or seen is None or anchor.etag != seen.etag:
            return False
        # What was read from a staged file has no version.
        if seen.version not in (None, anchor.version):
            return False
        # On S3 an anchor with the same bytes has the same ETag, and the two writes may differ in their other parts.
        return anchor.generation == self.generation

    def fits(self, other: "Version") -> bool:
        """Return whether two versions may be one write, by their generations and by the ETags of their anchors."""
        anchors = (self.condition, other.condition)
        return self.generation == other.generation and (None in anchors or anchors[0] == anchors[1])


type Seen = Absent | Version
"""What a client saw of a chunk when it read the chunk to change it."""

WHOSE: Final = "which write it belongs to"
NOT_AS_SEEN: Final = "it was changed after it was read for this write"


def is_of_layout(found: Found, chunk: Chunk) -> bool:
    """Return whether an object of a chunk has the layout of its array; True if its tag does not say."""
    layout = None if found.tag is None else found.tag.layout
    return layout is None or chunk.layout is None or layout == chunk.layout


def require_layout(chunk: Chunk, *found: Found | None) -> None:
    """Raise `LayoutChangedError` if an object of a chunk was written with another layout of the array."""
    if not all(each is None or is_of_layout(each, chunk) for each in found):
        raise LayoutChangedError(chunk.array, f"chunk {chunk.chunk_key!r} was written with another layout")


def require_still(seen: Seen | None, anchor: Found | None, chunk_key: str) -> None:
    """Raise `ConcurrentWriteError` if the chunk has changed since it was seen, judging by its anchor."""
    if seen is not None and not seen.is_still(anchor):
        raise ConcurrentWriteError(chunk_key, NOT_AS_SEEN)


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


def _next_requests(attempt: Attempt, task: ReadTask, *, with_anchor: bool) -> list[tuple[int, StepRequest]]:
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


def _carry_out(attempt: Attempt, requests: Sequence[tuple[int, StepRequest]]) -> Steps[None]:
    """Send requests for parts, and add what they find. A part that is shorter than expected is asked for its size."""
    outcomes = yield tuple(request for _, request in requests)
    too_short = _add_all(attempt, requests, outcomes)
    if too_short:
        heads = [(part, steps.Head(attempt.keys[part], "size of a part")) for part in too_short]
        _add_all(attempt, heads, (yield tuple(request for _, request in heads)))


def _add_all(
    attempt: Attempt, requests: Sequence[tuple[int, StepRequest]], outcomes: Sequence[Outcome]
) -> tuple[int, ...]:
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


def _data_requests(attempt: Attempt, task: ReadTask) -> list[tuple[int, StepRequest]]:
    """Return the requests for bytes that are still missing, with nearby ranges merged."""
    spans, probes = _unread(attempt, task.wanted)
    etags = {part: each.etag for part, each in attempt.expected.items()}
    requests: list[tuple[int, StepRequest]] = [
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


EXISTS: Final = "whether the chunk exists"
IS_WRITTEN: Final = "whether the chunk is being written"


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of each byte request, in pieces, all of one write; and how many requests were saved by merging.

    None stands for a value that the write does not have.
    """

    values: tuple[Pieces | None, ...]
    version: Version
    saved: int
    # The size of the whole chunk, None if it is not known.
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outdated:
    """The result of a read that found another write than the expected one."""


def result_of(attempt: Attempt, wanted: Sequence[Wanted]) -> Read:
    """Return the bytes that an attempt found."""
    known = [size for size in attempt.sizes if size is not None]
    nbytes = sum(known) if len(known) == len(attempt.sizes) else None
    return Read(tuple(assemble(attempt, each) for each in wanted), attempt.version, attempt.saved, nbytes)


def require_inside(chunk: Chunk, index: ShardIndex | None, read: Read | None) -> None:
    """Raise `CodecError` if the index of a whole shard names bytes that are not data.

    The tags of its parts have their sizes, so only a shard without tags is looked at.
    """
    if read is None or index is None or read.version.tag is not None or read.nbytes is None:
        return
    pieces = read.values[0] or ()
    at = 0 if index.location == "start" else -1
    stored = pieces[at] if pieces and pieces[at].nbytes == index.nbytes else memoryview(b"".join(pieces))
    data = bytes(stored[: index.nbytes] if index.location == "start" else stored[-index.nbytes :])
    table = index.decode(data)
    if table is not None and (places := places_in(table)):
        require_data(chunk, index, min(places)[0], max(start + nbytes for start, nbytes in places), read.nbytes)


def require_data(chunk: Chunk, index: ShardIndex, start: int, stop: int, nbytes: int) -> None:
    """Raise `CodecError` if inner chunks between these positions are not in the data of a shard of `nbytes` bytes.

    If data was cut off, the bytes of the index would be taken for data.
    """
    first, last = (index.nbytes, nbytes) if index.location == "start" else (0, nbytes - index.nbytes)
    if start < first or stop > last:
        expected = f"inner chunks in bytes {first} to {last} of {chunk.chunk_key!r}, as its index must say"
        raise CodecError(
            "sharding_indexed", expected, f"bytes {start} to {stop}: data was cut off, or the index is wrong"
        )


def require_unedited(chunk: Chunk, index: ShardIndex | None, pieces: Pieces | None) -> None:
    """Raise `ShardFileError` if a whole shard is a file that another program has changed."""
    if pieces is None or index is None or chunk.ends is None:
        return
    if len(pieces) != 2 or pieces[1].nbytes != index.nbytes:
        shard = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        pieces = (shard[: -index.nbytes], shard[-index.nbytes :])
    require_sealed(chunk, index, pieces[0], pieces[0], bytes(pieces[1]))


def require_sealed(
    chunk: Chunk, index: ShardIndex, head: bytes | memoryview, tail: bytes | memoryview, data: bytes
) -> None:
    """Raise `ShardFileError` unless a file, which starts and ends with these bytes, is as it was written.

    If the index is in the same object, other software may have written the shard. Such a shard has no seal and is no
    file, and is right if its index is.
    """
    if len(chunk.parts.parts) == 1 and seal.sealed_ends(tail) is None:
        is_right = index.is_sound(data)
    else:
        is_right = seal.is_sealed(head, tail, data)
    if not is_right:
        raise ShardFileError(chunk.anchor_key)


def read_untagged(task: ReadTask, *, with_anchor: bool, compares_again: bool) -> Steps[Attempt | None]:
    """Read a chunk without tags or a journal; return None if there is no chunk.

    With `compares_again`, the parts are looked at a second time, and must be the same objects.
    """
    least = task.settings.least_repeats
    before: Found | None = None
    for repeat in range(least + 1):
        if repeat:
            yield (Wait(repeat),)
        attempt = yield from attempt_read(task, with_anchor=with_anchor or repeat > 0)
        if attempt.is_anchor_missing:
            return None
        if attempt.is_one_write:
            if not compares_again or (yield from is_unchanged(attempt, task.why)):
                return attempt
            continue
        now = yield from head(task.chunk.anchor_key, IS_WRITTEN)
        if now is None:
            return None
        require_undamaged(attempt, before, now, may_raise=repeat == least)
        before = now
    raise changed_while_read(task.chunk, least + 1)


def require_undamaged(attempt: Attempt, before: Found | None, now: Found, *, may_raise: bool = True) -> None:
    """Raise the damage of a chunk whose anchor is the same before and after an attempt to read it."""
    is_same = before is not None and before.is_same(now)
    if may_raise and is_same and (damage := damage_of(attempt, now)) is not None:
        raise damage


def changed_while_read(chunk: Chunk, attempts: int) -> ConcurrentWriteError:
    """Return the error of a read that never found a single write."""
    return ConcurrentWriteError(chunk.chunk_key, f"it changed {attempts} times while it was read")


def is_unchanged(attempt: Attempt, why: str) -> Steps[bool]:
    """Look at the parts of an attempt again, and return whether they are still the same objects."""
    # A single read of a single object cannot be mixed.
    if not has_several_reads(attempt):
        return True
    parts = list(attempt.found)
    outcomes = yield tuple(Head(attempt.keys[part], why) for part in parts)
    return all(
        isinstance(now, Found) and attempt.found[part][0].is_same(now)
        for part, now in zip(parts, outcomes, strict=True)
    )


def has_several_reads(attempt: Attempt) -> bool:
    """Return whether an attempt made more than one request, so that its results may be of several writes."""
    return sum(len(pieces) for pieces in attempt.found.values()) > 1


def damage_of(attempt: Attempt, anchor: Found) -> PartsStoreError | None:
    """Return what is wrong with the chunk of this anchor; None if only a part was replaced between two ranges."""
    if attempt.damage is not None:
        return attempt.damage
    keys = attempt.chunk.part_keys
    mixed = [
        part
        for part, pieces in attempt.found.items()
        if pieces[0].generation != anchor.generation or not is_of_layout(pieces[0], attempt.chunk)
    ]
    missing = tuple(keys[part] for part in sorted(attempt.missing))
    if not missing and not mixed:
        return None
    if attempt.chunk.ends is not None and anchor.tag is None and not missing:
        # Another program has stored the file again, without its tag.
        return ShardFileError(attempt.chunk.anchor_key)
    return IncompleteChunkError(attempt.chunk.chunk_key, missing, tuple(keys[part] for part in sorted(mixed)))


def exists(chunk: Chunk) -> Steps[bool]:
    """Return whether a chunk exists; raise if it was written with another layout of the array."""
    return (yield from find_anchor(chunk)) is not None


def find_anchor(chunk: Chunk) -> Steps[Found | None]:
    """Return the anchor of a chunk, None if there is no chunk; raise if it was written with another layout."""
    anchor = yield from head(chunk.anchor_key, EXISTS)
    require_layout(chunk, anchor)
    return anchor


def size(chunk: Chunk) -> Steps[int | None]:
    """Return the size of a chunk by its anchor's tag or by its parts; None if there is no chunk."""
    anchor = yield from find_anchor(chunk)
    if anchor is None:
        return None
    if anchor.tag is not None and len(anchor.tag.sizes) == len(chunk.part_keys):
        return sum(anchor.tag.sizes)
    return (yield from size_by_parts(chunk, anchor))


def size_by_parts(chunk: Chunk, anchor: Found) -> Steps[int]:
    """Return the sum of the sizes of all parts; parts without a declared size are looked at."""
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


def read_attributes(paths: Sequence[str]) -> Steps[list[Mapping[str, Any]]]:
    """Return the attributes of nodes, at the same time; none of a node that is missing or that cannot be read."""
    if not paths:
        return []
    outcomes = yield tuple(Trial(Get(join(path, DOCUMENT), None, "what the file of a shard says")) for path in paths)
    stored = [content(outcome) for outcome in outcomes]
    return [attributes_of(None if each is None else parse(each)) for each in stored]


def read_coordinates(paths: Sequence[str]) -> Steps[list[Coordinates | None]]:
    """Return what is in coordinate arrays, all read at the same time; None where there is no such array."""
    documents = yield from get_all([join(path, DOCUMENT) for path in paths], "what the file of a shard says")
    arrays = [coordinate_array(path, documents[join(path, DOCUMENT)]) for path in paths]
    keys = [key for array in arrays if array is not None for key in array.keys]
    stored = yield from get_all(keys, "coordinates in the file of a shard")
    return [None if array is None else array.decode([stored[key] for key in array.keys]) for array in arrays]


def read_around(path: str, document: Document) -> Steps[Around]:
    """Return what other nodes say about an array with this document."""
    nodes, arrays = nodes_around(path, document), coordinates_around(path, document)
    attributes = dict(zip(nodes, (yield from read_attributes(list(nodes.values()))), strict=True))
    coordinates = dict(zip(arrays, (yield from read_coordinates(list(arrays.values()))), strict=True))
    return {**attributes, "coordinates": coordinates}
