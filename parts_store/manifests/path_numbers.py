"""Number the paths of a manifest, to tell which chunks are in the same file. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def number_paths(paths: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the different paths in the order in which they first occur, and the number of the path of each chunk.

    Neighbouring chunks mostly have the same path. Only the first path of such a run is sorted: to sort a million paths
    takes about a second.
    """
    flat = paths.reshape(-1)
    is_first = np.ones(flat.shape, bool)
    np.not_equal(flat[1:], flat[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    if len(starts) == 1:
        return (str(flat[0]),), np.zeros(paths.shape, np.intp)
    unique, first, inverse = np.unique(flat[starts], return_index=True, return_inverse=True)
    order = np.argsort(first)
    ranks = np.empty(len(order), np.intp)
    ranks[order] = np.arange(len(order))
    numbers = np.repeat(ranks[inverse], np.diff(starts, append=len(flat)))
    return tuple(map(str, unique[order])), numbers.reshape(paths.shape)
