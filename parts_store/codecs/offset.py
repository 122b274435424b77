"""The `offset` codec: a fixed-size header before an encoded chunk."""

from collections.abc import Buffer
from dataclasses import dataclass
from typing import override

from zarr.types import JSON

from parts_store.codecs.pad import Padding, PaddingCodec, PaddingFunction, PaddingNames


@dataclass(frozen=True, init=False, repr=False)
class OffsetCodec(PaddingCodec):
    """A codec that adds a header of `offset` bytes before every encoded chunk, and skips it when reading.

    Parameters
    ----------
    offset
        The size of the header in bytes.
    prefix
        The header, or its base64 text; zeros if None. Its length must be `offset`.
    prefix_func
        A callable that makes the header of each chunk from its encoded bytes. It must return exactly `offset` bytes. It
        is pickled with the array, and never stored: see `bind_padding`.

    Raises
    ------
    CodecConfigError
        If an argument is wrong.

    Examples
    --------
    >>> codec = ps.codecs.OffsetCodec(3, prefix=b"abc")
    >>> array = zarr.create_array({}, shape=(4,), dtype="uint8", compressors=[codec])
    >>> array[:] = 7
    >>> array[:].tolist()
    [7, 7, 7, 7]
    """

    content: Padding

    names = PaddingNames("offset", "offset", "prefix", "prefix_func")
    location = "start"

    def __init__(
        self, offset: int, *, prefix: Buffer | str | None = None, prefix_func: PaddingFunction | None = None
    ) -> None:
        object.__setattr__(self, "content", Padding.parse(self.names, offset, prefix, prefix_func))

    @property
    def offset(self) -> int:
        """The size of the header in bytes."""
        return self.content.nbytes

    @property
    def prefix(self) -> bytes | None:
        """The header that is in `zarr.json`; None if it is zeros; with a callable, a mark that stands for it."""
        return self.content.literal

    @property
    def prefix_func(self) -> PaddingFunction | None:
        """The callable that makes the header, None if no callable is bound."""
        return self.content.function

    @override
    def to_dict(self) -> dict[str, JSON]:
        return {"name": "offset", "configuration": self.content.to_json()}

    def __repr__(self) -> str:
        return f"OffsetCodec({self.content})"


def offset_codec(
    offset: int, *, prefix: Buffer | str | None = None, prefix_func: PaddingFunction | None = None
) -> OffsetCodec:
    """Return an `OffsetCodec`.

    Parameters
    ----------
    offset
        The size of the header in bytes.
    prefix
        The header, or its base64 text; zeros if None. Its length must be `offset`.
    prefix_func
        A callable that makes the header of each chunk from its encoded bytes. It must return exactly `offset` bytes. It
        is pickled with the array, and never stored: see `bind_padding`.

    Returns
    -------
    OffsetCodec
        The codec, to be used as the last of the `compressors` of an array.

    Examples
    --------
    >>> header = ps.headers.n5((64, 64))
    >>> codec = ps.codecs.offset_codec(offset=len(header), prefix=header)
    >>> codec.offset
    12
    """
    return OffsetCodec(offset, prefix=prefix, prefix_func=prefix_func)
