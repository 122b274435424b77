"""The examples of the specification of concat-parts, as they are printed."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import parts_store as ps
from tests.format.documents import FIRST_EXAMPLE, SECOND_EXAMPLE
from tests.spec.examples import (
    OBJECTS,
    PLACES,
    Place,
    opened,
    pixels,
    require_consolidated,
    require_document_kept,
    unzstd,
    zstd_frame,
)

NONE = 2**64 - 1


def crc32c(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def stored_chunk(place: Place, key: str, suffixes: list[str]) -> bytes:
    """Return the bytes of a chunk: in a session of the chunk, elsewhere of its parts in order."""
    return place.get(key) if place.is_session else b"".join(place.get(key + suffix) for suffix in suffixes)


def put_chunk(place: Place, key: str, parts: dict[str, bytes]) -> None:
    if place.is_session:
        place.put(key, b"".join(parts.values()))
    else:
        for suffix, data in parts.items():
            place.put(key + suffix, data)


# --- with a checksum and Zstandard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PLACES)
def test_the_first_example_is_read_as_others_wrote_it(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", FIRST_EXAMPLE.encode())
    chunk = pixels((500, 500), "uint8")
    compressed = zstd_frame(chunk.tobytes())
    put_chunk(place, "a/c/1/0", {"": compressed, ".crc32c": crc32c(compressed)})
    array = opened(place)
    assert np.array_equal(array[500:, :500], chunk)
    assert not array[:500].any()
    assert not array[500:, 500:].any()
    if kind != "session":
        require_consolidated(place, FIRST_EXAMPLE, chunk, np.s_[500:, :500])
    # A checksum that does not fit is found.
    put_chunk(place, "a/c/1/0", {"": compressed, ".crc32c": bytes(4)})
    with pytest.raises(ValueError, match="checksum"):
        opened(place)[500:, :500]


@pytest.mark.parametrize("kind", PLACES)
def test_the_first_example_is_written_as_others_read_it(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", FIRST_EXAMPLE.encode())
    values = pixels((1000, 1000), "uint8")
    opened(place, mode="r+")[:] = values
    for row, column in np.ndindex(2, 2):
        stored = stored_chunk(place, f"a/c/{row}/{column}", ["", ".crc32c"])
        assert stored[-4:] == crc32c(stored[:-4])
        expected = values[row * 500 : (row + 1) * 500, column * 500 : (column + 1) * 500]
        assert unzstd(stored[:-4]) == expected.tobytes()
    suffixes = [""] if kind == "session" else ["", ".crc32c"]
    assert place.keys() == {f"a/c/{index}{suffix}" for index in ("0/0", "0/1", "1/0", "1/1") for suffix in suffixes}
    assert np.array_equal(opened(place), values)
    require_document_kept(place, FIRST_EXAMPLE)


# --- with shards and a header ---------------------------------------------------------------------------------------


def one_of_hundred(chunk: bytes) -> bytes:
    """Return the bytes and the index of a shard of 100 inner chunks of which only the first is stored."""
    index = np.full((100, 2), NONE, "<u8")
    index[0] = 0, len(chunk)
    return chunk + index.tobytes() + crc32c(index.tobytes())


@pytest.mark.parametrize("kind", PLACES)
def test_the_second_example_is_read_as_others_wrote_it(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", SECOND_EXAMPLE.encode())
    chunk = pixels((500, 500), "uint8")
    shard = one_of_hundred(chunk.tobytes())
    put_chunk(place, "a/c/1/1", {".header": shard[:64], "": shard[64:-1604], ".index": shard[-1604:]})
    array = opened(place)
    assert np.array_equal(array[5000:5500, 5000:5500], chunk)
    assert not array[5500:5600, 5000:5100].any()
    assert not array[:10, :10].any()
    if kind != "session":
        require_consolidated(place, SECOND_EXAMPLE, chunk, np.s_[5000:5500, 5000:5500])


@pytest.mark.parametrize("kind", PLACES)
def test_the_second_example_is_written_as_others_read_it(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", SECOND_EXAMPLE.encode())
    chunk = pixels((500, 500), "uint8")
    opened(place, mode="r+")[:500, 5000:5500] = chunk
    assert stored_chunk(place, "a/c/0/1", [".header", "", ".index"]) == one_of_hundred(chunk.tobytes())
    if kind != "session":
        assert [len(place.get(f"a/c/0/1{suffix}")) for suffix in (".header", "", ".index")] == [64, 249_936, 1604]
    require_document_kept(place, SECOND_EXAMPLE)


# --- the same without parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("text", [FIRST_EXAMPLE, SECOND_EXAMPLE], ids=["first", "second"])
def test_the_examples_are_copied_with_the_document_as_it_is_printed(text: str, kind: str, tmp_path: Path) -> None:
    source, target = Place.new("memory", tmp_path), Place.new(kind, tmp_path)
    source.put("a/zarr.json", text.encode())
    opened(source, mode="r+")[:500, :500] = 3
    ps.copy(source.store(), ps.PartsStore(target.plain, must_understand=False))
    assert target.get("a/zarr.json") == text.encode()
    assert target.keys() == source.keys()
    assert all(target.get(key) == source.get(key) for key in source.keys())  # noqa: SIM118 (no dictionary)
