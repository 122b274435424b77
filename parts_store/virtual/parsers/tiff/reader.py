"""Describe TIFF files: find their images, and give them names.

tifffile reads the directories, and groups pages to images ("series"): stacks, pyramids, OME-TIFF. An image becomes an
array `data`, in a group of its own if there are several images or levels.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import unescape
from typing import BinaryIO, Final

from tifffile import TIFF, TiffFile, TiffPage, TiffPageSeries

from parts_store.virtual.description import CannotBeReadError, Description, OpenOther, OtherFile, open_no_other
from parts_store.virtual.ome_zarr import OmeImage, ome_attributes
from parts_store.virtual.parsers.tiff.files import Directories, TiffSource, open_others, open_source
from parts_store.virtual.parsers.tiff.images import Image, ImageReader
from parts_store.virtual.parsers.tiff.ome import Pixels, image_of, read_pixels
from parts_store.virtual.store_access import join

_ARRAY: Final = "data"
# The largest number of pages without a common format, and the largest number of kinds of pages: tifffile compares each
# of them with the others.
_MAX_GROUPED: Final = 1 << 14
_MAX_KINDS: Final = 1 << 10
# The largest number of planes of all OME-TIFF images of a file. tifffile makes a list of them.
_MAX_PLANES: Final = 1 << 20
_PIXELS: Final = re.compile(r"<(?:\w+:)?Pixels\b[^>]*>")
_SIZE: Final = re.compile(r"""\bSize([XYZCT])\s*=\s*["'](\d+)["']""")
_COUNT: Final = re.compile(r"""\b(?:NumPlanes|PlaneCount|SamplesPerPixel)\s*=\s*["'](\d+)["']""")
_FILE_NAME: Final = re.compile(r"""\b(?:FileName|MetadataFile)\s*=\s*["']([^"'<>]{1,255})["']""")
# How many other files a reason names.
_MAX_NAMED: Final = 5
_ORDER: Final = re.compile(r"""\bDimensionOrder\s*=\s*["']XY""")


def describe(file: BinaryIO, nbytes: int, open_other: OpenOther = open_no_other) -> Description:
    """Return what is in a TIFF file of `nbytes` bytes; `open_other` opens the other files of OME images."""
    source = open_source(file, nbytes)
    description = Description({"": {}}, skipped=list(source.directories.skipped))
    with source.tif, ExitStack() as closing:
        reader = ImageReader({source.tif: source}, description.skipped)
        _ImageWalk(source, partial(open_others, source, open_other, closing), description, reader).describe()
    return description


@dataclass(frozen=True)
class _ImageWalk:
    """The walk through all images of a file."""

    source: TiffSource
    # Open the other files that the OME-XML document names.
    open_others: Callable[[], Mapping[TiffSource, OtherFile]]
    description: Description
    reader: ImageReader
    # The offsets of the directories whose pages are described, or named as skipped.
    done: set[int] = field(default_factory=set)

    @cached_property
    def places(self) -> Mapping[int, tuple[int, int | None]]:
        """The numbers of the page and of its SubIFD, None for the page itself, by the offsets of their directories."""
        return _places(self.directories)

    @property
    def tif(self) -> TiffFile:
        """The file that is described."""
        return self.source.tif

    @property
    def directories(self) -> Directories:
        """The directories of the file that is described."""
        return self.source.directories

    def describe(self) -> None:
        """Add all images to the description."""
        series = self._series()
        images = self._images(series)
        others = self._other_pages(images)
        for image in images:
            self._add(image, image.group)
        for name, offset in others.items():
            self.done.add(offset)
            self._add_page(name, offset)
        self._add_ome_attributes(series)

    def _images(self, series: Sequence[TiffPageSeries]) -> list[Image]:
        """Return the images as tifffile finds them, with the names of groups."""
        found = []
        for number, each in enumerate(series):
            for level, group in zip(each.levels, _groups_of(series, number), strict=True):
                try:
                    found.append(Image.of_series(level, group, is_in_one_file=len(self.reader.sources) == 1))
                # The pages are then described one by one.
                except Exception as error:
                    reason = f"its pages are adopted one by one: {type(error).__name__}: {error}"
                    is_elsewhere = len(self.reader.sources) > 1
                    self.description.skip(group or _ARRAY, reason, has_values=is_elsewhere)
        return found

    def _series(self) -> Sequence[TiffPageSeries]:
        problem = self._implausible_planes()
        if problem is not None:
            self.tif.is_ome = False
            self.description.skip("the OME-XML document", problem)
        if len(self.directories.pages) > _MAX_GROUPED and not self._is_of_one_kind():
            count = len(self.directories.pages)
            raise CannotBeReadError(f"{count:,} pages of different kinds, and at most {_MAX_GROUPED:,} can be grouped")
        if len(self.directories.kinds) > _MAX_KINDS:
            reason = f"pages of more than {_MAX_KINDS:,} kinds are not grouped, and are adopted one by one"
            self.description.skip("the file", reason, has_values=False)
            return ()
        others, why = self._others()
        try:
            found = list(self.tif.series)
        # The parsers for the many kinds of TIFF raise any error for a damaged file.
        except Exception as error:
            reason = f"pages cannot be grouped, and are adopted one by one: {type(error).__name__}: {error}"
            self.description.skip("the file", reason, has_values=False)
            return ()
        # A document can name a page any number of times.
        directories = [each.directories for each in (self.source, *others)]
        if len(found) > sum(len(each.pages) + sum(map(len, each.children.values())) for each in directories):
            reason = f"{len(found):,} images, and {len(self.directories.pages):,} pages, which are adopted one by one"
            self.description.skip("the file", reason)
            return ()
        if any(each.kind == "ome" for each in found):
            self.reader.sources |= {each.tif: each for each in others}
            self.description.checksums |= {each.location: each.checksum for each in others.values()}
        elif self.tif.is_ome:
            reason = f"{self._why_unused(why)}; the pages of this file are adopted"
            self.description.skip("the OME-XML document", reason)
        return found

    def _others(self) -> tuple[Mapping[TiffSource, OtherFile], str]:
        """Return the other files of OME images, or none and the reason."""
        try:
            return self.open_others() if self.tif.is_ome else {}, ""
        except CannotBeReadError as error:
            return {}, f" because {error}"

    def _why_unused(self, why: str) -> str:
        """Return why tifffile makes no images of the OME-XML document: mostly because it names other files."""
        named = {unescape(name): None for name in _FILE_NAME.findall(self.tif.pages.first.description)}
        others = [name for name in named if name.lower() != self.tif.filename.lower()]
        if not others:
            return "it cannot be used"
        more = f" and {len(others) - _MAX_NAMED:,} more" if len(others) > _MAX_NAMED else ""
        shown = ", ".join(repr(name) for name in others[:_MAX_NAMED])
        return f"its images are in several files, which cannot become one array{why}: {shown}{more}"

    def _is_of_one_kind(self) -> bool:
        return any(getattr(self.tif, f"is_{kind}", False) for kind in TIFF.SERIES if kind != "generic")

    def _implausible_planes(self) -> str | None:
        """Return why tifffile should not read the OME-XML document; None if it can, or there is none."""
        if not self.tif.is_ome:
            return None
        text = self.tif.pages.first.description
        if "<!ENTITY" in text or "<!DOCTYPE" in text:
            return "it has definitions of its own, which are not read"
        planes = 0
        for pixels in _PIXELS.findall(text):
            sizes = {axis: int(size) for axis, size in _SIZE.findall(pixels)}
            planes += math.prod(size for axis, size in sizes.items() if axis in "ZCT")
            if not _ORDER.search(pixels) or planes > _MAX_PLANES:
                return f"images of more than {_MAX_PLANES:,} planes in all, or not of planes: {sizes}"
        if any(int(count) > _MAX_PLANES for count in _COUNT.findall(text)):
            return f"more than {_MAX_PLANES:,} planes"
        return None

    def _other_pages(self, images: Sequence[Image]) -> dict[str, int]:
        """Return the offsets of the directories that belong to no image, by the names of their groups."""
        used = {offset for image in images for offset in image.directories(self.source)}
        return {self._name(offset): offset for offset in self.places if offset not in used}

    def _name(self, offset: int) -> str:
        number, which = self.places[offset]
        return f"page_{number}" if which is None else f"page_{number}_subifd_{which}"

    def _add(self, image: Image, group: str) -> None:
        """Add an image, or its pages one by one if they cannot make up one array."""
        name = join(group, _ARRAY)
        problem = self._problem_of(image, name)
        if problem is None:
            return
        offsets = [each for each in image.directories(self.source) if each in self.places and each not in self.done]
        self.done.update(offsets)
        is_elsewhere = any(page is not None and page.parent is not self.tif for page in image.pages)
        if len(offsets) < (1 if is_elsewhere else 2):
            self.description.skip(name, problem)
            return
        which = "its pages in this file" if is_elsewhere else "its pages"
        reason = f"{which} are adopted one by one: {problem}"
        self.description.skip(name, reason, has_values=is_elsewhere)
        for offset in offsets:
            self._add_page(self._name(offset), offset)

    def _problem_of(self, image: Image, name: str) -> str | None:
        """Add an image; return why it cannot be added, None if it was."""
        try:
            image.require_same_storage(self.reader.sources)
            self.description.arrays.append(self.reader.describe(image, name))
        except CannotBeReadError as error:
            return str(error)
        # tifffile and the codecs raise any error for a damaged page. The other pages may be intact.
        except Exception as error:
            return f"it is damaged: {type(error).__name__}: {error}"
        missing = sum(page is None for page in image.pages)
        if missing:
            reason = f"{missing:,} of {len(image.pages):,} pages are not in the file, and have the fill value"
            self.description.skip(f"{name}, missing pages", reason)
        group = name.rpartition("/")[0]
        for end in [at for at, letter in enumerate(group) if letter == "/"]:
            self.description.groups.setdefault(group[:end], {})
        self.description.groups.setdefault(group, {})
        return None

    def _add_page(self, group: str, offset: int) -> None:
        name = f"{group}/{_ARRAY}"
        try:
            image = Image.of_page(self._page_at(offset), group)
        except Exception as error:
            self.description.skip(name, f"it is damaged: {type(error).__name__}: {error}")
            return
        problem = self._problem_of(image, name)
        if problem is not None:
            self.description.skip(name, problem)

    def _add_ome_attributes(self, series: Sequence[TiffPageSeries]) -> None:
        """Give the groups of images the attributes of OME-Zarr, if all of their levels are adopted."""
        axes = {array.header.name: array.header.dimension_names for array in self.description.arrays}
        pixels = self._pixels_of(series)
        for number, each in enumerate(series):
            is_slide = len(each.levels) > 1 and not each.keyframe.is_geotiff
            names = [join(group, _ARRAY) for group in _groups_of(series, number)]
            found = {axes.get(name) for name in names}
            if (number in pixels or (is_slide and each.kind != "ome")) and None not in found and len(found) == 1:
                group = _base_of(series, number)
                paths = [name.removeprefix(join(group, "")) for name in names]
                self._add_ome(group, partial(image_of, each, paths, pixels.get(number)))

    def _add_ome(self, group: str, image: Callable[[], OmeImage]) -> None:
        """Give a group the attribute of OME-Zarr."""
        try:
            attributes = ome_attributes(image())
        # tifffile raises any error for damaged metadata. The values may be intact.
        except Exception as error:
            problem = f"it cannot be made: {type(error).__name__}: {error}"
            self.description.skip(f"{group or _ARRAY}, OME-Zarr metadata", problem, has_values=False)
            return
        self.description.groups[group] = {**self.description.groups.get(group, {}), **attributes}

    def _pixels_of(self, series: Sequence[TiffPageSeries]) -> dict[int, Pixels]:
        """Return what the OME-XML document says of images, by their numbers.

        tifffile leaves out images without pages. Then it is not known which images the others are.
        """
        of_ome = [number for number, each in enumerate(series) if each.kind == "ome"]
        found = read_pixels(self.tif) if of_ome else []
        if len(found) != len(of_ome):
            return {}
        return {number: each for number, each in zip(of_ome, found, strict=True) if each.is_of(series[number])}

    def _page_at(self, offset: int) -> TiffPage:
        number, which = self.places[offset]
        page = self.tif.pages[number].aspage()
        if which is None:
            return page
        if page.pages is None:
            raise CannotBeReadError(f"the page has no SubIFD {which}")
        return page.pages[which].aspage()


def _base_of(series: Sequence[TiffPageSeries], number: int) -> str:
    """Return the name of the group of an image."""
    return f"series_{number}" if len(series) > 1 else ""


def _groups_of(series: Sequence[TiffPageSeries], number: int) -> list[str]:
    """Return the names of the groups of the levels of an image, below that of the image if there are several."""
    base, count = _base_of(series, number), len(series[number].levels)
    return ["/".join(filter(None, [base, f"level_{depth}" if count > 1 else ""])) for depth in range(count)]


def _places(directories: Directories) -> dict[int, tuple[int, int | None]]:
    """Return the numbers of pages and SubIFDs by the offsets of their directories, in the order of the file."""
    found: dict[int, tuple[int, int | None]] = {}
    for number, page in enumerate(directories.pages):
        found[page] = (number, None)
        found |= {child: (number, which) for which, child in enumerate(directories.children.get(page, ()))}
    return found
