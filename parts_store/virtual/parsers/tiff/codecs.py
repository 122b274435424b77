"""Convert the compression, the predictor and the bits of a TIFF page to codecs of Zarr.

The codecs `imagecodecs_*` are those of imagecodecs. The package imagecodecs-zarr makes them known to every zarr. A tile
or strip can be an image of another format, whose decoder allocates memory for what its header says: the size is read
from the header before.
"""

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import imagecodecs
from imagecodecs import zarr as image_codecs
from tifffile import COMPRESSION, TiffPage
from tifffile.tifffile import jpeg_decode_colorspace, jpeg_shape

from parts_store.virtual.description import CannotBeReadError, Json, NoReferenceError
from parts_store.virtual.store_access import decompress

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


def _size_of_jpeg(data: bytes) -> Size | None:
    return jpeg_shape(data)[1:3]


def _size_of_png(data: bytes) -> Size | None:
    columns, rows = struct.unpack_from(">II", data, 16)
    return (rows, columns) if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" else None


def _size_of_jpeg2000(data: bytes) -> Size | None:
    # Without the boxes of a file, as TIFF has it.
    if data[:4] != b"\xff\x4f\xff\x51":
        return None
    right, bottom, left, top = struct.unpack_from(">IIII", data, 8)
    return bottom - top, right - left


def _size_of_webp(data: bytes) -> Size | None:
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


def _size_of_lerc(data: bytes) -> Size | None:
    if not data.startswith(b"Lerc2 "):
        return None
    (version,) = struct.unpack_from("<i", data, 6)
    rows, columns = struct.unpack_from("<ii", data, 14 if version >= 3 else 10)
    return (rows, columns) if min(rows, columns) > 0 else None


_READERS: Final[dict[int, Callable[[bytes], Size | None]]] = {
    **dict.fromkeys((6, 7, 33007, 34892), _size_of_jpeg),
    **dict.fromkeys((33003, 33004, 33005, 34712), _size_of_jpeg2000),
    34887: _size_of_lerc,
    34933: _size_of_png,
    50001: _size_of_webp,
}
IMAGE_COMPRESSIONS: Final = frozenset(_READERS)


# For an environment with imagecodecs and without imagecodecs-zarr.
_CODECS: Final = "ccittfax3 ccittfax4 ccittrle delta floatpred jpeg jpeg2k lerc lzw packbits packints png webp"
image_codecs.register_codecs(_CODECS.split(), verbose=False)

_LZW: Final = 5
_PACKBITS: Final = 32773
_COMPRESSORS: Final[dict[int, tuple[Json, ...]]] = {
    1: (),
    _LZW: ({"name": "imagecodecs_lzw"},),
    **dict.fromkeys((8, 32946), ({"name": "numcodecs.zlib", "configuration": {"level": 6}},)),
    _PACKBITS: ({"name": "imagecodecs_packbits"},),
    34925: ({"name": "numcodecs.lzma", "configuration": {}},),
    **dict.fromkeys((34926, 50000), ({"name": "zstd", "configuration": {"level": 3, "checksum": False}},)),
}
_OLD_JPEG: Final = 6
_WEBP: Final = 50001
# Images without settings of their own.
_IMAGES: Final = {
    **dict.fromkeys((33003, 33004, 33005, 34712), "imagecodecs_jpeg2k"),
    34887: "imagecodecs_lerc",
    34933: "imagecodecs_png",
}
_CCITT: Final = {2: "imagecodecs_ccittrle", 3: "imagecodecs_ccittfax3", 4: "imagecodecs_ccittfax4"}
_T4_OPTIONS: Final = 292
# The codec for a predictor, and the distance of the values whose difference is stored.
_PREDICTORS: Final = {
    2: ("imagecodecs_delta", 1),
    34892: ("imagecodecs_delta", 2),
    34893: ("imagecodecs_delta", 4),
    3: ("imagecodecs_floatpred", 1),
    34894: ("imagecodecs_floatpred", 2),
    34895: ("imagecodecs_floatpred", 4),
}
_WHOLE_BITS: Final = (8, 16, 32, 64, 128)
_COMPLEX_INTEGER: Final = 5
_PLAIN_DECODERS: Final = {_LZW: imagecodecs.lzw_decode, _PACKBITS: imagecodecs.packbits_decode}


