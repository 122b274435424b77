"""Open the files of an image: the TIFF file itself, and the other files that its OME-XML document names.

tifffile opens such files by any path, and takes zeros for those that are missing. Here they are opened only in the
folder of the file, and where references are allowed, and all of them or none.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast
from xml.etree import ElementTree as ET

from tifffile import TiffFile

from parts_store.adoption.description import THIS_FILE, CannotBeReadError, OpenOther, OtherFile
from parts_store.adoption.formats.tiff.directories import MAX_PAGES, Directories, read_directories
from parts_store.adoption.formats.tiff.small_reads import SmallReads

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
class Source:
    """A TIFF file of which pages are read."""

    tif: TiffFile
    file: BinaryIO
    nbytes: int
    directories: Directories
    # The URL of another file.
    location: str = THIS_FILE


type Sources = Mapping[TiffFile, Source]
"""The files of the images of a file, by what tifffile has as the parent of their pages."""


def open_source(file: BinaryIO, nbytes: int, location: str = THIS_FILE) -> Source:
    """Return a TIFF file of `nbytes` bytes; raise `CannotBeReadError` if it would take too much memory or time."""
    view = SmallReads(file, nbytes)
    file = cast("BinaryIO", view)
    directories = read_directories(file, nbytes)
    view.changes.update(directories.changes)
    return Source(_OmeTiff(file, offset=0, _multifile=False), file, nbytes, directories, location)


def open_others(source: Source, open_other: OpenOther, closing: ExitStack) -> dict[Source, OtherFile]:
    """Open the other files that the OME-XML document of a file names, so that tifffile uses them.

    Raises `CannotBeReadError` if one of them is not there, is not the one that is meant, or is not allowed. Then
    tifffile uses none.
    """
    named = _named_files(source.tif)
    if len({*named.values()}) > _MAX_FILES:
        raise CannotBeReadError(f"{len(named):,} files, and at most {_MAX_FILES:,} are opened")
    opened: dict[str, Source] = {}
    found: dict[Source, OtherFile] = {}
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


def _read(name: str, other: OtherFile) -> Source:
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


def _require_uuid(source: Source, name: str, expected: str) -> None:
    """Raise if a file says that it has another UUID: it may have the name of the right file only."""
    found = _UUID.search(source.tif.pages.first.description)
    if found is not None and found[1].strip().lower() != expected.strip().lower():
        raise CannotBeReadError(f"{name!r} has the UUID {found[1]!r}, expected {expected!r}")
