"""Truncated, damaged and hostile files are named, with bounded memory and time."""

import io
import lzma
import re
import resource
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parts_store.errors import AdoptionError, PartsStoreError
from parts_store.virtual.description import Chunked, Contiguous
from parts_store.virtual.parsers import tiff
from parts_store.virtual.parsers.tiff.codecs import IMAGE_COMPRESSIONS, size_of_image
from tests.effort import examples
from tests.virtual.adopting import adopted
from tests.virtual.parsers.tiff.files import read, reason

SHORT, LONG, LONG8, ASCII = 3, 4, 16, 2
# The tags of a page with one value of 8 bits; the data is the signature of the file.
PAGE = [(256, LONG, 1, 1), (257, LONG, 1, 1), (258, SHORT, 1, 8), (259, SHORT, 1, 1), (262, SHORT, 1, 1)]
PLACE = [(273, LONG, 1, 0), (277, SHORT, 1, 1), (278, LONG, 1, 1), (279, LONG, 1, 1)]

type Tag = tuple[int, int, int, int]


def directory(tags: Sequence[Tag], following: int = 0) -> bytes:
    body = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return struct.pack("<H", len(tags)) + body + struct.pack("<I", following)


def page(*, following: int = 0, **changed: int | tuple[int, int]) -> bytes:
    """A directory in which some tags have other values, or other numbers of values: `t256=5`, `t273=(count, value)`."""
    tags = {tag[0]: tag for tag in [*PAGE, *PLACE]}
    tags[273] = (273, LONG, 1, 4)
    for name, value in changed.items():
        code = int(name.removeprefix("t"))
        kind = tags[code][1] if code in tags else LONG
        count, number = value if isinstance(value, tuple) else (1, value)
        tags[code] = (code, kind, count, number)
    return directory(list(tags.values()), following)


def write(path: Path, *parts: bytes) -> Path:
    """A file with directories, the first one behind the header of 8 bytes."""
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 8) + b"".join(parts))
    return path


def test_the_smallest_file_is_read(tmp_path: Path) -> None:
    _, store = adopted(write(tmp_path / "a.tif", page()), strict=True)
    assert read(store, "data").tolist() == [[8]]


@pytest.mark.parametrize(("count", "back"), [(1, 0), (3, 1), (151, 120)])
def test_a_loop_between_directories_is_named_and_the_pages_are_adopted(tmp_path: Path, count: int, back: int) -> None:
    # tifffile finds loops only among the first hundred pages.
    size = len(page())
    chain = [page(following=8 + size * ((number + 1) if number < count - 1 else back)) for number in range(count)]
    report, store = adopted(write(tmp_path / "a.tif", *chain))
    assert "the directories form a loop" in reason(report, f"page {count}")
    assert not report.is_complete
    assert read(store, "data").ravel().tolist() == [8] * count


def test_a_loop_between_subifds_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdoptionError, match="form a loop"):
        adopted(write(tmp_path / "a.tif", page(t330=8)))


@pytest.mark.slow
def test_many_pages_of_different_kinds_are_refused(tmp_path: Path) -> None:
    size, count = len(page()), (1 << 14) + 1
    pages = [page(following=8 + size * (number + 1), t257=1 + number % 3) for number in range(count)]
    with pytest.raises(AdoptionError, match="pages of different kinds, and at most 16,384 can be grouped"):
        adopted(write(tmp_path / "a.tif", *pages))


@pytest.mark.slow
def test_pages_of_many_sizes_are_adopted_one_by_one(tmp_path: Path) -> None:
    size, count = len(page()), 1100
    following = [8 + size * (number + 1) for number in range(count - 1)] + [0]
    pages = [page(following=each, t257=1 + rows, t278=1 + rows, t279=1 + rows) for rows, each in enumerate(following)]
    path = write(tmp_path / "a.tif", *pages, bytes(count))
    description = tiff.describe(io.BytesIO(path.read_bytes()), path.stat().st_size)
    assert [each.header.shape for each in description.arrays] == [(1 + rows, 1) for rows in range(count)]
    assert "not grouped" in description.skipped[0].reason


