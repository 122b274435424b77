"""The interface of a backend: what the executor and the store need of it."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from parts_store.engine.steps import Delete, Get, Head, List, Lock, Move, Outcome, Put, Refer
from parts_store.format.references import Reference, ReferenceTable

# How many keys one request can delete on S3 and with obstore.
MAX_BULK_DELETE = 1000
# How many keys a listing returns at once. A response of S3 has as many.
LIST_PAGE = 1000

type BackendRequest = Get | Head | Put | Refer | Delete | List | Move


class WriteIdentity(Enum):
    """How a backend identifies the write that an object belongs to; only the choice of a protocol depends on it."""

    # Objects carry tags: object stores, and memory.
    TAGS = "tags"
    # A journal beside the chunk, written under a lock: a local disk.
    JOURNAL = "journal"
    # ETags alone. The backend is read-only: plain HTTP.
    ETAGS = "etags"
    # The snapshot of an Icechunk session, and the changes made in the session.
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. Only `transactions/` and `backends/` ask; a store asks its protocol."""

    identifies_writes_by: WriteIdentity
    # A PUT can be conditional on the object that exists.
    has_conditions: bool
    # Two writes of an object never have the same ETag.
    has_unique_etags: bool
    # The operating system releases the locks of a process that ends.
    has_locks: bool = False


class Backend(Protocol):
    """A store of objects that is used with and without an event loop."""

    @property
    def has_latency(self) -> bool:
        """Return whether requests wait for a network, so that several should be sent at once."""

    async def perform(self, request: BackendRequest) -> Outcome:
        """Carry out a request; return an outcome also for an expected failure."""

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Carry out a request without an event loop."""

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """Take a lock without waiting; return a function that releases it, or None if another holder has it."""


class Place(Backend, Protocol):
    """A backend that a `PartsStore` can be opened on."""

    @property
    def capabilities(self) -> Capabilities:
        """Return what this backend can do, for the choice of a protocol."""

    @property
    def store(self) -> Any:
        """Return the object that the backend was made from, to make it again in another process."""

    @property
    def snapshot(self) -> str | None:
        """Return the version of all objects together, None if the backend has no such versions.

        The store forgets what it knows of its arrays when the version changes.
        """

    @property
    def is_settled(self) -> bool:
        """Return whether every change of an object changes its tag or its ETag."""

    @property
    def file_stamp(self) -> Callable[[str], tuple[int, ...] | None] | None:
        """Return the function that identifies the file at a key; None if objects are not files.

        The function returns None if there is no file.
        """

    def keep_lock(self, key: str, /) -> AbstractContextManager[None]:
        """Return a context manager within which a shared lock is kept from one holder to the next, if there are locks.

        It is given up as soon as another client waits for exclusive use of it.
        """

    def require_writable(self) -> None:
        """Raise if what the backend was made from cannot be written to any more."""

    def require_location(self, reference: Reference) -> None:
        """Raise if the backend would refuse a reference to an existing file."""

    async def write_node(
        self, path: str, tables: Sequence[ReferenceTable], chunks: Mapping[tuple[int, ...], bytes]
    ) -> None:
        """Write many chunks of a node at once: references, and bytes by the indexes of their chunks."""

    async def chunks_of_files(self, path: str, /) -> Mapping[str, str]:
        """Return the files that an array refers to, each with the key of one chunk in it; none if there are none."""

    def list_keys(self, folder: str, /, *, page: int = LIST_PAGE) -> AsyncIterator[Sequence[str]]:
        """Return the keys of all objects below a folder, in pages of about this many."""

    def list_sizes(self, folder: str, /) -> AsyncIterator[Mapping[str, int]]:
        """Return the keys of all objects below a folder with their sizes, in pages."""

    async def list_folder(self, folder: str, /) -> tuple[Sequence[str], Sequence[str]]:
        """Return the folders and the keys directly in a folder."""
