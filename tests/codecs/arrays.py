"""Arrays whose stored bytes a test can look at."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import Buffer, cpu
from zarr.storage import MemoryStore

type Codecs = Iterable[Mapping[str, object]]


def document(shape: tuple[int, ...], dtype: str, chunks: tuple[int, ...], codecs: Codecs) -> dict[str, object]:
    """Return the `zarr.json` of an array with exactly these codecs."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": False if dtype == "bool" else [0, 0] if dtype.startswith("complex") else 0,
        "codecs": list(codecs),
    }


class Stored:
    """An array in memory, opened by plain zarr from a document, and its objects."""

    def __init__(self, shape: tuple[int, ...], dtype: str, chunks: tuple[int, ...], codecs: Codecs) -> None:
        self.objects: dict[str, Buffer] = {}
        self.store = MemoryStore(self.objects)
        text = json.dumps(document(shape, dtype, chunks, codecs))
        self.objects["zarr.json"] = cpu.Buffer.from_bytes(text.encode())

    def open(self) -> zarr.Array[Any]:
        # A chunk of fill values is stored like any other, so that every test sees its bytes.
        return zarr.open_array(self.store).with_config({"write_empty_chunks": True})

    def write(self, values: NDArray[Any]) -> None:
        self.open()[...] = values

    def read(self) -> NDArray[Any]:
        return np.asarray(self.open()[...])

    def chunk(self, key: str) -> bytes:
        return self.objects[key].to_bytes()

    def put(self, key: str, chunk: bytes) -> None:
        self.objects[key] = cpu.Buffer.from_bytes(chunk)
