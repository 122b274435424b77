"""What the executor needs of a place where objects are kept."""

from dataclasses import dataclass
from typing import Protocol

from parts_store.plan.steps import Delete, Get, Head, Outcome, Put

# How many keys one request can delete: what S3 takes, and obstore sends.
MAX_BULK_DELETE = 1000


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do."""

    # Objects carry user metadata, and give it back with every read.
    has_tags: bool
    # A request takes its time, so that several are better made at once.
    is_remote: bool
    # Objects can be written, removed and listed.
    is_writable: bool


class Backend(Protocol):
    """A place where objects are kept, reached with and without an event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    async def perform(self, request: Get | Head | Put | Delete) -> Outcome:
        """Carry out a request; what may be expected to fail is an outcome."""

    def perform_sync(self, request: Get | Head | Put | Delete) -> Outcome:
        """Carry out a request without an event loop."""
