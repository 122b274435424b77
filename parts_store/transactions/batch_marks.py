r"""The mark of a batch: one object that shows which chunks of an array are written together, while they are written.

The writers of a batch do not look at every chunk again after they have written it. They rely on this:

- A batch has its mark before it writes anything, and until all its requests are answered.
- A client that finds parts of several writes, and may have the anchor of a batch before it, leaves a note beside the
  mark before it writes anything. When a batch has written everything, it looks for notes, and checks these chunks.
- A batch that finds the mark of another batch with some of its chunks writes these chunks one by one.

Readers need neither marks nor notes. A batch that takes so long that its mark may have been removed checks all chunks.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from parts_store.engine import steps
from parts_store.engine.steps import Entry, Found, Get, List, Listed, Steps
from parts_store.format.keys import PROTOCOL_FOLDER, Chunk, join, split
from parts_store.transactions.staging import FORGOTTEN_AFTER, MAX_STALL

_NAME: Final = "batches"
_WHY: Final = "which chunks are written together"


def marks_folder(array: str) -> str:
    """Return the folder of the marks of an array."""
    return join(array, f"{PROTOCOL_FOLDER}/{_NAME}")


def mark_key(array: str, generation: str) -> str:
    """Return the key of the mark of a batch."""
    return f"{marks_folder(array)}/{generation}"


def note_key(chunk: Chunk, generation: str) -> str:
    """Return the key of the note that a chunk of a batch may have been written by another client."""
    return f"{mark_key(chunk.array, generation)}.{split(chunk.side_folder)[1]}"


@dataclass(slots=True)
class Mark:
    """The mark of a batch of this client."""

    array: str
    # The generation of all chunks of the batch.
    generation: str
    # Tells the seconds since the batch began.
    watch: Callable[[], float]
    # Whether a request for the mark was made.
    is_written: bool = False

    @property
    def key(self) -> str:
        """Return the key of the mark."""
        return mark_key(self.array, self.generation)

    @property
    def is_old(self) -> bool:
        """Return whether the mark may have been removed as that of a dead writer."""
        return self.watch() > MAX_STALL


def register(chunks: Sequence[Chunk], mark: Mark) -> Steps[set[str]]:
    """Write the mark of a batch, and return the keys of those chunks that other batches may be writing, too."""
    body = json.dumps({"chunks": [chunk.relative for chunk in chunks]}).encode()
    mark.is_written = True
    _, marks = yield from steps.run_together([_put_mark(mark.key, body), list_marks(mark.array)])
    others = [name for name in marks.generations if name != mark.generation]
    outcomes = (yield tuple(Get(mark_key(mark.array, name), None, _WHY) for name in others)) if others else ()
    shared: set[str] = set()
    for outcome in outcomes:
        # A mark that does not exist any more is that of a batch that has ended.
        if isinstance(outcome, Found):
            named = _chunks_of(outcome)
            shared |= {chunk.chunk_key for chunk in chunks if named is None or chunk.relative in named}
    return shared


def _put_mark(key: str, body: bytes) -> Steps["Marks"]:
    yield from _put(key, body)
    return Marks({})


def _put(key: str, body: bytes) -> Steps[None]:
    """Write a mark or a note; raise if the store never confirms it, because then nothing else must be written."""
    outcome: steps.Outcome = steps.Missing()
    for repeat in range(steps.MAX_TRIES):
        if repeat:
            yield (steps.Wait(repeat),)
        (outcome,) = yield (steps.Put(key, body, None, None, _WHY),)
        if isinstance(outcome, steps.Done):
            return
    raise outcome.error if isinstance(outcome, steps.Lost) else TypeError(f"a write was answered with {outcome}")


def _chunks_of(mark: Found) -> set[str] | None:
    """Return the keys of the chunks of a batch relative to their array; None if the mark does not say."""
    try:
        named = json.loads(bytes(memoryview(mark.data)))["chunks"]
        return set(named) if isinstance(named, list) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of batches, and the notes beside them, in a listing."""

    entries: dict[str, Entry]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Marks":
        """Return what a listing shows."""
        return cls({split(entry.key)[1]: entry for entry in entries})

    @property
    def generations(self) -> tuple[str, ...]:
        """Return the generations of the batches that have a mark."""
        return tuple(name for name in self.entries if "." not in name)

    def has_note(self, chunk: Chunk, mark: Mark) -> bool:
        """Return whether another client may have written a chunk of a batch."""
        return split(note_key(chunk, mark.generation))[1] in self.entries

    def useless(self, mark: Mark) -> list[str]:
        """Return the keys of the mark of a batch that has ended, of those of dead batches, and of their notes."""
        kept = {name for name in self.generations if name != mark.generation and not self._is_dead(name, mark)}
        return [entry.key for name, entry in self.entries.items() if name.partition(".")[0] not in kept]

    def _is_dead(self, name: str, mark: Mark) -> bool:
        """Return whether a mark is much older than another one, by the clock of the store."""
        newer = self.entries.get(mark.generation)
        return newer is not None and newer.modified - self.entries[name].modified > FORGOTTEN_AFTER


def list_marks(array: str) -> Steps[Marks]:
    """Return the marks and notes of an array."""
    (listed,) = yield (List(marks_folder(array), _WHY),)
    if not isinstance(listed, Listed):
        raise TypeError(f"a listing was answered with {listed}")
    return Marks.of(listed.entries)


def leave_note(chunk: Chunk, generation: str | None) -> Steps[None]:
    """Tell the batch with this generation that one of its chunks is written; without a generation, tell all batches."""
    marks = yield from list_marks(chunk.array)
    for name in marks.generations:
        if generation in (None, name):
            yield from _put(note_key(chunk, name), b"")
