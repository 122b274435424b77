"""Mirrors by programs that skip what they think has not changed: found, refused, and put right if it can be."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from numpy.typing import NDArray
from obstore.store import MemoryStore
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

import parts_store as ps
from parts_store.engine.steps import Found
from parts_store.errors import IncompleteChunkError
from parts_store.format import metadata
from parts_store.format.layout import Span
from parts_store.format.tags import Tag
from parts_store.maintenance.repair import find_inconsistency
from parts_store.maintenance.report import Problem
from tests.maintenance.stores import contents

TIFF = ps.headers.tiff(shape=(16, 16), dtype="uint8")
INDEX = ps.Part(".index", size=ps.SHARD_INDEX)
SHARDS: dict[str, Any] = {"shape": (64, 16), "chunks": (8, 16), "shards": (32, 16), "dtype": "uint8"}
CHUNKS: dict[str, Any] = {"shape": (64, 16), "chunks": (16, 16), "dtype": "uint8"}


@pytest.fixture(autouse=True)
def without_embedded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small parts like large ones, which the anchor of an overwrite does not contain."""
    monkeypatch.setattr("parts_store.transactions.protocol_choice.MAX_EMBEDDED", 0)


@dataclass(frozen=True)
class Scene:
    """An array some of whose parts keep their bytes when it is written again."""

    arguments: dict[str, Any]
    parts: list[Any]
    # The suffixes of those parts.
    constant: tuple[str, ...]


SCENES = {
    "header": Scene(
        CHUNKS | {"compressors": [ps.codecs.pad_codec(nbytes=len(TIFF), padding=TIFF)]},
        [ps.Part(".header", size=len(TIFF)), ps.Part("")],
        (".header",),
    ),
    "header of compressed chunks": Scene(
        CHUNKS | {"compressors": [ZstdCodec(), ps.codecs.offset_codec(offset=4, prefix=b"HEAD")]},
        [ps.Part(".header", size=4), ps.Part("")],
        (".header",),
    ),
    "index of shards": Scene(SHARDS | {"compressors": None}, ["", INDEX], (".index",)),
    "start of shards": Scene(
        SHARDS | {"compressors": None}, [ps.Part(".header", size=16), "", INDEX], (".header", ".index")
    ),
    "start of chunks with a checksum": Scene(
        CHUNKS | {"compressors": [Crc32cCodec()]}, [ps.Part(".header", size=16), ps.Part("")], (".header",)
    ),
    "checksum inside a header": Scene(
        CHUNKS | {"compressors": [Crc32cCodec(), ps.codecs.pad_codec(nbytes=4, padding=b"HEAD")]},
        [ps.Part(".header", size=8), ps.Part("")],
        (".header",),
    ),
}


def values(first: int) -> NDArray[Any]:
    """Values of which no row is all zero, and the first of every chunk is always the same."""
    numbers = (np.arange(64 * 16).reshape(64, 16) * first % 250 + 1).astype("uint8")
    numbers[::8] = 7
    return numbers


def mirror(source: MemoryStore, target: MemoryStore, *, keys: Callable[[str], bool] = lambda _: True) -> int:
    """Copy objects with their attributes, but those whose bytes are there already; returns how many were skipped."""
    there = contents(target)
    skipped = 0
    for key, data in contents(source).items():
        if not keys(key):
            continue
        if there.get(key) == data:
            skipped += 1
            continue
        obstore.put(target, key, data, attributes=dict(obstore.get(source, key).attributes))
    return skipped


def written(scene: Scene, first: int) -> tuple[MemoryStore, zarr.Array[Any]]:
    objects = MemoryStore()
    array = ps.create_array(ps.PartsStore(objects), "a", parts=scene.parts, **scene.arguments)
    array[...] = values(first)
    return objects, array


@pytest.mark.parametrize("name", SCENES)
def test_mirror_with_old_tags_is_refused_and_repaired_by_retag(name: str) -> None:
    scene, target = SCENES[name], MemoryStore()
    source, array = written(scene, 1)
    mirror(source, target)
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(target), path="a")[...], values(1))
    array[...] = values(3)
    chunks = 64 // array.shards[0] if array.shards else 64 // array.chunks[0]
    # The documents of the array and of the group, and the constant parts.
    assert mirror(source, target) == 2 + chunks * len(scene.constant)
    assert contents(target) == contents(source)
    store = ps.PartsStore(target)
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(store, path="a")[...]
    report = store.verify()
    assert report.is_damaged
    assert {each.problem for each in report.findings} == {Problem.MIXTURE}
    assert len(report.findings) == chunks
    # Nothing is done about it unless it is asked for.
    assert store.repair(min_age=0).is_damaged
    assert contents(target) == contents(source)
    report = store.repair(min_age=0, retag=True)
    assert report.is_clean, str(report)
    assert contents(target) == contents(source)
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(target), path="a")[...], values(3))
    assert ps.PartsStore(target).verify().findings == ()


def refused(target: MemoryStore, expected: str) -> None:
    """Retag leaves the chunks as they are, says why, and reading still fails."""
    before = contents(target)
    store = ps.PartsStore(target)
    report = store.repair(min_age=0, retag=True)
    assert report.is_damaged
    for each in report.findings:
        assert (each.problem, each.is_repaired) == (Problem.MIXTURE, False)
        assert each.detail == f"of another write than the anchor; not repaired: {expected}"
    assert contents(target) == before
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(ps.PartsStore(target), path="a")[...]
    # Both orders at once: what cannot be mended is removed.
    assert store.repair(min_age=0, retag=True, drop_incomplete=True).is_clean


