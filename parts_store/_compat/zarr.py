"""Names of zarr that have no public address yet."""

# Codecs and metadata documents cannot be written without these classes. zarr names them in the signatures of its public
# codec classes, so a public address is to be expected, probably in `zarr.abc.codec` and `zarr.metadata`.
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding

# `zarr.dtype.parse_dtype` guesses from strings; this function takes a NumPy data type as it is.
from zarr.core.dtype import get_data_type_from_native_dtype
from zarr.core.dtype.wrapper import TBaseDType, TBaseScalar
from zarr.core.group import GroupMetadata
from zarr.core.metadata.v3 import ArrayV3Metadata, ChunkGridMetadata, RegularChunkGridMetadata

# Runs a coroutine on zarr's event loop from a thread without one. Icechunk and xarray import it from here as well.
from zarr.core.sync import sync

# The rules for the path of a node: a path must mean the same to us as to zarr.
from zarr.storage._utils import normalize_path

__all__ = [
    "ArrayConfig",
    "ArraySpec",
    "ArrayV3Metadata",
    "ChunkGridMetadata",
    "DefaultChunkKeyEncoding",
    "GroupMetadata",
    "RegularChunkGridMetadata",
    "TBaseDType",
    "TBaseScalar",
    "get_data_type_from_native_dtype",
    "normalize_path",
    "sync",
]
