"""Read the size of an encoded image from its header, before it is decoded.

A tile or strip can be an image of another format. Its decoder allocates memory for what the header says.
"""

import struct
from collections.abc import Callable
from typing import Final

from tifffile.tifffile import jpeg_shape

type Size = tuple[int, int]
"""The numbers of rows and columns."""


def size_of_image(compression: int, data: bytes) -> Size | None:
    """Return the size of an image; None if its header is not known, or the compression is none of images."""
    read = _READERS.get(compression)
    try:
        return None if read is None else read(data)
    # The header is cut off, or has no size.
    except (struct.error, ValueError):
        return None


def _jpeg(data: bytes) -> Size | None:
    return jpeg_shape(data)[1:3]


def _png(data: bytes) -> Size | None:
    columns, rows = struct.unpack_from(">II", data, 16)
    return (rows, columns) if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" else None


def _jpeg2000(data: bytes) -> Size | None:
    # Without the boxes of a file, as TIFF has it.
    if data[:4] != b"\xff\x4f\xff\x51":
        return None
    right, bottom, left, top = struct.unpack_from(">IIII", data, 8)
    return bottom - top, right - left


def _webp(data: bytes) -> Size | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    match data[12:16]:
        case b"VP8X":
            columns, rows = (int.from_bytes(each, "little") for each in struct.unpack_from("3s3s", data, 24))
            return 1 + rows, 1 + columns
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
        case b"VP8 ":
            columns, rows = struct.unpack_from("<HH", data, 26)
            return rows & 0x3FFF, columns & 0x3FFF
    return None


def _lerc(data: bytes) -> Size | None:
    if not data.startswith(b"Lerc2 "):
        return None
    (version,) = struct.unpack_from("<i", data, 6)
    rows, columns = struct.unpack_from("<ii", data, 14 if version >= 3 else 10)
    return (rows, columns) if min(rows, columns) > 0 else None


_READERS: Final[dict[int, Callable[[bytes], Size | None]]] = {
    **dict.fromkeys((6, 7, 33007, 34892), _jpeg),
    **dict.fromkeys((33003, 33004, 33005, 34712), _jpeg2000),
    34887: _lerc,
    34933: _png,
    50001: _webp,
}
IMAGE_COMPRESSIONS: Final = frozenset(_READERS)
