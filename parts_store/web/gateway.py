"""Plain Zarr over HTTP: what a store shows to zarr, read-only, with byte ranges and ETags."""

import asyncio
import logging
import re
import unicodedata
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.errors import ConcurrentWriteError
from parts_store.format.keys import DOCUMENT, split
from parts_store.redaction import hide_secrets
from parts_store.store.operations import VersionedValue
from parts_store.store.store import PartsStore
from parts_store.web.hierarchy import Hierarchy

LOG: Final = logging.getLogger("parts_store.serve")
# A value is read and sent in pieces, so that a slow client keeps no more than one of them in memory. The more responses
# are sent at the same time, the smaller they are: the size of one piece, of all together, and the smallest size.
PIECE: Final = 8 << 20
_TOGETHER: Final = 64 << 20
_LEAST: Final = 256 << 10
# How many values are read at the same time.
_AT_ONCE: Final = 64
# How many bytes a key may have on S3, and a name in it on a disk.
_MAX_KEY: Final = 1024
_MAX_NAME: Final = 255
_RANGE: Final = re.compile(r"\s*bytes\s*=\s*(?:([0-9]{1,19})\s*-\s*([0-9]{1,19})?|-\s*([0-9]{1,19}))\s*", re.IGNORECASE)


class Gateway:
    """The Zarr hierarchy of a store, as responses to requests."""

    def __init__(self, store: PartsStore, hierarchy: Hierarchy) -> None:
        self.store = store
        self.hierarchy = hierarchy
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # How many responses are being made and sent.
        self._responses = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an application of ASGI."""
        self._responses += 1
        try:
            response = await self.respond(Request(scope, receive))
            await response(scope, receive, send)
        finally:
            self._responses -= 1

    @property
    def _piece_nbytes(self) -> int:
        return min(PIECE, max(_TOGETHER // max(self._responses, 1), _LEAST))

    async def respond(self, request: Request) -> Response:
        """Return the response to a GET or HEAD request for a key."""
        key = request.path_params["key"]
        if not is_key(key):
            return Response(status_code=404)
        # A store may refuse it in any way, and has no such key.
        if len(key.encode()) > _MAX_KEY or max(len(each.encode()) for each in key.split("/")) > _MAX_NAME:
            return Response(status_code=414)
        try:
            return await self._respond(key, request)
        except ConcurrentWriteError as error:
            log_failure(key, error)
            return failure(503, key, "it is being written; try again")
        # Also what a backend or a parser raises: a client takes 404, and nothing else, for fill values.
        except Exception as error:
            log_failure(key, error)
            return failure(500, key, f"it cannot be read ({type(error).__name__}); the log of the server says why")

    async def _respond(self, key: str, request: Request) -> Response:
        headers = request.headers
        try:
            wanted = parse_range(headers.get("range"))
        except ValueError:
            return failure(416, key, "expected one range of bytes")
        is_head = request.method == "HEAD"
        first = await self._first(key, RangeByteRequest(0, 1) if is_head else wanted)
        if first is not None and wanted is not None and headers.get("if-range", _etag(first)) != _etag(first):
            wanted = None
            first = await self._first(key, None)
        if first is None:
            return Response(status_code=404)
        etag = _etag(first)
        found = {"Accept-Ranges": "bytes", "Cache-Control": "no-cache"} | ({} if etag is None else {"ETag": etag})
        if "if-match" in headers and not _matches(headers["if-match"], etag):
            return Response(status_code=412, headers=found)
        if _matches(headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=found)
        start, stop = bounds(wanted, first.nbytes)
        if wanted is not None:
            if start >= stop:
                return Response(status_code=416, headers={**found, "Content-Range": f"bytes */{first.nbytes}"})
            found["Content-Range"] = f"bytes {start}-{stop - 1}/{first.nbytes}"
        found["Content-Length"] = str(stop - start)
        status = 200 if wanted is None else 206
        kind = "application/json" if split(key)[1] == DOCUMENT else "application/octet-stream"
        if is_head:
            return Response(status_code=status, headers=found, media_type=kind)
        if sum(each.nbytes for each in first.pieces) == stop - start:
            return Response(b"".join(first.pieces), status_code=status, headers=found, media_type=kind)
        return StreamingResponse(
            self._pieces(key, first, start, stop), status_code=status, headers=found, media_type=kind
        )

    async def _first(self, key: str, wanted: ByteRequest | None) -> VersionedValue | None:
        """Read the first piece of a range; return None if there is no such key."""
        most = self._piece_nbytes
        if isinstance(wanted, SuffixByteRequest) and wanted.suffix > most:
            # The beginning depends on the size.
            found = await self._read(key, RangeByteRequest(0, 1))
            if found is None:
                return None
            wanted = OffsetByteRequest(max(found.nbytes - wanted.suffix, 0))
        return await self._read(key, _first_piece(wanted, most))

    async def _read(self, key: str, wanted: ByteRequest | None) -> VersionedValue | None:
        folder, name = split(key)
        if name == DOCUMENT:
            stored = await self.store.get_versioned(key)
            value = None if stored is None else await self.hierarchy.with_members(folder, stored)
            if value is None:
                return None
            start, stop = bounds(wanted, value.nbytes)
            return VersionedValue((memoryview(b"".join(value.pieces))[start:stop],), value.nbytes, value.label)
        async with self._slots:
            return await self.store.get_versioned(key, wanted)

    async def _pieces(self, key: str, first: VersionedValue, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a range, all of one write. The next piece is read when half of the last one is sent."""
        label, ready, at = first.label, b"".join(first.pieces), start
        # The first piece must not stay in memory until all are sent.
        del first
        while True:
            at += len(ready)
            half, ready = ready[: len(ready) // 2], ready[len(ready) // 2 :]
            yield half
            following = None if at >= stop else asyncio.create_task(self._piece(key, label, at, stop))
            try:
                yield ready
                if following is None:
                    return
                ready = await following
            except Exception as error:
                # Uvicorn closes the connection, and is silent.
                log_failure(key, error)
                raise
            finally:
                if following is not None:
                    following.cancel()

    async def _piece(self, key: str, label: str | None, start: int, stop: int) -> bytes:
        found = await self._read(key, RangeByteRequest(start, min(stop, start + self._piece_nbytes)))
        if found is None or found.label != label or not found.pieces:
            raise ConcurrentWriteError(key, "it was written while it was sent, so the connection is closed")
        return b"".join(found.pieces)


def is_key(key: str) -> bool:
    """Return whether a text may be a key of a store: a path without control characters and empty or relative names."""
    # Signs that are not printable, such as those inside an emoji, may be in the name of an array.
    is_text = not any(unicodedata.category(each) in ("Cc", "Cs") for each in key)
    return is_text and "\\" not in key and not {"", ".", ".."} & set(key.split("/"))


def parse_range(text: str | None) -> ByteRequest | None:
    """Return what the header `Range` asks for; None for everything. Raise `ValueError` for anything but one range."""
    if text is None:
        return None
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError("expected one range of bytes")
    start, last, suffix = found.groups()
    if suffix is not None:
        return SuffixByteRequest(int(suffix))
    if last is None:
        return OffsetByteRequest(int(start))
    if int(last) < int(start):
        raise ValueError("expected a range that begins before its end")
    return RangeByteRequest(int(start), int(last) + 1)


def bounds(wanted: ByteRequest | None, nbytes: int) -> tuple[int, int]:
    """Return where a range of a value of this size begins and ends."""
    match wanted:
        case RangeByteRequest(start, end):
            return start, min(end, nbytes)
        case OffsetByteRequest(offset):
            return offset, nbytes
        case SuffixByteRequest(suffix):
            return max(nbytes - suffix, 0), nbytes
        case _:
            return 0, nbytes


def _first_piece(wanted: ByteRequest | None, nbytes: int) -> ByteRequest:
    match wanted:
        case RangeByteRequest(start, end):
            return RangeByteRequest(start, min(end, start + nbytes))
        case OffsetByteRequest(offset):
            return RangeByteRequest(offset, offset + nbytes)
        case SuffixByteRequest():
            return wanted
        case _:
            return RangeByteRequest(0, nbytes)


def _etag(value: VersionedValue) -> str | None:
    return None if value.label is None else f'"{value.label}"'


def _matches(header: str | None, etag: str | None) -> bool:
    if header is None or etag is None:
        return False
    return header.strip() == "*" or etag in [each.strip().removeprefix("W/") for each in header.split(",")]


def log_failure(what: str, error: Exception) -> None:
    """Write an error to the log of the server."""
    LOG.warning("%.300s: %s: %.2000s", what, type(error).__name__, hide_secrets(str(error)))


def failure(status: int, key: str, problem: str) -> Response:
    """Return a response that names the key, and shows no secrets and no paths of the server."""
    return Response(f"{key}: {problem}\n", status_code=status, media_type="text/plain; charset=utf-8")
