"""Refuse chunks of blosc that were cut off: blosc does not compare its header with the number of bytes it is given.

numcodecs returns what lies behind such a chunk in memory, now and then (numcodecs#228). The codecs here decode as those
of zarr do, after this check. zarr is served their names (`parts_store.format.metadata`), and writes the names of its
own codecs, so that nothing of this is stored.
"""

from typing import Any, Final, Self, override

from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, numcodecs
from zarr.registry import register_codec

from parts_store._compat.zarr import ArraySpec
from parts_store.errors import CodecError

_HEADER_NBYTES: Final = 16


def require_blosc_sizes(data: Buffer | bytes, nbytes: int | None = None) -> None:
    """Raise `CodecError` if a chunk of blosc has fewer bytes than its header says.

    If the size of the decompressed chunk is given, both sizes must be exactly those in the header.
    """
    head = data[:_HEADER_NBYTES]
    header = head if isinstance(head, bytes) else head.to_bytes()
    decompressed, stored = (int.from_bytes(header[at : at + 4], "little") for at in (4, 12))
    is_exact = nbytes is None or (decompressed, stored) == (nbytes, len(data))
    if len(header) < _HEADER_NBYTES or stored > len(data) or not is_exact:
        size = "a whole chunk" if nbytes is None else f"{nbytes} bytes in a whole chunk"
        found = f"{len(data)} bytes with a header that says {stored} bytes for {decompressed}"
        raise CodecError("blosc", size, f"{found}: the chunk is cut off or damaged")


class _Checked(BytesBytesCodec):
    """A codec of zarr that refuses chunks that were cut off."""

    _NAME: str

    @classmethod
    @override
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return super().from_dict({**data, "name": cls._NAME})

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        require_blosc_sizes(chunk_bytes)
        decoded: Buffer = super()._decode_sync(chunk_bytes, chunk_spec)  # type: ignore[misc]
        return decoded

    def __eq__(self, other: object) -> bool:
        # An array that was created is equal to the same array when it is opened.
        return isinstance(other, BytesBytesCodec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(str(self.to_dict()))


class CheckedBlosc(_Checked, BloscCodec):
    """The codec `blosc` of zarr, which refuses chunks that were cut off."""

    _NAME = "blosc"


class CheckedNumcodecsBlosc(_Checked, numcodecs.Blosc):
    """The codec `numcodecs.blosc` of zarr, which refuses chunks that were cut off."""

    _NAME = "numcodecs.blosc"


CHECKED: Final = {"blosc": "parts_store.blosc", "numcodecs.blosc": "parts_store.numcodecs.blosc"}
"""The names of the codecs here, by those of zarr."""

register_codec(CHECKED["blosc"], CheckedBlosc)
register_codec(CHECKED["numcodecs.blosc"], CheckedNumcodecsBlosc)
