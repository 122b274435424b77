"""Bytes of files, through a registry of stores: only what the caller registered is ever read.

The only module of the package's manifests that reads files.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from obspec_utils.registry import ObjectStoreRegistry

from parts_store.backends.failures import failure, is_foreign
from parts_store.backends.obstore_options import without_redirects
from parts_store.errors import LocationError, StoreConfigError, raise_translated
from parts_store.manifests.checksums import change_of
from parts_store.manifests.entries import FileRange, Piece
from parts_store.manifests.fetch_plan import FetchPlan
from parts_store.options import require_count
from parts_store.redaction import hide_in_url

# A gap costs its bytes and a request its latency, which requests at once share: VirtualiZarr measured gaps of 1 MiB as
# slower than none (its PR 1033); 32 KiB take less than a request does on any network.
DEFAULT_GAP: Final = 32 << 10
DEFAULT_COALESCED: Final = 16 << 20
DEFAULT_CONCURRENCY: Final = 16

# Their paths are quoted in a URL; a key of an object store is taken as it is.
_QUOTED = ("file", "http", "https")
# What stands for itself in the path of a URL.
_UNQUOTED = "/:@!$&'()*+,;=~"

type Registries = tuple[ObjectStoreRegistry[Any], ...]


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How files are read."""

    coalesce_gap: int = DEFAULT_GAP
    coalesced_nbytes: int = DEFAULT_COALESCED
    concurrency: int = DEFAULT_CONCURRENCY

    def __post_init__(self) -> None:
        require_count("coalesce_gap", self.coalesce_gap)
        require_count("coalesced_nbytes", self.coalesced_nbytes)
        require_count("concurrency", self.concurrency, least=1)


