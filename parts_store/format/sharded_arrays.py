"""Which keys of an array without parts are shards, and where the index of a shard is, as the document says."""

from dataclasses import dataclass
from functools import lru_cache

from parts_store.errors import PartsConfigError
from parts_store.format import metadata
from parts_store.format.keys import ChunkKeyEncoding
from parts_store.format.shard_index import CODEC, ShardIndex, is_sharded, shard_index_of


@dataclass(frozen=True, slots=True)
class Shards:
    """The keys of the shards of an array, and the index of each shard."""

    encoding: ChunkKeyEncoding
    index: ShardIndex


def mentions_shards(stored: bytes) -> bool:
    """Return whether a stored document may be that of an array with shards."""
    return CODEC.encode() in stored


# zarr takes about as long to read a document as to open the array, so each document is read once, when a chunk of its
# array is first used.
@lru_cache(maxsize=1024)
def shards_of(stored: bytes) -> Shards | None:
    """Return the shards of the array with this stored document, None if it has none that zarr reads in part."""
    document = metadata.parse(stored) if mentions_shards(stored) else None
    if document is None or not is_sharded(document):
        return None
    shape = document.get("shape")
    index = shard_index_of(metadata.complete(document))
    if index is None or not isinstance(shape, list):
        return None
    try:
        return Shards(ChunkKeyEncoding.from_json(document.get("chunk_key_encoding"), len(shape)), index)
    except PartsConfigError:
        return None
