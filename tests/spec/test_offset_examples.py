"""The examples of the specification of `offset`, as they are printed, and what others read of them."""

import base64
import gzip
import io
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.spec.examples import (
    OBJECTS,
    PLACES,
    Place,
    around,
    opened,
    pixels,
    require_consolidated,
    require_document_kept,
    ungzip,
    unzstd,
    zstd_frame,
)

FIRST_EXAMPLE = """{
  "codecs": [
    {
      "name": "bytes",
      "configuration": {
        "endian": "little"
      }
    },
    {
      "name": "offset",
      "configuration": {
        "offset": 110,
        "prefix": "SUkqAAgAAAAIAAABAwABAAAAAAEAAAEBAwABAAAAAAEAAAIBAwABAAAAEAAAAAMBAwABAAAAAQAAAAYBAwABAAAAAQAAABEBBAABAAAAbgAAABYBAwABAAAAAAEAABcBBAABAAAAAAACAAAAAAA="
      }
    }
  ]
}"""  # noqa: E501
SECOND_EXAMPLE = """{
  "codecs": [
    { "name": "gzip" },
    {
      "name": "offset",
      "configuration": {
        "offset": 16,
        "prefix": "TVlfQ1VTVE9NX0hFQURFUg=="
      }
    }
  ]
}"""
THIRD_EXAMPLE = """{
  "zarr_format": 3,
  "node_type": "array",
  "shape": [1024, 1024],
  "data_type": "uint16",
  "chunk_grid": {
    "name": "regular",
    "configuration": {
      "chunk_shape": [64, 64]
    }
  },
  "chunk_key_encoding": {
    "name": "v2",
    "configuration": {
      "separator": "/"
    }
  },
  "codecs": [
    {
      "name": "bytes",
      "configuration": {
        "endian": "big"
      }
    },
    {
      "name": "zstd",
      "configuration": {
        "level": 3
      }
    },
    {
      "name": "offset",
      "configuration": {
        "offset": 12,
        "prefix": "AAAAAgAAAEAAAABA"
      }
    }
  ],
  "fill_value": 0
}"""
HEADER = b"MY_CUSTOM_HEADER"


def tiff_header() -> bytes:
    """The header of a TIFF file of 256 x 256 numbers of 16 bits in one strip, by the fields that it has."""
    fields = [
        (256, 3, 256),
        (257, 3, 256),
        (258, 3, 16),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 110),
        (278, 3, 256),
        (279, 4, 256 * 256 * 2),
    ]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in fields)
    return b"II" + struct.pack("<HI", 42, 8) + struct.pack("<H", len(fields)) + entries + struct.pack("<I", 0)


def test_the_header_of_the_first_example_is_that_of_a_tiff_file() -> None:
    printed = FIRST_EXAMPLE.partition('"prefix": "')[2].partition('"')[0]
    assert base64.b64decode(printed, validate=True) == tiff_header()
    assert len(tiff_header()) == 110


@pytest.mark.parametrize("kind", PLACES)
def test_chunks_of_the_first_example_are_tiff_files(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    text = around(FIRST_EXAMPLE)
    place.put("a/zarr.json", text.encode())
    values = pixels((512, 512), "uint16")
    opened(place, mode="r+")[:] = values
    for row, column in np.ndindex(2, 2):
        expected = values[row * 256 : (row + 1) * 256, column * 256 : (column + 1) * 256]
        stored = place.get(f"a/c/{row}/{column}")
        assert stored == tiff_header() + expected.astype("<u2").tobytes()
        assert np.array_equal(tifffile.imread(io.BytesIO(stored)), expected)
        with Image.open(io.BytesIO(stored)) as image:
            assert np.array_equal(np.asarray(image), expected)
    require_document_kept(place, text)


@pytest.mark.parametrize("kind", PLACES)
def test_tiff_files_are_read_as_chunks_of_the_first_example(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", around(FIRST_EXAMPLE).encode())
    values = pixels((256, 256), "uint16")
    # What the header says is skipped, whatever it is.
    place.put("a/c/0/1", tiff_header() + values.astype("<u2").tobytes())
    place.put("a/c/1/0", bytes(110) + values.astype("<u2").tobytes())
    array = opened(place)
    assert np.array_equal(array[:256, 256:], values)
    assert np.array_equal(array[256:, :256], values)
    assert not array[:256, :256].any()
    if kind != "session":
        require_consolidated(place, around(FIRST_EXAMPLE), values, np.s_[:256, 256:])


@pytest.mark.parametrize("kind", PLACES)
def test_the_second_example_is_read_as_others_wrote_it(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", around(SECOND_EXAMPLE).encode())
    values = pixels((256, 256), "uint16")
    place.put("a/c/1/1", HEADER + gzip.compress(values.astype("<u2").tobytes()))
    array = opened(place)
    assert np.array_equal(array[256:, 256:], values)
    assert not array[:256].any()
    if kind != "session":
        require_consolidated(place, around(SECOND_EXAMPLE), values, np.s_[256:, 256:])


@pytest.mark.parametrize("kind", PLACES)
def test_the_second_example_is_written_as_others_read_it(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    text = around(SECOND_EXAMPLE)
    place.put("a/zarr.json", text.encode())
    values = pixels((512, 512), "uint16")
    opened(place, mode="r+")[:] = values
    stored = place.get("a/c/1/0")
    assert stored[:16] == HEADER
    assert ungzip(stored[16:]) == values[256:, :256].astype("<u2").tobytes()
    assert np.array_equal(opened(place), values)
    require_document_kept(place, text)


def n5_block(values: np.ndarray) -> bytes:
    """A block of N5 in its default mode: its header, and big-endian numbers, compressed."""
    return struct.pack(">HHII", 0, 2, 64, 64) + zstd_frame(values.astype(">u2").tobytes())


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_third_example_reads_blocks_of_n5(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", THIRD_EXAMPLE.encode())
    values = pixels((64, 64), "uint16")
    place.put("a/3/15", n5_block(values))
    array = opened(place)
    assert np.array_equal(array[192:256, 960:], values)
    assert not array[:192].any()


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_third_example_writes_blocks_of_n5(kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", THIRD_EXAMPLE.encode())
    values = pixels((64, 64), "uint16")
    opened(place, mode="r+")[64:128, :64] = values
    assert place.keys() == {"a/1/0"}
    stored = place.get("a/1/0")
    assert stored[:12] == n5_block(values)[:12] == base64.b64decode("AAAAAgAAAEAAAABA")
    assert unzstd(stored[12:]) == values.astype(">u2").tobytes()
    require_document_kept(place, THIRD_EXAMPLE)


def test_a_pickled_array_keeps_the_document_as_it_is_printed(tmp_path: Path) -> None:
    place = Place.new("disk", tmp_path)
    text = around(SECOND_EXAMPLE)
    place.put("a/zarr.json", text.encode())
    array = pickle.loads(pickle.dumps(opened(place, mode="r+")))
    array.attrs["units"] = "m"
    assert json.loads(place.get("a/zarr.json")) == json.loads(text) | {"attributes": {"units": "m"}}
