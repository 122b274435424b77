"""Conditional PUTs of obstore stores: stores that send each of them once, and the pauses between retries.

obstore retries a PUT also if it got no response. If the first attempt was carried out, the second one finds the object
changed and is refused, although the object was written, and another client may have written on top of it. So this
package retries a conditional PUT only if the failure proves that the request was not carried out.

MinIO closes some connections after it has refused a PUT. The next request on such a connection gets no response, so it
would be unknown whether it was carried out. A partial write cannot be repeated then, if another client has written on
top. So a PUT of a partial write has a connection that no other request uses at the same time, and that no PUT was
refused on. For some seconds after a refusal, each conditional PUT has a new connection, because refusals follow each
other, and a new connection takes less time than a new client.
"""

import asyncio
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from parts_store.backends.addresses import client_options_of_environment
from parts_store.backends.failures import REFUSALS

# How long connections are not kept after a refusal. Where many clients write to an object, refusals follow each other,
# on a busy machine with seconds in between.
_SECONDS_AFTER_REFUSAL: Final = 10.0
# Servers close connections that were not used for some time: MinIO after 30 seconds, others earlier.
_IDLE_TIMEOUT: Final = "4 seconds"
# How many stores send one request at a time. More partial writes at the same time have a new connection each.
_MAX_LONE: Final = 8
# The defaults of obstore.
_MAX_RETRIES: Final = 10
_RETRY_TIMEOUT: Final = timedelta(minutes=3)
_INIT_BACKOFF: Final = timedelta(milliseconds=100)
_MAX_BACKOFF: Final = timedelta(seconds=15)
_BASE: Final = 2.0
# In the text of obstore's error, before the body of the response. A key has no spaces there.
_STATUS: Final = re.compile(r" - Server returned non-2xx status code: (\d{3})")
# In the body of a response with status 503. MinIO has other codes for a PUT that it has begun to carry out.
_SLOW_DOWN: Final = "<Code>SlowDown</Code>"
# In obstore's debug text: there was no connection on which a request could have been sent.
_NOT_CONNECTED: Final = re.compile(r"HttpError \{\s+kind: Connect,")


@dataclass(slots=True)
class SingleRequests:
    """The stores on which the conditional PUTs of a backend are sent, each of them once."""

    store: Any
    # A store takes several milliseconds to make, so each is made when it is needed.
    _shared: Any = None
    _closing: Any = None
    # Stores that send one request at a time, so that each has one connection: those that send none now, and the number
    # of all of them.
    _idle: list[Any] = field(default_factory=list)
    _lone: int = 0
    _refused: float | None = None
    # The garbage collector may end the request of an abandoned task at any time, also while this thread has the lock.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def choose(self, *, is_partial: bool) -> Iterator[Any]:
        """Choose the store for a conditional PUT, of a partial write or another, which is sent in the block."""
        with self._lock:
            store, is_lone = self._take(is_partial=is_partial)
        is_answered = False
        try:
            yield store
            is_answered = True
        except REFUSALS:
            with self._lock:
                self._refused = time.monotonic()
                self._shared = None
            raise
        finally:
            if is_lone:
                with self._lock:
                    if is_answered:
                        self._idle.append(store)
                    else:
                        self._lone -= 1

    def _take(self, *, is_partial: bool) -> tuple[Any, bool]:
        """Return a store, and whether no other request uses it."""
        is_refusing = self._refused is not None and time.monotonic() - self._refused < _SECONDS_AFTER_REFUSAL
        if is_partial and not is_refusing and (self._idle or self._lone < _MAX_LONE):
            if self._idle:
                return self._idle.pop(), True
            store = without_retries(self.store, {"pool_idle_timeout": _IDLE_TIMEOUT})
            self._lone += 1
            return store, True
        if is_partial or is_refusing:
            if self._closing is None:
                self._closing = without_retries(self.store, {"pool_max_idle_per_host": "0"})
            return self._closing, False
        if self._shared is None:
            self._shared = without_retries(self.store)
        return self._shared, False


def without_retries(store: Any, client_options: Mapping[str, str] | None = None) -> Any:
    """Return a store on the same objects that makes each request once; return a store without retries unchanged.

    `client_options` are added to those of the store.
    """
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return store
    kind: Any = type(store)
    return kind(
        prefix=store.prefix,
        config=store.config,
        client_options=_client_options(store, client_options),
        retry_config={"max_retries": 0},
        credential_provider=store.credential_provider,
    )


def _client_options(store: Any, added: Mapping[str, str] | None) -> Mapping[str, Any] | None:
    """Return the options of the HTTP client; obstore ignores those of the environment if it gets any."""
    given: Mapping[str, Any] | None = store.client_options
    if added is None:
        return given
    return {**(client_options_of_environment(store) if given is None else given), **added}


def was_not_carried_out(error: Exception) -> bool:
    """Return whether an error proves that the server did nothing, and a retry can succeed."""
    if not isinstance(error, BaseError):
        return False
    text = str(error)
    status = _STATUS.search(text)
    if status is None:
        return _NOT_CONNECTED.search(text) is not None
    return status[1] == "429" or (status[1] == "503" and _SLOW_DOWN in text)


def pauses(store: Any) -> Iterator[float]:
    """Yield the seconds to wait before each retry, with the `retry_config` of a store, as obstore does."""
    given = getattr(store, "retry_config", None) or {}
    backoff = given.get("backoff") or {}
    first = backoff.get("init_backoff", _INIT_BACKOFF).total_seconds()
    longest = backoff.get("max_backoff", _MAX_BACKOFF).total_seconds()
    end = time.monotonic() + given.get("retry_timeout", _RETRY_TIMEOUT).total_seconds()
    pause = first
    for _ in range(given.get("max_retries", _MAX_RETRIES)):
        if time.monotonic() > end:
            return
        yield pause
        most = max(first, pause * backoff.get("base", _BASE))
        pause = min(longest, random.uniform(first, most))  # noqa: S311 - not for cryptography


class Clock:
    """Waits between two requests, with and without an event loop."""

    @staticmethod
    def sleep(seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    @staticmethod
    async def sleep_async(seconds: float) -> None:
        """Wait for some seconds, with an event loop."""
        await asyncio.sleep(seconds)
