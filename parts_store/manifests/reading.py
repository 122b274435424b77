"""Read the pieces of chunks from files, as requests that the engine carries out."""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from zarr import AsyncArray
from zarr.abc.buffer import Buffer
from zarr.abc.store import RangeByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore, StorePath

from parts_store._compat.zarr import ArrayV3Metadata, sync
from parts_store.backends.registered_files import RegisteredFiles, Registries
from parts_store.engine.coalesce import coalesce
from parts_store.engine.executor import run
from parts_store.engine.stats import Stats
from parts_store.engine.steps import Found, Get, Missing, Outcome, Steps
from parts_store.errors import LocationError
from parts_store.format.metadata import with_checks
from parts_store.format.ranges import Span
from parts_store.manifests.array_references import References, document_of
from parts_store.manifests.checksums import change_of
from parts_store.manifests.pieces import Checksum, FileRange, Piece
from parts_store.options import parse_count
from parts_store.redaction import hide_in_url

# VirtualiZarr measured gaps of 1 MiB as slower than none (its PR 1033). Reading 32 KiB takes less time than a request
# on any network.
DEFAULT_GAP: Final = 32 << 10
DEFAULT_COALESCED: Final = 16 << 20
DEFAULT_CONCURRENCY: Final = 16

type _File = tuple[str, Checksum | None]
"""A file and its checksum. Ranges with different checksums of one file are not read together."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How ranges of files are coalesced, and how many requests are made at the same time."""

    coalesce_gap: int = DEFAULT_GAP
    coalesced_nbytes: int = DEFAULT_COALESCED
    concurrency: int = DEFAULT_CONCURRENCY

    def __post_init__(self) -> None:
        parse_count("coalesce_gap", self.coalesce_gap)
        parse_count("coalesced_nbytes", self.coalesced_nbytes)
        parse_count("concurrency", self.concurrency, least=1)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Ranges of files that together contain all pieces that are wanted, sorted within each file."""

    ranges: tuple[FileRange, ...]
    _starts: Mapping[_File, list[int]] = field(repr=False)
    _firsts: Mapping[_File, int] = field(repr=False)

    @classmethod
    def of(cls, pieces: Iterable[Piece], *, max_gap: int, max_nbytes: int) -> "ReadPlan":
        """Return the plan for these pieces; ranges of a file with at most `max_gap` bytes between them are merged."""
        wanted: dict[_File, set[Span]] = {}
        for piece in pieces:
            if isinstance(piece, FileRange) and piece.nbytes:
                wanted.setdefault((piece.location, piece.checksum), set()).add(piece.span)
        ranges: list[FileRange] = []
        starts, firsts = {}, {}
        for file, spans in wanted.items():
            merged = coalesce(spans, max_gap=max_gap, max_nbytes=max_nbytes)
            starts[file], firsts[file] = [span.start for span in merged], len(ranges)
            location, checksum = file
            ranges += [FileRange(location, span, checksum) for span in merged]
        return cls(tuple(ranges), starts, firsts)

    def read(self) -> Steps[tuple[memoryview, ...]]:
        """Read all ranges; raise `LocationError` if a file is missing, too short, or was changed."""
        gets = [
            Get(each.location, RangeByteRequest(each.span.start, each.span.stop), "range of a referenced file")
            for each in self.ranges
        ]
        outcomes = (yield tuple(gets)) if gets else ()
        return tuple(map(_content, self.ranges, outcomes))

    def cut(self, piece: Piece, contents: Sequence[memoryview]) -> memoryview:
        """Return the bytes of a piece, given the bytes of all ranges."""
        if isinstance(piece, bytes):
            return memoryview(piece)
        if not piece.nbytes:
            return memoryview(b"")
        # The spans are sorted: the last one that does not begin after the piece contains it.
        file = (piece.location, piece.checksum)
        number = self._firsts[file] + bisect_right(self._starts[file], piece.span.start) - 1
        start = piece.span.start - self.ranges[number].span.start
        return contents[number][start : start + piece.nbytes]


def _content(wanted: FileRange, outcome: Outcome) -> memoryview:
    """Return the bytes of a range; raise `LocationError` unless all of them are there, in an unchanged file."""
    if (problem := _problem_of(wanted, outcome)) is not None:
        raise LocationError(hide_in_url(wanted.location), problem)
    return memoryview(cast("Found", outcome).data)


def _problem_of(wanted: FileRange, outcome: Outcome) -> str | None:
    start, stop = wanted.span.start, wanted.span.stop
    if not isinstance(outcome, Found):
        found = "no such file" if isinstance(outcome, Missing) else "that the file ends before"
        return f"expected bytes {start} to {stop}, found {found}"
    if (change := change_of(wanted, outcome)) is not None:
        return change
    # Stores cut off a range that extends beyond the end of the file.
    nbytes = memoryview(outcome.data).nbytes
    if nbytes != wanted.nbytes:
        return f"expected {wanted.nbytes} bytes from {start}, found {nbytes}: the file ends before"
    return None


async def read_pieces(
    values: Iterable[Sequence[Piece]], registries: Registries, settings: ReadSettings
) -> list[list[memoryview]]:
    """Return the bytes of each value, in pieces, with as few requests as the settings allow.

    Nothing is read unless registered stores cover all files.
    """
    wanted = [tuple(pieces) for pieces in values]
    pieces = (piece for value in wanted for piece in value)
    plan = ReadPlan.of(pieces, max_gap=settings.coalesce_gap, max_nbytes=settings.coalesced_nbytes)
    files = RegisteredFiles.locate((each.location for each in plan.ranges), registries)
    contents = await run(plan.read(), files, Stats(), at_once=settings.concurrency)
    return [[plan.cut(piece, contents) for piece in value] for value in wanted]


def join_bytes(pieces: Sequence[memoryview]) -> memoryview:
    """Return the bytes of all pieces; a single piece is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return memoryview(b"")
    return memoryview(np.concatenate([np.frombuffer(each, "B") for each in pieces]))


