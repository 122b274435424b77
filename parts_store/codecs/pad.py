"""The `pad` codec: fixed-size padding at the start or the end of an encoded chunk."""

from collections.abc import Buffer
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, override

from zarr.types import JSON

from parts_store.codecs.configuration import read_configuration, require_choice, require_text
from parts_store.codecs.padding import Padding, PaddingCodec, PaddingFunction, PaddingNames

type Location = Literal["start", "end"]


@dataclass(frozen=True, init=False, repr=False)
class PadCodec(PaddingCodec):
    """A codec that adds `nbytes` bytes at the start or the end of every encoded chunk, and skips them when reading.

    Parameters
    ----------
    location
        Where the padding is: `"start"` or `"end"`.
    nbytes
        The number of bytes.
    padding
        The bytes, or their base64 text; zeros if None. Their number must be `nbytes`.
    padding_func
        A callable that makes the padding of each chunk from its encoded bytes. It must return exactly `nbytes` bytes.
        It is pickled with the array, and never stored: see `bind_padding`.

    Raises
    ------
    CodecConfigError
        If an argument is wrong.

    Examples
    --------
    >>> codec = ps.codecs.PadCodec("end", nbytes=2, padding=b"ab")
    >>> array = zarr.create_array({}, shape=(4,), dtype="uint8", compressors=[codec])
    >>> array[:] = 7
    >>> array[:].tolist()
    [7, 7, 7, 7]
    """

    location: Location
    content: Padding

    names: ClassVar = PaddingNames("pad", "nbytes", "padding", "padding_func")

    def __init__(
        self,
        location: Location,
        *,
        nbytes: int,
        padding: Buffer | str | None = None,
        padding_func: PaddingFunction | None = None,
    ) -> None:
        object.__setattr__(self, "location", require_choice("pad", "location", location, ("start", "end")))
        object.__setattr__(self, "content", Padding.parse(self.names, nbytes, padding, padding_func))

    @property
    def nbytes(self) -> int:
        """The number of bytes that every chunk is padded with."""
        return self.content.nbytes

    @property
    def padding(self) -> bytes | None:
        """The padding that is in `zarr.json`; None if it is zeros; with a callable, a mark that stands for it."""
        return self.content.literal

    @property
    def padding_func(self) -> PaddingFunction | None:
        """The callable that makes the padding, None if no callable is bound."""
        return self.content.function

    @property
    @override
    def at_start(self) -> bool:
        return self.location == "start"

    @override
    def bound(self, function: PaddingFunction) -> Self:
        return type(self)(self.location, nbytes=self.nbytes, padding_func=function)

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        members = read_configuration(data, "pad", required=("location", "nbytes"), optional=("padding",))
        require_text("pad", "padding", members.get("padding", ""))
        return cls(**members)

    @override
    def to_dict(self) -> dict[str, JSON]:
        return {"name": "pad", "configuration": {"location": self.location, **self.content.to_json()}}

    def __repr__(self) -> str:
        return f"PadCodec({self.location!r}, {self.content})"


def pad_codec(
    nbytes: int,
    *,
    location: Location = "start",
    padding: Buffer | str | None = None,
    padding_func: PaddingFunction | None = None,
) -> PadCodec:
    """Return a `PadCodec`, with the padding at the start by default.

    Parameters
    ----------
    nbytes
        The number of bytes.
    location
        Where the padding is: `"start"` or `"end"`.
    padding
        The bytes, or their base64 text; zeros if None. Their number must be `nbytes`.
    padding_func
        A callable that makes the padding of each chunk from its encoded bytes. It must return exactly `nbytes` bytes.
        It is pickled with the array, and never stored: see `bind_padding`.

    Returns
    -------
    PadCodec
        The codec, to be used as the last of the `compressors` of an array.

    Examples
    --------
    >>> header = ps.headers.tiff(shape=(64, 64), dtype="uint16")
    >>> codec = ps.codecs.pad_codec(nbytes=len(header), padding=header)
    >>> image = zarr.create_array({}, shape=(128, 128), chunks=(64, 64), dtype="uint16", compressors=[codec])
    """
    return PadCodec(location, nbytes=nbytes, padding=padding, padding_func=padding_func)
