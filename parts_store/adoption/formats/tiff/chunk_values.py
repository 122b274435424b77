"""Decode and encode single chunks, as zarr and as tifffile do it."""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray
from tifffile import TiffPage
from zarr.abc.buffer import Buffer
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from parts_store.adoption.description import CannotBeReadError, Chunked, Json, NoReferenceError
from parts_store.adoption.formats.tiff.codecs import require_bounded, require_decoded_size
from parts_store.adoption.formats.tiff.layout import Page, nbytes_of_segment, page_chunk
from parts_store.adoption.formats.tiff.sources import Sources

# Compressed data can be larger than the values, by the headers of the compressor and more.
_MAX_OVERHEAD: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """The codecs of an array, for one chunk of it."""

    document: Json
    key: str

    @classmethod
    def of(cls, array: Chunked) -> "ChunkCodec":
        """Return the codecs of an array."""
        document = array.header.to_json(array.chunk_shape, array.all_codecs)
        document |= {"shape": list(array.chunk_shape), "attributes": {}}
        return cls(document, "/".join(["c", *("0" for _ in array.chunk_shape)]))

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return the values of a chunk as zarr reads them; raise `NoReferenceError` if it cannot read them."""
        store = MemoryStore({**self._documents(), self.key: cpu.Buffer.from_bytes(data)})
        try:
            return np.asarray(zarr.open_array(store, mode="r")[...])
        # Codecs raise any error for data that they cannot decode.
        except Exception as error:
            raise NoReferenceError(f"a tile or strip that Zarr cannot decode: {error}") from error

    def encode(self, values: NDArray[Any]) -> bytes:
        """Return the bytes of a chunk as zarr writes them; raise `NoReferenceError` if it cannot write them."""
        stored = self._documents()
        try:
            # Without the setting, zarr does not write zeros.
            zarr.open_array(MemoryStore(stored), mode="r+", config={"write_empty_chunks": True})[...] = values
        # Codecs raise any error for values that they cannot encode.
        except Exception as error:
            raise NoReferenceError(f"a last strip with fewer rows that Zarr cannot encode: {error}") from error
        return stored[self.key].to_bytes()

    def _documents(self) -> dict[str, Buffer]:
        return {"zarr.json": cpu.Buffer.from_bytes(json.dumps(self.document).encode())}


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """Tiles and strips of pages that are equal to `keyframe`, as tifffile reads them."""

    sources: Sources
    keyframe: TiffPage

    def read(self, page: Page, offset: int, size: int) -> bytes:
        """Return the bytes of a tile or strip; raise `CannotBeReadError` if they cannot be decoded in a bounded way."""
        limit = 4 * nbytes_of_segment(self.keyframe) + _MAX_OVERHEAD
        if size > limit:
            raise CannotBeReadError(f"a tile or strip of {size:,} bytes, expected at most {limit:,}")
        file = self.sources[page.parent].file
        file.seek(offset)
        data = file.read(size)
        require_bounded(self.keyframe, data, self.shape[1:3])
        return data

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of a tile or strip: depth, rows, columns, and samples that are stored together."""
        lengths = dict(zip(self.keyframe.axes, page_chunk(self.keyframe), strict=True))
        samples = lengths.get("S", 1) if self.keyframe.planarconfig == 1 else 1
        return lengths.get("Z", 1), lengths["Y"], lengths["X"], samples

    def decode(self, data: bytes, page: Page, number: int) -> NDArray[Any]:
        """Return the values of a tile or strip of a page, with zeros below and beside those that are stored."""
        header = self.keyframe.jpegheader
        values, _, _ = self.keyframe.decode(data, number, jpegtables=page.jpegtables, jpegheader=header)
        if values is None:
            raise CannotBeReadError(f"tile or strip {number} has no values")
        whole = np.zeros(self.shape, values.dtype)
        whole[tuple(slice(0, length) for length in values.shape)] = values
        return whole

    def require_equal(self, codec: ChunkCodec, data: bytes, page: Page, number: int) -> None:
        """Raise `NoReferenceError` unless zarr decodes a tile or strip to the values that tifffile reads."""
        require_decoded_size(self.keyframe, data, self.shape[1:3], nbytes_of_segment(self.keyframe))
        expected = self.decode(data, page, number)
        found = codec.decode(data)
        if found.astype(expected.dtype, copy=False).tobytes() != expected.tobytes():
            raise NoReferenceError("a tile or strip that the codecs of Zarr decode to other values")
