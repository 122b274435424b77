"""Decompress data whose decompressed size is known, without ever using much more memory than that.

The codecs of zarr decompress whatever is there: a few kilobytes can become terabytes.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import zstandard

# The memory that a frame of zstd may claim for its window, if it has fewer bytes than that.
_LEAST_WINDOW: Final = 1 << 27


class SizeError(ValueError):
    """Compressed data that has another size than is known of it."""


def decompress(codec: Mapping[str, Any], data: bytes, nbytes: int) -> bytes | None:
    """Return what a codec of zarr has compressed to `data`; None if this module does not know the codec.

    At most one byte more than `nbytes` is decompressed. Raises `SizeError` if there are more, or fewer, and any error
    of the library that decompresses.
    """
    known = _DECOMPRESSORS.get(str(codec["name"]))
    configuration: Mapping[str, Any] = codec.get("configuration") or {}
    # Data of other formats of LZMA than xz.
    if known is None or configuration.get("format", lzma.FORMAT_XZ) != lzma.FORMAT_XZ or configuration.get("filters"):
        return None
    found = known(data, nbytes + 1)
    if len(found) != nbytes:
        found_nbytes = f"more than {nbytes}" if len(found) > nbytes else str(len(found))
        raise SizeError(f"expected {nbytes} bytes, found {found_nbytes} bytes when they are decompressed")
    return found


def _gzip(data: bytes, limit: int) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(data)).read(limit)


def _zlib(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, limit)
    if len(found) < limit and not stream.eof:
        raise SizeError(f"a stream that ends after {len(found)} bytes")
    return found


def _bz2(data: bytes, limit: int) -> bytes:
    return bz2.BZ2File(io.BytesIO(data)).read(limit)


def _lzma(data: bytes, limit: int) -> bytes:
    return lzma.LZMAFile(io.BytesIO(data), format=lzma.FORMAT_XZ).read(limit)


def _zstd(data: bytes, limit: int) -> bytes:
    # The window of a frame can be as large as all of its data.
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(limit, _LEAST_WINDOW))
    return decompressor.stream_reader(data, read_across_frames=True).read(limit)


_DECOMPRESSORS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "numcodecs.zlib": _zlib,
    "numcodecs.bz2": _bz2,
    "numcodecs.lzma": _lzma,
    "zstd": _zstd,
}
