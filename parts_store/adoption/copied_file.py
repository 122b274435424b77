"""Copy a file into an object store as the main part of a shard, with an index as the other part.

In an object store a part cannot be a range of another file. The part is the whole file, so the file has one array.
"""

from pathlib import PurePosixPath

import numpy as np

from parts_store.adoption.description import MISSING, Chunked, Contiguous
from parts_store.adoption.report import AdoptedArray
from parts_store.adoption.source_file import SourceFile
from parts_store.backends.existing_files import copy_file
from parts_store.engine.steps import Put, Steps
from parts_store.errors import AdoptionError
from parts_store.format.keys import join
from parts_store.format.metadata import Document, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.format.shard_index import encode_table
from parts_store.manifests.cutting import sharding_codec
from parts_store.store import PartsStore


def find_chunked_array(source: SourceFile) -> Chunked:
    """Return the only array whose bytes are in the file; raise `AdoptionError` unless it is one and chunked."""
    arrays = [array for array in source.description.arrays if array.header.nbytes]
    placed = [array for array in arrays if isinstance(array, Chunked | Contiguous)]
    if len(placed) == 1 and isinstance(placed[0], Chunked) and not placed[0].encoded:
        return placed[0]
    names = ", ".join(repr(array.header.name) for array in placed) or "none"
    problem = f"expected one chunked dataset (a copy is one shard), found {names}; adopt it into an Icechunk session"
    raise AdoptionError(source.stored.location, (("the file", problem),))


def document_of(array: Chunked, source: SourceFile, *, must_understand: bool) -> Document:
    """Return the metadata document of an array that is one shard, whose main part is the file."""
    suffix, suffixes = PurePosixPath(source.stored.location).suffix, source.format.SUFFIXES
    main = Part(suffix if suffix in suffixes else suffixes[0])
    parts = ConcatParts([main, Part(".index", size=SHARD_INDEX)])
    grid = array.offsets.shape
    shard_shape = tuple(size * count for size, count in zip(array.chunk_shape, grid, strict=True))
    codec = sharding_codec(array.chunk_shape, array.all_codecs)
    document = array.header.to_json(shard_shape, [codec])
    return with_parts(document, parts, array.header.name, must_understand=must_understand)


def write(
    store: PartsStore, source: SourceFile, array: Chunked, document: Document, path: str
) -> tuple[AdoptedArray, int]:
    """Copy the file and write its index; return the number of copied bytes, 0 if the file is linked."""
    header, copied, written = array.header, 0, 0
    is_there = array.offsets != MISSING
    # Without chunks there is no shard, and the file is not copied.
    if bool(is_there.any()):
        main, index = document["storage_transformers"][0]["configuration"]["parts"]
        key = join(path, "/".join(["c", *("0" for _ in header.shape)]))
        # Offsets in the index are those in the file, which is the beginning of the shard.
        data = encode_table(np.stack([array.offsets, array.lengths], axis=-1).astype("<u8"), has_checksum=True)
        written = len(data)
        # The anchor is written last. Without it the chunk does not exist.
        store.carry_out(_put(key + index["key_suffix"], data))
        copied = copy_file(source.stored, store.store, key + main["key_suffix"])
    nbytes = int(array.lengths[is_there].sum())
    shape, dtype = header.shape, str(header.dtype)
    return AdoptedArray(path, shape, dtype, array.offsets.size, 0, nbytes, written, "a copy of the file"), copied


def _put(key: str, data: bytes) -> Steps[None]:
    yield (Put(key, data, None, None, "index of an adopted file"),)
