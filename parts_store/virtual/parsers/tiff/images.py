"""Describe the images of TIFF files: arrange their tiles and strips as chunks, and compare what zarr reads of them."""

import base64
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tifffile import TiffFile, TiffFrame, TiffPage, TiffPageSeries, TiffTag

from parts_store.virtual.description import (
    MISSING,
    CannotBeReadError,
    ChunkCodec,
    Chunked,
    Contiguous,
    Header,
    NoReferenceError,
    plain_chunk_shape,
)
from parts_store.virtual.parsers.tiff.codecs import PageCodecs, codecs_of, require_bounded, require_decoded_size
from parts_store.virtual.parsers.tiff.files import MAX_SEGMENTS, TiffSource, TiffSources
from parts_store.virtual.report import Skipped

type Page = TiffPage | TiffFrame
type Pages = Sequence[Page | None]
"""The pages of an image in order; None for a page that is missing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The chunks of an array: tiles or strips, all of one shape."""

    chunk_shape: tuple[int, ...]
    grid: tuple[int, ...]
    # The number of tiles and strips of a page. All chunks of a page follow each other in the grid.
    per_page: int
    # The axes of the columns and of the rows of pixels, counted from the end.
    y_axis: int
    x_axis: int


def plan_layout(shape: tuple[int, ...], page: TiffPage, chunk_shape: tuple[int, ...], count: int) -> Layout:
    """Return how `count` pages that are equal to `page` are arranged as an array; `chunk_shape` is that of a page.

    The last axes of the array are those of a page, in the same order. Both may have axes of length 1 that the other
    does not have.
    """
    left = list(zip(page.axes, page.shape, chunk_shape, strict=True))
    per_page = math.prod(-(-length // chunk) for _, length, chunk in left)
    chunks, axes, pages = [1] * len(shape), {}, 1
    for position in reversed(range(len(shape))):
        length = shape[position]
        while left and left[-1][1:] == (1, 1) and length != 1:
            left.pop()
        if left and left[-1][1] == length:
            axis, _, chunks[position] = left.pop()
            axes[axis] = position - len(shape)
        elif left and length != 1:
            raise CannotBeReadError(f"the shape {shape}, which is not made of pages of the shape {page.shape}")
        else:
            pages *= length
    if any(each[1:] != (1, 1) for each in left) or pages != count or not {"X", "Y"} <= axes.keys():
        raise CannotBeReadError(f"the shape {shape}, which is not made of {count:,} pages of the shape {page.shape}")
    grid = tuple(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    return Layout(tuple(chunks), grid, per_page, axes["Y"], axes["X"])


def page_chunk(page: TiffPage) -> tuple[int, ...]:
    """Return the shape of a tile or strip, with the axes of the page."""
    lengths = {
        "Z": page.tiledepth if page.is_tiled else 1,
        "Y": page.tilelength if page.is_tiled else page.rowsperstrip,
        "X": page.tilewidth if page.is_tiled else page.imagewidth,
        "S": page.samplesperpixel if page.planarconfig == 1 else 1,
    }
    found = tuple(lengths[axis] for axis in page.axes)
    if min(found) < 1:
        raise CannotBeReadError(f"{'tiles' if page.is_tiled else 'strips'} of the shape {found}")
    return found


def segment_shape(page: TiffPage) -> tuple[int, int, int, int]:
    """Return the shape of a tile or strip: depth, rows, columns, and samples that are stored together."""
    lengths = dict(zip(page.axes, page_chunk(page), strict=True))
    samples = lengths.get("S", 1) if page.planarconfig == 1 else 1
    return lengths.get("Z", 1), lengths["Y"], lengths["X"], samples


def nbytes_of_segment(page: TiffPage) -> int:
    """Return the number of bytes of a tile or strip without compression. Each row begins with a new byte."""
    depth, rows, columns, samples = segment_shape(page)
    bits = sum(page.bitspersample) if isinstance(page.bitspersample, tuple) else page.bitspersample * samples
    return int(depth * rows * -(-columns * bits // 8))


def segments_of(pages: Pages, layout: Layout) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the offsets and sizes of all tiles or strips, in the shape of the grid. A missing one has the size 0."""
    if len(pages) * layout.per_page > MAX_SEGMENTS:
        raise CannotBeReadError(f"{len(pages) * layout.per_page:,} tiles and strips, and at most {MAX_SEGMENTS:,}")
    offsets = np.zeros((len(pages), layout.per_page), np.uint64)
    sizes = np.zeros((len(pages), layout.per_page), np.uint64)
    for number, page in enumerate(pages):
        if page is None:
            continue
        # More than are needed are left out, as by tifffile.
        found = [each[: layout.per_page] for each in (page.dataoffsets, page.databytecounts)]
        if len(found[0]) != layout.per_page or len(found[1]) != layout.per_page:
            counts = " and ".join(str(len(each)) for each in found)
            raise CannotBeReadError(f"{counts} offsets and sizes of tiles or strips, expected {layout.per_page}")
        offsets[number], sizes[number] = found
    sizes[offsets == 0] = 0
    return offsets.reshape(layout.grid), sizes.reshape(layout.grid)


# Compressed data can be larger than the values, by the headers of the compressor and more.
_MAX_OVERHEAD: Final = 1 << 16


def read_segment(sources: TiffSources, keyframe: TiffPage, page: Page, offset: int, size: int) -> bytes:
    """Return the bytes of a tile or strip; raise `CannotBeReadError` if they cannot be decoded in a bounded way."""
    limit = 4 * nbytes_of_segment(keyframe) + _MAX_OVERHEAD
    if size > limit:
        raise CannotBeReadError(f"a tile or strip of {size:,} bytes, expected at most {limit:,}")
    file = sources[page.parent].file
    file.seek(offset)
    data = file.read(size)
    require_bounded(keyframe, data, segment_shape(keyframe)[1:3])
    return data


# Images that Zarr cannot decode are loaded up to this number of bytes in a file, and chunks encoded again up to this;
# of an image up to this number of tiles or strips.
_MAX_LOADED: Final = 1 << 26
_MAX_ENCODED: Final = 1 << 28
_MAX_SEGMENTS: Final = 1 << 16
_ZSTD: Final = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
# Chunks up to this size are decoded to compare them, and larger ones than this cannot be decoded at all.
_MAX_COMPARED: Final = 1 << 26
_MAX_CHUNK: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """Pages of the same shape and type that make up one array."""

    group: str
    title: str
    shape: tuple[int, ...]
    dimension_names: tuple[str, ...]
    pages: Pages
    # The number of pages. It can be larger than that of `pages` if one follows the other in the file.
    count: int
    keyframe: TiffPage
    # Where the values of all pages begin, if they follow each other in the file, without compression.
    offset: int | None
    is_transformed: bool
    read: Callable[[], NDArray[Any]]

    @classmethod
    def of_series(cls, series: TiffPageSeries, group: str, *, is_in_one_file: bool) -> "Image":
        """Return the image of a series, or of one level of a pyramid."""
        pages: list[Page | None]
        # tifffile does not look whether the pages are in the same file.
        offset = series.dataoffset if is_in_one_file else None
        try:
            pages = [series[0]] if offset is not None else list(series)
        # The shape may be that of more pages than there are.
        except IndexError:
            pages = [series[0]]
        return cls(
            group,
            series.name,
            series.shape,
            tuple(name.lower() for name in series.dims),
            pages,
            len(series),
            series.keyframe,
            offset,
            series.transform is not None,
            lambda: series.asarray(maxworkers=1),
        )

    @classmethod
    def of_page(cls, page: TiffPage, group: str) -> "Image":
        """Return the image of one page."""
        offset = page.dataoffsets[0] if page.is_final and page.dataoffsets else None
        names = tuple(name.lower() for name in page.dims)
        return cls(group, "", page.shape, names, [page], 1, page, offset, False, lambda: page.asarray(maxworkers=1))

    def directories(self, source: TiffSource) -> list[int]:
        """Return the offsets of the directories of the image in a file."""
        first, pages = self.pages[0], source.directories.pages
        found = [page.offset for page in self.pages if page is not None and page.parent is source.tif]
        if found and len(self.pages) == 1 and self.count > 1 and first is not None and not first.is_subifd:
            return list(pages[first.index : first.index + self.count])
        return found

    def require_same_storage(self, sources: TiffSources) -> None:
        """Raise `CannotBeReadError` unless all pages are there, and are stored in the same way."""
        keyframe, offsets = self.keyframe, defaultdict[TiffFile, list[int]](list)
        for page in self.pages:
            if page is not None:
                offsets[page.parent].append(page.offset)
        expected = sources[keyframe.parent].directories.storage.get(keyframe.offset)
        for tif, found in offsets.items():
            # One page may stand for those that follow it.
            pages = self.directories(sources[tif]) if len(offsets) == 1 else found
            sources[tif].directories.require_same_storage(expected, keyframe.offset, pages)
        if len({tif.byteorder for tif in offsets}) > 1:
            raise CannotBeReadError("pages in files of different byte orders")
        missing = sum(page is None for page in self.pages)
        if len(sources) > 1 and missing:
            raise CannotBeReadError(f"{missing:,} of {len(self.pages):,} pages are in none of its files")


@dataclass(slots=True)
class ImageReader:
    """Images of one file as arrays, with limits for what is copied of the file."""

    # The files of the images: that which is described, and others.
    sources: dict[TiffFile, TiffSource]
    skipped: list[Skipped]
    loaded: int = 0
    encoded: int = 0

    def describe(self, image: Image, name: str) -> Chunked | Contiguous:
        """Return an image as an array; raise `CannotBeReadError` if it cannot be adopted."""
        page = image.keyframe
        if not image.shape or 0 in image.shape or not page.dataoffsets:
            raise CannotBeReadError(f"no values: its shape is {image.shape}")
        if page.dtype is None:
            raise CannotBeReadError(f"values of {page.bitspersample} bits in the format {int(page.sampleformat)}")
        # By its size: NumPy has two types of 64 bits, and zarr knows one.
        dtype = np.dtype(page.dtype.str).newbyteorder(page.parent.byteorder)
        header = Header(name, image.shape, dtype, dtype.type(page.nodata), {}, image.dimension_names)
        try:
            array = self._references(image, header)
        except NoReferenceError as error:
            array = self._values(image, header, error)
        title = {"name": image.title} if image.title else {}
        attributes = {**title, **attributes_of(page, name, self.skipped)}
        return replace(array, header=replace(header, attributes=attributes))

    def _references(self, image: Image, header: Header) -> Chunked | Contiguous:
        if image.is_transformed:
            raise NoReferenceError("values that are computed of those that are stored")
        is_whole = all(page is not None and page.is_final and page.dataoffsets for page in image.pages)
        # These formats have other numbers there.
        if is_whole and not (image.keyframe.is_stk or image.keyframe.is_lsm):
            _require_whole(image.pages)
        if image.offset is not None:
            self._require_ends(image.pages[:1], np.array([image.offset + header.nbytes]))
            return Contiguous(header, image.offset)
        if is_whole:
            return self._whole_pages(image, header)
        return self._segments(image, header)

    def _require_ends(self, pages: Pages, ends: NDArray[Any]) -> None:
        """Raise if the values of a page end, at one of `ends`, behind its file."""
        for page, end in zip(pages, ends.tolist(), strict=True):
            if page is not None and end > (nbytes := self.sources[page.parent].nbytes):
                raise CannotBeReadError(f"its values end at {end:,}, and the file at {nbytes:,}")

    def _locations(self, pages: Pages, offsets: NDArray[np.uint64]) -> NDArray[Any] | None:
        """Return the URL of the file of each chunk; None if all are in the file that is described."""
        if len(self.sources) == 1:
            return None
        files = ["" if page is None else self.sources[page.parent].location for page in pages]
        found = np.array(files, np.dtypes.StringDType()).repeat(offsets.size // len(files)).reshape(offsets.shape)
        return np.where(offsets == MISSING, "", found)

    def _whole_pages(self, image: Image, header: Header) -> Chunked:
        """Return pages without compression, each of which is in one piece, as chunks of pages or of rows of them."""
        page = image.keyframe
        layout = plan_layout(image.shape, page, plain_chunk_shape(page.shape, header.dtype.itemsize), len(image.pages))
        nbytes = math.prod(layout.chunk_shape) * header.dtype.itemsize
        starts = np.array([each.dataoffsets[0] for each in image.pages if each is not None], np.uint64)
        within = np.arange(layout.per_page, dtype=np.uint64) * np.uint64(nbytes)
        self._require_ends(image.pages, starts + np.uint64(nbytes * layout.per_page))
        offsets = (starts[:, None] + within).reshape(layout.grid)
        sizes = np.full(layout.grid, nbytes, np.uint64)
        locations = self._locations(image.pages, offsets)
        return Chunked(header, layout.chunk_shape, (), offsets, sizes, locations=locations)

    def _segments(self, image: Image, header: Header) -> Chunked:
        """Return the tiles or strips of pages as chunks."""
        page, pages = image.keyframe, image.pages
        layout = plan_layout(image.shape, page, page_chunk(page), len(pages))
        codecs = codecs_of(page, layout.x_axis)
        offsets, sizes = segments_of(pages, layout)
        self._require_ends(pages, np.where(sizes > 0, offsets + sizes, 0).reshape(len(pages), -1).max(axis=1))
        if any(each is None for each in pages) and page.nodata:
            raise NoReferenceError("missing pages, whose values are not those of missing tiles")
        if len({each.jpegtables for each in pages if each is not None}) > 1:
            raise CannotBeReadError("pages with different JPEG tables")
        nbytes = math.prod(layout.chunk_shape) * header.dtype.itemsize
        if nbytes > _MAX_CHUNK:
            raise CannotBeReadError(f"tiles or strips of {nbytes:,} bytes, and at most {_MAX_CHUNK:,} can be decoded")
        sizes, is_short = _short_segments(page, layout, sizes)
        is_there = (sizes > 0) & ~is_short
        array = Chunked(
            header,
            layout.chunk_shape,
            codecs.compressors,
            np.where(is_there, offsets, np.uint64(MISSING)),
            np.where(is_there, sizes, np.uint64(MISSING)),
            codecs.filters,
            codecs.serializer,
        )
        array = replace(array, locations=self._locations(pages, array.offsets))
        chunks = _PageChunks(self.sources, page, pages, layout, offsets, sizes)
        if not codecs.is_plain and nbytes <= _MAX_COMPARED:
            chunks.require_equal(array, is_there)
        encoded = self._encoded(chunks, array, is_short, codecs)
        note = f"{len(encoded):,} strips with fewer rows or bytes than the others" if encoded else ""
        return replace(array, encoded=encoded, note=note)

    def _encoded(
        self, chunks: "_PageChunks", array: Chunked, is_short: NDArray[np.bool_], codecs: PageCodecs
    ) -> dict[tuple[int, ...], bytes]:
        """Return the chunks that Zarr cannot decode as they are, encoded again."""
        count = int(is_short.sum())
        nbytes = count * math.prod(array.chunk_shape) * array.header.dtype.itemsize
        if not count:
            return {}
        if not codecs.can_encode:
            raise NoReferenceError("last strips with fewer rows, which cannot be encoded again without a loss")
        if self.encoded + nbytes > _MAX_ENCODED or count > _MAX_SEGMENTS:
            problem = f"{count:,} last strips with fewer rows, {nbytes:,} bytes"
            limits = f"at most {_MAX_SEGMENTS:,}, and {_MAX_ENCODED:,} bytes of a file"
            raise NoReferenceError(f"{problem}: {limits}, are encoded again")
        self.encoded += nbytes
        return chunks.encode_again(array, is_short)

    def _values(self, image: Image, header: Header, problem: NoReferenceError) -> Chunked:
        """Return an image as one chunk with its values; raise `CannotBeReadError` with the problem if it is large."""
        if self.loaded + header.nbytes > _MAX_LOADED:
            reason = f"{problem}; its {header.nbytes:,} bytes are not copied (at most {_MAX_LOADED:,} of a file)"
            raise CannotBeReadError(reason) from problem
        pages = [page for page in image.pages if page is not None]
        segments = [
            (page, *each) for page in pages for each in zip(page.dataoffsets, page.databytecounts, strict=False)
        ]
        nbytes, file_nbytes = sum(size for _, _, size in segments), sum(each.nbytes for each in self.sources.values())
        # Each of very many tiles could be most of the file.
        if len(segments) > _MAX_SEGMENTS or nbytes > file_nbytes + _MAX_LOADED:
            found = (
                f"{len(segments):,} tiles or strips with {nbytes:,} bytes in all, in a file of {file_nbytes:,} bytes"
            )
            raise CannotBeReadError(f"{problem}; {found}, are not copied (at most {_MAX_SEGMENTS:,})")
        for page, offset, size in segments:
            self._require_ends([page], np.array([offset + size]))
            if size:
                read_segment(self.sources, image.keyframe, page, offset, size)
        values = image.read()
        if values.shape != header.shape:
            raise CannotBeReadError(f"{problem}; its shape is {header.shape}, and tifffile reads {values.shape}")
        self.loaded += header.nbytes
        nowhere = np.full((1,) * len(header.shape), MISSING, np.uint64)
        array = Chunked(header, header.shape, (_ZSTD,), nowhere, nowhere)
        encoded = {(0,) * len(header.shape): ChunkCodec.of(array).encode(values)}
        return replace(array, encoded=encoded, note=str(problem))


def _require_whole(pages: Pages) -> None:
    """Raise if a page without compression has fewer bytes than values. tifffile would read what is behind them."""
    for page in pages:
        if page is not None and sum(page.databytecounts) < page.nbytes:
            raise CannotBeReadError(f"{sum(page.databytecounts):,} bytes of values, expected {page.nbytes:,}")


def _short_segments(
    page: TiffPage, layout: Layout, sizes: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the sizes of the chunks, and which of them have fewer rows or bytes than the others."""
    is_short = np.zeros(layout.grid, bool)
    if not page.is_tiled and page.imagelength % page.rowsperstrip:
        is_short.swapaxes(layout.y_axis, 0)[-1] = True
    if page.compression == 1:
        expected = np.uint64(nbytes_of_segment(page))
        # Bytes after the values are left out.
        sizes = np.where(is_short, sizes, np.minimum(sizes, expected))
        is_short |= sizes < expected
    return sizes, is_short & (sizes > 0)


@dataclass(frozen=True, slots=True, eq=False)
class _PageChunks:
    """The tiles or strips of pages that are equal to `keyframe`, by their numbers in the grid."""

    sources: TiffSources
    keyframe: TiffPage
    pages: Pages
    layout: Layout
    offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint64]

    def require_equal(self, array: Chunked, is_there: NDArray[np.bool_]) -> None:
        """Raise `NoReferenceError` unless zarr decodes the first and the last chunk as tifffile does."""
        codec, keyframe = ChunkCodec.of(array), self.keyframe
        numbers = np.flatnonzero(is_there)
        for number in {*numbers[:1].tolist(), *numbers[-1:].tolist()}:
            data, page = self._read(number)
            require_decoded_size(keyframe, data, segment_shape(keyframe)[1:3], nbytes_of_segment(keyframe))
            expected = self._decode(data, page, number)
            found = codec.decode(data)
            if found.astype(expected.dtype, copy=False).tobytes() != expected.tobytes():
                raise NoReferenceError("a tile or strip that the codecs of Zarr decode to other values")

    def encode_again(self, array: Chunked, chosen: NDArray[np.bool_]) -> dict[tuple[int, ...], bytes]:
        """Return the bytes of some chunks as zarr writes them, by their positions in the grid."""
        codec, found = ChunkCodec.of(array), {}
        for number in np.flatnonzero(chosen).tolist():
            values = self._decode(*self._read(number), number).reshape(array.chunk_shape)
            place = tuple(int(at) for at in np.unravel_index(number, self.layout.grid))
            found[place] = codec.encode(values)
        return found

    def _read(self, number: int) -> tuple[bytes, Page]:
        page = self.pages[number // self.layout.per_page]
        if page is None:
            raise CannotBeReadError(f"chunk {number} of a page that is missing")
        offset, size = int(self.offsets.flat[number]), int(self.sizes.flat[number])
        return read_segment(self.sources, self.keyframe, page, offset, size), page

    def _decode(self, data: bytes, page: Page, number: int) -> NDArray[Any]:
        """Return the values of a tile or strip as tifffile reads it, with zeros below and beside those stored."""
        segment, header = number % self.layout.per_page, self.keyframe.jpegheader
        values, _, _ = self.keyframe.decode(data, segment, jpegtables=page.jpegtables, jpegheader=header)
        if values is None:
            raise CannotBeReadError(f"tile or strip {segment} has no values")
        whole = np.zeros(segment_shape(self.keyframe), values.dtype)
        whole[tuple(slice(0, length) for length in values.shape)] = values
        return whole


# --- tags ------------------------------------------------------------------------------------------------------------

# The tags that say how the values are stored, which the metadata of the array does, too.
_STRUCTURE: Final = frozenset(
    {256, 257, 258, 259, 266, 273, 277, 278, 279, 284, 288, 289, 317, 322, 323, 324, 325, 330, 339, 347, 512, 513, 514}
    | {32996, 32997, 32998}
)
# The largest number of bytes of a text, and of other values.
_MAX_TEXT_TAG: Final = 1 << 20
_MAX_TAG: Final = 1 << 14
_ASCII: Final = 2


def attributes_of(page: TiffPage, name: str, skipped: list[Skipped]) -> dict[str, Any]:
    """Return the tags of a page by their names. Bytes are in base64. Tags that are too large are skipped."""
    found: dict[str, Any] = {}
    for tag in page.tags:
        if tag.code in _STRUCTURE:
            continue
        limit = _MAX_TEXT_TAG if int(tag.dtype) == _ASCII else _MAX_TAG
        if tag.valuebytecount > limit:
            problem = f"{tag.valuebytecount:,} bytes, and at most {limit:,} are attributes"
            skipped.append(Skipped(f"{name}, tag {tag.name}", problem))
            continue
        try:
            found.setdefault(tag.name, _to_json(_value(tag)))
        # tifffile raises any error for a damaged tag.
        except Exception as error:
            skipped.append(Skipped(f"{name}, tag {tag.name}", f"it cannot be read: {error}"))
    return found


def _value(tag: TiffTag) -> Any:
    return tag.value


def _to_json(value: Any) -> Any:
    match value:
        case Enum():
            return value.name
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            return {"base64": base64.b64encode(value).decode()}
        case np.ndarray() | np.generic():
            return _to_json(value.tolist())
        case list() | tuple():
            return [_to_json(each) for each in value]
        case dict():
            return {str(key): _to_json(each) for key, each in value.items()}
    return str(value)