@pytest.mark.slow
def test_many_small_directories_are_refused(tmp_path: Path) -> None:
    # Directories of one tag each, which overlap.
    count = (1 << 16) + 10
    data = b"".join(directory([(256, LONG, 1, 1)], 8 + 18 * (number + 1)) for number in range(count))
    begin = time.process_time()
    with pytest.raises(AdoptionError, match="more than 65,536 pages"):
        adopted(write(tmp_path / "a.tif", data))
    assert time.process_time() - begin < 20


def test_tags_that_claim_many_values_take_no_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", page(t273=((1 << 32) - 1, 8), t279=((1 << 32) - 1, 8)))
    assert peak_of_memory(path) < 1 << 24


def peak_of_memory(path: Path) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(PartsStoreError):
            adopted(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_tables_that_are_shared_by_many_pages_are_counted_each_time(tmp_path: Path) -> None:
    size, count, values = len(page()), 300, 1 << 19
    table = 8 + size * count
    pages = [
        page(following=8 + size * (number + 1) if number < count - 1 else 0, t273=(values, table), t279=(values, table))
        for number in range(count)
    ]
    path = write(tmp_path / "a.tif", *pages, bytes(4 * values))
    with pytest.raises(AdoptionError, match=r"more than 8,388,608 tiles and strips|tags with more than"):
        adopted(path)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"t256": 0}, "no values"),
        ({"t257": 1 << 31, "t256": 1 << 31, "t278": 1 << 31, "t279": (1 << 32) - 1}, "bytes of values, expected"),
        ({"t273": 1 << 30}, "its values end at"),
        ({"t257": 2, "t278": 2}, "1 bytes of values, expected 2"),
        ({"t258": 7000}, "values of 7000 bits"),
        ({"t259": 9999}, "the compression 9999: it is not supported"),
        ({"t259": 8}, "damaged"),
        ({"t322": 0, "t323": 0, "t324": 8, "t325": 1}, "of the shape (0, 1)"),
        ({"t322": 16, "t323": 16, "t324": 8, "t325": 1, "t257": 5}, "damaged: TiffFileError: corrupted tile"),
        ({"t322": 16, "t323": 16, "t324": 8, "t325": 1, "t256": 1 << 20, "t257": 1 << 20}, "4,294,967,296 tiles and"),
        ({"t277": 60000, "t279": 60000}, "its values end at"),
        ({"t278": 0, "t259": 8}, "strips of the shape (0, 1)"),
    ],
)
def test_impossible_pages_are_named(tmp_path: Path, changed: dict[str, int], expected: str) -> None:
    report, _ = adopted(write(tmp_path / "a.tif", page(**changed)))
    assert not report.arrays
    assert expected in reason(report, "data")


def test_a_page_beyond_the_end_of_the_file_is_named_and_the_others_are_adopted(tmp_path: Path) -> None:
    report, store = adopted(write(tmp_path / "a.tif", page(following=1 << 30)))
    assert read(store, "data").tolist() == [[8]]
    assert "beyond the end of the file" in reason(report, "page 1")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compression", [8, 34925, 50000])
def test_a_decompression_bomb_is_not_decoded(tmp_path: Path, compression: int) -> None:
    # A strip of 64 or 512 MiB of zeros in place of 100,000 bytes.
    compressors: dict[int, Any] = {
        8: zlib.compressobj(1),
        34925: lzma.LZMACompressor(preset=0),
        50000: zstandard.ZstdCompressor().compressobj(),
    }
    compressor, nbytes = compressors[compression], 1 << (29 if compression == 50000 else 26)
    data = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(nbytes >> 20)) + compressor.flush()
    changed = {"t256": 1000, "t257": 100, "t278": 100, "t259": compression, "t279": len(data)}
    path = write(tmp_path / "a.tif", page(t273=8 + len(page()), **changed), data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report, store = adopted(path)
    # In KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 15
    # tifffile reads the first values, or refuses the strip.
    if report.arrays:
        assert np.array_equal(read(store, "data"), tifffile.imread(path))
        assert report.references == 0
    else:
        assert "damaged" in reason(report, "data")


def test_a_jpeg_image_that_is_larger_than_its_tile_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((64, 64), "u1"), tile=(64, 64), compression="jpeg")
    data = path.read_bytes()
    # The size in the frame header: 65,500 by 65,500.
    place = data.index(b"\xff\xc0") + 5
    path.write_bytes(data[:place] + struct.pack(">HH", 65500, 65500) + data[place + 4 :])
    report, _ = adopted(path)
    assert "an image of the size (65500, 65500) in a tile or strip of the size (64, 64)" in reason(report, "data")


