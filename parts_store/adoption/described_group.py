"""Make arrays of references of the description of a file."""

import json
import math
from collections.abc import Mapping
from copy import copy
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption.description import MISSING, THIS_FILE, Array, Chunked, Contiguous, Description, Json, Values
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References
from parts_store.manifests.checksums import Checksums
from parts_store.manifests.entries import Columns
from parts_store.manifests.group import PartsGroup

# The largest number of bytes in a chunk of a contiguous array, and the largest number of such chunks.
_MAX_NBYTES: Final = 1 << 25
_MAX_CHUNKS: Final = 4096


def group_of(description: Description, location: str, checksums: Checksums) -> PartsGroup:
    """Return what a file contains as a group of arrays of references to it. All names must be valid in Zarr.

    A contiguous array is in chunks of whole rows, of up to 32 MiB.
    """
    known: dict[str, ArrayV3Metadata] = {}
    arrays = {
        each.header.name: PartsArray.of(_references(each, location, checksums, known), None, ())
        for each in description.arrays
    }
    return nest(description.groups, arrays)


def loaded_of(description: Description) -> dict[str, str]:
    """Return why values were loaded, or chunks encoded again, for each array of a file to which this applies."""
    noted = (each for each in description.arrays if not isinstance(each, Contiguous) and each.note)
    return {each.header.name: each.note for each in noted}


def nest(groups: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, PartsArray]) -> PartsGroup:
    """Return the root group, with all groups and arrays in it, given by their paths."""
    members: dict[str, tuple[dict[str, PartsArray], dict[str, PartsGroup]]] = {path: ({}, {}) for path in groups}
    for path, array in arrays.items():
        above, _, name = path.rpartition("/")
        members[above][0][name] = array
    # The deepest groups first.
    for path in sorted(filter(None, groups), key=lambda each: each.count("/"), reverse=True):
        above, _, name = path.rpartition("/")
        members[above][1][name] = PartsGroup(*members[path], groups[path])
    return PartsGroup(*members[""], groups[""])


def _references(array: Array, location: str, checksums: Checksums, known: dict[str, ArrayV3Metadata]) -> References:
    """Return the references of an array, with one part."""
    header = array.header
    codecs = [header.bytes_codec]
    match array:
        case Chunked(chunk_shape=chunk_shape):
            codecs = array.all_codecs
            is_there = array.offsets != MISSING
            columns = Columns(
                _paths(array, location),
                np.where(is_there, array.offsets, np.uint64(0)),
                np.where(is_there, array.lengths, np.uint64(0)),
                {},
            )
            for place, data in array.encoded.items():
                columns.put(place, data)
        case Contiguous(offset=offset):
            source = array.location or location
            chunk_shape, columns = rows_of_file(source, offset, header.shape, header.dtype.itemsize)
        case Values(values=values):
            chunk_shape = header.shape
            columns = Columns.empty((1,) * len(header.shape))
            columns.put((0,) * len(header.shape), header.encode(values))
    metadata = _metadata(header.to_json(chunk_shape, codecs), known)
    return References.checked(metadata, [columns.manifest()], checksums)


def _metadata(document: Json, known: dict[str, ArrayV3Metadata]) -> ArrayV3Metadata:
    """Return the metadata of an array, which zarr parses once for all arrays that differ in these members alone.

    A file with thousands of datasets has few kinds of them, and zarr takes as long for each as the HDF5 library.
    """
    own = {"attributes": document.pop("attributes"), "dimension_names": document.pop("dimension_names")}
    key = json.dumps(document)
    if key not in known:
        known[key] = ArrayV3Metadata.from_dict(document)
    metadata = copy(known[key])
    object.__setattr__(metadata, "attributes", own["attributes"])
    object.__setattr__(metadata, "dimension_names", tuple(own["dimension_names"]))
    return metadata


def _paths(array: Chunked, location: str) -> NDArray[Any]:
    """Return the URL of the file of each chunk, an empty text for a missing chunk."""
    if array.locations is not None:
        return np.where(array.locations == THIS_FILE, location, array.locations).astype(np.dtypes.StringDType())
    paths = np.full(array.offsets.shape, location, np.dtypes.StringDType())
    paths[array.offsets == MISSING] = ""
    return paths


def rows_of_file(location: str, offset: int, shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], Columns]:
    """Return the shape of a chunk, and the chunks of an array that is at one offset of a file, in C order.

    Each chunk has the same number of whole rows, and up to 32 MiB.
    """
    count = count_of_chunks(shape, itemsize)
    grid = tuple(count if axis == 0 else 1 for axis in range(len(shape)))
    length = np.uint64(math.prod(shape) * itemsize // count)
    offsets = np.uint64(offset) + np.arange(count, dtype=np.uint64) * length
    paths = np.full(grid, location, np.dtypes.StringDType())
    chunk_shape = tuple(length // count if axis == 0 else length for axis, length in enumerate(shape))
    return chunk_shape, Columns(paths, offsets.reshape(grid), np.full(grid, length), {})


def count_of_chunks(shape: tuple[int, ...], itemsize: int) -> int:
    """Return how many chunks of whole rows an array is divided into, such that all have the same size."""
    if not shape:
        return 1
    fewest = -(-shape[0] // max(1, _MAX_NBYTES // (math.prod(shape[1:]) * itemsize)))
    # A prime number of rows has no divisor in this range. Then the array is one large chunk.
    return next((count for count in range(fewest, min(shape[0], _MAX_CHUNKS) + 1) if shape[0] % count == 0), 1)
