"""Write many chunks of one array together, on a store whose writers are registered.

Each chunk is a transaction of its own, as `writer` and `embedded_writer` describe it. Large parts have a staged copy
for each chunk; small parts have a mark for all chunks (`batch_marks`). The chunks share all other requests: listings of
the chunks give the ETags in place of a look at every part, one listing of the write protocol's folder shows the writers
of all chunks, and one request removes the staged copies or the mark.

A listing has no tags, so it does not show whether a chunk was written with another layout of the array. Therefore the
array's document is read after the listing: if the array is still the same, so are the listed objects, because their
keys would have other objects in an array that was created again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, starmap
from typing import Final

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Entry, Found, IfAbsent, IfMatch, Listed, Steps
from parts_store.format.keys import PROTOCOL_FOLDER, Chunk, join, split
from parts_store.transactions import batch_marks, staging
from parts_store.transactions.batch_marks import Mark
from parts_store.transactions.embedded_writer import EmbeddedWriter
from parts_store.transactions.part_writer import remove_copies
from parts_store.transactions.staging import Registry
from parts_store.transactions.versions import WHOSE, require_layout
from parts_store.transactions.writer import Conditions, End, Writer, is_mixed

# In a folder with fewer chunks of a batch, requests for their parts take less time than a listing of 1,000 objects.
LEAST_LISTED: Final = 8

type Confirm = Callable[[], Steps[object]]
"""Steps that raise an error unless the array's document is the one that the caller knows."""


def look_up(
    chunks: Sequence[Chunk], confirm: Confirm, least_listed: int, mark: Mark | None = None
) -> Steps[dict[str, Conditions]]:
    """Return the conditions for the parts of chunks of one array, by the chunks' keys.

    Chunks in folders with at least `least_listed` of them are listed. At the other chunks' parts, requests look. With a
    mark, the mark is written if chunks exist, and chunks that other clients may be writing are left out.
    """
    listed = yield from _list_parts(chunks, least_listed)
    if len(listed) == len(chunks) and not any(map(any, listed.values())):
        return {chunk.chunk_key: [IfAbsent()] * len(chunk.part_keys) for chunk in chunks}
    marking = _nothing_found() if mark is None else batch_marks.register(chunks, mark)
    untrue, shared = yield from steps.run_together([_find_untrue(listed, confirm), marking])
    known: dict[str, Conditions] = {
        chunk.chunk_key: [_condition(each) for each in of_chunk]
        for chunk, of_chunk in listed.items()
        if chunk.chunk_key not in untrue | shared
    }
    rest = [chunk for chunk in chunks if chunk.chunk_key not in known.keys() | shared]
    return known | (yield from _look_at(rest, leaves_out_mixed=mark is not None))


def _list_parts(chunks: Sequence[Chunk], least_listed: int) -> Steps[dict[Chunk, list[Entry | None]]]:
    """List the parts of chunks in folders with many of the chunks."""
    folders: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        folders.setdefault(split(chunk.chunk_key)[0], []).append(chunk)
    dense = {folder: of_folder for folder, of_folder in folders.items() if len(of_folder) >= least_listed}
    outcomes = (yield tuple(starmap(_listing, dense.items()))) if dense else ()
    found: dict[Chunk, list[Entry | None]] = {}
    for of_folder, outcome in zip(dense.values(), outcomes, strict=True):
        if isinstance(outcome, Listed):
            entries = {entry.key: entry for entry in outcome.entries}
            found |= {chunk: [entries.get(key) for key in chunk.part_keys] for chunk in of_folder}
    return found


def _look_at(chunks: Sequence[Chunk], *, leaves_out_mixed: bool) -> Steps[dict[str, Conditions]]:
    """Return the conditions for the parts of chunks, with one request for each part."""
    known: dict[str, Conditions] = {}
    outcomes = iter(
        (yield tuple(steps.Head(key, WHOSE) for chunk in chunks for key in chunk.part_keys)) if chunks else ()
    )
    for chunk in chunks:
        of_chunk = list(islice(outcomes, len(chunk.part_keys)))
        require_layout(chunk, *(each for each in of_chunk if isinstance(each, Found)))
        if not (leaves_out_mixed and is_mixed(of_chunk)):
            known[chunk.chunk_key] = [steps.unchanged(each) for each in of_chunk]
    return known


def _listing(folder: str, chunks: Sequence[Chunk]) -> steps.List:
    keys = [key for chunk in chunks for key in chunk.part_keys]
    return steps.List(folder, "which parts exist", only=(min(keys), max(keys)))


