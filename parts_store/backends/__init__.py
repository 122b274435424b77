"""What the executor needs of a place where objects are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from parts_store.plan.rules import Means
from parts_store.plan.steps import Delete, Get, Head, List, Lock, Move, Outcome, Put

# How many keys one request can delete: what S3 takes, and obstore sends.
MAX_BULK_DELETE = 1000

type BackendRequest = Get | Head | Put | Delete | List | Move


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do."""

    # By what it tells one write from another.
    means: Means
    # A PUT can be conditional on what is there.
    has_conditions: bool
    # No ETag ever comes back.
    has_unique_etags: bool
    # A request takes its time, so that several are better made at once.
    is_remote: bool
    # Objects can be written, removed and listed.
    is_writable: bool


class Backend(Protocol):
    """A place where objects are kept, reached with and without an event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    async def perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request; what may be expected to fail is an outcome."""

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request without an event loop."""

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """Take a lock without waiting; returns what gives it back, or None if somebody holds it."""
