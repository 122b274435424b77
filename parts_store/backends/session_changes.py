"""What was written in a session by this process: which write each chunk is, and which are under way.

Icechunk does not say. Knows of the session only which snapshot it is of, and whether anything was changed.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from icechunk import Session


@dataclass(slots=True)
class Writes:
    """Which write every chunk is that was changed in this process; those under way are no write yet."""

    generations: dict[str, str] = field(default_factory=dict)
    under_way: Counter[str] = field(default_factory=Counter)
    guard: threading.Lock = field(default_factory=threading.Lock)
    # The snapshot when it was last looked at, whether anything was changed since, and how often that was discarded.
    snapshot: str = ""
    has_changes: bool = False
    discards: int = 0

    def base(self, session: Session) -> str:
        """What everything is that was not written since: the snapshot, and another one after each discard."""
        with self.guard:
            # Looked at here: a write that ends between the look and the guard is no discard.
            snapshot, has_changes = session.snapshot_id, session.has_uncommitted_changes
            if snapshot != self.snapshot:
                # Committed or rebased: what was written here is in the snapshot, or somebody else's is.
                self.generations.clear()
                self.snapshot, self.has_changes = snapshot, False
            elif self.has_changes and not has_changes and not self.under_way:
                self.generations.clear()
                self.discards, self.has_changes = self.discards + 1, False
            self.has_changes |= has_changes
            return f"{snapshot}, {self.discards} discarded" if self.discards else snapshot

    def label(self, key: str, base: str) -> str | None:
        """The write that a chunk is; None while it is being written."""
        with self.guard:
            return None if self.under_way[key] else self.generations.get(key, base)

    @contextmanager
    def writing(self, key: str, generation: str, *, or_same: bool = False) -> Iterator[None]:
        """Change a chunk. However it ends, it is not what it was; `or_same`, unless it fails."""
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
