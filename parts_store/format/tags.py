"""Tags: user metadata of objects that identifies the write a part belongs to, so that mixed writes are detected.

1;<generation: 32 hex digits>;<mode>;<size of each part, with commas>;<layout of the array: 8 hex digits>

The layout may be missing, because older versions did not write it. The anchor of an overwrite may contain all other
parts, so that the anchor alone is the whole chunk. Then this follows:

;e=<the bytes of the other parts in base64>;o=<digests of the ETags of the objects that they replace, with commas>

Without `o`, all replaced objects had tags. `o=*` means that the writer did not look at them.
"""

import binascii
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

ATTRIBUTE: Final = "partsgen"
_VERSION = "1"
_FORM = re.compile(
    r"1;([0-9a-f]{32});([csum]);([0-9]{1,20}(?:,[0-9]{1,20}){0,63})(?:;([0-9a-f]{8}))?"
    r"(?:;e=([A-Za-z0-9+/]*={0,2})(?:;o=(\*|[0-9a-f]{8}(?:,[0-9a-f]{8})*))?)?"
)

type Mode = Literal["c", "s", "u", "m"]
"""How a chunk was written: `c` without a staged copy, `s` with a staged copy or embedded parts; `u` and `m` the same,
under the condition that the chunk had not changed since the writer read it."""


_MODES: dict[str, Mode] = {"c": "c", "s": "s", "u": "u", "m": "m"}


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: the write that a part belongs to, and the sizes of all parts of that write."""

    generation: str
    mode: Mode
    sizes: tuple[int, ...]
    # The digest of the array's layout, as its writer knew it; None if the tag has none.
    layout: str | None = None
    # The bytes of all parts but the anchor, one after the other; None if the tag does not contain them.
    embedded: bytes | None = None
    # Which objects the other parts replace, as text; None if all of them had tags.
    replaced: str | None = None

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str | None) -> "Tag | None":
        """Return the tag; None if there is none or its version is unknown, so that the part counts as untagged."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            return None
        generation, mode, sizes, layout, text_of_bytes, replaced = found.groups()
        try:
            embedded = None if text_of_bytes is None else binascii.a2b_base64(text_of_bytes, strict_mode=True)
        except binascii.Error:
            return None
        numbers = tuple(int(size) for size in sizes.split(","))
        return Tag(generation, _MODES[mode], numbers, layout, embedded, replaced)

    @property
    def is_staged(self) -> bool:
        """Whether this write replaces all parts of a chunk: it has or had a staged copy, or embedded parts."""
        return self.mode in ("s", "m")

    @property
    def is_conditional(self) -> bool:
        """Whether the write required that the chunk had not changed since the writer read it."""
        return self.mode in ("u", "m")

    def __str__(self) -> str:
        layout = "" if self.layout is None else f";{self.layout}"
        embedded = "" if self.embedded is None else f";e={binascii.b2a_base64(self.embedded, newline=False).decode()}"
        if self.replaced is not None:
            embedded += f";o={self.replaced}"
        return f"{_VERSION};{self.generation};{self.mode};{','.join(map(str, self.sizes))}{layout}{embedded}"
