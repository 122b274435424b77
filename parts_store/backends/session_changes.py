"""The changes of an Icechunk session: which write each chunk is from, and which writes are in progress.

Icechunk does not provide this. Uses only the snapshot of the session, and whether it has uncommitted changes.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from icechunk import Session


@dataclass(slots=True)
class Writes:
    """A record of the writes to a session in this process."""

    generations: dict[str, str] = field(default_factory=dict)
    under_way: Counter[str] = field(default_factory=Counter)
    guard: threading.Lock = field(default_factory=threading.Lock)
    # The snapshot at the last check, whether it had changes, and how often all labels were replaced.
    snapshot: str = ""
    has_changes: bool = False
    discards: int = 0

    def base(self, session: Session) -> str:
        """Return the label of all chunks that were not written: the snapshot, and another label after each discard."""
        with self.guard:
            # Read under the guard, so that a write that ends at this moment is not taken for a discard.
            snapshot, has_changes = session.snapshot_id, session.has_uncommitted_changes
            if snapshot != self.snapshot:
                # Committed or rebased: the chunks are those of the new snapshot.
                self.generations.clear()
                self.snapshot, self.has_changes = snapshot, False
            elif self.has_changes and not has_changes and not self.under_way:
                self.generations.clear()
                self.discards, self.has_changes = self.discards + 1, False
            self.has_changes |= has_changes
            return f"{snapshot}, {self.discards} discarded" if self.discards else snapshot

    def label(self, key: str, base: str) -> str | None:
        """Return the label of the write that a chunk is from; None while it is being written."""
        with self.guard:
            return None if self.under_way[key] else self.generations.get(key, base)

    @contextmanager
    def writing(self, key: str, generation: str, *, or_same: bool = False) -> Iterator[None]:
        """Record that a chunk is written in this block; with `or_same`, a write that fails did not change it."""
        with self.guard:
            self.under_way[key] += 1
        is_changed = not or_same
        try:
            yield
            is_changed = True
        finally:
            with self.guard:
                if is_changed:
                    self.generations[key] = generation
                self.has_changes = True
                self.under_way[key] -= 1
                if not self.under_way[key]:
                    del self.under_way[key]

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Record that any chunks are written in this block: all chunks get another label."""
        try:
            yield
        finally:
            with self.guard:
                self.generations.clear()
                self.discards += 1
                self.has_changes = True