def parse_registry(registry: Any) -> ObjectStoreRegistry[Any]:
    """The registry, which may be given as stores by their URLs."""
    if isinstance(registry, ObjectStoreRegistry):
        return registry
    if not isinstance(registry, Mapping):
        found = f"an object of type {type(registry).__name__}"
        raise StoreConfigError("registry", "an ObjectStoreRegistry, or stores by their URLs", found)
    try:
        return ObjectStoreRegistry({url: without_redirects(store) for url, store in registry.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise_translated(StoreConfigError("registry", "stores by their URLs", "something else"), error)


def shown(location: str) -> str:
    """A location as a message shows it: without a password or a signature."""
    return hide_in_url(location)


def to_url(location: str) -> str:
    """A location as Icechunk takes it: a URL, in which the key of an object is quoted."""
    scheme, _, rest = location.partition("://")
    host, slash, path = rest.partition("/")
    return location if scheme.lower() in _QUOTED else f"{scheme}://{host}{slash}{quote(path, safe=_UNQUOTED)}"


def from_url(url: str) -> str:
    """The location that a URL of Icechunk's is: with the key of an object as it is."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return url if scheme.lower() in _QUOTED else f"{scheme}://{host}{slash}{unquote(path)}"


def resolve(location: str, registries: Registries) -> tuple[Any, str]:
    """The registered store that has a file, and its key there.

    Raises `LocationError` if none has, before anything is read.
    """
    scheme, _, rest = location.partition("://")
    host, _, path = rest.partition("/")
    if scheme.lower() in ("http", "https") and ("?" in path or "#" in path):
        raise LocationError(shown(location), "expected a URL without '?' and '#', which no store of objects takes")
    plain = unquote(path) if scheme.lower() in _QUOTED else path
    if any(segment in (".", "..") for segment in [*plain.split("/"), *unquote(plain).split("/")]):
        raise LocationError(shown(location), "expected a path without '.' and '..' in it")
    urls = [f"{scheme}://{host}/{quote(spelling, safe='/%:@ ')}" for spelling in dict.fromkeys((path, plain))]
    places = [found for registry in registries if (found := _look_up(registry, urls, plain)) is not None]
    if places:
        # Arrays that were combined may be bound to registries that mean different files by one location.
        if any(store is not places[0][0] and store != places[0][0] for store, _ in places):
            problem = "expected one registered store that has it, found several; bind the array with `with_registry`"
            raise LocationError(shown(location), problem)
        return places[0]
    known = sorted({f"{key.scheme}://{key.netloc}" for registry in registries for key in registry.map})
    problem = f"expected a file in a registered store ({', '.join(map(shown, known)) or 'none'}), found another"
    raise LocationError(shown(location), problem)


def _look_up(registry: ObjectStoreRegistry[Any], urls: Sequence[str], path: str) -> tuple[Any, str] | None:
    """The store that a registry has for the first of these URLs that it knows, and the key of the file there."""
    for url in urls:
        try:
            store, _ = registry.resolve(url)
        except ValueError:
            continue
        if (key := _key_in(store, path)) is not None:
            return store, key
    return None


def _key_in(store: Any, path: str) -> str | None:
    """The key of a file in a store, None if it is outside of the store's folder, which its registry does not notice."""
    folder = getattr(store, "prefix", None)
    if isinstance(folder, Path):
        folder = folder.absolute()
    elif not folder and hasattr(store, "url"):
        folder = unquote(urlsplit(str(store.url)).path)
    above = [segment for segment in str(folder or "").split("/") if segment]
    segments = path.split("/")
    return "/".join(segments[len(above) :]) if segments[: len(above)] == above and len(segments) > len(above) else None


async def fetch(ranges: Sequence[FileRange], registries: Registries, concurrency: int) -> list[memoryview]:
    """The bytes of ranges, in their order: all of them, or an error. None is read unless all may be."""
    places = {location: resolve(location, registries) for location in {each.location for each in ranges}}
    free = asyncio.Semaphore(concurrency)

    async def one(wanted: FileRange) -> memoryview:
        async with free:
            return await _fetch_one(wanted, *places[wanted.location])

    tasks = [asyncio.ensure_future(one(each)) for each in ranges]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _fetch_one(wanted: FileRange, store: Any, key: str) -> memoryview:
    start, stop = wanted.span.start, wanted.span.stop
    try:
        found = await _get(wanted, store, key)
        data = memoryview(found).cast("B")
    except LocationError:
        raise
    except Exception as error:
        said = f": {failure('get', key, error).args[-1]}" if is_foreign(error) else ""
        problem = f"bytes {start} to {stop} could not be read: {type(error).__name__}{said}"
        raise_translated(LocationError(shown(wanted.location), problem), error)
    # Stores cut a range that goes beyond the end of a file.
    if data.nbytes != stop - start:
        problem = f"expected {stop - start} bytes from {start}, found {data.nbytes}: the file ends before"
        raise LocationError(shown(wanted.location), problem)
    return data


async def _get(wanted: FileRange, store: Any, key: str) -> Any:
    """Return bytes of a file; raise `LocationError` if it is another one than its reference knows."""
    start, stop = wanted.span.start, wanted.span.stop
    if wanted.checksum is None:
        return await store.get_range_async(key, start=start, end=stop)
    # What identifies the file comes with the bytes, so that both are of one version of it.
    answer = await store.get_async(key, options={"range": (start, stop)})
    if (problem := change_of(wanted, answer.meta)) is not None:
        raise LocationError(shown(wanted.location), problem)
    return await answer.buffer_async()


async def read_pieces(
    values: Iterable[Sequence[Piece]], registries: Registries, settings: ReadSettings
) -> list[list[memoryview]]:
    """The bytes of values, each in the pieces that it is made of, with as few requests as the settings allow."""
    wanted = [tuple(pieces) for pieces in values]
    every = (piece for pieces in wanted for piece in pieces)
    plan = FetchPlan.of(every, max_gap=settings.coalesce_gap, max_nbytes=settings.coalesced_nbytes)
    fetched = await fetch(plan.fetches, registries, settings.concurrency)
    return [[plan.cut(piece, fetched) for piece in pieces] for pieces in wanted]
