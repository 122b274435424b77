"""Many chunks of blosc as one, which one call decompresses.

A chunk is a header of 16 bytes, the offset of each block, and the blocks. A block is one stream, or one for each byte
of a value; before each stream there is its length. All numbers have 4 bytes (README_CHUNK_FORMAT in c-blosc).
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_HEADER_NBYTES: Final = 16
# Where the only block of a chunk begins, and the least size of such a chunk.
_BLOCK_START: Final = 20
_LEAST_NBYTES: Final = 24
_VERSION: Final = 2
# Flags of a chunk: it is not compressed, and its blocks are one stream each. The other one is reserved.
_IS_COPY, _RESERVED, _IS_ONE_STREAM = 0x02, 0x08, 0x10
# Larger values, and blocks of fewer values, are not split into streams.
_MOST_STREAMS, _FEWEST_VALUES = 16, 128
_MAX_NBYTES: Final = 2**31 - 1 - _HEADER_NBYTES


def join_chunks(
    data: NDArray[np.uint8], offsets: NDArray[Any], lengths: NDArray[Any], chunk_nbytes: int
) -> NDArray[np.uint8] | None:
    """Return a chunk whose blocks are those of these chunks; None if they are damaged or not one block each.

    The streams of each chunk end where the chunk ends, so that damage cannot make blosc read another chunk.
    """
    starts, nbytes, count = offsets.astype(np.int64), lengths.astype(np.int64), len(offsets)
    if np.any(nbytes < _LEAST_NBYTES) or np.any(starts + nbytes > len(data)):
        return None
    heads = data[starts[:, np.newaxis] + np.arange(_BLOCK_START)]
    version, _, flags, value_nbytes = heads[0, :4].tolist()
    numbers = heads[:, 4:].copy().view("<i4")
    expected = np.stack(np.broadcast_arrays(chunk_nbytes, chunk_nbytes, nbytes, _BLOCK_START), axis=1)
    if version != _VERSION or flags & (_IS_COPY | _RESERVED) or not value_nbytes:
        return None
    if np.any(heads[:, :4] != heads[0, :4]) or np.any(numbers != expected):
        return None
    is_split = not flags & _IS_ONE_STREAM and value_nbytes <= _MOST_STREAMS
    streams = starts + _BLOCK_START
    for _ in range(value_nbytes if is_split and chunk_nbytes // value_nbytes >= _FEWEST_VALUES else 1):
        if np.any(streams + 4 > starts + nbytes):
            return None
        sizes = data[streams[:, np.newaxis] + np.arange(4)].view("<i4")[:, 0]
        if np.any(sizes < 0):
            return None
        streams = streams + 4 + sizes
    blocks_start = _HEADER_NBYTES + 4 * count
    if np.any(streams != starts + nbytes) or max(count * chunk_nbytes, blocks_start + len(data)) > _MAX_NBYTES:
        return None
    sizes = np.array([count * chunk_nbytes, chunk_nbytes, blocks_start + len(data)], "<i4")
    places = (starts + _BLOCK_START + blocks_start).astype("<i4")
    return np.concatenate([heads[0, :4], sizes.view(np.uint8), places.view(np.uint8), data])
