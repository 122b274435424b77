"""Open TIFF files: walk through their directories (IFDs), and open the other files that an OME-XML document names.

A directory has the tags of one page and the offset of the next directory. Files that would take too much memory or time
are refused before tifffile reads the directories again, with all formats that it knows: it follows loops for a long
time, and makes Python numbers of all values that a tag claims to have. tifffile opens other files by any path, and
takes zeros for those that are missing. Here they are opened only in the folder of the file, and where references are
allowed, and all of them or none.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, cast, override
from xml.etree import ElementTree as ET

from obspec_utils.readers import BlockStoreReader
from tifffile import TIFF, TiffFile
from tifffile.tifffile import TiffFormat

from parts_store.virtual.description import THIS_FILE, CannotBeReadError, OpenOther, OtherFile
from parts_store.virtual.report import Skipped


class SmallReads(BlockStoreReader):
    """A file object on another one, which caches pieces of 4 KiB, and shows other bytes in some places.

    The directories of a stack can be anywhere between its pages, and tifffile reads them several times. The blocks that
    are kept of a file are too few for that.
    """

    _PIECE: Final = 1 << 12
    _KEPT: Final = 1 << 14
    # Larger reads are of tiles and strips, which are read once.
    _LARGEST: Final = 1 << 16

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        super().__init__(cast("Any", self), "", self._PIECE, self._KEPT)
        self._file, self._nbytes = file, nbytes
        # The other bytes, by their places in the file.
        self.changes: dict[int, bytes] = {}
        self.name = str(getattr(file, "name", ""))

    def head(self, path: str) -> dict[str, Any]:  # noqa: ARG002 - the interface of obspec
        """Return the size of the file."""
        return {"size": self._nbytes}

    def get_ranges(self, path: str, *, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:  # noqa: ARG002
        """Return ranges of the file."""
        return [self._read(start, length) for start, length in zip(starts, lengths, strict=True)]

    @override
    def read(self, size: int = -1, /) -> bytes:
        start, left = self.tell(), max(0, self._nbytes - self.tell())
        size = left if size < 0 else min(size, left)
        if size > self._LARGEST:
            data = bytearray(self._read(start, size))
            self.seek(start + len(data))
        else:
            data = bytearray(super().read(size))
        stop = start + len(data)
        for place, change in self.changes.items():
            for at in range(max(place, start), min(place + len(change), stop)):
                data[at - start] = change[at - place]
        return bytes(data)

    def _read(self, start: int, length: int) -> bytes:
        self._file.seek(start)
        return self._file.read(length)


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
_SIZES: Final = {int(dtype): struct.calcsize(f"<{letters}") for dtype, letters in TIFF.DATA_FORMATS.items()}
_FORMATS: Final = {
    b"II*\0": TIFF.CLASSIC_LE,
    b"MM\0*": TIFF.CLASSIC_BE,
    b"II+\0": TIFF.BIG_LE,
    b"MM\0+": TIFF.BIG_BE,
}


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
    kind = _FORMATS.get(head[:4])
    if kind is None:
        raise CannotBeReadError("it is no TIFF file")
    # The offset of the first directory, behind the signature, and two more numbers in BigTIFF.
    first = 8 if kind.is_bigtiff else 4
    if len(head) < first + kind.offsetsize:
        raise CannotBeReadError(f"the file has {nbytes} bytes, and no directory")
    return _DirectoryWalk(file, nbytes, kind).read(struct.unpack_from(kind.offsetformat, head, first)[0])


@dataclass(slots=True)
class _DirectoryWalk:
    """The walk through all directories."""

    file: BinaryIO
    nbytes: int
    kind: TiffFormat
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
                self.found.changes[self.pointer] = bytes(self.kind.offsetsize)
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
        data = self.file.read(kind.tagnosize)
        count = struct.unpack(kind.tagnoformat, data)[0] if len(data) == kind.tagnosize else 0
        if count > _MAX_TAGS:
            raise CannotBeReadError(f"{name}: {count:,} tags, and at most {_MAX_TAGS:,} are read")
        data = self.file.read(count * kind.tagsize + kind.offsetsize)
        if not count or len(data) < count * kind.tagsize:
            problem = f"its directory at {offset} is damaged, or beyond the end of the file at {self.nbytes}"
            self.found.skipped.append(Skipped(name, problem))
            return None
        compared = []
        stored: dict[int, tuple[int, ...]] = {}
        for code, dtype, values, value in struct.iter_unpack(kind.tagheaderformat, data[: count * kind.tagsize]):
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
        self.pointer = offset + kind.tagnosize + count * kind.tagsize
        last = data[count * kind.tagsize :]
        return self._offset(last) if len(last) == kind.offsetsize else 0

    def _add_tag(self, name: str, code: int, size: int, value: bytes) -> None:
        """Count the bytes of the values of a tag; raise if the tags of a file have too many."""
        if size <= self.kind.offsetsize:
            return
        start = self._offset(value)
        if start + size > self.nbytes:
            problem = f"its values end at {start + size:,}, and the file at {self.nbytes:,}"
            self.found.skipped.append(Skipped(f"{name}, tag {code}", problem))
            return
        self.tag_nbytes += size
        if self.tag_nbytes > _MAX_NBYTES:
            raise CannotBeReadError(f"tags with more than {_MAX_NBYTES:,} bytes in all")

    def _offset(self, data: bytes) -> int:
        return int(struct.unpack(self.kind.offsetformat, data)[0])

    def _compared(self, dtype: int, count: int, value: bytes) -> bytes:
        """Return the bytes of the values of a tag, or of their offset if they are many."""
        size = count * _SIZES.get(dtype, 1)
        if not len(value) < size <= _MAX_COMPARED:
            return value
        self.file.seek(min(self._offset(value), self.nbytes))
        return self.file.read(size)

    def _integers(self, dtype: int, count: int, raw: bytes) -> tuple[int, ...]:
        """Return the values of a tag, given their bytes; the bytes as numbers if they are no integers, or too many."""
        letter = _NUMBERS.get(dtype, "B")
        size = struct.calcsize(f"<{letter}")
        used = raw[: count * size]
        return struct.unpack(f"{self.kind.byteorder}{len(used) // size}{letter}", used[: len(used) // size * size])

    def _numbers(self, dtype: int, count: int, value: bytes) -> Iterator[int]:
        """Yield the values of a tag with offsets."""
        size = _SIZES.get(dtype, 0)
        if size not in (4, 8) or count > MAX_PAGES:
            return
        data = value[: count * size]
        if count * size > len(value):
            start = self._offset(value)
            if start + count * size > self.nbytes:
                return
            self.file.seek(start)
            data = self.file.read(count * size)
        for (number,) in struct.iter_unpack(f"{self.kind.byteorder}{'I' if size == 4 else 'Q'}", data):
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


# The largest number of other files.
_MAX_FILES: Final = 1 << 12
_UUID: Final = re.compile(r"""<(?:\w+:)?OME\b[^>]*\bUUID\s*=\s*["']([^"'<>]*)["']""")


# The class is final, but there is no other way to give it files that are open.
class _OmeTiff(TiffFile):  # type: ignore[misc]
    """A TIFF file with the other files that its OME-XML document names, by their UUIDs."""

    others: Mapping[str | None, TiffFile] = {}

    # tifffile looks for a file here before it opens one, which `_multifile=False` forbids.
    @property
    def _files(self) -> dict[str | None, TiffFile]:
        return self._known_files

    @_files.setter
    def _files(self, files: Mapping[str | None, TiffFile]) -> None:
        self._known_files = {**self.others, **files}


@dataclass(frozen=True, slots=True, eq=False)
class TiffSource:
    """A TIFF file of which pages are read."""

    tif: TiffFile
    file: BinaryIO
    nbytes: int
    directories: Directories
    # The URL of another file.
    location: str = THIS_FILE


type TiffSources = Mapping[TiffFile, TiffSource]
"""The files of the images of a file, by what tifffile has as the parent of their pages."""


def open_source(file: BinaryIO, nbytes: int, location: str = THIS_FILE) -> TiffSource:
    """Return a TIFF file of `nbytes` bytes; raise `CannotBeReadError` if it would take too much memory or time."""
    view = SmallReads(file, nbytes)
    file = cast("BinaryIO", view)
    directories = read_directories(file, nbytes)
    view.changes.update(directories.changes)
    return TiffSource(_OmeTiff(file, offset=0, _multifile=False), file, nbytes, directories, location)


def open_others(source: TiffSource, open_other: OpenOther, closing: ExitStack) -> dict[TiffSource, OtherFile]:
    """Open the other files that the OME-XML document of a file names, so that tifffile uses them.

    Raises `CannotBeReadError` if one of them is not there, is not the one that is meant, or is not allowed. Then
    tifffile uses none.
    """
    named = _named_files(source.tif)
    if len({*named.values()}) > _MAX_FILES:
        raise CannotBeReadError(f"{len(named):,} files, and at most {_MAX_FILES:,} are opened")
    opened: dict[str, TiffSource] = {}
    found: dict[TiffSource, OtherFile] = {}
    count = len(source.directories.pages)
    for uuid, name in named.items():
        if name not in opened:
            other = _open(name, open_other)
            opened[name] = _read(name, other)
            closing.enter_context(opened[name].tif)
            found[opened[name]] = other
            count += len(opened[name].directories.pages)
        if count > MAX_PAGES:
            raise CannotBeReadError(f"more than {MAX_PAGES:,} pages in all files")
        _require_uuid(opened[name], name, uuid)
    cast("_OmeTiff", source.tif).others = {uuid: opened[name].tif for uuid, name in named.items()}
    return found


def _named_files(tif: TiffFile) -> dict[str, str]:
    """Return the names of other files by their UUIDs, in the order of the OME-XML document."""
    # Documents with definitions of their own, which can be endless, are refused before.
    try:
        root = ET.fromstring(tif.ome_metadata or "<OME/>")  # noqa: S314
    except ET.ParseError as error:
        raise CannotBeReadError(f"it is no XML: {error}") from error
    own, found = root.attrib.get("UUID"), dict[str, str]()
    for element in _first_uuids(root):
        uuid, name = element.text, element.attrib.get("FileName", "")
        is_own_name = name.lower() == tif.filename.lower()
        if own is None and is_own_name:
            own = uuid
        if uuid == own:
            continue
        if uuid is None or is_own_name or found.setdefault(uuid, name) != name:
            raise CannotBeReadError(f"{name!r} has no UUID, or two, or the UUID of another file")
    return found


def _first_uuids(root: ET.Element) -> Iterator[ET.Element]:
    """Yield the elements that name the files of planes."""
    for data in root.iter():
        if data.tag.endswith("TiffData"):
            yield from [each for each in data if each.tag.endswith("UUID")][:1]


def _open(name: str, open_other: OpenOther) -> OtherFile:
    if name in ("", ".", "..") or re.search(r"[/\\\0]", name):
        raise CannotBeReadError(f"{name!r} is not the name of a file in the same folder")
    return open_other(name)


def _read(name: str, other: OtherFile) -> TiffSource:
    try:
        found = open_source(other.file, other.nbytes, other.location)
        # As tifffile opens other files: most pages are then read as the first one.
        pages: Any = found.tif.pages
        pages.cache = pages.useframes = True
        pages.set_keyframe(0)
    # tifffile raises any error for a file that is damaged, or has another format.
    except Exception as error:
        raise CannotBeReadError(f"{name!r} cannot be read: {error}") from error
    return found


def _require_uuid(source: TiffSource, name: str, expected: str) -> None:
    """Raise if a file says that it has another UUID: it may have the name of the right file only."""
    found = _UUID.search(source.tif.pages.first.description)
    if found is not None and found[1].strip().lower() != expected.strip().lower():
        raise CannotBeReadError(f"{name!r} has the UUID {found[1]!r}, expected {expected!r}")
