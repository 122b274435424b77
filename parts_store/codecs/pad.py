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
    """Pads every encoded chunk with `nbytes` bytes at its start or end, and ignores them on reading.

    Parameters
    ----------
    location
        Where the padding is: `"start"` or `"end"`.
    nbytes
        How many bytes.
    padding
        The bytes themselves, or their base64 text; zeros if None. Their number must be `nbytes`.
    padding_func
        Makes the padding of each chunk from its encoded bytes; must return exactly `nbytes` bytes. It travels with
        the array to other processes if it can be pickled, and is never stored: see `bind_padding`.
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
        """How many bytes every chunk is padded with."""
        return self.content.nbytes

    @property
    def padding(self) -> bytes | None:
        """The literal padding; None if it is zeros. With a callable: the mark that `zarr.json` holds instead."""
        return self.content.literal

    @property
    def padding_func(self) -> PaddingFunction | None:
        """The callable that makes the padding, if one is bound."""
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
    """A `PadCodec` whose padding is at the start unless said otherwise."""
    return PadCodec(location, nbytes=nbytes, padding=padding, padding_func=padding_func)
