"""Files of plain numbers for tests of appending: quick to write, with chunks of any shape."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from parts_store.manifests import PartsArray


def write(folder: Path, name: str, values: NDArray[Any], chunks: tuple[int, ...]) -> PartsArray:
    """Write the chunks of an array to a file, each after some other bytes; return references to them."""
    file = folder / name
    content = bytearray(b"header")
    manifest: dict[str, Any] = {}
    grid = [-(-length // chunk) for length, chunk in zip(values.shape, chunks, strict=True)]
    for index in itertools.product(*map(range, grid)):
        region = tuple(slice(at * chunk, (at + 1) * chunk) for at, chunk in zip(index, chunks, strict=True))
        block = np.zeros(chunks, values.dtype)
        block[tuple(slice(0, length) for length in values[region].shape)] = values[region]
        content += b"-"
        entry = {"path": file.as_uri(), "offset": len(content), "length": block.nbytes}
        manifest[".".join(map(str, index))] = entry
        content += block.tobytes()
    file.write_bytes(content)
    os.utime(file, (1_700_000_000, 1_700_000_000))
    document = {
        "shape": list(values.shape),
        "data_type": str(values.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "fill_value": 0,
    }
    return PartsArray(document, [manifest])


def dataset(array: PartsArray, *, first: int = 0, dims: tuple[str, ...] = ("time", "x"), **attrs: Any) -> xr.Dataset:
    """Return references as a virtual dataset, with a loaded coordinate along the first dimension from a number."""
    coordinate = np.arange(first, first + array.shape[0])
    return xr.Dataset({"t": (dims, array, attrs)}, coords={dims[0]: coordinate})
