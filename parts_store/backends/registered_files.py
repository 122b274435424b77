"""The backend for files in several stores: the key of a request is the URL of a file. Files are only read.

Any store with obspec's methods will do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Never

from zarr.abc.store import RangeByteRequest

from parts_store.backends.addresses import secrets_of
from parts_store.backends.failures import failure, is_foreign, is_panic, outcome_of
from parts_store.engine.backend import BackendRequest
from parts_store.engine.steps import Found, Get, Lock, Outcome
from parts_store.errors import LocationError, raise_translated
from parts_store.format.layout import Span
from parts_store.redaction import hide_in_url


@dataclass(frozen=True, slots=True)
class RegisteredFiles:
    """A backend that reads a fixed set of files, each of them in a store of its own."""

    has_latency: ClassVar[bool] = True

    # The store and the key of each file, by the URL of the file.
    places: Mapping[str, tuple[Any, str]]

    async def perform(self, request: BackendRequest) -> Outcome:
        """Read a range of a file; raise `LocationError` if the store cannot be reached or refuses."""
        if not isinstance(request, Get) or not isinstance(request.wanted, RangeByteRequest):
            _refuse(request)
        store, key = self.places[request.key]
        try:
            return await _read(request, request.wanted, store, key)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise_translated(_unreadable(request.key, error, store), error)

    def perform_sync(self, request: BackendRequest) -> Outcome:
        """Refuse: files are read with an event loop only."""
        _refuse(request)

    def lock(self, lock: Lock) -> Callable[[], None] | None:
        """Refuse: files that are only read need no locks."""
        _refuse(lock)


def _refuse(request: BackendRequest | Lock) -> Never:
    raise TypeError(f"registered files can only be read, with an event loop: {request}")


async def _read(request: Get, wanted: RangeByteRequest, store: Any, key: str) -> Outcome:
    try:
        response = await store.get_async(key, options={"range": (wanted.start, wanted.end)})
        meta, data = response.meta, memoryview(await response.buffer_async()).cast("B")
        return Found(
            data, Span(*response.range), meta["size"], meta["e_tag"], meta["version"], None, meta["last_modified"]
        )
    except Exception as error:
        return outcome_of(request, error, lambda: secrets_of(store))


def _unreadable(location: str, error: BaseException, store: Any) -> LocationError:
    reason = type(error).__name__
    if is_foreign(error):
        reason += f": {failure('get', location, error, secrets_of(store)).args[-1]}"
    return LocationError(hide_in_url(location), f"the file could not be read: {reason}")
