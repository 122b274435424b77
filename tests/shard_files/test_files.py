"""Programs of Zarr and of the format of the files read equal values from the same objects, whatever was written."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.codecs.numcodecs import Fletcher32, Shuffle, Zlib

import parts_store as ps
from tests.shard_files import forms, readers

TIFF_TYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")
HDF5_TYPES = (*TIFF_TYPES, "uint64", "complex64", "complex128")
# What Pillow reads without loss: gray images of these types, and images of 8-bit colours.
PILLOW_TYPES = ("uint8", "uint16", "float32")


@dataclass(frozen=True)
class Case:
    """An array, and the regions that are written to it, one after the other."""

    form: str
    shard_file: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    dtype: str
    endian: str
    codecs: tuple[str, ...]
    fill: int
    writes: tuple[tuple[slice, ...], ...]
    seed: int

    @property
    def compressors(self) -> list[Any]:
        size = np.dtype(self.dtype).itemsize
        known = {"zlib": Zlib(level=1), "zstd": ZstdCodec(), "shuffle": Shuffle(elementsize=size), "crc": Fletcher32()}
        return [known[name] for name in self.codecs]

    def create(self, store: ps.PartsStore) -> zarr.Array[Any]:
        array: zarr.Array[Any] = forms.create(
            store,
            "group/picture",
            self.form,
            self.shard_file,
            shape=self.shape,
            chunks=self.chunks,
            shards=self.shards,
            dtype=self.dtype,
            fill_value=self.fill,
            serializer=BytesCodec(endian=self.endian if np.dtype(self.dtype).itemsize > 1 else None),  # type: ignore[arg-type]
            compressors=self.compressors,
            attributes={"units": "K", "scale": 0.5},
        )
        return array

    def carry_out(self, array: zarr.Array[Any]) -> np.ndarray:
        """Write the regions, and return the values that the array must have."""
        rng = np.random.default_rng(self.seed)
        expected = np.full(self.shape, self.fill).astype(self.dtype)
        for number, region in enumerate(self.writes):
            # Some regions are written with the fill value, so that inner chunks and shards disappear.
            is_fill = number % 3 == 2
            values = rng.integers(0, 2 if self.dtype == "bool" else 100, expected[region].shape)
            values = np.full_like(values, self.fill) if is_fill else values
            expected[region] = values
            array[region] = values.astype(self.dtype)
        return expected

    def shards_in(self, folder: Path, expected: np.ndarray) -> Iterator[tuple[Path, np.ndarray]]:
        """Yield the file of every shard that exists, and the values that it must have."""
        extension = forms.extension(self.form, self.shard_file)
        for at in np.ndindex(*[-(-a // b) for a, b in zip(self.shape, self.shards, strict=True)]):
            path = folder / ("c/" + "/".join(map(str, at)) + extension)
            if path.exists():
                yield path, expected[tuple(slice(i * n, i * n + n) for i, n in zip(at, self.shards, strict=True))]


@st.composite
def regions(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    found = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        found.append(slice(start, draw(st.integers(start + 1, length))))
    return tuple(found)


@st.composite
def tiff_cases(draw: st.DrawFn) -> Case:
    leading = draw(st.lists(st.integers(1, 3), max_size=2))
    colours = draw(st.sampled_from([(), (), (3,), (4,)]))
    is_striped = draw(st.booleans())
    rows = draw(st.integers(1, 20) if is_striped else st.just(16))
    columns = draw(st.integers(1, 40) if is_striped else st.sampled_from([16, 32]))
    if not colours and leading and columns in (3, 4):
        columns += 2
    grid = draw(st.tuples(st.integers(1, 3), st.just(1) if is_striped else st.integers(1, 3)))
    chunks = (*(1 for _ in leading), rows, columns, *colours)
    shards = (*(draw(st.integers(1, 2)) for _ in leading), rows * grid[0], columns * grid[1], *colours)
    width = columns * draw(st.integers(1, 2)) if is_striped else draw(st.integers(1, 2 * shards[len(leading) + 1]))
    if not colours and leading and width in (3, 4):
        width += 2
    codecs = draw(st.sampled_from([(), ("zlib",), ("zstd",)]))
    height = draw(st.integers(1, 2 * shards[len(leading)]))
    height += -height % rows if is_striped and codecs else 0
    shape = (*leading, height, width, *colours)
    return Case(
        draw(st.sampled_from(forms.FORMS)),
        "tiff",
        shape,
        chunks,
        shards,
        draw(st.sampled_from(TIFF_TYPES)),
        draw(st.sampled_from(["little", "big"])),
        codecs,
        draw(st.integers(0, 1)),
        tuple(draw(st.lists(regions(shape), min_size=1, max_size=4))),
        draw(st.integers(0, 1000)),
    )


@st.composite
def hdf5_cases(draw: st.DrawFn) -> Case:
    chunks = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    shards = tuple(length * draw(st.integers(1, 3)) for length in chunks)
    shape = tuple(draw(st.integers(1, 2 * length)) for length in shards)
    codecs = [
        (),
        ("zlib",),
        ("zstd",),
        ("shuffle", "zlib"),
        ("zlib", "crc"),
        ("shuffle", "zstd"),
        ("shuffle", "zlib", "crc"),
    ]
    return Case(
        draw(st.sampled_from(forms.FORMS)),
        "hdf5",
        shape,
        chunks,
        shards,
        draw(st.sampled_from(HDF5_TYPES)),
        draw(st.sampled_from(["little", "big"])),
        draw(st.sampled_from(codecs)),
        draw(st.integers(0, 1)),
        tuple(draw(st.lists(regions(shape), min_size=1, max_size=4))),
        draw(st.integers(0, 1000)),
    )


def is_read_by_pillow(case: Case) -> bool:
    is_rgb = case.chunks[-1] in (3, 4) and len(case.chunks) > 2 and case.shape[-1] == case.chunks[-1]
    return case.endian == "little" and case.dtype in (("uint8",) if is_rgb else PILLOW_TYPES)


@contextmanager
def written(case: Case) -> Iterator[Iterator[tuple[Path, np.ndarray]]]:
    """Write an array, compare what all programs of Zarr read, and yield the shards' files with their values."""
    with tempfile.TemporaryDirectory() as name:
        array = case.create(ps.PartsStore.from_url(name))
        expected = case.carry_out(array)
        folder = Path(name) / "group" / "picture"
        np.testing.assert_array_equal(array[...], expected)
        np.testing.assert_array_equal(readers.read_plain_layout(folder), expected)
        if case.form == "object":
            np.testing.assert_array_equal(readers.read_zarr(folder), expected)
            # zarrs swaps the two halves of big-endian complex numbers where it reads a part of a shard.
            is_swapped = case.dtype.startswith("complex") and case.endian == "big"
            if "crc" not in case.codecs and not is_swapped:
                np.testing.assert_array_equal(readers.read_zarr(folder, readers.ZARRS), expected)
            if case.codecs in ((), ("zstd",)):
                np.testing.assert_array_equal(readers.read_tensorstore(folder), expected)
        yield case.shards_in(folder, expected)


