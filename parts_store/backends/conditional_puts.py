"""Conditional PUTs of obstore stores: stores that send each of them once, and the pauses between retries.

obstore retries a PUT also if it got no response. If the first attempt was carried out, the second one finds the object
changed and is refused, although the object was written, and another client may have written on top of it. So this
package retries a conditional PUT only if the failure proves that the request was not carried out.

MinIO closes some connections after it has refused a PUT. The next request on such a connection gets no response, so it
would be unknown whether it was carried out. So for some seconds after a refusal, each conditional PUT has a connection
of its own, and the connections from before are not used any more.
"""

import asyncio
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from parts_store.backends.obstore_options import client_options_of_environment

# How long connections are not kept after a refusal. Where many clients write to an object, refusals follow each other,
# on a busy machine with seconds in between.
_SECONDS_AFTER_REFUSAL: Final = 10.0
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
    _keeping: Any = None
    _closing: Any = None
    _refused: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self) -> Any:
        """Return the store for the next conditional PUT."""
        with self._lock:
            if self._refused is not None and time.monotonic() - self._refused < _SECONDS_AFTER_REFUSAL:
                if self._closing is None:
                    self._closing = without_retries(self.store, keeps_connections=False)
                return self._closing
            if self._keeping is None:
                self._keeping = without_retries(self.store)
            return self._keeping

    def record_refusal(self) -> None:
        """Stop using the connections that are kept, because the server may be about to close one of them."""
        with self._lock:
            self._refused = time.monotonic()
            self._keeping = None


def without_retries(store: Any, *, keeps_connections: bool = True) -> Any:
    """Return a store on the same objects that makes each request once; return a store without retries unchanged."""
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return store
    kind: Any = type(store)
    return kind(
        prefix=store.prefix,
        config=store.config,
        client_options=store.client_options if keeps_connections else _without_pool(store),
        retry_config={"max_retries": 0},
        credential_provider=store.credential_provider,
    )


def _without_pool(store: Any) -> dict[str, Any]:
    """Return options of a client that uses each connection once; obstore ignores the environment if it gets options."""
    given: Mapping[str, Any] | None = store.client_options
    return {**(client_options_of_environment(store) if given is None else given), "pool_max_idle_per_host": "0"}


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
