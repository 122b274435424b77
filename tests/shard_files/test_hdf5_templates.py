"""HDF5 files that are made from a template have the same content as those of the HDF5 library."""

import itertools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - registers zstd for h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec
from zarr.codecs.numcodecs import Fletcher32, Shuffle, Zlib

from parts_store.format.coordinates import Coordinates, Dimensions
from parts_store.format.files import hdf5
from parts_store.format.files.conversion import file_of
from parts_store.format.files.description import ShardFile, describe_shards, numcodec_of
from parts_store.format.files.hdf5 import find_template
from parts_store.format.files.seal import is_sealed
from parts_store.format.files.tiff_metadata import ArrayDescription

CODECS: dict[str, list[Any]] = {
    "none": [],
    "zlib": [Zlib(level=1)],
    "zstd": [ZstdCodec()],
    "shuffle, zlib, fletcher32": [Shuffle(elementsize=2), Zlib(level=1), Fletcher32()],
}
KINDS = [None, "none", "text", "|i1", ">f8"]
DTYPE, FILL = np.dtype("<u2"), 7
NO_CHUNK = 2**64 - 1
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"units": "K", "scale": 0.5},
    {"text": "FAHD FADB " * 20},
    # HDF5 stores more than eight attributes in another way.
    {f"key {number}": "text" * number for number in range(30)},
    {"long": "x" * 70_000},
]


@dataclass(frozen=True)
class Case:
    """A shard, of which some inner chunks are missing, and the part of it that is in the array."""

    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    extent: tuple[int, ...]
    codecs: str
    # Which inner chunks are stored, in C order; those outside of the array may be.
    stored: tuple[bool, ...]
    attributes: dict[str, Any] = field(default_factory=lambda: ATTRIBUTES[1])
    # The bytes of the shard before each inner chunk, which belong to none.
    gap: int = 0
    # Of each dimension: None if it has no name, or the type of its coordinates, which may be "none" or "text".
    kinds: tuple[str | None, ...] = ()

    @cached_property
    def file(self) -> ShardFile:
        store: dict[str, Any] = {}
        shape: dict[str, Any] = {"shape": self.shards, "chunks": self.chunks, "shards": self.shards}
        zarr.create_array(store, **shape, dtype=DTYPE, compressors=CODECS[self.codecs], fill_value=FILL)
        return describe_shards("hdf5", json.loads(store["zarr.json"].to_bytes()))

    @cached_property
    def values(self) -> np.ndarray:
        """The values of the shard."""
        values = np.random.default_rng(0).integers(0, 300, self.shards).astype(DTYPE)
        for is_stored, region in zip(self.stored, self.regions, strict=True):
            if not is_stored:
                values[region] = FILL
        return values

    @property
    def regions(self) -> Iterator[tuple[slice, ...]]:
        axes = [range(0, shard, chunk) for shard, chunk in zip(self.shards, self.chunks, strict=True)]
        for start in itertools.product(*axes):
            yield tuple(slice(at, at + n) for at, n in zip(start, self.chunks, strict=True))

    @cached_property
    def encoded(self) -> list[bytes | None]:
        """The inner chunks."""
        chunks: list[bytes | None] = []
        for is_stored, region in zip(self.stored, self.regions, strict=True):
            data = self.values[region].tobytes()
            for codec in CODECS[self.codecs]:
                data = bytes(numcodec_of(codec).encode(data))
            chunks.append(data if is_stored else None)
        return chunks

    @property
    def shard(self) -> bytes:
        """The shard as a writer may encode it: the order of its inner chunks is not that of the index."""
        table = np.full((len(self.encoded), 2), NO_CHUNK, "<u8")
        data = b""
        for slot in np.random.default_rng(1).permutation(len(table)).tolist():
            chunk = self.encoded[slot]
            if chunk is not None:
                table[slot] = len(data) + self.gap, len(chunk)
                data += bytes(self.gap) + chunk
        return data + self.file.index.encode([None if n == NO_CHUNK else (at, n) for at, n in table.tolist()])

    def dimensions(self, seed: int) -> Dimensions:
        """The names and coordinates of the dimensions, with other numbers for each seed."""
        rng = np.random.default_rng(seed)
        found: list[tuple[str | None, Coordinates | None]] = []
        for axis, (kind, length) in enumerate(zip(self.kinds, self.extent, strict=False)):
            values = np.array(["é", "longer"] * length, object)[:length]
            if kind not in (None, "none", "text"):
                values = rng.integers(0, 100, length).astype(kind)
            coordinates = None if kind in (None, "none") else Coordinates.of(values, self.attributes)
            found.append((None if kind is None else f"d{axis}", coordinates))
        return tuple(found)

    def has_template(self) -> bool:
        attributes, dimensions = json.dumps(self.attributes), self.dimensions(0)
        return hdf5.hdf5_template(self.file, self.extent, "cube", attributes, dimensions) is not None

    def made(self) -> tuple[bytes, np.ndarray]:
        """Return the file as this package makes it, and the index of the shard."""
        made = bytes(
            file_of(
                self.file,
                memoryview(self.shard),
                [0] * len(self.shards),
                self.extent,
                ArrayDescription(
                    "cube",
                    self.attributes,
                    tuple(name for name, _ in self.dimensions(1)),
                    coordinates={name or "": each for name, each in self.dimensions(1)},
                ),
            )
        )
        data, index = made[: -self.file.index.nbytes], made[-self.file.index.nbytes :]
        assert is_sealed(data, data, index)
        return data, np.frombuffer(index[:-4], "<u8").reshape(-1, 2)

    def made_by_library(self) -> bytes:
        chunks = [None if each is None else memoryview(each) for each in self.encoded]
        pieces, _, _ = hdf5.hdf5_image(self.file, chunks, self.extent, "cube", self.attributes, self.dimensions(1))
        return b"".join(pieces)


