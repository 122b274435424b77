"""ShardFile: what the shards of an array are as files, as `zarr.json` describes it, and which arrays can have them."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, assert_never, cast, get_args

import numcodecs
import numpy as np
from zarr.abc.codec import Codec
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.codecs.numcodecs import Fletcher32, Shuffle, Zlib

from parts_store._compat.zarr import RegularChunkGridMetadata, read_metadata
from parts_store.errors import StoreConfigError, describe
from parts_store.format.shard_index import ShardIndex, index_of_codec
from parts_store.format.tiff_directory import COMPRESSION, RGB, RGBA, SAMPLE_FORMAT, Compression

type FileFormat = Literal["tiff", "hdf5"]
"""A format of files that the shards of an array can have."""

FORMATS: Final[tuple[str, ...]] = get_args(FileFormat.__value__)
# A member of `zarr.json` that records the format. Readers need not know it.
MEMBER: Final = "shard_file"
# TIFF requires that the sides of a tile are multiples of this number.
_TILE_STEP: Final = 16
# The largest number of images that libtiff reads from a file.
_MAX_PAGES: Final = 65535
# The largest tile that GDAL reads.
_MAX_TILE_NBYTES: Final = 2**31 - 1
# The largest number of dimensions of a dataset in HDF5.
_MAX_AXES: Final = 32
# HDF5 stores the size of a chunk in 32 bits.
_MAX_CHUNK_NBYTES: Final = 2**32 - 1
_NUMCODECS: Final[dict[type, Any]] = {
    Zlib: numcodecs.Zlib,
    Shuffle: numcodecs.Shuffle,
    Fletcher32: numcodecs.Fletcher32,
}
_DEFLATE: Final = "`zarr.codecs.numcodecs.Zlib` for deflate"


# Codecs of zarr have no hash. The same document gives the same object, see `_describe`.
@dataclass(frozen=True, eq=False)
class ShardFile:
    """What every shard of an array is as a file."""

    format: FileFormat
    # The data type as it is stored, with its byte order.
    dtype: np.dtype[Any]
    fill_value: Any
    shard_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    # The codecs of the inner chunks after `bytes`.
    codecs: tuple[Codec, ...]
    index: ShardIndex
    # Of a TIFF file: whether the last axis contains the colours, and whether inner chunks are strips, not tiles.
    is_rgb: bool = False
    has_strips: bool = False

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of inner chunks along each axis."""
        return tuple(shard // chunk for shard, chunk in zip(self.shard_shape, self.chunk_shape, strict=True))

    @property
    def chunk_nbytes(self) -> int:
        """The size of an inner chunk before it is compressed."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """The position of the first element of each inner chunk in the shard, in C order."""
        axes = [range(0, shard, chunk) for shard, chunk in zip(self.shard_shape, self.chunk_shape, strict=True)]
        return tuple(itertools.product(*axes))

    @property
    def compression(self) -> Compression:
        """The compression of the tiles of a TIFF file."""
        match self.codecs:
            case ():
                return "none"
            case (ZstdCodec(),):
                return "zstd"
            case _:
                return "deflate"

    @cached_property
    def fill_tile(self) -> bytes:
        """The tile to which all tiles of a TIFF file point that are not stored; no bytes for other formats."""
        return self._encode_fill_value() if self.format == "tiff" else b""

    def _encode_fill_value(self) -> bytes:
        data = np.full(self.chunk_shape, self.fill_value, self.dtype).tobytes()
        for codec in self.codecs:
            data = bytes(numcodec_of(codec).encode(data))
        return data


def numcodec_of(codec: Codec) -> Any:
    """Return the codec of numcodecs that a codec of zarr calls, with its defaults."""
    if isinstance(codec, ZstdCodec):
        return numcodecs.Zstd(codec.level, codec.checksum)
    configuration: Any = codec.to_dict().get("configuration", {})
    return _NUMCODECS[type(codec)](**configuration)


def member_of(shard_file: FileFormat) -> dict[str, Any]:
    """Return the member of `zarr.json` that records the format of the files."""
    return {"name": shard_file, "must_understand": False}


def recorded_format(document: Mapping[str, Any]) -> str | None:
    """Return the format of the files that a document records, None if shards are not files."""
    member = document.get(MEMBER)
    if member is None:
        return None
    name = member.get("name") if isinstance(member, dict) else None
    return name if isinstance(name, str) else json.dumps(member)


def describe_shards(name: str, served: Mapping[str, Any], *, is_new: bool = False) -> ShardFile:
    """Return what the shards of an array are as files of this format, given the document that zarr reads.

    Raises `StoreConfigError` if this version does not know the format, or the format cannot contain such shards. If the
    array `is_new`, no image may be larger than the array. After the array was resized, images of strips may be.
    """
    if name not in FORMATS:
        expected = f"one of {', '.join(map(repr, FORMATS))}"
        raise StoreConfigError(MEMBER, expected, f"{name!r}, which needs a newer version of parts_store to be written")
    return _describe(cast("FileFormat", name), json.dumps({**served, "attributes": {}}), is_new)


@lru_cache(maxsize=64)
def _describe(name: FileFormat, text: str, is_new: bool) -> ShardFile:
    metadata = read_metadata(json.loads(text))
    codec = metadata.sharding_codec
    if codec is None or not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        raise _unfit("an array with `shards`, on a regular chunk grid", "another array")
    if len(metadata.codecs) > 1:
        raise _unfit("no codecs around the shards", _names(metadata.codecs[1:]))
    shard_shape, chunk_shape = tuple(metadata.chunk_grid.chunk_shape), tuple(codec.chunk_shape)
    index = index_of_codec(codec, shard_shape)
    if index is None or not index.is_understood or index.location != "end":
        raise _unfit("an index at the end of the shard, with the codecs `bytes` and `crc32c`", "another index")
    match codec.codecs:
        case [BytesCodec(endian=endian), *rest]:
            codecs = tuple(rest)
        case _:
            raise _unfit("`bytes` as the first codec, without filters", _names(codec.codecs))
    dtype: np.dtype[Any] = metadata.data_type.to_native_dtype()
    if endian is not None:
        dtype = dtype.newbyteorder("<" if getattr(endian, "value", endian) == "little" else ">")
    file = ShardFile(name, dtype, metadata.fill_value, shard_shape, chunk_shape, codecs, index)
    match name:
        case "hdf5":
            return _require_hdf5(file)
        case "tiff":
            described = _require_tiff(file, metadata.shape)
            if described.has_strips:
                _require_strips(described, metadata.shape, is_new=is_new)
            return described
        case other:
            assert_never(other)


def _require_tiff(file: ShardFile, shape: Sequence[int]) -> ShardFile:
    """Return the description of TIFF files, if they can contain such shards."""
    if file.dtype.kind not in SAMPLE_FORMAT:
        raise _unfit("a boolean or a number as data type, for TIFF", str(file.dtype))
    if [type(each) for each in file.codecs] not in ([], [Zlib], [ZstdCodec]):
        expected = f"no compressor, `zarr.codecs.ZstdCodec`, or {_DEFLATE}, for TIFF"
        raise _unfit(expected, _names(file.codecs))
    if file.compression not in COMPRESSION or len(file.chunk_shape) < 2:
        raise _unfit("chunks of (..., height, width) or (..., height, width, 3 or 4), for TIFF", f"{file.chunk_shape}")
    is_rgb = len(shape) > 2 and shape[-1] in (RGB, RGBA) and file.chunk_shape[-1] == shape[-1] == file.shard_shape[-1]
    file = replace(file, is_rgb=is_rgb)
    *leading, height, width = file.chunk_shape[: -1 if is_rgb else None]
    if any(length != 1 for length in leading):
        expected = "chunks of length 1 along all axes before the height and the width, for TIFF"
        raise _unfit(expected, f"{file.chunk_shape}")
    if file.chunk_nbytes > _MAX_TILE_NBYTES:
        raise _unfit(f"chunks of at most {_MAX_TILE_NBYTES} bytes, for TIFF", f"{file.chunk_nbytes} bytes")
    pages = math.prod(file.shard_shape[: len(leading)])
    if pages > _MAX_PAGES:
        raise _unfit(f"at most {_MAX_PAGES} images in a shard, for TIFF", f"{pages} along the axes before the height")
    return replace(file, has_strips=height % _TILE_STEP != 0 or width % _TILE_STEP != 0)


def _require_strips(file: ShardFile, shape: Sequence[int], *, is_new: bool) -> None:
    """Raise `StoreConfigError` unless inner chunks can be strips, which are never cut off.

    Without compression, the last strip may have fewer rows.
    """
    axis = len(file.shard_shape) - 2 - file.is_rgb
    height, width = file.chunk_shape[axis : axis + 2]
    is_cut = shape[axis + 1] % width != 0 or (shape[axis] % height != 0 and bool(file.codecs))
    if width != file.shard_shape[axis + 1] or (is_new and is_cut):
        expected = (
            f"a height and a width of chunks that are multiples of {_TILE_STEP}, or chunks and shards as wide as the "
            f"array ({shape[axis + 1]}) whose height divides that of the array ({shape[axis]}), for TIFF"
        )
        raise _unfit(expected, f"{file.chunk_shape}")


def _require_hdf5(file: ShardFile) -> ShardFile:
    """Return the description of HDF5 files, if they can contain such shards."""
    if file.dtype.kind not in "biufc":
        raise _unfit("a boolean or a number as data type, for HDF5", str(file.dtype))
    for codec in file.codecs:
        if not isinstance(codec, ZstdCodec | Zlib | Shuffle | Fletcher32):
            expected = f"`zarr.codecs.ZstdCodec`, {_DEFLATE}, `Shuffle` and `Fletcher32` of the same module, for HDF5"
            raise _unfit(expected, _names(file.codecs))
        if isinstance(codec, Shuffle) and (found := numcodec_of(codec).elementsize) != file.dtype.itemsize:
            raise _unfit(f"`Shuffle(elementsize={file.dtype.itemsize})`, for HDF5", f"elementsize={found}")
    if not 1 <= len(file.shard_shape) <= _MAX_AXES:
        raise _unfit(f"an array with 1 to {_MAX_AXES} dimensions, for HDF5", f"{len(file.shard_shape)} dimensions")
    if file.chunk_nbytes > _MAX_CHUNK_NBYTES:
        raise _unfit(f"chunks of at most {_MAX_CHUNK_NBYTES} bytes, for HDF5", f"{file.chunk_nbytes} bytes")
    return file


def _unfit(expected: str, found: str) -> StoreConfigError:
    return StoreConfigError(MEMBER, expected, found)


def _names(codecs: Sequence[Codec]) -> str:
    return describe([type(codec).__name__ for codec in codecs])
