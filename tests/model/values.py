"""What the chunks of the model are made of: real bytes, of which every mixture is told from every whole.

Computes what a reader should see without the package: it is what the package is compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HOLE: Final = 2**64 - 1
ARRAY: Final = "a"
KEY: Final = "a/c/0"

type Value = bytes | None
"""A chunk, whole; None if there is none."""

type Inner = tuple[bytes | None, ...]
"""Inner chunks of a shard, None where zarr fills in."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Of which objects a chunk is made up."""

    # The suffix and the size of every part, None for any size.
    parts: tuple[tuple[str, int | None], ...]
    header: bytes = b""
    slots: int = 2

    @property
    def index_nbytes(self) -> int:
        return 16 * self.slots

    @property
    def part_keys(self) -> tuple[str, ...]:
        return tuple(KEY + suffix for suffix, _ in self.parts)

    def value(self, *inner: bytes | None) -> bytes:
        """The shard of these inner chunks."""
        data, index = self.header, b""
        for each in inner:
            row = (HOLE, HOLE) if each is None else (len(data), len(each))
            index += b"".join(number.to_bytes(8, "little") for number in row)
            data += each or b""
        return data + index

    def split(self, value: bytes) -> list[bytes]:
        """The bytes of every part."""
        rest = len(value) - sum(size for _, size in self.parts if size is not None)
        parts, start = [], 0
        for _, size in self.parts:
            stop = start + (rest if size is None else size)
            parts.append(value[start:stop])
            start = stop
        return parts

    def rows(self, index: bytes) -> list[tuple[int, int] | None]:
        """Where the inner chunks begin and end, None for a hole."""
        numbers = [int.from_bytes(index[at : at + 8], "little") for at in range(0, len(index), 8)]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        return [None if pair == (HOLE, HOLE) else (pair[0], sum(pair)) for pair in pairs]

    def inner(self, value: Value, slots: Sequence[int]) -> Inner:
        """What zarr makes of a shard."""
        if value is None:
            return (None,) * len(slots)
        rows = self.rows(value[-self.index_nbytes :])
        found = [rows[slot] for slot in slots]
        return tuple(None if row is None else value[row[0] : row[1]] for row in found)

    def changed(self, value: Value, mark: bytes) -> Value:
        """What a read-modify-write makes of a chunk; a mark of its own for every one of them.

        `-` moves all data from one slot to the other, so that the anchor keeps its bytes; `!` deletes what nobody else
        has marked. A digit and a mark change one slot (`_with_slot`).
        """
        if len(mark) == 2:
            return self._with_slot(value, int(mark[:1]), mark[1:])
        first, second = self.inner(value, range(2))
        if mark == b"!" and b"x" not in (first or b""):
            return None
        if mark == b"-":
            return self.value(second, first) if None in (first, second) else self.value((first or b"") + b"-", second)
        return self.value((first or b"") + mark, second or mark)

    def _with_slot(self, value: Value, slot: int, mark: bytes) -> Value:
        """What a shard becomes if one inner chunk is marked, or removed.

        After the last one, `!` leaves a shard without inner chunks, and `~` none.
        """
        inner = list(self.inner(value, range(2)))
        if mark not in (b"!", b"~"):
            inner[slot] = (inner[slot] or b"") + mark
        elif inner[slot] is None:
            return value
        else:
            inner[slot] = None
        return None if mark == b"~" and not any(inner) else self.value(*inner)


SHARD = Layout((("", None), (".index", 32)))
HEADED = Layout(((".header", 2), ("", None), (".index", 32)), header=b"##")
SINGLE = Layout((("", None),))


def read_plain(objects: dict[str, bytes], layout: Layout) -> Value | str:
    """What any other implementation of the layout reads; a text if it is damaged."""
    anchor = KEY
    if anchor not in objects:
        return None
    missing = [key for key in layout.part_keys if key not in objects]
    if missing:
        return f"without {', '.join(missing)}"
    for key, (_, size) in zip(layout.part_keys, layout.parts, strict=True):
        if size is not None and len(objects[key]) != size:
            return f"{len(objects[key])} bytes in {key}"
    return b"".join(objects[key] for key in layout.part_keys)