@contextmanager
def opened(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.h5"
        path.write_bytes(data)
        yield path


def attributes_of(dataset: Any) -> dict[str, Any]:
    """Return the attributes of a dataset, except those with the addresses of other datasets."""
    others = ("DIMENSION_LIST", "REFERENCE_LIST")
    return {key: np.asarray(value).tolist() for key, value in dataset.attrs.items() if key not in others}


def content_of(data: bytes) -> dict[str, Any]:
    """Return all that h5py finds in a file, except where its chunks are."""
    with opened(data) as path, h5py.File(path, "r") as file:
        assert h5py.is_hdf5(path)
        dataset = file["cube"]
        infos: list[Any] = []
        dataset.id.chunk_iter(infos.append)
        for info in infos:
            stored = data[info.byte_offset : info.byte_offset + info.size]
            assert dataset.id.read_direct_chunk(info.chunk_offset) == (info.filter_mask, stored)
        assert all(dataset.id.get_chunk_info_by_coord(info.chunk_offset) == info for info in infos[:10])
        creation = dataset.id.get_create_plist()
        return {
            "name": dataset.name,
            "shape": (dataset.shape, dataset.maxshape, dataset.chunks),
            "type": (dataset.dtype, dataset.fillvalue),
            "filters": [creation.get_filter(number) for number in range(creation.get_nfilters())],
            "attributes": attributes_of(dataset),
            "dimensions": [[each.name for each in dimension.values()] for dimension in dataset.dims],
            "scales": {
                name: (scale.dtype, scale[...].tolist(), attributes_of(scale))
                for name, scale in file.items()
                if name != "cube"
            },
            "chunks": {
                info.chunk_offset: (info.filter_mask, data[info.byte_offset : info.byte_offset + info.size])
                for info in infos
            },
            "values": dataset[...].tolist(),
        }


def check(case: Case) -> None:
    """Compare the file of a case with that of the library, with the values, and with the index of the shard."""
    # The template was made with other numbers as coordinates.
    case.has_template()
    data, index = case.made()
    content = content_of(data)
    assert content == content_of(case.made_by_library())
    assert content["values"] == case.values[tuple(map(slice, case.extent))].tolist()
    for (start, nbytes), chunk in zip(index.tolist(), case.encoded, strict=True):
        assert chunk == (None if start == NO_CHUNK else data[start : start + nbytes])
    places = sorted((start, start + nbytes) for start, nbytes in index.tolist() if start != NO_CHUNK)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(places))
    check_changes(case, data)


