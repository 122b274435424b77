"""The `offset` codec: a fixed-size header before an encoded chunk."""

from collections.abc import Buffer
from dataclasses import dataclass
from typing import ClassVar, Self, override

from zarr.types import JSON

from parts_store.codecs.configuration import read_configuration, require_text
from parts_store.codecs.padding import Padding, PaddingCodec, PaddingFunction, PaddingNames


@dataclass(frozen=True, init=False, repr=False)
class OffsetCodec(PaddingCodec):
    """Puts a header of `offset` bytes before every encoded chunk, and skips it on reading.

    Parameters
    ----------
    offset
        The size of the header in bytes.
    prefix
        The header itself, or its base64 text; zeros if None. Its length must be `offset`.
    prefix_func
        Makes the header of each chunk from its encoded bytes; must return exactly `offset` bytes. It travels with
        the array to other processes if it can be pickled, and is never stored: see `bind_padding`.
    """

    content: Padding

    names: ClassVar = PaddingNames("offset", "offset", "prefix", "prefix_func")

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
        """The literal header; None if it is zeros. With a callable: the mark that `zarr.json` holds instead."""
        return self.content.literal

    @property
    def prefix_func(self) -> PaddingFunction | None:
        """The callable that makes the header, if one is bound."""
        return self.content.function

    @property
    @override
    def at_start(self) -> bool:
        return True

    @override
    def bound(self, function: PaddingFunction) -> Self:
        return type(self)(self.offset, prefix_func=function)

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        members = read_configuration(data, "offset", required=("offset",), optional=("prefix",))
        require_text("offset", "prefix", members.get("prefix", ""))
        return cls(**members)

    @override
    def to_dict(self) -> dict[str, JSON]:
        return {"name": "offset", "configuration": self.content.to_json()}

    def __repr__(self) -> str:
        return f"OffsetCodec({self.content})"


def offset_codec(
    offset: int, *, prefix: Buffer | str | None = None, prefix_func: PaddingFunction | None = None
) -> OffsetCodec:
    """An `OffsetCodec`, spelt like the specification's example."""
    return OffsetCodec(offset, prefix=prefix, prefix_func=prefix_func)
