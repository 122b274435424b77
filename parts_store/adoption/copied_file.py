"""Copy a file into an object store as the main part of a shard, with an index as the other part.

In an object store a part cannot be a range of another file. The part is the whole file, so the file has one array.
"""

from pathlib import PurePosixPath

from parts_store.adoption import shard_plan
from parts_store.adoption.description import Chunked, Contiguous
from parts_store.adoption.report import AdoptedArray
from parts_store.adoption.source_file import SourceFile
from parts_store.backends.existing_files import copy_file
from parts_store.engine.steps import Put, Steps
from parts_store.errors import AdoptionError
from parts_store.format.keys import join
from parts_store.format.metadata import Document, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.store import PartsStore


def find_chunked_array(source: SourceFile) -> Chunked:
    """Return the only array whose bytes are in the file; raise `AdoptionError` unless it is one and chunked."""
    placed = [array for array in source.description.arrays if isinstance(array, Chunked | Contiguous)]
    if len(placed) == 1 and isinstance(placed[0], Chunked):
        return placed[0]
    names = ", ".join(repr(array.header.name) for array in placed) or "none"
    problem = f"expected one chunked dataset (a copy is one shard), found {names}; adopt it into an Icechunk session"
    raise AdoptionError(source.stored.location, (("the file", problem),))


def document_of(array: Chunked, source: SourceFile, *, must_understand: bool) -> Document:
    """Return the metadata document of an array that is one shard, whose main part is the file."""
    suffix, suffixes = PurePosixPath(source.stored.location).suffix, source.format.SUFFIXES
    main = Part(suffix if suffix in suffixes else suffixes[0])
    parts = ConcatParts([main, Part(".index", size=SHARD_INDEX)])
    document = shard_plan.sharded_document(array, array.offsets.shape)
    return with_parts(document, parts, array.header.name, must_understand=must_understand)


def write(
    store: PartsStore, source: SourceFile, array: Chunked, document: Document, path: str
) -> tuple[AdoptedArray, int]:
    """Copy the file and write its index; return the number of copied bytes, 0 if the file is linked."""
    header, copied = array.header, 0
    shards = list(shard_plan.shards_of(array, array.offsets.shape, start=0))
    for shard in shards:
        main, index = document["storage_transformers"][0]["configuration"]["parts"]
        key = join(path, shard.relative)
        # The anchor is written last. Without it the chunk does not exist.
        store.carry_out(_put(key + index["key_suffix"], shard.index))
        copied += copy_file(source.stored, store.store, key + main["key_suffix"])
    nbytes = sum(shard.nbytes for shard in shards)
    written = sum(len(shard.index) for shard in shards)
    adopted = AdoptedArray(path, header.shape, str(header.dtype), array.offsets.size, 0, nbytes, written)
    return adopted, copied


def _put(key: str, data: bytes) -> Steps[None]:
    yield (Put(key, data, None, None, "index of an adopted file"),)
