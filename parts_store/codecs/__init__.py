"""The codecs `pad`, `offset` and `packbits`, which zarr finds through their entry points."""

from parts_store.codecs.binding import bind_padding
from parts_store.codecs.configuration import schema
from parts_store.codecs.offset import OffsetCodec, offset_codec
from parts_store.codecs.packbits import PackBitsCodec
from parts_store.codecs.pad import PadCodec, pad_codec

__all__ = [
    "OffsetCodec",
    "PackBitsCodec",
    "PadCodec",
    "bind_padding",
    "offset_codec",
    "pad_codec",
    "schema",
]
