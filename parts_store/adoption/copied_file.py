"""A file copied to where a shard's main part is, with an index beside it: a file to others, an array to Zarr.

For object stores, where a part cannot be a range of another file: it is the whole file, so there is one array in it.
"""

from pathlib import PurePosixPath
from typing import Final

from parts_store.adoption import shard_plan
from parts_store.adoption.description import Chunked, Contiguous, Description
from parts_store.adoption.report import AdoptedArray
from parts_store.backends.existing_files import StoredFile, copy_file
from parts_store.engine.steps import Put, Steps
from parts_store.errors import AdoptionError
from parts_store.format.keys import join
from parts_store.format.metadata import Document, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.store import PartsStore

# What files of these formats are called, and their copies are then too.
_SUFFIXES: Final = (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".cdf")


def require_one(description: Description, location: str) -> Chunked:
    """The one array whose chunks the file holds; raises if there is none, or another."""
    placed = [array for array in description.arrays if isinstance(array, Chunked | Contiguous)]
    if len(placed) == 1 and isinstance(placed[0], Chunked):
        return placed[0]
    names = ", ".join(repr(array.header.name) for array in placed) or "none"
    problem = f"expected one chunked dataset, for a copy is one shard, found {names}; adopt it into an Icechunk session"
    raise AdoptionError(location, (("the file", problem),))


def document_of(array: Chunked, location: str, *, must_understand: bool) -> Document:
    """The document of the array: all of it is one shard, whose main part is the file."""
    suffix = PurePosixPath(location).suffix
    main = Part(suffix if suffix in _SUFFIXES else _SUFFIXES[0])
    parts = ConcatParts([main, Part(".index", size=SHARD_INDEX)])
    document = shard_plan.sharded_document(array, array.offsets.shape)
    return with_parts(document, parts, array.header.name, must_understand=must_understand)


def write(
    store: PartsStore, file: StoredFile, array: Chunked, document: Document, path: str
) -> tuple[AdoptedArray, int]:
    """Copy the file, and write its index beside it; returns how many bytes were copied, none if it is linked."""
    header, copied = array.header, 0
    shards = list(shard_plan.shards_of(array, array.offsets.shape, start=0))
    for shard in shards:
        main, index = document["storage_transformers"][0]["configuration"]["parts"]
        key = join(path, shard.relative)
        # The anchor last, as always: until then there is no chunk.
        store.carry_out(_put(key + index["key_suffix"], shard.index))
        copied += copy_file(file, store.store, key + main["key_suffix"])
    nbytes = sum(shard.nbytes for shard in shards)
    written = sum(len(shard.index) for shard in shards)
    adopted = AdoptedArray(path, header.shape, str(header.dtype), array.offsets.size, 0, nbytes, written)
    return adopted, copied


def _put(key: str, data: bytes) -> Steps[None]:
    yield (Put(key, data, None, None, "index of an adopted file"),)
