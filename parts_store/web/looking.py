"""What the page of a server asks for: the tree, pictures, values, requests, and the history of a repository."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, Final

import icechunk
import numpy as np
import numpy.typing as npt
import zarr

from parts_store._compat.zarr import largest_chunk
from parts_store.pictures import PictureError, Tile, contrast, max_zoom, numbers, plan_tile, png, read_tile, select
from parts_store.pipeline.opening import open_array
from parts_store.store.inspection import Node, inspect
from parts_store.store.store import PartsStore
from parts_store.text import size
from parts_store.web.hierarchy import Hierarchy, Listing

# How many pictures are made at the same time: each of them may decode many chunks.
_AT_ONCE: Final = 4
# How many values a plot has, how many bytes of chunks it may decode, and how many snapshots the history shows.
_POINTS: Final = 2000
_PLOT_NBYTES: Final = 1 << 30
# Of how many chunks the requests are listed, counting those that are stepped over.
_EXPLAINED: Final = 1_000_000
_SNAPSHOTS: Final = 200
# Codecs that every program for Zarr v3 knows.
_USUAL: Final = frozenset({"bytes", "gzip", "zstd", "blosc", "crc32c", "transpose", "sharding_indexed"})


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """The parameters of a picture, as the page sends them."""

    path: str
    # The axes that are shown from top to bottom and from left to right.
    axes: tuple[int, int]
    # The position on each axis; those of the shown axes and of colours do not matter.
    at: tuple[int, ...]
    colour: int | None = None
    zoom: int = 0
    place: tuple[int, int] = (0, 0)
    snapshot: str | None = None
    # The snapshot that is subtracted.
    against: str | None = None

    @classmethod
    def parse(cls, path: str, query: Mapping[str, str]) -> "PictureRequest":
        """Return the request of a query; raise `PictureError` if it makes no sense."""
        try:
            rows, columns = (_integer(each) for each in query["axes"].split(","))
            place_row, place_column = (_integer(each) for each in query.get("place", "0,0").split(","))
            at = tuple(_integer(each) for each in query.get("at", "").split(",") if each)
            colour = _integer(query["colour"]) if "colour" in query else None
            zoom = _integer(query.get("zoom", "0"))
        except (KeyError, ValueError):
            raise PictureError("expected axes, at, zoom and place as integers, separated by commas") from None
        versions = (query.get("snapshot") or None, query.get("against") or None)
        return cls(path, (rows, columns), at, colour, zoom, (place_row, place_column), *versions)


@dataclass(slots=True)
class Looker:
    """What a page shows of a store, and of the versions of its repository if it has one."""

    store: PartsStore
    hierarchy: Hierarchy
    title: str
    # Returns the store at a snapshot.
    at_snapshot: Callable[[str], PartsStore] | None = None
    history: Callable[[], list[dict[str, str]]] | None = None
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def tree(self) -> dict[str, Any]:
        """Return the groups and arrays, as JSON values."""
        if not self.store.supports_listing:
            raise PictureError("expected a store that can be listed; Zarr is served, but there is nothing to show here")
        listing = await self.hierarchy.listing()
        return {
            "title": self.title,
            "has_history": self.history is not None,
            # A large store has many nodes.
            "nodes": await asyncio.to_thread(_describe_all, listing),
        }

    async def snapshots(self) -> list[dict[str, str]]:
        """Return the newest snapshots of the repository."""
        return [] if self.history is None else await asyncio.to_thread(self.history)

    async def tile(self, wanted: PictureRequest, low: float, high: float, colour_map: str) -> tuple[bytes, int]:
        """Return a tile as PNG, and how many pixels wide each value is shown."""
        values, tile = await self._in_thread(self._values, wanted)
        return await asyncio.to_thread(png, values, low, high, colour_map), tile.repeat

    async def contrast(self, wanted: PictureRequest) -> dict[str, float]:
        """Return the values that are shown darkest and brightest, judging by an overview."""
        values, _ = await self._in_thread(self._overview, wanted)
        low, high = contrast(values, around_zero=wanted.against is not None)
        return {"low": low, "high": high}

    async def values(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the value at a position, or those of an array with one axis for a plot."""
        return await self._in_thread(self._plot, path, query)

    async def stored(self, path: str) -> str:
        """Return how many chunks, objects and bytes are stored of an array, as text."""
        return await self._in_thread(self._stored, path)

    async def requests(self, wanted: PictureRequest) -> list[str]:
        """Return the requests that a tile makes."""
        return await self._in_thread(self._explain, wanted)

    async def _in_thread[T](self, call: Callable[..., T], *arguments: Any) -> T:
        async with self._slots:
            return await asyncio.to_thread(call, *arguments)

    def _open(self, path: str, snapshot: str | None) -> zarr.Array[Any]:
        if snapshot is None:
            return open_array(self.store, path)
        if self.at_snapshot is None:
            raise PictureError("expected a store without versions, found a snapshot")
        return open_array(self.at_snapshot(snapshot), path)

    def _plan(self, wanted: PictureRequest, array: zarr.Array[Any]) -> Tile:
        if len(wanted.at) != array.ndim:
            raise PictureError(f"expected a position on each of {array.ndim} axes")
        at: dict[int, int | slice] = {axis: at for axis, at in enumerate(wanted.at) if axis not in wanted.axes}
        if wanted.colour is not None:
            if wanted.colour not in at or array.shape[wanted.colour] not in (3, 4):
                raise PictureError("expected an axis of three or four colours")
            at[wanted.colour] = slice(None)
        chunks = largest_chunk(array)
        nbytes = prod(chunks) * array.dtype.itemsize
        return plan_tile(array.shape, chunks, nbytes, axes=wanted.axes, at=at, zoom=wanted.zoom, place=wanted.place)

    def _values(self, wanted: PictureRequest) -> tuple[npt.NDArray[np.float64], Tile]:
        array = self._open(wanted.path, wanted.snapshot)
        tile = self._plan(wanted, array)
        values = read_tile(array, tile, wanted.axes, wanted.colour)
        if wanted.against is not None:
            before = self._open(wanted.path, wanted.against)
            if before.shape != array.shape:
                raise PictureError(f"expected arrays of one shape, found {array.shape} and {before.shape}")
            values = values - read_tile(before, self._plan(wanted, before), wanted.axes, wanted.colour)
        return values, tile

    def _overview(self, wanted: PictureRequest) -> tuple[npt.NDArray[np.float64], Tile]:
        array = self._open(wanted.path, wanted.snapshot)
        zoom = max_zoom([array.shape[axis] for axis in wanted.axes if 0 <= axis < array.ndim])
        return self._values(replace(wanted, zoom=zoom, place=(0, 0)))

    def _plot(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        array = self._open(path, query.get("snapshot") or None)
        if "at" in query:
            try:
                at = tuple(_integer(each) for each in query["at"].split(",") if each)
            except ValueError:
                raise PictureError("expected integers, separated by commas") from None
            if len(at) != array.ndim or not all(0 <= each < size for each, size in zip(at, array.shape, strict=True)):
                raise PictureError(f"expected a position inside the shape {array.shape}")
            return {"value": str(array[at])}
        if array.ndim != 1:
            raise PictureError(f"expected an array with one axis, found {array.ndim}")
        # Each value may need a chunk of its own.
        points = max(min(_POINTS, _PLOT_NBYTES // (largest_chunk(array)[0] * array.dtype.itemsize)), 1)
        step = max(-(-array.shape[0] // points), 1)
        values = numbers(select(array, (slice(0, array.shape[0], step),)))
        return {"step": step, "values": [float(each) if np.isfinite(each) else None for each in values]}

    def _stored(self, path: str) -> str:
        # Raises if it is no array.
        self._open(path, None)
        stored = inspect(self.store, path, sizes=True)[0].stored
        return "unknown" if stored is None else stored.line

    def _explain(self, wanted: PictureRequest) -> list[str]:
        array = self._open(wanted.path, wanted.snapshot)
        store = self.store if wanted.snapshot is None or self.at_snapshot is None else self.at_snapshot(wanted.snapshot)
        selection = self._plan(wanted, array).selection
        # zarr looks at the chunks between two values, too.
        between = prod(
            (each.stop - each.start) // chunk + 1
            for each, chunk in zip(selection, largest_chunk(array), strict=True)
            if isinstance(each, slice) and each.step is not None
        )
        if between > _EXPLAINED:
            raise PictureError(f"expected a picture of at most {_EXPLAINED:,} chunks")
        return [str(each) for each in store.explain(wanted.path, selection)]


def _integer(text: str) -> int:
    # Python reads other texts, too, and an absurdly long one slowly.
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(text)
    return int(text)


def _describe_all(listing: Listing) -> list[dict[str, Any]]:
    shapes = {node.path: node.shape for node in listing.nodes if node.kind == "array"}
    return [_describe(node, listing, shapes) for node in listing.nodes]


def _describe(node: Node, listing: Listing, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return what the page shows of a group or an array."""
    document = listing.documents.get(node.path, {})
    attributes = document.get("attributes") or {}
    described = node.to_json() | {"facts": list(node.facts), "attributes": _as_text(attributes)}
    if node.kind == "array":
        codecs = [each["name"] for each in _codecs(document.get("codecs", ()))]
        described |= {
            "dimension_names": document.get("dimension_names"),
            "codecs": codecs,
            "nbytes": _size(node),
            "has_borders": (document.get("chunk_grid") or {}).get("name", "regular") == "regular",
            "unusual": sorted(set(codecs) - _USUAL),
        }
    if levels := _levels(node.path, attributes, shapes):
        described["levels"] = levels
    return described


def _size(node: Node) -> str | None:
    """Return the size of the values of an array as text; None if values of its type have no fixed size."""
    try:
        return size(prod(node.shape) * np.dtype(node.dtype).itemsize)
    except TypeError:
        return None


def _as_text(attributes: Any) -> str:
    """Return attributes as text, because browsers do not read all that Python writes as JSON, such as NaN."""
    try:
        return json.dumps(attributes, indent=2, ensure_ascii=False) if attributes else ""
    except RecursionError:
        return "They are nested too deeply."


def _codecs(codecs: Any) -> list[dict[str, Any]]:
    """Return codecs, those inside shards included."""
    found: list[dict[str, Any]] = []
    for each in codecs:
        codec: dict[str, Any] = {"name": each} if isinstance(each, str) else each
        found.append(codec)
        if codec.get("name") == "sharding_indexed":
            found += _codecs(codec.get("configuration", {}).get("codecs", ()))
    return found


def _levels(path: str, attributes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the paths of the levels of a pyramid, largest first; none if the group is not one."""
    ome = attributes.get("ome", attributes)
    scales = ome.get("multiscales") if isinstance(ome, dict) else None
    try:
        names = [each["path"] for each in scales[0]["datasets"]] if scales else []
    except (KeyError, TypeError, IndexError):
        return []
    paths = [f"{path}/{name}" if path else str(name) for name in names]
    # A level without values cannot be shown.
    if not all(each in shapes and 0 not in shapes[each] for each in paths):
        return []
    if len({len(shapes[each]) for each in paths}) > 1:
        return []
    return paths


def snapshots_of(repository: icechunk.Repository, snapshot: str) -> list[dict[str, str]]:
    """Return a snapshot and those before it, the newest first."""
    found = islice(repository.ancestry(snapshot_id=snapshot), _SNAPSHOTS)
    return [{"id": each.id, "message": each.message, "written_at": each.written_at.isoformat()} for each in found]


def opener_of(
    repository: icechunk.Repository, history: Callable[[], list[dict[str, str]]]
) -> Callable[[str], PartsStore]:
    """Return a function that opens a repository at a snapshot of the history, and keeps the last ones."""

    def open_snapshot(snapshot: str) -> PartsStore:
        # Other branches and tags are not served.
        if snapshot not in {each["id"] for each in history()}:
            raise PictureError("expected the id of a snapshot of the history")
        return PartsStore.from_session(repository.readonly_session(snapshot_id=snapshot))

    return lru_cache(maxsize=8)(open_snapshot)
