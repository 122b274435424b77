"""Where zstd frames end, by their headers: whether each of many inner chunks is exactly one frame (RFC 8878)."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MAGIC_NBYTES, _BLOCK_HEADER_NBYTES, _CHECKSUM_NBYTES = 4, 3, 4
# The smallest frame: the magic number, a descriptor, another byte, and the header of an empty block.
_LEAST_NBYTES: Final = 9
_RUN: Final = 1
# The number of ranges from which on NumPy is faster.
_MANY: Final = 16


def _header_nbytes(descriptor: int) -> int:
    """Return the size of a frame header with the magic number, by its descriptor."""
    is_single_segment = (descriptor >> 5) & 1
    # The size of the content. A single segment without the flag has one byte for it.
    content = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    window = 1 - is_single_segment
    return _MAGIC_NBYTES + 1 + window + (0, 1, 2, 4)[descriptor & 3] + content


_HEADER_NBYTES: Final = np.array([_header_nbytes(descriptor) for descriptor in range(256)])


def are_single_frames(data: NDArray[np.uint8], offsets: NDArray[Any], lengths: NDArray[Any]) -> bool:
    """Return whether each of these ranges ends where the frame ends that begins it; a wrong frame may give any answer.

    Most inner chunks are frames of one block, which are all compared at once.
    """
    starts, nbytes = offsets.astype(np.int64), lengths.astype(np.int64)
    if np.any(nbytes < _LEAST_NBYTES) or np.any(starts + nbytes > len(data)):
        return False
    if len(starts) < _MANY:
        pairs = zip(starts.tolist(), (starts + nbytes).tolist(), strict=True)
        return all(_is_single_frame(data, start, stop) for start, stop in pairs)
    descriptor = data[starts + _MAGIC_NBYTES].astype(np.int64)
    blocks_at = starts + _HEADER_NBYTES[descriptor]
    stops = starts + nbytes - _CHECKSUM_NBYTES * ((descriptor >> 2) & 1)
    if np.any(blocks_at + _BLOCK_HEADER_NBYTES > stops):
        return False
    first, second, third = (data[blocks_at + each].astype(np.int64) for each in range(_BLOCK_HEADER_NBYTES))
    numbers = first | second << 8 | third << 16
    ends = blocks_at + _BLOCK_HEADER_NBYTES + np.where((numbers >> 1) & 3 == _RUN, 1, numbers >> 3)
    is_last = (numbers & 1).astype(bool)
    if np.any(is_last & (ends != stops)):
        return False
    others = np.flatnonzero(~is_last)
    pairs = zip(ends[others].tolist(), stops[others].tolist(), strict=True)
    return all(_ends_at(data, at, stop) for at, stop in pairs)


def _is_single_frame(data: NDArray[np.uint8], start: int, stop: int) -> bool:
    descriptor = int(data[start + _MAGIC_NBYTES])
    checksum = _CHECKSUM_NBYTES * ((descriptor >> 2) & 1)
    return _ends_at(data, start + int(_HEADER_NBYTES[descriptor]), stop - checksum)


def _ends_at(data: NDArray[np.uint8], at: int, stop: int) -> bool:
    """Return whether the last block of a frame, whose next block begins at a position, ends at `stop`."""
    while at + _BLOCK_HEADER_NBYTES <= stop:
        number = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16
        at += _BLOCK_HEADER_NBYTES + (1 if (number >> 1) & 3 == _RUN else number >> 3)
        if number & 1:
            return at == stop
    return False
