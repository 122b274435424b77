"""Chunks that are cut into rows, followed to the bytes of a file."""

import itertools
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore

from parts_store.manifests import PartsArray
from parts_store.manifests.row_chunks import can_cut_rows, cut_rows

FILE = "s3://bucket/file"
type Order = tuple[int, ...]


def chunked(values: Any, chunks: tuple[int, ...], order: Order, missing: int | None = None) -> tuple[PartsArray, bytes]:
    """An array in chunks one after the other in a file, each with its axes in an order; and the file."""
    grid = [-(-length // chunk) for length, chunk in zip(values.shape, chunks, strict=True)]
    padded = np.pad(
        values, [(0, count * chunk - length) for count, chunk, length in zip(grid, chunks, values.shape, strict=True)]
    )
    data, manifest = b"junk", {}
    for number, place in enumerate(itertools.product(*map(range, grid))):
        if number == missing:
            continue
        block = padded[tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, chunks, strict=True))]
        encoded = np.ascontiguousarray(block.transpose(order)).tobytes()
        manifest[".".join(map(str, place))] = {"path": FILE, "offset": len(data), "length": len(encoded)}
        data += encoded
    transpose = [{"name": "transpose", "configuration": {"order": list(order)}}]
    document = {
        "shape": list(values.shape),
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": -1,
        "codecs": [
            *(transpose if list(order) != sorted(order) else []),
            {"name": "bytes", "configuration": {"endian": "little"}},
        ],
    }
    return PartsArray(document, [manifest]), data


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("chunks", [(5, 2, 3), (2, 2, 3), (3, 1, 2), (1, 2, 2), (1, 1, 3), (7, 4, 3)])
def test_rows_are_cut_where_they_are_ranges_of_bytes(order: Order, chunks: tuple[int, ...]) -> None:
    values = np.arange(5 * 4 * 3, dtype="i2").reshape(5, 4, 3)
    for missing in (None, 0):
        array, data = chunked(values, chunks, order, missing)
        store = MemoryStore()
        store.put("file", data)
        registry = {"s3://bucket": store}
        expected = array.load(registry)
        for axis in range(3):
            # Rows follow each other in a chunk if the axes that vary more slowly in it have one element.
            slower = order[: order.index(axis)]
            assert can_cut_rows(array.references, axis) == all(chunks[each] == 1 for each in slower)
            if not can_cut_rows(array.references, axis):
                continue
            cut = cut_rows(array.references, axis)
            assert cut.chunk_shape == tuple(1 if each == axis else size for each, size in enumerate(chunks))
            found = PartsArray.of(cut, None, ()).load(registry)
            assert np.array_equal(found, expected)


def test_compressed_and_inlined_chunks_are_not_cut() -> None:
    array, _ = chunked(np.arange(6, dtype="i2").reshape(3, 2), (3, 2), (0, 1))
    document = {
        **array.metadata.to_dict(),
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "gzip", "configuration": {"level": 1}},
        ],
    }
    assert not can_cut_rows(PartsArray(document, array.manifests).references, 0)
    inlined = PartsArray(array.metadata, [{"0.0": {"path": "", "offset": 0, "length": 12, "data": bytes(12)}}])
    assert not can_cut_rows(inlined.references, 0)
    shorter = PartsArray(array.metadata, [{"0.0": {"path": FILE, "offset": 0, "length": 11}}])
    assert not can_cut_rows(shorter.references, 0)
