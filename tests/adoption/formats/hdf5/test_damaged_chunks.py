"""Chunks that are cut, or have wrong bytes: where h5py raises an error, zarr does not return wrong values either.

Most filters have no checksum, so that neither of the two notices every damage.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from parts_store.adoption.formats.hdf5 import reader
from tests.adoption.adopting import adopted, array
from tests.adoption.formats.hdf5.damaged_chunks import read_chunks

COUNT = 96
VALUES = (np.arange(COUNT) * 7 % 31).astype("<i4")
FILTERS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "shuffle, fletcher32": {"shuffle": True, "fletcher32": True},
    "lz4": dict(hdf5plugin.LZ4()),
    "zstd": dict(hdf5plugin.Zstd()),
    "szip": {"compression": "szip"},
    "szip, ec": {"compression": "szip", "compression_opts": ("ec", 16)},
    "szip, shuffle": {"compression": "szip", "shuffle": True},
    **{f"blosc, {name}": dict(hdf5plugin.Blosc(cname=name)) for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")},
}


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The bytes cut at every length, with zeros from every position, and with each bit of the header changed."""
    for at in range(1, len(data)):
        yield "cut", data[:at]
        yield "zeros", data[:at] + bytes(len(data) - at)
    for at in range(min(len(data), 32)):
        for bit in range(8):
            yield "bit", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def write(path: Path, options: dict[str, Any]) -> list[str]:
    """Write a dataset with one damaged chunk of each kind, and one that is good; return the kinds."""
    with h5py.File(path, "w") as file:
        good = file.create_dataset("good", data=VALUES, chunks=(COUNT,), **options)
        mask, data = good.id.read_direct_chunk((0,))
        chunks = list(damaged(data))
        x = file.create_dataset("x", ((len(chunks) + 1) * COUNT,), "<i4", chunks=(COUNT,), **options)
        for number, (_, each) in enumerate(chunks):
            x.id.write_direct_chunk((number * COUNT,), each, mask)
        x.id.write_direct_chunk((len(chunks) * COUNT,), data, mask)
    assert mask == 0
    return [kind for kind, _ in chunks]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FILTERS)
def test_where_h5py_raises_zarr_raises_or_returns_the_right_values(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.h5"
    kinds = write(path, FILTERS[name])
    report, store = adopted(path)
    assert not report.loaded
    expected, x = read_chunks(path, len(kinds), COUNT), array(store, "x")
    raised = 0
    for number, (kind, values) in enumerate(zip(kinds, expected, strict=True)):
        try:
            found = x[number * COUNT : (number + 1) * COUNT]
        # Each codec has its own errors.
        except Exception:
            raised += 1
            continue
        # HDF5 does not notice that szip chunks are cut, and returns what was in its memory before.
        if values is None or (name.startswith("szip") and kind == "cut"):
            assert np.array_equal(found, VALUES), (number, kind)
        # numcodecs and HDF5 read beyond the end of blosc chunks (numcodecs#228), so that anything may be there.
        elif not (name.startswith("blosc") and kind == "cut"):
            assert np.array_equal(found, values), (number, kind)
    assert raised > 0 or name == "shuffle"
    np.testing.assert_array_equal(x[-COUNT:], VALUES)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4])
def test_a_loaded_dataset_with_a_chunk_shorter_than_its_checksum_is_skipped(nbytes: int) -> None:
    """HDF5 2.0 ends the process if it reads such a chunk."""
    file = io.BytesIO()
    with h5py.File(file, "w") as root:
        x = root.create_dataset("x", (100,), "i4", chunks=(50,), compression="lzf", fletcher32=True)
        x[:] = np.arange(100)
        x.id.write_direct_chunk((0,), bytes(range(1, nbytes + 1)), 0)
        root["y"] = 1
    description = reader.describe(file, len(file.getvalue()))
    assert [each.header.name for each in description.arrays] == ["y"]
    assert [each.name for each in description.skipped] == ["x"]
    if nbytes < 4:
        assert "shorter than its checksum" in description.skipped[0].reason
