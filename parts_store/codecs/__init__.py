"""The codecs `pad`, `offset`, `packbits` and those for N5 and szip, which zarr finds through their entry points."""

from parts_store.codecs.configuration import schema
from parts_store.codecs.n5_default import N5DefaultCodec
from parts_store.codecs.n5_lz4 import N5Lz4Codec
from parts_store.codecs.offset import OffsetCodec, offset_codec
from parts_store.codecs.packbits import PackBitsCodec
from parts_store.codecs.pad import PadCodec, bind_padding, pad_codec
from parts_store.codecs.szip import SzipCodec

__all__ = [
    "N5DefaultCodec",
    "N5Lz4Codec",
    "OffsetCodec",
    "PackBitsCodec",
    "PadCodec",
    "SzipCodec",
    "bind_padding",
    "offset_codec",
    "pad_codec",
    "schema",
]
