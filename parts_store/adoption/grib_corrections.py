"""Find messages of GRIB files that gribberish reads wrongly, or leaves out without an error.

gribberish takes any grid for one of rows and columns, rounds levels to five decimals, reads the first of several fields
in a message, and leaves out messages that it cannot read. Messages are counted here, from their headers.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from parts_store.adoption.report import Skipped
from parts_store.adoption.source_file import BlockReader
from parts_store.errors import AdoptionError
from parts_store.manifests.array import PartsArray
from parts_store.manifests.group import PartsGroup

_START, _END = b"GRIB", b"7777"
# Where the scanning mode is in the grid section of edition 2, for every grid definition that is read: latitudes and
# longitudes, Mercator, polar stereographic, Lambert.
_SCANNING_MODE: Final = {0: 71, 10: 59, 20: 64, 30: 64}
# Flags of the scanning mode: from east to west, and columns before rows.
_UNSUPPORTED_MODES: Final = 0x80 | 0x20
_DEGREE: Final = 1_000_000
# Up to this product definition, the first level is at the same place.
_LAST_PLAIN_PRODUCT: Final = 15
_DECIMALS: Final = 5
# Arrays that refer to a message because of its grid, not because of its values.
_COORDINATES: Final = ("latitude", "longitude")


@dataclass(frozen=True, slots=True)
class Message:
    """A message: where it is, how many fields it has, its grid section, and why it cannot be read, if so."""

    offset: int
    fields: int
    grid: bytes
    problem: str | None
    # Whether its level has more decimals than gribberish keeps.
    has_rounded_level: bool = False


def require_readable(reader: BlockReader) -> tuple[Message, ...]:
    """Return the messages of a file; raise `AdoptionError` if it is damaged, or has a grid that is read wrongly."""
    found = []
    for message in _messages(reader.buffered(), reader.nbytes):
        if message.problem is not None:
            problem = f"the message at byte {message.offset}: {message.problem}"
            raise AdoptionError(reader.location, (("the file", problem),))
        found.append(message)
    return tuple(found)


def checked(group: PartsGroup, messages: tuple[Message, ...], location: str) -> tuple[PartsGroup, tuple[Skipped, ...]]:
    """Return the arrays that can be trusted, and the arrays and fields that are skipped.

    Raises `AdoptionError` if a group has several grids.
    """
    by_offset = {message.offset: message for message in messages}
    skipped: list[Skipped] = []
    used: set[int] = set()

    def visit(node: PartsGroup, path: str) -> PartsGroup:
        data = {name: _offsets(array, location) for name, array in node.arrays.items() if name not in _COORDINATES}
        here = [by_offset[offset] for offset in sorted(set().union(*data.values()))]
        if len({message.grid for message in here}) > 1:
            raise AdoptionError(location, ((path or "the file", "its messages have several grids"),))
        used.update(message.offset for message in here)
        groups = {name: visit(each, f"{path}/{name}".strip("/")) for name, each in node.groups.items()}
        # The coordinates of the group are wrong, too.
        is_rounded = any(message.has_rounded_level for message in here)
        if is_rounded:
            names = [f"{path}/{name}".strip("/") for name, offsets in data.items() if offsets]
            skipped.extend(Skipped(name, "in a group with levels that gribberish rounds") for name in names)
        return PartsGroup({} if is_rounded else node.arrays, groups, node.attributes)

    found = visit(group, "")
    return found, (*skipped, *_left_out(messages, used))


def _left_out(messages: tuple[Message, ...], used: set[int]) -> Iterator[Skipped]:
    for message in messages:
        name = f"the message at byte {message.offset}"
        if message.offset not in used:
            yield Skipped(name, "gribberish does not read it, or has another message in its place")
        elif message.fields > 1:
            yield Skipped(name, f"it has {message.fields} fields, and only the first one is read")


def _offsets(array: PartsArray, location: str) -> set[int]:
    found: set[int] = set()
    for columns in array.references.columns():
        found |= set(columns.offsets[columns.paths == location].tolist())
    return found


# --- headers ----------------------------------------------------------------------------------------------------------


def _messages(file: BinaryIO, nbytes: int) -> Iterator[Message]:
    """Yield the messages of a file; of a message that is damaged, and the last one then, only where it is."""
    offset = 0
    while (offset := _find_start(file, offset, nbytes)) < nbytes:
        head = _read(file, offset, 16)
        edition = head[7] if len(head) == 16 else None
        length = int.from_bytes(head[8:16] if edition == 2 else head[4:7])
        if edition not in (1, 2) or _read(file, offset + length - len(_END), len(_END)) != _END:
            yield Message(offset, 0, b"", "it is damaged")
            return
        try:
            yield _first_edition(file, offset) if edition == 1 else _second_edition(file, offset, length)
        except (struct.error, IndexError):
            yield Message(offset, 0, b"", "its sections are damaged")
            return
        offset += length


def _find_start(file: BinaryIO, offset: int, nbytes: int) -> int:
    """Return where the next message starts, or `nbytes`: files may have headers and padding between messages."""
    while offset < nbytes:
        piece = _read(file, offset, 1 << 16)
        if (found := piece.find(_START)) >= 0:
            return offset + found
        offset += max(len(piece) - len(_START) + 1, 1)
    return nbytes


def _second_edition(file: BinaryIO, offset: int, length: int) -> Message:
    at, stop, fields, grid, is_rounded = offset + 16, offset + length - len(_END), 0, b"", False
    while at < stop:
        nbytes, number = struct.unpack(">IB", _read(file, at, 5))
        if nbytes < 5:
            raise IndexError
        if number == 3:
            grid += _read(file, at, nbytes)
        elif number == 4:
            is_rounded = is_rounded or _has_rounded_level(_read(file, at, nbytes))
        fields += number == 7
        at += nbytes
    return Message(offset, fields, grid, _problem_of_second(grid), is_rounded)


def _has_rounded_level(product: bytes) -> bool:
    """Return whether the first level of a product section is no multiple of 0.00001."""
    if int.from_bytes(product[7:9]) > _LAST_PLAIN_PRODUCT:
        return False
    digits, value = _signed(product[23], 7), _signed(int.from_bytes(product[24:28]), 31)
    is_missing = product[22] == 0xFF or product[23:28] == b"\xff" * 5
    return not is_missing and digits > _DECIMALS and value % 10 ** (digits - _DECIMALS) != 0


def _problem_of_second(grid: bytes) -> str | None:
    template = int.from_bytes(grid[12:14])
    columns, rows = struct.unpack(">II", grid[30:38])
    if grid[10] or 0xFFFFFFFF in (columns, rows):
        return _REDUCED
    if template not in _SCANNING_MODE:
        # gribberish leaves it out.
        return None
    if grid[_SCANNING_MODE[template]] & _UNSUPPORTED_MODES:
        return _SCANNING
    if template == 0:
        angle, parts = struct.unpack(">II", grid[38:46])
        if angle not in (0, 0xFFFFFFFF) and parts != angle * _DEGREE:
            return "angles in other units than millionths of a degree"
        first, last = struct.unpack(">II", grid[46:54]), struct.unpack(">II", grid[55:63])
        steps = struct.unpack(">II", grid[63:71])
        return _problem_of_steps(first, last, steps, (rows, columns), 31, _DEGREE)
    return None


def _first_edition(file: BinaryIO, offset: int) -> Message:
    head = _read(file, offset + 8, 8)
    if not head[7] & 0x80:
        return Message(offset, 1, b"", "it has no grid section")
    at = offset + 8 + int.from_bytes(head[:3])
    grid = _read(file, at, int.from_bytes(_read(file, at, 3)))
    return Message(offset, 1, grid, _problem_of_first(grid))


def _problem_of_first(grid: bytes) -> str | None:
    kind = grid[5]
    columns, rows = struct.unpack(">HH", grid[6:10])
    if 0xFFFF in (columns, rows):
        return _REDUCED
    if kind == 4:
        return "a Gaussian grid, whose latitudes gribberish does not know"
    if kind != 0:
        return None
    if grid[27] & _UNSUPPORTED_MODES:
        return _SCANNING
    points = [int.from_bytes(grid[start : start + 3]) for start in (10, 13, 17, 20)]
    longitude_step, latitude_step = struct.unpack(">HH", grid[23:27])
    return _problem_of_steps(
        (points[0], points[1]), (points[2], points[3]), (longitude_step, latitude_step), (rows, columns), 23, 1000
    )


_REDUCED: Final = "a reduced grid, whose rows have different lengths"
_SCANNING: Final = "a grid whose points are in columns, or from east to west"


def _problem_of_steps(
    first: tuple[int, int],
    last: tuple[int, int],
    steps: tuple[int, int],
    shape: tuple[int, int],
    sign_bit: int,
    degree: int,
) -> str | None:
    """Return why a grid of latitudes and longitudes is not valid: its steps must lead from the first point to the last.

    gribberish computes coordinates from the steps; other programs compute them from the two points.
    """
    circle = 360 * degree
    latitudes = abs(_signed(last[0], sign_bit) - _signed(first[0], sign_bit))
    longitudes = (_signed(last[1], sign_bit) - _signed(first[1], sign_bit)) % circle
    for count, step, extent in zip(shape, reversed(steps), (latitudes, longitudes), strict=True):
        far = abs(step * (count - 1) - extent) % circle
        # The steps are rounded. Half the distance of two points is too far.
        if 2 * min(far, circle - far) * (count - 1) > extent:
            return "its coordinates cannot be computed: the steps do not lead from the first point to the last"
    return None


def _signed(value: int, sign_bit: int) -> int:
    """Return a number whose highest bit is its sign."""
    return -(value & ~(1 << sign_bit)) if value >> sign_bit else value


def _read(file: BinaryIO, offset: int, nbytes: int) -> bytes:
    file.seek(offset)
    return file.read(nbytes)
