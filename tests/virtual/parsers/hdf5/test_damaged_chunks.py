"""Chunks that are cut, or have wrong bytes: where h5py raises an error, zarr does not return wrong values either.

Most filters have no checksum, so that neither of the two notices every damage.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from parts_store.virtual.parsers.hdf5 import reader
from tests.effort import some
from tests.virtual.adopting import adopted, array
from tests.virtual.parsers.hdf5.damaged_chunks import read_chunks

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
        chunks = some(list(damaged(data)))
        x = file.create_dataset("x", ((len(chunks) + 1) * COUNT,), "<i4", chunks=(COUNT,), **options)
        for number, (_, each) in enumerate(chunks):
            x.id.write_direct_chunk((number * COUNT,), each, mask)
        x.id.write_direct_chunk((len(chunks) * COUNT,), data, mask)
    assert mask == 0
    return [kind for kind, _ in chunks]


@pytest.mark.slow
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
        # HDF5 reads beyond the end of blosc chunks that are cut, so that anything may be there.
        else:
            assert not (name.startswith("blosc") and kind == "cut"), number
            assert np.array_equal(found, values), (number, kind)
    assert raised > 0 or name == "shuffle"
    np.testing.assert_array_equal(x[-COUNT:], VALUES)


LZF = {"compression": "lzf", "fletcher32": True}
# The options of a dataset, what one of its chunks becomes, and the reason. The filter of HDF5 for blosc reads beyond
# the end of such a chunk, and HDF5 2.0 ends the process if a chunk is shorter than its checksum.
SHORT_CHUNKS: list[tuple[dict[str, Any], Callable[[bytes], bytes], str]] = [
    *(
        (dict(hdf5plugin.Blosc(cname=cname)), lambda data, missing=missing: data[:-missing], "cut off")
        for cname in ("blosclz", "lz4")
        for missing in (1, 3, 17)
    ),
    *((LZF, lambda _, count=count: bytes(range(1, count + 1)), "shorter than its checksum") for count in (1, 2, 3)),
    (LZF, lambda _: bytes(range(1, 5)), "the HDF5 library cannot read it"),
]


@pytest.mark.parametrize(("options", "change", "reason"), SHORT_CHUNKS)
def test_a_loaded_dataset_with_a_chunk_that_is_cut_is_skipped(
    options: dict[str, Any], change: Callable[[bytes], bytes], reason: str
) -> None:
    # A type that zarr does not have, so that the values are loaded.
    values = np.array([(number, number) for number in range(100)], [("a", "<i4"), ("b", ">i4")])
    file = io.BytesIO()
    with h5py.File(file, "w") as root:
        x = root.create_dataset("x", data=values, chunks=(50,), **options)
        root.create_dataset("y", data=values, chunks=(50,), **options)
        mask, data = x.id.read_direct_chunk((50,))
        x.id.write_direct_chunk((50,), change(data), mask)
    description = reader.describe(file, len(file.getvalue()))
    assert [each.header.name for each in description.arrays] == ["y"]
    assert [each.name for each in description.skipped] == ["x"]
    assert reason in description.skipped[0].reason


@pytest.mark.parametrize("trailing", [(), (3,)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_chunks_without_the_rows_beyond_a_dataset_are_read(
    tmp_path: Path, shuffle: bool, trailing: tuple[int, ...]
) -> None:
    """Some programs write no more of the last chunk than the dataset has: h5py reads that, and zarr alone does not."""
    path = tmp_path / "file.h5"
    values = np.arange(150 * (1 + 4 * len(trailing)), dtype="<i4").reshape(150, *(5 for _ in trailing))
    counts = [49, 50, 51, 99, 100]
    with h5py.File(path, "w") as file:
        for count in counts:
            x = file.create_dataset(
                f"{count}", data=values, chunks=(100, *trailing), compression="gzip", shuffle=shuffle
            )
            for column in range(0, 5 if trailing else 1, 3):
                block = np.zeros((100, *trailing), "<i4")
                part = values[100:, column : column + 3] if trailing else values[100:]
                block[tuple(map(slice, part.shape))] = part
                plain = block[:count].tobytes()
                if shuffle:
                    plain = np.frombuffer(plain, "u1").reshape(-1, 4).T.tobytes()
                x.id.write_direct_chunk((100, column)[: 1 + len(trailing)], zlib.compress(plain))
    report, store = adopted(path)
    # Of one, a row of the dataset is missing, which h5py reads from anywhere in memory.
    assert [each.name for each in report.skipped] == ["49"]
    assert "expected at least" in report.skipped[0].reason
    with h5py.File(path) as file:
        for count in counts[1:]:
            np.testing.assert_array_equal(file[f"{count}"][:], values)
            np.testing.assert_array_equal(array(store, f"{count}")[:], values)
    notes = {each.path: each.chunks_written for each in report.arrays}
    assert notes["100"] == 0


def test_numbers_of_3_bytes_and_chunks_compressed_twice_are_not_short(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        # Numbers of 3 bytes, which h5py reads as 4.
        kind = h5py.h5t.IEEE_F32LE.copy()
        kind.set_fields(23, 15, 8, 0, 15)
        kind.set_precision(24)
        kind.set_size(3)
        options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        options.set_chunk((100,))
        options.set_deflate(4)
        small = h5py.h5d.create(file.id, b"small", kind, h5py.h5s.create_simple((150,)), options)
        h5py.Dataset(small)[:] = np.arange(150)
        options.set_deflate(4)
        twice = h5py.h5d.create(file.id, b"twice", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((150,)), options)
        h5py.Dataset(twice)[:] = np.arange(150)
    report, store = adopted(path)
    assert report.is_complete
    for name in ("small", "twice"):
        np.testing.assert_array_equal(array(store, name)[:], np.arange(150))