@dataclass(frozen=True, slots=True)
class PageCodecs:
    """The codecs of a chunk, in the order in which they encode."""

    filters: tuple[Json, ...] = ()
    # None for the codec `bytes`.
    serializer: Json | None = None
    compressors: tuple[Json, ...] = ()
    # Whether values can be encoded without loss.
    can_encode: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of a chunk are its values."""
        return not self.filters and self.serializer is None and not self.compressors


def codecs_of(page: TiffPage, x_axis: int) -> PageCodecs:
    """Return the codecs of a page; `x_axis` is the axis of a row of pixels, counted from the end.

    Raises `NoReferenceError` if there are none, and `CannotBeReadError` if the page cannot be read in a bounded way.
    """
    if page.dtype is None:
        raise CannotBeReadError(f"values of {page.bitspersample} bits with the sample format {int(page.sampleformat)}")
    if page.compression in IMAGE_COMPRESSIONS or page.compression in _CCITT:
        return PageCodecs(serializer=_image_codec(page), can_encode=False)
    if page.is_subsampled:
        raise CannotBeReadError(f"subsampled colours with the compression {_name(page)}")
    compressors = _compressors(page)
    if isinstance(page.bitspersample, tuple) or page.sampleformat == _COMPLEX_INTEGER:
        raise NoReferenceError(f"samples of {page.bitspersample} bits in the format {int(page.sampleformat)}")
    serializer = None if page.bitspersample in _WHOLE_BITS else _packed(page, compressors)
    if page.fillorder != 1 and (serializer is None or serializer["name"] != "packbits"):
        raise NoReferenceError("bits in reverse order (FillOrder 2)")
    if page.predictor == 1:
        return PageCodecs((), serializer, compressors)
    if page.predictor not in _PREDICTORS:
        raise CannotBeReadError(f"the predictor {int(page.predictor)}")
    name, distance = _PREDICTORS[page.predictor]
    predictor = {"name": name, "configuration": {"axis": x_axis, "dist": distance}}
    if name == "imagecodecs_delta":
        return PageCodecs((predictor,), serializer, compressors)
    if serializer is not None:
        raise NoReferenceError(f"the predictor {int(page.predictor)} with values of {page.bitspersample} bits")
    return PageCodecs((), predictor, compressors)


def _name(page: TiffPage) -> str:
    try:
        return COMPRESSION(page.compression).name
    except ValueError:
        return str(int(page.compression))


def _compressors(page: TiffPage) -> tuple[Json, ...]:
    if (found := _COMPRESSORS.get(int(page.compression))) is None:
        raise CannotBeReadError(f"the compression {_name(page)}: it is not supported")
    return found


def _packed(page: TiffPage, compressors: tuple[Json, ...]) -> Json:
    """Return the codec for values of fewer bits than their data type. A row begins with a new byte."""
    width = page.tilewidth if page.is_tiled else page.imagewidth
    length = width * (page.samplesperpixel if page.planarconfig == 1 else 1)
    if page.dtype is None or page.dtype.kind not in "bu":
        raise NoReferenceError(f"values of {page.bitspersample} bits in the format {int(page.sampleformat)}")
    if page.fillorder != 1:
        if page.bitspersample != 1 or compressors or length % 8:
            raise NoReferenceError("bits in reverse order (FillOrder 2)")
        return {"name": "packbits", "configuration": {"padding_encoding": "none"}}
    return {"name": "imagecodecs_packints", "configuration": {"bitspersample": page.bitspersample, "runlen": length}}


def _image_codec(page: TiffPage) -> Json:
    """Return the codec for a compression that makes bytes of pixels, which zarr cannot encode without a loss."""
    if page.compression == _OLD_JPEG:
        raise NoReferenceError(f"the compression {_name(page)}")
    if page.compression == _WEBP:
        return {"name": "imagecodecs_webp", "configuration": {"hasalpha": page.samplesperpixel == 4}}
    if page.compression in _IMAGES:
        return {"name": _IMAGES[page.compression]}
    return _ccitt(page) if page.compression in _CCITT else _jpeg(page)


def _jpeg(page: TiffPage) -> Json:
    extra = tuple(map(int, page.extrasamples))
    stored, wanted = jpeg_decode_colorspace(int(page.photometric), int(page.planarconfig), extra, page.is_jfif)
    settings: dict[str, Any] = {"colorspace_jpeg": stored, "colorspace_data": wanted}
    settings = {name: value for name, value in settings.items() if value is not None}
    for name, data in (("tables", page.jpegtables), ("header", page.jpegheader)):
        if data is not None:
            settings[name] = base64.b64encode(data).decode()
    return {"name": "imagecodecs_jpeg", "configuration": settings}


def _ccitt(page: TiffPage) -> Json:
    if page.fillorder != 1:
        raise NoReferenceError("bits in reverse order (FillOrder 2)")
    if page.bitspersample != 1 or page.samplesperpixel != 1:
        raise CannotBeReadError(f"the compression {_name(page)} with {page.samplesperpixel} samples")
    settings = {"t4options": int(page.tags.valueof(_T4_OPTIONS, 0))} if page.compression == 3 else {}
    return {"name": _CCITT[page.compression], "configuration": settings}


def require_bounded(page: TiffPage, data: bytes, size: Size) -> None:
    """Raise `CannotBeReadError` if a tile or strip is an image with more rows or columns than this, or may be one."""
    if page.compression not in IMAGE_COMPRESSIONS or page.jpegheader is not None:
        return
    found = size_of_image(int(page.compression), data)
    if found is None:
        raise CannotBeReadError(f"an image in a tile or strip whose header is not known ({_name(page)})")
    if found[0] > size[0] or found[1] > size[1]:
        raise CannotBeReadError(f"an image of the size {found} in a tile or strip of the size {size}")


def require_decoded_size(page: TiffPage, data: bytes, size: Size, nbytes: int) -> None:
    """Raise `NoReferenceError` unless a tile or strip has this size, or this number of bytes, when it is decoded.

    The codecs of zarr decode everything that is there, without a limit.
    """
    compression = int(page.compression)
    if compression in IMAGE_COMPRESSIONS and page.jpegheader is None and size_of_image(compression, data) != size:
        raise NoReferenceError(f"an image in a tile or strip of another size than {size}")
    # The decoders of images and of CCITT know how much to decode.
    if compression == 1 or compression in IMAGE_COMPRESSIONS or compression in _CCITT:
        return
    try:
        if compression not in _PLAIN_DECODERS:
            decompress(_compressors(page)[0], data, nbytes)
            return
        found = len(_PLAIN_DECODERS[compression](data, out=nbytes + 1))
    # Each library has its own errors for damaged data.
    except Exception as error:
        raise NoReferenceError(f"a tile or strip that cannot be decoded: {error}") from error
    if found != nbytes:
        raise NoReferenceError(f"a tile or strip of {found:,} bytes or more when it is decoded, expected {nbytes:,}")