def ome(images: str, *, count: int = 1) -> str:
    return f'<?xml version="1.0"?><OME UUID="urn:uuid:1">{images * count}</OME>'


def ome_image(order: str, *, x: int = 1, z: int = 1, t: int = 1, planes: str = "<TiffData/>") -> str:
    sizes = f'SizeX="{x}" SizeY="{x}" SizeZ="{z}" SizeC="1" SizeT="{t}"'
    return f'<Image><Pixels DimensionOrder="{order}" {sizes} Type="uint8">{planes}</Pixels></Image>'


IN_TWO_FILES = (
    '<TiffData IFD="0"><UUID FileName="a.ome.tif">urn:uuid:1</UUID></TiffData>'
    '<TiffData IFD="0" FirstT="1"><UUID FileName="/etc/b.ome.tif">urn:uuid:2</UUID></TiffData>'
)
DOCUMENT = "the OME-XML document"
# A document, what is skipped, and why.
DOCUMENTS: dict[str, tuple[str, str, str]] = {
    "many planes": (ome(ome_image("XYZCT", t=10**9)), DOCUMENT, r"images of more than 1,048,576 planes in all, .*"),
    "no planes": (ome(ome_image("TCZYX", x=10**5)), DOCUMENT, r"images of more than .*, or not of planes: .*"),
    "many images": (
        ome(ome_image("XYZCT", z=100_000), count=20),
        DOCUMENT,
        r"images of more than 1,048,576 planes in all, .*",
    ),
    "a page many times": (ome(ome_image("XYZCT"), count=5000), "the file", r"5,000 images, and 1 pages, .*"),
    "two files": (
        ome(ome_image("XYZCT", t=2, planes=IN_TWO_FILES)),
        DOCUMENT,
        r"its images are in several files, .*: '/etc/b\.ome\.tif'; the pages of this file are adopted",
    ),
    "another document": (
        ome('<BinaryOnly MetadataFile="all &amp; more.companion.ome" UUID="urn:uuid:1"/>'),
        DOCUMENT,
        r".*'all & more\.companion\.ome'.*",
    ),
}


@pytest.mark.parametrize("label", DOCUMENTS)
def test_ome_xml_that_cannot_be_used_is_named_and_the_pages_are_adopted(tmp_path: Path, label: str) -> None:
    path, (xml, name, problem) = tmp_path / "a.ome.tif", DOCUMENTS[label]
    tifffile.imwrite(path, np.full((1, 1), 5, "u1"), description=xml, metadata=None)
    report, store = adopted(path)
    assert not report.is_complete
    assert re.fullmatch(problem, reason(report, name))
    (only,) = report.arrays
    assert read(store, only.path).tolist() == [[5]]


def test_many_strips_that_are_most_of_the_file_are_not_read(tmp_path: Path) -> None:
    # Bits in reverse order are loaded, so that every strip would be read: 2 GB of a file of 300 KB.
    count = 30_000
    start = 8 + len(page(t266=2))
    places = struct.pack("<I", 8) * count, struct.pack("<I", 65_000) * count
    sizes = (count, start + len(places[0]))
    first = page(t256=8, t257=count, t266=2, t278=1, t273=(count, start), t279=sizes)
    path = write(tmp_path / "a.tif", first, *places, bytes(65_000))
    began = time.process_time()
    report, _ = adopted(path)
    assert time.process_time() - began < 5
    assert "30,000 tiles or strips with 1,950,000,000 bytes in all" in reason(report, "data")


