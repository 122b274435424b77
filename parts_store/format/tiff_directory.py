"""TIFF directories: the tags that describe an image, and their bytes. Knows nothing about chunks and shards."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

type ByteOrder = Literal["little", "big"]
type Compression = Literal["none", "deflate", "zstd"]

# TIFF 6.0, its supplements, and libtiff's registry of compression schemes.
COMPRESSION: Final[dict[str, int]] = {"none": 1, "deflate": 8, "zstd": 50000}
SAMPLE_FORMAT: Final = {"b": 1, "u": 1, "i": 2, "f": 3, "c": 6}
ASCII, SHORT, LONG, RATIONAL, DOUBLE, LONG8 = 2, 3, 4, 5, 12, 16
GRAY, RGB, RGBA = 1, 3, 4
# The size of an entry of a directory that is not a BigTIFF's.
ENTRY_NBYTES: Final = 12
WIDTH, HEIGHT = 256, 257
STRIP_OFFSETS, ROWS_PER_STRIP, STRIP_BYTE_COUNTS = 273, 278, 279
TILE_WIDTH, TILE_LENGTH, TILE_OFFSETS, TILE_BYTE_COUNTS = 322, 323, 324, 325

_FORMATS: Final = {ASCII: "B", SHORT: "H", LONG: "I", RATIONAL: "I", DOUBLE: "d", LONG8: "Q"}


@dataclass(frozen=True, slots=True)
class DirectoryTag:
    """An entry of a TIFF directory: a tag, its type and its values."""

    number: int
    kind: int
    # A rational number is two values.
    values: tuple[int, ...] | tuple[float, ...]
    # Where the values are in the file, if they are not behind the directory.
    at: int | None = None

    @classmethod
    def number_of(cls, number: int, value: int) -> "DirectoryTag":
        """Return a tag with one value, of the shorter type that can hold it."""
        return cls(number, SHORT if value < 2**16 else LONG, (value,))

    @property
    def nbytes(self) -> int:
        """The size of the values."""
        return len(self.values) * struct.calcsize(_FORMATS[self.kind])

    @property
    def count(self) -> int:
        """The number of values, as the entry says it."""
        return len(self.values) // (2 if self.kind == RATIONAL else 1)


def image_tags(
    height: int, width: int, samples: int, dtype: np.dtype[Any], compression: Compression, *, is_rgb: bool
) -> Iterator[DirectoryTag]:
    """Yield the tags that describe the pixels of an image, without those that say where the pixels are."""
    sample_format = SAMPLE_FORMAT[dtype.kind]
    yield DirectoryTag.number_of(WIDTH, width)
    yield DirectoryTag.number_of(HEIGHT, height)
    yield DirectoryTag(258, SHORT, (dtype.itemsize * 8,) * samples)  # BitsPerSample
    yield DirectoryTag(259, SHORT, (COMPRESSION[compression],))  # Compression
    yield DirectoryTag(262, SHORT, (2 if is_rgb else 1,))  # PhotometricInterpretation: RGB or BlackIsZero
    if is_rgb:
        yield DirectoryTag(277, SHORT, (samples,))  # SamplesPerPixel
        yield DirectoryTag(284, SHORT, (1,))  # PlanarConfiguration: the colours of a pixel are adjacent
    if samples == RGBA:
        yield DirectoryTag(338, SHORT, (2,))  # ExtraSamples: unassociated alpha
    if sample_format != 1:
        yield DirectoryTag(339, SHORT, (sample_format,) * samples)  # SampleFormat, unsigned by default


@dataclass(frozen=True, slots=True)
class TiffForm:
    """A form of TIFF: its byte order, and whether its numbers have 64 bits (BigTIFF)."""

    byteorder: ByteOrder
    is_big: bool = False

    @property
    def _order(self) -> str:
        return "<" if self.byteorder == "little" else ">"

    @property
    def _offset(self) -> str:
        return "Q" if self.is_big else "I"

    def magic(self, first: int | None = None) -> bytes:
        """Return the bytes at the start of the file; the first directory follows them, or is at the offset `first`."""
        name = b"II" if self.byteorder == "little" else b"MM"
        if self.is_big:
            return struct.pack(f"{self._order}2sHHHQ", name, 43, 8, 0, 16 if first is None else first)
        return struct.pack(f"{self._order}2sHI", name, 42, 8 if first is None else first)

    def directory_nbytes(self, tags: Sequence[DirectoryTag]) -> int:
        """Return the size of a directory with the values behind it."""
        return self._entries_nbytes(len(tags)) + sum(each.nbytes for each in tags if self._is_behind(each))

    def pack(self, tags: Iterable[DirectoryTag], at: int, following: int = 0) -> bytes:
        """Return a directory at an offset of the file, and behind it the values that do not fit into their entries.

        `following` is the offset of the next directory, 0 if this is the last one.
        """
        ordered = sorted(tags, key=lambda tag: tag.number)
        overflow_at = at + self._entries_nbytes(len(ordered))
        entries, overflow = [struct.pack(f"{self._order}{'Q' if self.is_big else 'H'}", len(ordered))], b""
        for tag in ordered:
            packed = self.values(tag)
            if not self._is_inside(tag):
                values_at = overflow_at + len(overflow) if tag.at is None else tag.at
                overflow += packed if tag.at is None else b""
                packed = struct.pack(f"{self._order}{self._offset}", values_at)
            head = struct.pack(f"{self._order}HH{self._offset}", tag.number, tag.kind, tag.count)
            entries.append(head + packed.ljust(self._inside_nbytes, b"\0"))
        return b"".join(entries) + struct.pack(f"{self._order}{self._offset}", following) + overflow

    def values(self, tag: DirectoryTag) -> bytes:
        """Return the values of a tag as bytes."""
        return struct.pack(f"{self._order}{len(tag.values)}{_FORMATS[tag.kind]}", *tag.values)

    def placed(self, tags: Iterable[DirectoryTag], at: int) -> tuple[list[DirectoryTag], bytes]:
        """Return the tags with their values at an offset of the file, which several directories share, and the values.

        Each value begins at an even offset, if `at` is even, as the next bytes do.
        """
        found, data = [], b""
        for tag in tags:
            if self._is_inside(tag):
                found.append(tag)
            else:
                found.append(replace(tag, at=at + len(data)))
                data += self.values(tag) + bytes(tag.nbytes % 2)
        return found, data

    @property
    def _inside_nbytes(self) -> int:
        """The size of values that are in the entry of their tag; longer values are behind the directory."""
        return 8 if self.is_big else 4

    def _is_inside(self, tag: DirectoryTag) -> bool:
        return tag.nbytes <= self._inside_nbytes

    def _is_behind(self, tag: DirectoryTag) -> bool:
        """Return whether the values of a tag are behind the directory."""
        return tag.at is None and not self._is_inside(tag)

    def _entries_nbytes(self, count: int) -> int:
        return 8 + 20 * count + 8 if self.is_big else 2 + 12 * count + 4
