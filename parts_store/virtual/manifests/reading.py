"""Read the pieces of chunks from files, as requests that the engine carries out."""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from zarr import AsyncArray
from zarr.abc.buffer import Buffer
from zarr.abc.store import RangeByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore, StorePath

from parts_store._compat.zarr import sync
from parts_store.errors import LocationError
from parts_store.redaction import hide_in_url
from parts_store.virtual.manifests.entries import Checksum, FileRange, Piece
from parts_store.virtual.manifests.references import References, edges_of
from parts_store.virtual.registries import Registries, find_store
from parts_store.virtual.store_access import (
    Found,
    Get,
    Missing,
    Outcome,
    RegisteredFiles,
    Span,
    Stats,
    Steps,
    coalesce,
    parse_count,
    run,
    with_checks,
)

# VirtualiZarr measured gaps of 1 MiB as slower than none (its PR 1033). Reading 32 KiB takes less time than a request
# on any network.
DEFAULT_GAP: Final = 32 << 10
DEFAULT_COALESCED: Final = 16 << 20
DEFAULT_CONCURRENCY: Final = 16

# What web servers report for a file when they do not know its time.
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

type _File = tuple[str, Checksum | None]
"""A file and its checksum. Ranges with different checksums of one file are not read together."""


@dataclass(frozen=True, slots=True)
class ReferenceReadSettings:
    """How ranges of files are coalesced, and how many requests are made at the same time."""

    coalesce_gap: int = DEFAULT_GAP
    coalesced_nbytes: int = DEFAULT_COALESCED
    concurrency: int = DEFAULT_CONCURRENCY

    def __post_init__(self) -> None:
        parse_count("coalesce_gap", self.coalesce_gap)
        parse_count("coalesced_nbytes", self.coalesced_nbytes)
        parse_count("concurrency", self.concurrency, least=1)


@dataclass(frozen=True, slots=True)
class FileContents:
    """The bytes of ranges of a file, which are sorted, and where each of them starts."""

    starts: Sequence[int]
    data: Sequence[memoryview]

    def cut(self, span: Span) -> memoryview:
        """Return the bytes of a span inside one of the ranges: the last one that does not begin after the span."""
        number = bisect_right(self.starts, span.start) - 1
        start = span.start - self.starts[number]
        return self.data[number][start : start + span.nbytes]


def plan_ranges(pieces: Iterable[Piece], *, max_gap: int, max_nbytes: int) -> dict[_File, tuple[Span, ...]]:
    """Return sorted ranges of files that contain all pieces; those with at most `max_gap` bytes between are merged."""
    wanted: dict[_File, set[Span]] = {}
    for piece in pieces:
        if isinstance(piece, FileRange):
            wanted.setdefault((piece.location, piece.checksum), set()).add(piece.span)
    return {file: coalesce(spans, max_gap=max_gap, max_nbytes=max_nbytes) for file, spans in wanted.items()}


def _read(ranges: Mapping[_File, Sequence[Span]]) -> Steps[dict[_File, FileContents]]:
    """Read ranges of files; raise `LocationError` if a file is missing, too short, or was changed."""
    wanted = [FileRange(location, span, checksum) for (location, checksum), spans in ranges.items() for span in spans]
    gets = tuple(
        Get(part.location, RangeByteRequest(part.span.start, part.span.stop), "range of a referenced file")
        for part in wanted
    )
    outcomes = (yield gets) if gets else ()
    found = iter([_content(part, outcome) for part, outcome in zip(wanted, outcomes, strict=True)])
    return {
        file: FileContents([span.start for span in spans], [next(found) for _ in spans])
        for file, spans in ranges.items()
    }


def _content(wanted: FileRange, outcome: Outcome) -> memoryview:
    """Return the bytes of a range; raise `LocationError` unless all of them are there, in an unchanged file."""
    start, stop = wanted.span.start, wanted.span.stop
    if not isinstance(outcome, Found):
        found = "no such file" if isinstance(outcome, Missing) else "that the file ends before"
        raise LocationError(hide_in_url(wanted.location), f"expected bytes {start} to {stop}, found {found}")
    data = memoryview(outcome.data)
    problem = change_of(wanted, outcome)
    # Stores cut off a range that extends beyond the end of the file.
    if problem is None and data.nbytes != wanted.nbytes:
        problem = f"expected {wanted.nbytes} bytes from {start}, found {data.nbytes}: the file ends before"
    if problem is not None:
        raise LocationError(hide_in_url(wanted.location), problem)
    return data