async def load(array: References, registries: Registries, settings: ReadSettings) -> NDArray[Any]:
    """Return the values of an array: all chunks are read at the same time, then decoded by zarr."""
    (values,) = await load_all([array], registries, settings)
    return values


async def load_all(arrays: Sequence[References], registries: Registries, settings: ReadSettings) -> list[NDArray[Any]]:
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
    plain = _plain_type(array)
    if plain is not None and len(chunks) == 1:
        (data,) = chunks.values()
        return np.frombuffer(data, plain).reshape(array.metadata.shape).astype(array.dtype)
    buffer = default_buffer_prototype().buffer
    stored: dict[str, Buffer] = {
        array.metadata.encode_chunk_key(index): buffer.from_bytes(data) for index, data in chunks.items()
    }
    store = StorePath(MemoryStore(stored, read_only=True))
    opened: AsyncArray[Any] = AsyncArray(metadata=_with_checks(array.metadata), store_path=store)
    return np.asarray(await opened.getitem(...))


def _with_checks(metadata: ArrayV3Metadata) -> ArrayV3Metadata:
    """Return the metadata of an array, with codecs that notice chunks that were cut off."""
    document: dict[str, Any] = {"codecs": [codec.to_dict() for codec in metadata.codecs]}
    checked = with_checks(document)
    return metadata if checked == document else ArrayV3Metadata.from_dict(document_of(metadata) | checked)


def _plain_type(array: References) -> np.dtype[Any] | None:
    """Return the data type in a file of an array that is one chunk of plain numbers; None for other arrays."""
    codecs = array.metadata.codecs
    if array.chunk_shape != array.metadata.shape or array.dtype.kind not in "biufc":
        return None
    match codecs:
        case (BytesCodec(endian=endian),):
            return array.dtype.newbyteorder(">" if str(getattr(endian, "value", endian)) == "big" else "<")
        case _:
            return None


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