def check_changes(case: Case, data: bytes) -> None:
    """Change attributes and values with h5py, so that it moves chunks, and read them again."""
    with opened(data) as path:
        with h5py.File(path, "r+") as file:
            file["cube"].attrs["added"] = "x" * 5000
            file["other"] = np.arange(1000)
        expected = case.values[tuple(map(slice, case.extent))].copy()
        with h5py.File(path, "r+") as file:
            np.testing.assert_array_equal(file["cube"][...], expected)
            expected[expected == FILL] = 60_000
            expected.flat[:-1:2] = np.random.default_rng(2).integers(0, 60_000, len(expected.flat[:-1:2]))
            file["cube"][...] = expected
        with h5py.File(path, "r") as file:
            np.testing.assert_array_equal(file["cube"][...], expected)
            np.testing.assert_array_equal(file["other"][...], np.arange(1000))
            assert file["cube"].attrs["added"] == "x" * 5000


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chunks = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    grid = tuple(draw(st.integers(1, 4)) for _ in chunks)
    shards = tuple(a * b for a, b in zip(chunks, grid, strict=True))
    extent = draw(st.one_of(st.just(shards), st.tuples(*(st.integers(1, length) for length in shards))))
    share = draw(st.sampled_from([0, 0.1, 0.5, 0.9, 1]))
    stored = np.random.default_rng(draw(st.integers(0, 1000))).random(grid) < share
    if draw(st.booleans()):
        # Inner chunks outside of the array are seldom stored.
        inside = tuple(slice(-(-length // chunk)) for length, chunk in zip(extent, chunks, strict=True))
        only = np.zeros(grid, bool)
        only[inside] = True
        stored &= only
    return Case(
        chunks,
        shards,
        extent,
        draw(st.sampled_from(list(CODECS))),
        tuple(stored.ravel().tolist()),
        draw(st.sampled_from(ATTRIBUTES)),
        draw(st.sampled_from([0, 0, 3])),
        draw(st.sampled_from([(), *itertools.product(KINDS, repeat=len(chunks))])),
    )


@given(cases())
def test_files_have_the_same_content_as_those_of_the_library(case: Case) -> None:
    check(case)
    # HDF5 has no index for a dataset that is one chunk.
    assert case.has_template() == (case.extent != case.chunks)


@pytest.mark.parametrize("codecs", ["none", "zlib"])
@pytest.mark.parametrize("count", [1024, 1025, 2500, pytest.param(9000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stored", ["all", "some", "one page", "none"])
def test_files_with_pages_have_the_same_content(codecs: str, count: int, stored: str) -> None:
    slots = np.arange(count)
    is_stored = {"all": slots >= 0, "some": slots % 3 == 0, "one page": slots // 1024 == 1, "none": slots < 0}[stored]
    case = Case((2,), (2 * count,), (2 * count - 1,), codecs, tuple(is_stored.tolist()))
    assert case.has_template()
    check(case)


@pytest.mark.parametrize("codecs", ["none", "zlib"])
@pytest.mark.parametrize("count", [6, 1500])
def test_a_file_that_is_not_as_expected_gives_no_template(codecs: str, count: int) -> None:
    case = Case((1000,), (1000 * count,), (1000 * count,), codecs, (*[False] * (count - 1), True))
    image, chunk = case.made_by_library(), case.encoded[-1]
    assert chunk is not None
    places = np.full((count, 2), NO_CHUNK, np.uint64)
    places[-1] = image.index(chunk), len(chunk)
    assert find_template(image, places) is not None
    # The superblock, the index of the chunks, its block, and the unused bytes behind the chunk.
    index, block, stop = image.index(b"FAHD"), image.index(b"FADB"), image.index(chunk) + len(chunk)
    assert stop < block
    last = len(image) if count == 6 else block + 30
    changed = [*range(48), *range(index, index + 28), *range(stop, last), len(image) - 1]
    for at in changed:
        other = image[:at] + bytes([image[at] ^ 1]) + image[at + 1 :]
        assert find_template(other, places) is None
    assert find_template(image + b"\0", places) is None
    assert find_template(image[:-1], places) is None
    assert find_template(image, np.vstack((places, places[:1]))) is None
    places[-1, 0] -= 1
    assert find_template(image, places) is None


def test_an_attribute_with_the_bytes_of_the_index_is_not_the_index() -> None:
    case = Case((2, 2), (8, 8), (8, 8), "zlib", (True,) * 16, {"decoy": [0] * 4})
    image = case.made_by_library()
    index = image[image.index(b"FAHD") :][:32]
    decoy = replace(case, attributes={"decoy": np.frombuffer(index, "<i8").tolist()})
    assert decoy.made_by_library().count(index[:28]) == 2
    assert decoy.has_template()
    check(decoy)


def test_shards_are_written_by_the_library_if_there_is_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((2, 2), (8, 8), (7, 8), "zlib", tuple(slot % 3 > 0 for slot in range(16)))
    usual = case.made()[0]
    monkeypatch.setattr(hdf5, "find_template", lambda *_: None)
    hdf5.hdf5_template.cache_clear()
    try:
        assert not case.has_template()
        check(case)
        assert len(case.made()[0]) > len(usual)
    finally:
        hdf5.hdf5_template.cache_clear()
