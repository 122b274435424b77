"""Arrays of the examples in the specifications of `offset` and `pad` exchange their chunks with other programs."""

import base64
import gzip
import io
import struct
from dataclasses import dataclass
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

HEADER = b"MY_CUSTOM_HEADER"


@dataclass(frozen=True, slots=True)
class Printed:
    """The three examples of a specification as they are printed, and the member that has the bytes of the header."""

    member: str
    # Chunks that are TIFF files.
    first: str
    # Chunks with a header of 16 bytes, compressed by gzip.
    second: str
    # Chunks that are blocks of N5.
    third: str


def read_printed(name: str, member: str) -> Printed:
    folder = Path(__file__).parent / "printed"
    return Printed(member, *((folder / f"{name}_{which}.json").read_text() for which in ("first", "second", "third")))


PRINTED = {"offset": read_printed("offset", "prefix"), "pad": read_printed("pad", "padding")}


@pytest.fixture(params=PRINTED)
def codec(request: pytest.FixtureRequest) -> Printed:
    """Return the examples of each of the two codecs."""
    return PRINTED[request.param]


def tiff_header() -> bytes:
    """Return the header of a TIFF file of 256 x 256 numbers of 16 bits in one strip, made of its fields."""
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


def test_header_of_the_first_example_is_that_of_a_tiff_file(codec: Printed) -> None:
    printed = codec.first.partition(f'"{codec.member}": "')[2].partition('"')[0]
    assert base64.b64decode(printed, validate=True) == tiff_header()
    assert len(tiff_header()) == 110


@pytest.mark.parametrize("kind", PLACES)
def test_first_example_writes_tiff_files(codec: Printed, kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    text = around(codec.first)
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
def test_first_example_reads_tiff_files(codec: Printed, kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", around(codec.first).encode())
    values = pixels((256, 256), "uint16")
    # What the header says is skipped, whatever it is.
    place.put("a/c/0/1", tiff_header() + values.astype("<u2").tobytes())
    place.put("a/c/1/0", bytes(110) + values.astype("<u2").tobytes())
    array = opened(place)
    assert np.array_equal(array[:256, 256:], values)
    assert np.array_equal(array[256:, :256], values)
    assert not array[:256, :256].any()
    if kind != "session":
        require_consolidated(place, around(codec.first), values, np.s_[:256, 256:])


@pytest.mark.parametrize("kind", PLACES)
def test_second_example_reads_what_other_programs_wrote(codec: Printed, kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", around(codec.second).encode())
    values = pixels((256, 256), "uint16")
    place.put("a/c/1/1", HEADER + gzip.compress(values.astype("<u2").tobytes()))
    array = opened(place)
    assert np.array_equal(array[256:, 256:], values)
    assert not array[:256].any()
    if kind != "session":
        require_consolidated(place, around(codec.second), values, np.s_[256:, 256:])


@pytest.mark.parametrize("kind", PLACES)
def test_second_example_writes_what_other_programs_read(codec: Printed, kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    text = around(codec.second)
    place.put("a/zarr.json", text.encode())
    values = pixels((512, 512), "uint16")
    opened(place, mode="r+")[:] = values
    stored = place.get("a/c/1/0")
    assert stored[:16] == HEADER
    assert ungzip(stored[16:]) == values[256:, :256].astype("<u2").tobytes()
    assert np.array_equal(opened(place), values)
    require_document_kept(place, text)


def n5_block(values: np.ndarray) -> bytes:
    """Return a block of N5 in its default mode: its header, and compressed big-endian numbers."""
    return struct.pack(">HHII", 0, 2, 64, 64) + zstd_frame(values.astype(">u2").tobytes())


@pytest.mark.parametrize("kind", OBJECTS)
def test_third_example_reads_blocks_of_n5(codec: Printed, kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    place.put("a/zarr.json", codec.third.encode())
    values = pixels((64, 64), "uint16")
    place.put("a/3/15", n5_block(values))
    array = opened(place)
    assert np.array_equal(array[192:256, 960:], values)
    assert not array[:192].any()
    if codec is PRINTED["pad"]:
        # In the example of `offset`, zarr completes the configuration of zstd, by its checksum.
        require_consolidated(place, codec.third, values, np.s_[192:256, 960:])


# The example of `pad` has no padding: its header is zeros, which no N5 reader takes for a header.
@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize(
    ("name", "header"), [("offset", n5_block(pixels((64, 64), "uint16"))[:12]), ("pad", bytes(12))]
)
def test_third_example_writes_its_header(name: str, header: bytes, kind: str, tmp_path: Path) -> None:
    place = Place.new(kind, tmp_path)
    text = PRINTED[name].third
    place.put("a/zarr.json", text.encode())
    values = pixels((64, 64), "uint16")
    opened(place, mode="r+")[64:128, :64] = values
    assert place.keys() == {"a/1/0"}
    stored = place.get("a/1/0")
    assert stored[:12] == header
    assert unzstd(stored[12:]) == values.astype(">u2").tobytes()
    require_document_kept(place, text)


def test_header_of_the_third_example_is_that_of_n5() -> None:
    assert base64.b64decode("AAAAAgAAAEAAAABA") == n5_block(pixels((64, 64), "uint16"))[:12]
    assert '"prefix": "AAAAAgAAAEAAAABA"' in PRINTED["offset"].third
