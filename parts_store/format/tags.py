"""The tag that every part of one write carries, and by which a mixture of two writes is known.

1;<generation: 32 hex digits>;<mode>;<size of each part, with commas>;<layout of the array: 8 hex digits>

The layout may be missing: older versions wrote none.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

ATTRIBUTE: Final = "partsgen"
_VERSION = "1"
_FORM = re.compile(r"1;([0-9a-f]{32});([csum]);([0-9]{1,20}(?:,[0-9]{1,20}){0,63})(?:;([0-9a-f]{8}))?")

type Mode = Literal["c", "s", "u", "m"]
"""How a chunk was written: `c` by a bare create, `s` with a staged copy; `u` and `m` the same, under the condition that
the chunk was still what its writer had seen."""


_MODES: dict[str, Mode] = {"c": "c", "s": "s", "u": "u", "m": "m"}


@dataclass(frozen=True, slots=True)
class Tag:
    """Which write a part belongs to, and how large the parts of that write are."""

    generation: str
    mode: Mode
    sizes: tuple[int, ...]
    # The digest of the array's layout, as its writer knew it; None if the tag does not say.
    layout: str | None = None

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str | None) -> "Tag | None":
        """The tag, or None if there is none, or one of a version that we do not know: the part is then untagged."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            return None
        generation, mode, sizes, layout = found.groups()
        return Tag(generation, _MODES[mode], tuple(int(size) for size in sizes.split(",")), layout)

    @property
    def is_staged(self) -> bool:
        """Whether there is, or was, a staged copy of this write."""
        return self.mode in ("s", "m")

    @property
    def is_conditional(self) -> bool:
        """Whether the write depended on what was there: it cannot come after another one that it did not see."""
        return self.mode in ("u", "m")

    def __str__(self) -> str:
        layout = "" if self.layout is None else f";{self.layout}"
        return f"{_VERSION};{self.generation};{self.mode};{','.join(map(str, self.sizes))}{layout}"
