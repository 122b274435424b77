"""Backends that break: at any one of their requests, carried out or not; and what is stored, read without parts_store.

A crash is an exception that nothing catches, after which nothing more is carried out. What is to be cancelled comes to
no end until it is released. An interrupt is the signal itself.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import md5
from pathlib import Path
from typing import Any, Never

import obstore
from obstore.exceptions import GenericError

from parts_store import PartsStore
from parts_store.engine.backend import BackendRequest, Capabilities, Place
from parts_store.engine.steps import Found, IfMatch, Lock, Lost, Outcome, Put, Refused
from parts_store.maintenance.report import Report


class Crash(BaseException):
    """The process ends here."""


class How(Enum):
    """What becomes of the request at which it breaks, and of those that were sent together with it but after it."""

    # It does not arrive, nor do they.
    NOTHING_ARRIVES = "nothing arrives"
    # The request is carried out, but its response is lost; or the requests do not arrive.
    IT_ARRIVES = "it arrives"
    # It does not arrive, but they do.
    THE_REST_ARRIVES = "the rest arrives"
    # It arrives, but only when everybody has forgotten it; the rest does not.
    IT_ARRIVES_LATE = "it arrives late"


@dataclass
class Breaking:
    """A backend that breaks at one request: the `at`-th, counted from 0, or the first of which `at` says so."""

    inner: Any
    at: int | Callable[[Any], bool] | None = None
    how: How = How.NOTHING_ARRIVES
    # Whether the request at which it breaks waits to be released, instead of a crash.
    hangs: bool = False
    # Whether it is interrupted, as by Ctrl-C, instead of a crash.
    interrupts: bool = False
    # Every request so far.
    seen: list[BackendRequest | Lock] = field(default_factory=list)
    is_dead: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    late: list[BackendRequest] = field(default_factory=list)
    _under_way: int = 0
    _sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def capabilities(self) -> Capabilities:
        found: Capabilities = self.inner.capabilities
        return found

    @property
    def has_latency(self) -> bool:
        found: bool = self.inner.has_latency
        return found

    def _is_here(self, request: Any) -> bool:
        with self._lock:
            if self.is_dead and not self.interrupts:
                raise Crash
            number = len(self.seen)
            self.seen.append(request)
            is_here = number == self.at if isinstance(self.at, int) else self.at is not None and self.at(request)
            if self.interrupts and is_here:
                self.is_dead, self.at = True, None
            return is_here

    async def perform(self, request: BackendRequest) -> Outcome:
        is_here = self._is_here(request)
        self._under_way += 1
        try:
            # All that is sent together is on its way before anything arrives.
            await asyncio.sleep(0)
            if is_here:
                self.is_dead = True
                await self._break(request)
            if self.is_dead and self.how is not How.THE_REST_ARRIVES:
                await self._end()
            return await self._send(request)
        finally:
            self._under_way -= 1

    async def _send(self, request: BackendRequest) -> Outcome:
        self._sent += 1
        try:
            outcome: Outcome = await self.inner.perform(request)
            return outcome
        finally:
            self._sent -= 1

    async def _break(self, request: BackendRequest) -> None:
        if self.how is How.IT_ARRIVES:
            # MinIO closes connections after a refusal, and what comes next does not arrive: then it is sent again.
            while isinstance(await self.inner.perform(request), Lost):
                pass
        elif self.how is How.IT_ARRIVES_LATE:
            self.late.append(request)
        await self._end()

    async def _end(self) -> None:
        if self.hangs:
            # Until the other requests have arrived, which no response confirms.
            while self.how is How.THE_REST_ARRIVES and self._under_way > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            # Only this request is late. What was sent before it is not under way any more when the test goes on.
            while self.how is How.IT_ARRIVES_LATE and self._sent:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            self.reached.set()
            await self.released.wait()
            raise asyncio.CancelledError
        raise Crash

    def perform_sync(self, request: BackendRequest) -> Outcome:
        if self._is_here(request):
            self.is_dead = True
            while self.how is How.IT_ARRIVES and isinstance(self.inner.perform_sync(request), Lost):
                pass
            self._stop()
        outcome: Outcome = self.inner.perform_sync(request)
        return outcome

    def _stop(self) -> Never:
        if self.interrupts:
            # To the main thread, whichever this is: it waits for this one, or is this one.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        raise Crash

    def require_writable(self) -> None:
        self.inner.require_writable()

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        if self._is_here(lock):
            self.is_dead = True
            if self.how is How.IT_ARRIVES and (release := self.inner.lock(lock)) is not None:
                self._release(release, lock)
            self._stop()
        found: Callable[[], None] | None = self.inner.lock(lock)
        return None if found is None else lambda: self._release(found, lock)

    def _release(self, release: Callable[[], None], lock: Lock) -> None:
        """Release a lock; if the process ends, leave the file, as the kernel does. The lock of a chunk has no file."""
        release()
        if self.is_dead and lock.shared is None and not (self.hangs or self.interrupts):
            path = Path(self.inner.store.prefix, lock.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    async def deliver(self) -> None:
        """Let arrive what was late."""
        for request in self.late:
            await self.inner.perform(request)
        self.late.clear()
        self.released.set()


class ContentEtags:
    """Objects in memory whose ETags are digests of their bytes, as on S3, and so come back."""

    def __init__(self, inner: Place) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.store = inner.store
        self.capabilities = replace(inner.capabilities, has_unique_etags=False)
        self.has_latency = inner.has_latency

    async def perform(self, request: BackendRequest) -> Outcome:
        # Without an await in it, it happens at once.
        return self.perform_sync(request)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        with self._lock:
            if isinstance(request, Put) and isinstance(request.condition, IfMatch):
                if self._digest(request.key) != request.condition.etag:
                    return Refused()
                etag = obstore.head(self.store, request.key)["e_tag"]
                return self._inner.perform_sync(replace(request, condition=IfMatch(etag, None)))
            outcome = self._inner.perform_sync(request)
            if isinstance(outcome, Found):
                return replace(outcome, etag=self._digest(getattr(request, "key", "")), version=None)
            return outcome

    def _digest(self, key: str) -> str | None:
        try:
            return md5(bytes(obstore.get(self.store, key).bytes()), usedforsecurity=False).hexdigest()
        except FileNotFoundError:
            return None

    def require_writable(self) -> None:
        self._inner.require_writable()

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        raise TypeError(lock)


def read_plainly(objects: Any, chunk_key: str, suffixes: Sequence[str]) -> bytes | None:
    """Read a chunk as any other program does: the objects at its key with each suffix, in order.

    None if there is none, by its main object.
    """
    parts: list[bytes | None] = []
    for suffix in suffixes:
        try:
            parts.append(bytes(obstore.get(objects, chunk_key + suffix).bytes()))
        except FileNotFoundError:
            parts.append(None)
    if parts[suffixes.index("")] is None:
        return None
    whole = [part for part in parts if part is not None]
    if len(whole) < len(parts):
        raise ValueError(f"{chunk_key!r} is torn: {parts}")
    return b"".join(whole)


def remove_plainly(objects: Any, keys: Sequence[str]) -> None:
    """Remove objects; MinIO closes connections after a refusal, so that the next request may have to be repeated."""
    for _ in range(10):
        with contextlib.suppress(GenericError):
            obstore.delete(objects, keys)
            return
    raise TimeoutError(keys)


def repair(store: PartsStore, prefix: str = "") -> Report:
    """Repair; repeat it if a request got no response."""
    report = store.repair(prefix, min_age=0)
    return report if report.is_clean else store.repair(prefix, min_age=0)


def keys_of(objects: Any, folder: str) -> set[str]:
    """Return the keys of all objects below a folder, on a local disk also of files that obstore hides."""
    root = getattr(objects, "prefix", None)
    if isinstance(root, Path):
        return {path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.is_file()}
    return {each["path"] for batch in obstore.list(objects, prefix=folder) for each in batch}
