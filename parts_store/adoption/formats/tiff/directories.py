"""Walk the directories (IFDs) of a TIFF file, and refuse files that would take too much memory or time to parse.

A directory has the tags of one page and the offset of the next directory. tifffile reads them again, with all formats
that it knows. It follows loops for a long time, and makes Python numbers of all values that a tag claims to have.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from parts_store.adoption.description import CannotBeReadError
from parts_store.adoption.report import Skipped

# The largest number of directories in a file, and of tags in a directory.
MAX_PAGES: Final = 1 << 16
_MAX_TAGS: Final = 4096
# The largest number of bytes of the values of all tags, and the largest number of tiles and strips.
_MAX_NBYTES: Final = 1 << 28
MAX_SEGMENTS: Final = 1 << 23
_SEGMENTS: Final = (273, 279, 324, 325)
_SUBDIRECTORIES: Final = 330
# The tags in which pages of one image are equal, and the largest number of bytes of them that are compared.
_KIND: Final = frozenset({256, 257, 258, 259, 262, 266, 277, 278, 284, 317, 322, 323, 338, 339, 32997, 32998, 42113})
_MAX_COMPARED: Final = 1 << 10
# The tags that say how values are stored, with their defaults, and those that matter for some compressions only.
_STORAGE: Final = {
    **dict.fromkeys((256, 257, 322, 323, 32997, 32998)),
    **dict.fromkeys((258, 259, 266, 277, 284, 317, 339), (1,)),
    262: None,
    278: None,
    # The text of GDAL_NODATA, which is the value of tiles that are missing.
    42113: None,
}
_LENGTH: Final = 257
_COMPRESSION: Final = 259
_PHOTOMETRIC: Final = 262
_ROWS_PER_STRIP: Final = 278
_PER_SAMPLE: Final = (258, 339)
_JPEG: Final = ((6,), (7,))
# The codes of integers for `struct`. Others, such as texts, are compared as bytes.
_NUMBERS: Final = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}
# The number of bytes of a value of each data type.
_SIZES: Final = {
    **dict.fromkeys((1, 2, 6, 7), 1),
    **dict.fromkeys((3, 8), 2),
    **dict.fromkeys((4, 9, 11, 13), 4),
    **dict.fromkeys((5, 10, 12, 16, 17, 18), 8),
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """The sizes of numbers in classic TIFF or in BigTIFF, in the byte order of the file."""

    order: str
    is_big: bool

    @property
    def count(self) -> struct.Struct:
        """The number of tags of a directory."""
        return struct.Struct(f"{self.order}{'Q' if self.is_big else 'H'}")

    @property
    def tag(self) -> struct.Struct:
        """A tag: its code, its data type, the number of its values, and the values or their offset."""
        return struct.Struct(f"{self.order}HH{'Q8s' if self.is_big else 'I4s'}")

    @property
    def offset(self) -> struct.Struct:
        """An offset in the file."""
        return struct.Struct(f"{self.order}{'Q' if self.is_big else 'I'}")


type Storage = tuple[tuple[int, tuple[int, ...] | None], ...]
"""The tags that say how the values of a page are stored, with their values; None for a tag that is not there."""


@dataclass(slots=True)
class Directories:
    """The offsets of all directories: those of the pages in order, and those of the SubIFDs of a page."""

    pages: list[int] = field(default_factory=list)
    children: dict[int, list[int]] = field(default_factory=dict)
    # What is damaged. tifffile leaves it out.
    skipped: list[Skipped] = field(default_factory=list)
    # The values of tags in which pages of one image are equal.
    kinds: set[bytes] = field(default_factory=set)
    # How the values of each page are stored, by the offset of its directory. Equal ones are one object.
    storage: dict[int, Storage] = field(default_factory=dict)
    # Other bytes for some places of the file, with which the pages do not form a loop.
    changes: dict[int, bytes] = field(default_factory=dict)

    def require_same_storage(self, expected: Storage | None, keyframe: int, pages: Iterable[int]) -> None:
        """Raise `CannotBeReadError` unless pages are stored as the keyframe of an image, which may be in another file.

        tifffile reads most pages of a stack as if they were. The pages are given by the offsets of their directories.
        """
        for page in pages:
            found = self.storage.get(page)
            if found is expected or found is None or expected is None:
                continue
            for (tag, one), (_, other) in zip(found, expected, strict=True):
                if one != other:
                    problem = f"tag {tag} of the page at {page} is {_shown(one)}, and at {keyframe} {_shown(other)}"
                    raise CannotBeReadError(f"pages that are stored in different ways: {problem}")


def _shown(values: tuple[int, ...] | None) -> str:
    """Return the values of a tag for a message; a text as such."""
    is_text = (
        values is not None and len(values) > 1 and values[-1] == 0 and all(31 < each < 127 for each in values[:-1])
    )
    return repr("".join(map(chr, values[:-1]))) if values is not None and is_text else str(values)


def read_directories(file: BinaryIO, nbytes: int) -> Directories:
    """Return the directories of a file; raise `CannotBeReadError` if they are too many, or SubIFDs form a loop."""
    file.seek(0)
    head = file.read(16)
    order = {b"II": "<", b"MM": ">"}[head[:2]]
    kind = _Kind(order, is_big=struct.unpack_from(f"{order}H", head, 2)[0] == 43)
    first = 8 if kind.is_big else 4
    if len(head) < first + kind.offset.size:
        raise CannotBeReadError(f"the file has {nbytes} bytes, and no directory")
    return _Walk(file, nbytes, kind).read(kind.offset.unpack_from(head, first)[0])


@dataclass(slots=True)
class _Walk:
    """The walk through all directories."""

    file: BinaryIO
    nbytes: int
    kind: _Kind
    found: Directories = field(default_factory=Directories)
    visited: set[int] = field(default_factory=set)
    # Where the offset of the next directory is.
    pointer: int = 0
    tag_nbytes: int = 0
    segments: int = 0
    storages: dict[Storage, Storage] = field(default_factory=dict)

    def read(self, offset: int) -> Directories:
        """Return all directories, given the offset of the first."""
        while offset:
            name = f"page {len(self.found.pages)}"
            if offset in self.visited:
                problem = f"its directory at {offset} was read before: the directories form a loop"
                self.found.skipped.append(Skipped(name, problem))
                self.found.changes[self.pointer] = bytes(self.kind.offset.size)
                break
            following = self._visit(offset, name)
            if following is None:
                break
            self.found.pages.append(offset)
            offset = following
        if not self.found.pages:
            raise CannotBeReadError("; ".join(each.reason for each in self.found.skipped) or "it has no pages")
        # Each of these directories can have SubIFDs, which are found while the list grows.
        for page in [*self.found.pages]:
            self._visit_children(page)
        return self.found

    def _visit_children(self, page: int) -> None:
        """Visit everything below a page. tifffile reads the first level."""
        left = [*self.found.children.get(page, ())]
        while left:
            offset = left.pop()
            if self._visit(offset, f"the SubIFD at {offset}") is not None:
                left += self.found.children.get(offset, ())

    def _visit(self, offset: int, name: str) -> int | None:
        """Read a directory, and return the offset of the next one; None if the directory is damaged."""
        if offset in self.visited:
            raise CannotBeReadError(f"{name}: its directory at {offset} was read before: the directories form a loop")
        if len(self.visited) == MAX_PAGES:
            raise CannotBeReadError(f"more than {MAX_PAGES:,} pages")
        self.visited.add(offset)
        kind = self.kind
        # An offset can be larger than any that a file object takes.
        self.file.seek(min(offset, self.nbytes))
        data = self.file.read(kind.count.size)
        count = kind.count.unpack(data)[0] if len(data) == kind.count.size else 0
        if count > _MAX_TAGS:
            raise CannotBeReadError(f"{name}: {count:,} tags, and at most {_MAX_TAGS:,} are read")
        data = self.file.read(count * kind.tag.size + kind.offset.size)
        if not count or len(data) < count * kind.tag.size:
            problem = f"its directory at {offset} is damaged, or beyond the end of the file at {self.nbytes}"
            self.found.skipped.append(Skipped(name, problem))
            return None
        compared = []
        stored: dict[int, tuple[int, ...]] = {}
        for code, dtype, values, value in kind.tag.iter_unpack(data[: count * kind.tag.size]):
            self._add_tag(name, code, values * _SIZES.get(dtype, 1), value)
            if code in _KIND:
                raw = self._compared(dtype, values, value)
                compared.append(struct.pack("<HHQ", code, dtype, values) + raw)
                stored.setdefault(code, self._integers(dtype, values, raw))
            if code in _SEGMENTS:
                self.segments += values
            if code == _SUBDIRECTORIES:
                self.found.children[offset] = list(self._numbers(dtype, values, value))
        self.found.kinds.add(b"".join(compared))
        storage = _storage(stored)
        self.found.storage[offset] = self.storages.setdefault(storage, storage)
        if self.segments > 2 * MAX_SEGMENTS:
            raise CannotBeReadError(f"more than {MAX_SEGMENTS:,} tiles and strips")
        self.pointer = offset + kind.count.size + count * kind.tag.size
        last = data[count * kind.tag.size :]
        return int(kind.offset.unpack(last)[0]) if len(last) == kind.offset.size else 0

    def _add_tag(self, name: str, code: int, size: int, value: bytes) -> None:
        """Count the bytes of the values of a tag; raise if the tags of a file have too many."""
        if size <= self.kind.offset.size:
            return
        start = self.kind.offset.unpack(value)[0]
        if start + size > self.nbytes:
            problem = f"its values end at {start + size:,}, and the file at {self.nbytes:,}"
            self.found.skipped.append(Skipped(f"{name}, tag {code}", problem))
            return
        self.tag_nbytes += size
        if self.tag_nbytes > _MAX_NBYTES:
            raise CannotBeReadError(f"tags with more than {_MAX_NBYTES:,} bytes in all")

    def _compared(self, dtype: int, count: int, value: bytes) -> bytes:
        """Return the bytes of the values of a tag, or of their offset if they are many."""
        size = count * _SIZES.get(dtype, 1)
        if not len(value) < size <= _MAX_COMPARED:
            return value
        self.file.seek(min(self.kind.offset.unpack(value)[0], self.nbytes))
        return self.file.read(size)

    def _integers(self, dtype: int, count: int, raw: bytes) -> tuple[int, ...]:
        """Return the values of a tag, given their bytes; the bytes as numbers if they are no integers, or too many."""
        letter = _NUMBERS.get(dtype, "B")
        size = struct.calcsize(f"<{letter}")
        used = raw[: count * size]
        return struct.unpack(f"{self.kind.order}{len(used) // size}{letter}", used[: len(used) // size * size])

    def _numbers(self, dtype: int, count: int, value: bytes) -> Iterator[int]:
        """Yield the values of a tag with offsets."""
        size = _SIZES.get(dtype, 0)
        if size not in (4, 8) or count > MAX_PAGES:
            return
        data = value[: count * size]
        if count * size > len(value):
            start = self.kind.offset.unpack(value)[0]
            if start + count * size > self.nbytes:
                return
            self.file.seek(start)
            data = self.file.read(count * size)
        for (number,) in struct.iter_unpack(f"{self.kind.order}{'I' if size == 4 else 'Q'}", data):
            yield int(number)


def _storage(tags: Mapping[int, tuple[int, ...]]) -> Storage:
    """Return the tags that say how values are stored, so that two pages that are stored in the same way are equal."""
    found = {tag: tags.get(tag, default) for tag, default in _STORAGE.items()}
    # The bits and formats of samples, which some programs write once for all of them.
    found |= {tag: values and tuple(sorted({*values})) for tag, values in found.items() if tag in _PER_SAMPLE}
    rows, length = found[_ROWS_PER_STRIP], found[_LENGTH]
    if rows is None or (length is not None and rows >= length):
        found[_ROWS_PER_STRIP] = length
    if found[_COMPRESSION] not in _JPEG:
        found[_PHOTOMETRIC] = None
    return tuple(found.items())
