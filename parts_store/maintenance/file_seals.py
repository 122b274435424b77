"""Compare shards that are files with their seals, which tell whether another program has changed the file."""

from collections.abc import Sequence

from parts_store.engine.steps import Steps, run_together
from parts_store.errors import PartsStoreError, ShardFileError
from parts_store.format.keys import Chunk
from parts_store.format.shard_index import ShardIndex
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk
from parts_store.transactions import shards
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import ReadSettings


def check_seals(
    listed: Sequence[ListedChunk], index: ShardIndex, protocol: ChunkProtocol, settings: ReadSettings
) -> Steps[list[Finding]]:
    """Read both ends of files without tags, and return the files that another program has changed."""
    found = yield from run_together([_check_seal(each.chunk, index, protocol, settings) for each in listed])
    return [each for each in found if each is not None]


def _check_seal(
    chunk: Chunk, index: ShardIndex, protocol: ChunkProtocol, settings: ReadSettings
) -> Steps[Finding | None]:
    try:
        yield from shards.read_index(protocol, chunk, index, settings, known=None, is_suspect=True)
    except ShardFileError:
        return Finding(Problem.UNREADABLE, chunk.chunk_key, (chunk.anchor_key,), "changed by another program")
    except PartsStoreError:
        # The chunk is being written. Other damage is found without the seal.
        return None
    return None