def change_of(wanted: FileRange, found: Found) -> str | None:
    """Return how a file differs from its checksum, given what came with its bytes; None if it does not differ."""
    match wanted.checksum:
        case str(expected):
            if found.etag is None:
                return f"expected the ETag {expected}, but the store reports none"
            if _bare(found.etag) != _bare(expected):
                return f"the file was changed: expected the ETag {expected}, found {found.etag}"
        case datetime() as expected:
            modified = found.modified
            is_unknown = modified == _EPOCH and wanted.location.startswith(("http://", "https://"))
            if modified is None or is_unknown:
                return f"expected a file not modified after {expected}, but the store reports no time"
            if modified > expected:
                return f"the file was changed: expected it not to be modified after {expected}, found {modified}"
    return None


def _bare(etag: str) -> str:
    """Return an ETag without the marks that listings and servers write differently."""
    return etag.removeprefix("W/").strip('"')


async def read_pieces(
    values: Iterable[Sequence[Piece]], registries: Registries, settings: ReferenceReadSettings
) -> list[list[memoryview]]:
    """Return the bytes of each value, in pieces, with as few requests as the settings allow.

    Nothing is read unless registered stores cover all files.
    """
    wanted = [tuple(pieces) for pieces in values]
    pieces = (piece for value in wanted for piece in value)
    ranges = plan_ranges(pieces, max_gap=settings.coalesce_gap, max_nbytes=settings.coalesced_nbytes)
    files = RegisteredFiles({location: find_store(location, registries) for location, _ in ranges})
    contents = await run(_read(ranges), files, Stats(), at_once=settings.concurrency)

    def cut(piece: Piece) -> memoryview:
        if isinstance(piece, bytes):
            return memoryview(piece)
        return contents[piece.location, piece.checksum].cut(piece.span)

    return [[cut(piece) for piece in value] for value in wanted]


def join_bytes(pieces: Sequence[memoryview]) -> memoryview:
    """Return the bytes of all pieces; a single piece is not copied."""
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


async def load_all(
    arrays: Sequence[References], registries: Registries, settings: ReferenceReadSettings
) -> list[NDArray[Any]]:
    """Return the values of arrays: all chunks of all of them are read at the same time, then decoded by zarr."""
    places = [list(array.all_pieces()) for array in arrays]
    wanted = [pieces for chunks in places for _, pieces in chunks]
    contents = iter(await read_pieces(wanted, registries, settings))
    return [
        await _decode(array, {index: join_bytes(next(contents)) for index, _ in chunks})
        for array, chunks in zip(arrays, places, strict=True)
    ]


async def _decode(array: References, chunks: Mapping[tuple[int, ...], memoryview]) -> NDArray[Any]:
    """Return the values of an array, given the bytes of its chunks."""
    if len(chunks) == 1 and _is_plain(array):
        (data,) = chunks.values()
        return np.frombuffer(data, array.stored_dtype).reshape(array.metadata.shape).astype(array.dtype)
    buffer = default_buffer_prototype().buffer
    stored: dict[str, Buffer] = {
        array.metadata.encode_chunk_key(index): buffer.from_bytes(data) for index, data in chunks.items()
    }
    metadata = replace(array.metadata, codecs=with_checks(array.metadata.codecs))
    store = StorePath(MemoryStore(stored, read_only=True))
    opened: AsyncArray[Any] = AsyncArray(metadata=metadata, store_path=store)
    return np.asarray(await opened.getitem(...))


def _is_plain(array: References) -> bool:
    """Return whether an array is one chunk of plain numbers."""
    has_bytes_only = len(array.metadata.codecs) == 1 and isinstance(array.metadata.codecs[0], BytesCodec)
    is_one_chunk = edges_of(array.metadata) == tuple((length,) for length in array.metadata.shape)
    return has_bytes_only and is_one_chunk and array.dtype.kind in "biufc"


def carry_out[T](work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine; in an event loop, which must not be blocked, run it in a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return sync(work)
    future: Future[T] = Future()

    def run_apart() -> None:
        try:
            future.set_result(asyncio.run(work))
        # The thread that waits raises it.
        except BaseException as error:
            future.set_exception(error)

    # Not a thread of a pool: Python waits for those at its end, also if a server does not respond.
    threading.Thread(target=run_apart, name="parts_store_load", daemon=True).start()
    return future.result()