@given(tiff_cases())
def test_every_shard_is_a_tiff_file_with_the_values_of_zarr(case: Case) -> None:
    with written(case) as shards:
        for path, part in shards:
            colours = (
                case.chunks[-1:]
                if case.chunks[-1] in (3, 4) and case.shape[-1] == case.chunks[-1] and len(case.chunks) > 2
                else ()
            )
            image = part.shape[len(case.shape) - 2 - len(colours) :]
            pages = part.reshape(-1, *image)
            np.testing.assert_array_equal(readers.read_tifffile(path), pages)
            np.testing.assert_array_equal(readers.read_gdal(path, len(pages)), pages)
            if is_read_by_pillow(case):
                np.testing.assert_array_equal(readers.read_pillow(path), pages)


@given(hdf5_cases())
def test_every_shard_is_an_hdf5_file_with_the_values_of_zarr(case: Case) -> None:
    with written(case) as shards:
        for path, part in shards:
            dataset, values, attributes = readers.read_h5py(path)
            assert dataset == "picture"
            assert attributes == {"units": "K", "scale": 0.5}
            assert values.dtype == np.dtype(case.dtype).newbyteorder("<" if case.endian == "little" else ">")
            np.testing.assert_array_equal(values, part)


@pytest.mark.slow
def test_the_same_values_give_the_same_hdf5_file_at_another_time(tmp_path: Path) -> None:
    files = []
    for number in range(2):
        # HDF5 counts times in seconds.
        time.sleep(1.1 * number)
        store = ps.PartsStore.from_url(str(tmp_path / str(number)))
        array = ps.create_array(
            store,
            "a",
            shard_file="hdf5",
            shape=(4, 4),
            chunks=(2, 2),
            shards=(4, 4),
            dtype="int16",
            attributes={"k": 1},
        )
        array[:] = 7
        files.append((tmp_path / str(number) / "a/c/0/0").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("codecs", [(), ("zlib",), ("shuffle", "zlib", "crc")])
@pytest.mark.parametrize("shards", [(2, 2), (4, 4)])
def test_every_hdf5_file_can_be_opened_with_hdf5_1_10(tmp_path: Path, codecs: tuple[str, ...], shards: Any) -> None:
    case = Case("object", "hdf5", (4, 4), (2, 2), shards, "int16", "little", codecs, 0, (np.s_[:, :],), 0)
    case.carry_out(case.create(ps.PartsStore.from_url(str(tmp_path))))
    path = tmp_path / "group" / "picture" / "c" / "0" / "0"
    # The versions of the superblock and of the layout that HDF5 1.10 introduced. HDF5 2.0 has newer ones.
    assert path.read_bytes()[8] <= 3
    assert readers.read_layout_version(path) <= 4