def torn(scene: Scene, first: NDArray[Any], second: NDArray[Any], *, new: Callable[[str], bool]) -> MemoryStore:
    """A mirror in which some objects are of the first write, and the new ones of the second."""
    source, target = MemoryStore(), MemoryStore()
    array = ps.create_array(ps.PartsStore(source), "a", parts=scene.parts, **scene.arguments)
    array[...] = first
    mirror(source, target)
    array[...] = second
    mirror(source, target, keys=new)
    return target


def is_main(key: str) -> bool:
    return "." not in key


def test_new_data_with_an_index_of_other_holes_is_refused() -> None:
    first, second = values(1), values(1)
    # As many inner chunks, of the same sizes: only which of them are there differs.
    first[:8] = 0
    second[8:16] = 0
    first[32:40] = 0
    second[40:48] = 0
    target = torn(SCENES["index of shards"], first, second, new=is_main)
    refused(target, "its index may be of another write than its data: not all inner chunks exist")


def test_new_data_with_an_index_of_other_sizes_is_refused() -> None:
    scene = Scene(SHARDS | {"compressors": [ZstdCodec()]}, ["", INDEX], ())
    chance = np.random.default_rng(0)
    noise = chance.integers(1, 250, (64, 16), dtype="uint8")
    refused(torn(scene, values(1), noise, new=is_main), "its index does not match its data")


def test_an_index_that_does_not_fit_its_checksum_is_refused() -> None:
    scene, target = SCENES["index of shards"], MemoryStore()
    source, array = written(scene, 1)
    mirror(source, target)
    array[...] = values(3)
    mirror(source, target)
    for key, data in contents(target).items():
        if key.endswith(".index"):
            attributes = dict(obstore.get(target, key).attributes)
            obstore.put(target, key, bytes([data[0] ^ 1]) + data[1:], attributes=attributes)
    refused(target, "its index does not match its checksum")


def test_bytes_that_do_not_fit_their_checksum_are_refused() -> None:
    first, second = values(1), values(3)
    second[::16] = 9
    scene = SCENES["start of chunks with a checksum"]
    refused(torn(scene, first, second, new=is_main), "its bytes do not match their checksum")


def test_parts_without_any_checksum_are_refused() -> None:
    scene = Scene(CHUNKS | {"compressors": None}, [ps.Part(".header", size=16), ps.Part("")], (".header",))
    # Every byte is right, but no reader can know that.
    target = torn(scene, values(1), values(3), new=is_main)
    refused(target, "it has no checksum that shows whether its parts belong together")


def test_a_mirror_with_parts_of_another_layout_is_refused() -> None:
    scene, target = SCENES["header"], MemoryStore()
    source, array = written(scene, 1)
    mirror(source, target)
    array[...] = values(3)
    mirror(source, target)
    for key in [key for key in contents(target) if key.endswith(".header")]:
        old = str(obstore.get(target, key).attributes["partsgen"]).rsplit(";", 1)[0]
        obstore.put(target, key, TIFF, attributes={"partsgen": f"{old};{'0' * 8}"})
    refused(target, "some parts were written with another layout than that of the array")


def test_parts_whose_sizes_no_write_had_are_refused() -> None:
    scene = SCENES["header"]
    record = metadata.read_array(json.loads(contents(written(scene, 1)[0])["a/zarr.json"]), "a")
    assert record is not None
    data = (bytes(len(TIFF)), b"x" * 256)
    for sizes, is_right in (((len(TIFF), 256), True), ((len(TIFF), 255), False), ((256,), False)):
        tags = (Tag("0a" * 16, "c", (len(TIFF), 10)), Tag("0b" * 16, "s", sizes))
        parts = [
            Found(each, Span(0, len(each)), len(each), "etag", None, tag) for each, tag in zip(data, tags, strict=True)
        ]
        expected = None if is_right else "the sizes of its parts are not those of any of the writes"
        assert find_inconsistency(record, parts) == expected


# Every choice that follows from the seed; `make soak` runs more.
@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", range(30))
def test_retag_never_makes_mixed_data_and_index_readable(seed: int) -> None:
    chance = np.random.default_rng(seed)
    compressors: Any = [None, [ZstdCodec()], [ZstdCodec(), Crc32cCodec()]][seed % 3]
    scene = Scene(SHARDS | {"compressors": compressors, "serializer": BytesCodec()}, ["", INDEX], ())

    def some() -> NDArray[Any]:
        # Few values, so that sizes are often equal, and holes.
        found = np.repeat(chance.integers(0, 3, (8, 1), dtype="uint8"), 8, axis=0) * np.ones((1, 16), "uint8")
        return found.astype("uint8") if seed % 2 else chance.integers(1, 250, (64, 16), dtype="uint8")

    first, second = some(), some()
    target = torn(scene, first, second, new=is_main if seed % 5 else lambda key: key.endswith(".index"))
    store = ps.PartsStore(target)
    store.repair(min_age=0, retag=True)
    array = zarr.open_array(store, path="a")
    for start in (0, 32):
        rows = slice(start, start + 32)
        try:
            found = np.asarray(array[rows])
        except IncompleteChunkError:
            continue
        assert any(np.array_equal(found, each[rows]) for each in (first, second))