def _find_untrue(listed: Mapping[Chunk, Sequence[Entry | None]], confirm: Confirm) -> Steps[set[str]]:
    """Return the keys of the listed chunks if the ETags of the listing are of no use; raise if the array is another.

    Some servers list ETags in another form, so one object is looked at.
    """
    sample = next((each for of_chunk in listed.values() for each in of_chunk if each is not None), None)
    if sample is None:
        return set()
    now, _ = yield from steps.run_together([steps.head(sample.key, WHOSE), _ending(confirm())])
    is_true = now is not None and now.etag is not None and now.etag == sample.etag
    return set() if is_true else {chunk.chunk_key for chunk in listed}


def _nothing_found() -> Steps[set[str]]:
    yield from ()
    return set()


def _ending(confirm: Steps[object]) -> Steps[Found | None]:
    yield from confirm
    return None


def _condition(entry: Entry | None) -> Condition:
    return IfAbsent() if entry is None else IfMatch(entry.etag, None)


def is_absent(conditions: Conditions) -> bool:
    """Return whether no part of a chunk exists."""
    return all(isinstance(each, IfAbsent) for each in conditions)


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of one of many steps that were carried out together."""

    error: Exception


def attempt[T](several: Steps[T]) -> Steps[T | Failure]:
    """Return the result of steps, or their error, so that the error does not stop other steps."""
    try:
        return (yield from several)
    except Exception as error:
        # The caller raises it when the other steps have ended.
        return Failure(error)


def write_over_many(writers: Sequence[Writer], known: Sequence[Conditions]) -> Steps[list[End | Failure]]:
    """Write chunks of one array with staged copies, and remove the copies together."""
    pairs = zip(writers, known, strict=True)
    ended = yield from steps.run_together([attempt(_publish(writer, conditions)) for writer, conditions in pairs])
    committed = [number for number, end in enumerate(ended) if end is End.COMMITTED]
    if committed:
        left = yield from _leave([writers[number] for number in committed])
        failed = {number: each for number, each in zip(committed, left, strict=True) if each is not None}
        ended = [failed.get(number, end) for number, end in enumerate(ended)]
    return ended


def _publish(writer: Writer, known: Conditions) -> Steps[End]:
    end, _ = yield from writer.publish(None, known)
    return end


def _leave(writers: Sequence[Writer]) -> Steps[list[Failure | None]]:
    """Remove the staged copies of committed writes, unless a client may still need them."""
    folder = join(writers[0].chunk.array, PROTOCOL_FOLDER)
    (listed,) = yield (steps.List(folder, "which other writers are at work"),)
    if not isinstance(listed, Listed):
        raise TypeError(f"a listing was answered with {listed}")
    beside: dict[str, list[Entry]] = {}
    for entry in listed.entries:
        beside.setdefault(split(entry.key)[0], []).append(entry)
    copies: list[str] = []
    rest: list[Steps[None]] = []
    for writer in writers:
        registry = Registry.of(beside.get(writer.chunk.side_folder, ()))
        if writer.can_leave(registry):
            copies += [staging.key_of(writer.chunk, each) for each in writer.own_generations]
            rest.append(_nothing())
        else:
            rest.append(writer.leave_registered(registry))
    if copies:
        yield from remove_copies(copies)
    return (yield from steps.run_together([attempt(each) for each in rest]))


def _nothing() -> Steps[None]:
    yield from ()


def write_marked(
    writers: Sequence[EmbeddedWriter], known: Sequence[Conditions], mark: Mark, *, checks_all: bool
) -> Steps[list[End | Failure]]:
    """Write chunks of one array whose anchors contain the other parts, and remove the mark of the batch."""
    for writer, conditions in zip(writers, known, strict=True):
        # A listing does not show whether the parts have tags.
        writer.replaces(conditions)
    pairs = zip(writers, known, strict=True)
    ended = yield from steps.run_together([attempt(writer.write_all(conditions)) for writer, conditions in pairs])
    if not writers and not mark.is_written:
        return []
    marks = yield from batch_marks.list_marks(mark.array)
    checks_all = checks_all or mark.is_old
    checked = [
        number
        for number, (writer, end) in enumerate(zip(writers, ended, strict=True))
        if end is End.COMMITTED and (checks_all or writer.is_disturbed or marks.has_note(writer.chunk, mark))
    ]
    checks = yield from steps.run_together([attempt(writers[number].check()) for number in checked])
    if useless := marks.useless(mark):
        yield from remove_copies(useless)
    failed = {number: each for number, each in zip(checked, checks, strict=True) if each is not None}
    return [failed.get(number, end) for number, end in enumerate(ended)]
