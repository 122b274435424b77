"""Names of zarr that have no public address yet."""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

# Whether a store can be read and written without an event loop.
from zarr.abc.store import _store_supports_sync_io as supports_sync_io

# What zarr does with an array that is assigned to a Zarr array.
from zarr.core.array import _set_selection

# Codecs and metadata documents cannot be written without these classes. zarr names them in the signatures of its public
# codec classes, so a public address is to be expected, probably in `zarr.abc.codec` and `zarr.metadata`.
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding

# The pipeline that ours extends. `zarr.abc.codec.CodecPipeline` is the public interface.
# What zarr does with a chunk that is missing, in one place.
from zarr.core.chunk_utils import ChunkTransform, scatter_chunk
from zarr.core.codec_pipeline import FusedCodecPipeline, codecs_from_list_unchecked

# `zarr.dtype.parse_dtype` guesses from strings; this function takes a NumPy data type as it is.
from zarr.core.dtype import get_data_type_from_native_dtype
from zarr.core.dtype.wrapper import TBaseDType, TBaseScalar
from zarr.core.group import GroupMetadata
from zarr.core.indexing import colexicographic_order_coords, lexicographic_order_coords, morton_order_coords
from zarr.core.metadata.v3 import ArrayV3Metadata, ChunkGridMetadata, RegularChunkGridMetadata

# Runs a coroutine on zarr's event loop from a thread without one. Icechunk and xarray import it from here as well.
from zarr.core.sync import sync

# The rules for the path of a node: a path must mean the same to us as to zarr.
from zarr.errors import UnstableSpecificationWarning
from zarr.storage._utils import normalize_path

__all__ = [
    "ArrayConfig",
    "ArraySpec",
    "ArrayV3Metadata",
    "ChunkGridMetadata",
    "ChunkTransform",
    "DefaultChunkKeyEncoding",
    "FusedCodecPipeline",
    "GroupMetadata",
    "RegularChunkGridMetadata",
    "TBaseDType",
    "TBaseScalar",
    "codecs_from_list_unchecked",
    "get_data_type_from_native_dtype",
    "is_converted_by_zarr",
    "normalize_path",
    "scatter_chunk",
    "subchunk_order",
    "supports_sync_io",
    "sync",
    "unstable_types",
]

_WARNINGS_LOCK = threading.Lock()


@contextmanager
def unstable_types() -> Iterator[None]:
    """Write documents without zarr's warning of data types that have no specification.

    What is adopted has the data types of its file. Two threads must not change the filters of warnings at once.
    """
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableSpecificationWarning)
        yield


_ORDERS = {"morton": morton_order_coords, "colexicographic": colexicographic_order_coords}


def subchunk_order(name: str, grid: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the numbers of the inner chunks of a shard, counted in C order, in the order in which zarr writes them."""
    coordinates = np.array(_ORDERS.get(name, lexicographic_order_coords)(grid), np.intp).reshape(-1, len(grid))
    return np.asarray(np.ravel_multi_index(tuple(coordinates.T), grid), np.intp)


def is_converted_by_zarr() -> bool:
    """Return whether zarr asks for an attribute of an array because it was assigned to a Zarr array.

    zarr converts what has no attribute `shape` to NumPy. Of everything else it takes pieces, one for each chunk, and
    there is no method that zarr would call to convert all of it before.
    """
    code = sys._getframe(2).f_code  # noqa: SLF001
    return code is _set_selection.__code__
