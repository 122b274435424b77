"""Names of VirtualiZarr that have no public address yet."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from virtualizarr.manifests import ChunkManifest, ManifestGroup, ManifestStore

# How a manifest marks chunks that are missing or hold their bytes, and how it writes a path. `ChunkManifest.dict()` and
# `ChunkManifest(entries)` would do, but they make one Python object per chunk.
from virtualizarr.manifests.manifest import INLINED_CHUNK_PATH, MISSING_CHUNK_PATH, validate_and_normalize_path_to_uri

# Metadata with another shape and chunk shape, which `ManifestArray` does with the same function.
from virtualizarr.manifests.utils import copy_and_replace_metadata

# The header of a netCDF3 file. The parser returns its attributes without their types.
from virtualizarr.parsers.netcdf3 import _NC_TYPES as NETCDF3_TYPES
from virtualizarr.parsers.netcdf3 import _HeaderReader as NetCDF3Header

__all__ = [
    "INLINED_CHUNK_PATH",
    "MISSING_CHUNK_PATH",
    "NETCDF3_TYPES",
    "NetCDF3Header",
    "columns_of",
    "copy_and_replace_metadata",
    "group_of",
    "validate_and_normalize_path_to_uri",
]


def columns_of(
    manifest: ChunkManifest,
) -> tuple[NDArray[Any], NDArray[np.uint64], NDArray[np.uint64], Mapping[tuple[int, ...], bytes]]:
    """Return the paths, offsets and lengths of a manifest on its chunk grid, and the bytes of inlined chunks.

    The public `ChunkManifest.dict()` makes one Python object per chunk.
    """
    return manifest._paths, manifest._offsets, manifest._lengths, manifest._inlined  # noqa: SLF001


def group_of(store: ManifestStore) -> ManifestGroup:
    """Return the group at the root of a store. Its public methods return datasets only."""
    return store._group  # noqa: SLF001
