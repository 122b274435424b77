"""The tag that every part of one write carries, and by which a mixture of two writes is known.

1;<generation: 32 hex digits>;<mode: c or s>;<size of each part, with commas>
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

ATTRIBUTE: Final = "partsgen"
_VERSION = "1"
_FORM = re.compile(r"1;([0-9a-f]{32});([cs]);([0-9]{1,20}(?:,[0-9]{1,20}){0,63})")

type Mode = Literal["c", "s"]
"""How a chunk was written: by a bare create, or over another one."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Which write a part belongs to, and how large the parts of that write are."""

    generation: str
    mode: Mode
    sizes: tuple[int, ...]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str | None) -> "Tag | None":
        """The tag, or None if there is none, or one of a version that we do not know: the part is then untagged."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            return None
        generation, mode, sizes = found.groups()
        return Tag(generation, "c" if mode == "c" else "s", tuple(int(size) for size in sizes.split(",")))

    def __str__(self) -> str:
        return f"{_VERSION};{self.generation};{self.mode};{','.join(map(str, self.sizes))}"