def sample() -> bytes:
    """A file with tiles, strips and SubIFDs, compressed and not."""
    file = io.BytesIO()
    values = np.arange(48 * 40, dtype="u2").reshape(48, 40)
    with tifffile.TiffWriter(file) as writer:
        writer.write(values, tile=(16, 16), compression="zlib", predictor=True, subifds=1)
        writer.write(values[::2, ::2], tile=(16, 16), compression="lzw", subfiletype=1)
        writer.write(values, rowsperstrip=9, compression="packbits", contiguous=False)
        writer.write(values[:30], rowsperstrip=9, contiguous=False)
    return file.getvalue()


SAMPLE = sample()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("length", range(0, len(SAMPLE), 97))
def test_a_truncated_file_is_named_or_its_whole_pages_are_described(length: int) -> None:
    described(SAMPLE[:length])


def described(data: bytes) -> None:
    """Describe a file, and require that every range is in the file; named errors only."""
    file = io.BytesIO(data)
    if not tiff.recognise(file, len(data)):
        return
    try:
        description = tiff.describe(file, len(data))
    # What `read_source` translates. Errors of the interpreter would not be translated.
    except Exception:
        return
    for array in description.arrays:
        if isinstance(array, Chunked):
            is_there = array.offsets != np.iinfo("u8").max
            assert not is_there.any() or int((array.offsets + array.lengths)[is_there].max()) <= len(data)
        if isinstance(array, Contiguous):
            assert array.offset + array.header.nbytes <= len(data)
    assert all(each.reason for each in description.skipped)


@pytest.mark.slow
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6))
def test_any_damage_gives_a_named_error_or_ranges_in_the_file(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(SAMPLE)
    for place, new in changes:
        data[place : place + len(new)] = new
    began = time.process_time()
    described(bytes(data[: len(SAMPLE)]))
    assert time.process_time() - began < 5


# For values of three samples, or of one.
COLOUR: list[tuple[int, Callable[..., Any]]] = [
    (7, imagecodecs.jpeg8_encode),
    (34712, lambda values: imagecodecs.jpeg2k_encode(values, codecformat="j2k")),
    (34887, imagecodecs.lerc_encode),
    (34933, imagecodecs.png_encode),
    (50001, lambda values: imagecodecs.webp_encode(values, lossless=True)),
    (50001, lambda values: imagecodecs.webp_encode(values, lossless=False, level=50)),
    (50001, lambda values: imagecodecs.webp_encode(np.dstack([values, values[..., 0]]), lossless=False, level=50)),
]
GRAY: list[tuple[int, Callable[..., Any]]] = [
    (7, lambda values: imagecodecs.jpeg8_encode(values, lossless=True)),
    *((34887, partial(imagecodecs.lerc_encode, version=number)) for number in range(2, 7)),
    (34933, imagecodecs.png_encode),
]


@pytest.mark.parametrize("size", [(2, 3), (17, 300), (301, 16)])
def test_the_size_of_an_image_is_read(size: tuple[int, int]) -> None:
    colour = np.random.default_rng(1).integers(0, 256, (*size, 3)).astype("u1")
    gray = np.ascontiguousarray(colour[..., 0])
    for values, encoders in ((colour, COLOUR), (gray, GRAY)):
        for compression, encode in encoders:
            data = bytes(encode(values))
            assert size_of_image(compression, data) == size, (compression, data[:32])
            for length in range(min(len(data), 40)):
                assert size_of_image(compression, data[:length]) in (None, size)


@given(st.sampled_from(sorted(IMAGE_COMPRESSIONS)), st.binary(max_size=64))
def test_other_bytes_have_no_size_or_any(compression: int, data: bytes) -> None:
    found = size_of_image(compression, data)
    assert found is None or all(isinstance(each, int) for each in found)
