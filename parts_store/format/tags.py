"""Tags: user metadata of objects that identifies the write a part belongs to, so that mixed writes are detected.

1;<generation: 32 hex digits>;<mode>;<size of each part, with commas>;<layout of the array: 8 hex digits>

The layout may be missing, because older versions did not write it.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

ATTRIBUTE: Final = "partsgen"
_VERSION = "1"
_FORM = re.compile(r"1;([0-9a-f]{32});([csum]);([0-9]{1,20}(?:,[0-9]{1,20}){0,63})(?:;([0-9a-f]{8}))?")

type Mode = Literal["c", "s", "u", "m"]
"""How a chunk was written: `c` without a staged copy, `s` with a staged copy; `u` and `m` the same, under the condition
that the chunk had not changed since the writer read it."""


_MODES: dict[str, Mode] = {"c": "c", "s": "s", "u": "u", "m": "m"}


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: the write that a part belongs to, and the sizes of all parts of that write."""

    generation: str
    mode: Mode
    sizes: tuple[int, ...]
    # The digest of the array's layout, as its writer knew it; None if the tag has none.
    layout: str | None = None

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str | None) -> "Tag | None":
        """Return the tag; None if there is none or its version is unknown, so that the part counts as untagged."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            return None
        generation, mode, sizes, layout = found.groups()
        return Tag(generation, _MODES[mode], tuple(int(size) for size in sizes.split(",")), layout)

    @property
    def is_staged(self) -> bool:
        """Whether this write has, or had, a staged copy."""
        return self.mode in ("s", "m")

    @property
    def is_conditional(self) -> bool:
        """Whether the write required that the chunk had not changed since the writer read it."""
        return self.mode in ("u", "m")

    def __str__(self) -> str:
        layout = "" if self.layout is None else f";{self.layout}"
        return f"{_VERSION};{self.generation};{self.mode};{','.join(map(str, self.sizes))}{layout}"
