"""Compare whole chunks with the crc32c at their end."""

from collections.abc import Iterator, Sequence

from parts_store.engine.steps import Steps, run_together
from parts_store.errors import ConcurrentWriteError, PartsStoreError
from parts_store.format.keys import Chunk
from parts_store.format.shard_index import has_valid_checksum
from parts_store.maintenance.report import Finding, Problem
from parts_store.maintenance.survey import ListedChunk
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.read_attempt import ReadSettings

# How many bytes are read at once, unless a single chunk is larger.
_MAX_NBYTES = 1 << 26


def check_checksums(
    listed: Sequence[ListedChunk], protocol: ChunkProtocol, settings: ReadSettings
) -> Steps[list[Finding]]:
    """Read chunks, and return those that do not match the checksum at their end."""
    findings: list[Finding] = []
    for group in _groups(listed):
        found = yield from run_together([_check_checksum(each.chunk, protocol, settings) for each in group])
        findings += [each for each in found if each is not None]
    return findings


def _groups(listed: Sequence[ListedChunk]) -> Iterator[list[ListedChunk]]:
    """Yield groups of chunks that fit into memory together."""
    group: list[ListedChunk] = []
    total = 0
    for each in listed:
        nbytes = sum(entry.nbytes for entry in each.parts.values())
        if group and total + nbytes > _MAX_NBYTES:
            yield group
            group, total = [], 0
        group.append(each)
        total += nbytes
    if group:
        yield group


def _check_checksum(chunk: Chunk, protocol: ChunkProtocol, settings: ReadSettings) -> Steps[Finding | None]:
    try:
        read = yield from protocol.read(chunk, [None], settings, with_anchor=True)
    except ConcurrentWriteError:
        # The chunk is being written, so what was listed is gone.
        return None
    except PartsStoreError as error:
        return Finding(Problem.INCOMPLETE, chunk.chunk_key, chunk.part_keys, str(error))
    if read is None or has_valid_checksum(b"".join(read.values[0] or ())):
        return None
    return Finding(Problem.CHECKSUM, chunk.chunk_key, chunk.part_keys, "the bytes do not match their checksum")
