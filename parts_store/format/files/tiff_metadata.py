"""What a TIFF file says besides its pixels: a table from the attributes of an array and its group to tags.

| in the documents                                            | in the file                                        |
|-------------------------------------------------------------|----------------------------------------------------|
| `spatial:transform`, or `GeoTransform` of the grid mapping  | ModelTransformation, with the origin of the shard  |
| `proj:code`, `proj:wkt2`, or `crs_wkt` of the grid mapping  | GeoKeyDirectory, if it is a code of EPSG           |
| `multiscales` of OME-Zarr, or `pixel_size` and `pixel_unit` | XResolution, YResolution, and ImageJ's description |
| the names of the axes before the height                     | `frames`, `slices` and `channels` in it            |

Attributes that are missing, or are not as these conventions describe them, have no tags: they never prevent a write.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, Final

from parts_store.format.coordinates import Coordinates
from parts_store.format.georeference import find_georeference
from parts_store.format.keys import join
from parts_store.format.tiff_directory import ASCII, DOUBLE, RATIONAL, SHORT, DirectoryTag

_DESCRIPTION, _X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 270, 282, 283, 296
_TRANSFORMATION, _GEO_KEYS = 34264, 34735
# Keys of GeoTIFF, and their values.
_MODEL, _RASTER, _GEOGRAPHIC_CODE, _PROJECTED_CODE = 1024, 1025, 2048, 3072
_PROJECTED, _GEOGRAPHIC_MODEL, _PIXEL_IS_AREA, _GEO_VERSION = 1, 2, 1, (1, 1, 0)
_MAX_CODE: Final = 32766
_MAX_RATIONAL: Final = 2**32 - 1
# The unit is in ImageJ's description. The default unit of TIFF is an inch.
_NO_UNIT: Final = 1
_UNITS: Final = {"micrometer": "micron", "nanometer": "nm", "millimeter": "mm", "centimeter": "cm", "meter": "m"}
_SECONDS: Final = {"second": 1.0, "s": 1.0, "millisecond": 0.001, "ms": 0.001, "minute": 60.0, "hour": 3600.0}
# What ImageJ calls the axes of a stack, the fastest last.
_STACK: Final = ("frames", "slices", "channels")
_STACK_NAMES: Final = {"t": "frames", "time": "frames", "z": "slices", "c": "channels", "channel": "channels"}
_EAST_WEST: Final = ("x", "lon", "longitude")
_EPSG_WKT: Final = re.compile(r'\s*(?:PROJ|GEOG)\w*\[.*\b(?:AUTHORITY|ID)\["EPSG",\s*"?(\d+)"?\]\s*\]\s*', re.DOTALL)
# The codes of geographic systems in EPSG, as ranges in which there are no projected systems.
_GEOGRAPHIC_CODES: Final = (
    "3819-3824 3888-3889 3906 4001-4025 4027-4036 4040-4047 4052-4055 4074-4081 4120-4216 4218-4388 4463-4466 "
    "4469-4470 4472 4475-4483 4490 4555-4558 4600-4646 4657-4765 4801-4811 4813-4821 4823-4824 4883-5013 5132 "
    "5228-5233 5245-5246 5251-5252 5263-5264 5323-5324 5340-5342 5353-5354 5359-5360 5364-5365 5370-5381 "
    "5392-5393 5451 5464 5467 5488-5489 5524-5527 5545-5546 5560-5561 5592-5593 5681 5830 5885-5886 6134-6135 "
    "6207 6310-6311 6318-6325 6364-6365 6667-6668 6705-6706 6782-6783 6881-6883 6892-6894 6979-6983 6986-6990 "
    "7034-7042 7072-7073 7084-7088 7133-7139 7372-7373 7657-7686 7797-7798 7816 7843-7844 7880-7881 7885-7886 "
    "7900-7931 8042-8043 8085-8086 8231-8255 8351 8399-8431 8449 8542-8545 8684-8685 8694-8818 8860-8902 "
    "8906-8907 8916-8949 8972-9019 9053-9140 9147-9148 9152-9153 9183-9184 9248 9251 9253 9267 9293-9294 9299 "
    "9308-9309 9332-9333 9364 9372 9379-9384 9403 9453 9469-9470 9474-9475 9546-9547 9695-9696 9701-9702 9739 "
    "9754-9758 9763 9776-9784 9866 9871 9893 9939 9964 9969 9974 9989-10158 10175-10178 10185 10191 10196 10204 "
    "10209 10214 10219 10224 10229 10237 10249 10252 10256 10260 10265 10268 10272 10277 10283-10284 10298-10305 "
    "10307-10312 10327-10328 10345-10414 10468 10474-10475 10570-10571 10605-10606 10623 10628 10635-10639 "
    "10670-10673 10689-10690 10724-10725 10735-10739 10758 10761-10762 10780-10785 10790-10791 10799-10800 "
    "10806-10807 10830-10831 10849 10860 10874-10898 10909-10910 10940-10941 10951-10968 11042-11043 20033-20041 "
    "20045-20046 "
)


@dataclass(frozen=True, slots=True)
class Axis:
    """What is known of an axis of an array."""

    name: str = ""
    # The distance between two elements.
    size: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class ArrayDescription:
    """What the documents of an array and of its neighbours say about it."""

    # The last component of its path.
    name: str
    attributes: Mapping[str, Any]
    dimension_names: Sequence[str | None] = ()
    # The attributes of the group of the array, and of the array that its attribute `grid_mapping` names.
    group: Mapping[str, Any] = field(default_factory=dict)
    grid_mapping: Mapping[str, Any] = field(default_factory=dict)
    # The coordinates of dimensions by their names, for HDF5 files.
    coordinates: Mapping[str, Coordinates | None] = field(default_factory=dict)


def neighbours(path: str, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of the nodes whose attributes are about an array, by the names of `ArrayDescription`."""
    if not path:
        return {}
    parent, mapping = path.rpartition("/")[0], attributes.get("grid_mapping")
    found = {"group": parent}
    if isinstance(mapping, str) and re.fullmatch(r"\w+", mapping):
        found["grid_mapping"] = join(parent, mapping)
    return found


@dataclass(frozen=True, slots=True)
class ImageMetadata:
    """Tags of a file that are not about where its pixels are."""

    of_all: tuple[DirectoryTag, ...] = ()
    # The description of all images of the file, which the first one has.
    of_first: DirectoryTag | None = None


NO_METADATA: Final = ImageMetadata()
# The number of tags that an image can have of these.
MOST_TAGS: Final = 6


def image_metadata(
    array: ArrayDescription, leading: Sequence[int], origin: tuple[int, int], image_shape: tuple[int, int]
) -> ImageMetadata:
    """Return the tags of the file of a shard.

    Parameters
    ----------
    array
        What the documents say about the array.
    leading
        The lengths of the axes before the height, in the file.
    origin
        The row and the column of the array where the images begin.
    image_shape
        The height and the width of the whole array.
    """
    of_scale = _attempt(lambda: _scale_tags(array, leading), NO_METADATA)
    axes = array.dimension_names[len(leading) : len(leading) + 2] or (None, None)
    of_place = _attempt(lambda: _geo_tags(array, axes, origin, image_shape), NO_METADATA.of_all)
    return ImageMetadata((*of_scale.of_all, *of_place), of_scale.of_first)


def _geo_tags(
    array: ArrayDescription, axes: Sequence[str | None], origin: tuple[int, int], image_shape: tuple[int, int]
) -> tuple[DirectoryTag, ...]:
    """Return the tags of GeoTIFF for an image that starts at this row and column of the array.

    `axes` are the names of the height and the width, and `image_shape` is that of the whole array.
    """
    own, group = (_without_other_shapes(each, image_shape) for each in (array.attributes, _group_attributes(array)))
    place = find_georeference(own, group, array.grid_mapping, axes)
    if place.transform is None or (axes and (axes[0] or "").lower() in _EAST_WEST):
        return ()
    c, a, b, f, d, e = place.transform
    row, column = origin
    c, f = c + a * column + b * row, f + d * column + e * row
    if not all(map(math.isfinite, (a, b, c, d, e, f))):
        return ()
    matrix = (a, b, 0.0, c, d, e, 0.0, f, *(0.0,) * 7, 1.0)
    tags = [DirectoryTag(_TRANSFORMATION, DOUBLE, matrix)]
    code = None if place.crs is None else _epsg_code(place.crs)
    if code is not None and 0 < code <= _MAX_CODE:
        is_geographic = code in _geographic_codes()
        keys = {
            _MODEL: _GEOGRAPHIC_MODEL if is_geographic else _PROJECTED,
            _RASTER: _PIXEL_IS_AREA,
            _GEOGRAPHIC_CODE if is_geographic else _PROJECTED_CODE: code,
        }
        entries = (number for key, value in keys.items() for number in (key, 0, 1, value))
        tags.append(DirectoryTag(_GEO_KEYS, SHORT, (*_GEO_VERSION, len(keys), *entries)))
    return tuple(tags)


def _scale_tags(array: ArrayDescription, leading: Sequence[int]) -> ImageMetadata:
    """Return the tags for the size of the pixels, and ImageJ's description of all images.

    `leading` are the lengths of the axes before the height in the file.
    """
    axes = _axes(array, len(leading) + 2)
    *before, height, width = axes[: len(leading) + 2]
    lines = _stack_lines(before, leading)
    x, y = _resolution(width.size), _resolution(height.size)
    tags: list[DirectoryTag] = []
    if x is not None and y is not None:
        tags = [DirectoryTag(_X_RESOLUTION, RATIONAL, x), DirectoryTag(_Y_RESOLUTION, RATIONAL, y)]
        tags.append(DirectoryTag(_RESOLUTION_UNIT, SHORT, (_NO_UNIT,)))
        unit = _UNITS.get(width.unit, width.unit)
        if unit and width.unit == height.unit and unit.isascii() and unit.isprintable():
            lines.append(f"unit={unit}")
    if not lines:
        return ImageMetadata(tuple(tags))
    text = "".join(f"{line}\n" for line in ("ImageJ=1.54p", *lines))
    return ImageMetadata(tuple(tags), DirectoryTag(_DESCRIPTION, ASCII, (*text.encode(), 0)))


def _stack_lines(axes: Sequence[Axis], lengths: Sequence[int]) -> list[str]:
    """Return the lines of ImageJ's description for the axes of a stack; none if it cannot have them, or their order."""
    stacked = [(_STACK_NAMES.get(axis.name.lower()), axis, length) for axis, length in zip(axes, lengths, strict=True)]
    long = [kind for kind, _, length in stacked if length > 1]
    if not long or long != [kind for kind in _STACK if kind in long]:
        return []
    lines = [f"{kind}={length}" for kind, _, length in stacked if length > 1]
    lines += ["hyperstack=true"] if len(long) > 1 else []
    for kind, axis, _ in stacked:
        if axis.size is not None and kind == "slices":
            lines.append(f"spacing={axis.size}")
        elif axis.size is not None and kind == "frames" and axis.unit in _SECONDS:
            lines.append(f"finterval={axis.size * _SECONDS[axis.unit]}")
    return lines


def _axes(array: ArrayDescription, count: int) -> Sequence[Axis]:
    """Return what is known of the axes of an array, of which the last may be the colours."""
    for attributes in (array.attributes, array.group):
        for holder in (attributes.get("ome"), attributes):
            images = holder.get("multiscales") if isinstance(holder, Mapping) else None
            for image in images if isinstance(images, list) else ():
                if (axes := _ome_axes(image, array.name)) is not None:
                    return axes
    size, unit = array.attributes.get("pixel_size"), array.attributes.get("pixel_unit", "")
    names = [name or "" for name in array.dimension_names] or [""] * count
    height_width = [None, None] if size is None else map(_positive, size if isinstance(size, list) else [size, size])
    sizes = [*[None] * (count - 2), *height_width]
    return [Axis(name, size, unit) for name, size in zip(names[:count], sizes, strict=True)]


def _ome_axes(image: Mapping[str, Any], name: str) -> Sequence[Axis] | None:
    """Return the axes that one image of OME-Zarr gives the array with this name; None if it has no such array."""
    level = next((each for each in image["datasets"] if each["path"] == name), None)
    if level is None:
        return None
    sizes = [1.0] * len(image["axes"])
    for each in (*level["coordinateTransformations"], *image.get("coordinateTransformations", ())):
        if each["type"] == "scale":
            sizes = [size * float(scale) for size, scale in zip(sizes, each["scale"], strict=True)]
    return [
        Axis(axis["name"], _positive(size), axis.get("unit", ""))
        for axis, size in zip(image["axes"], sizes, strict=True)
    ]


def _without_other_shapes(attributes: Mapping[str, Any], shape: tuple[int, int]) -> Mapping[str, Any]:
    """Return attributes without a transformation for an image of another shape, such as another level."""
    if attributes.get("spatial:shape", [*shape]) == [*shape]:
        return attributes
    return {key: value for key, value in attributes.items() if key != "spatial:transform"}


def _group_attributes(array: ArrayDescription) -> Mapping[str, Any]:
    """Return what the group says of the array; if the group has levels, what it says of that level."""
    multiscales = array.group.get("multiscales")
    if not isinstance(multiscales, Mapping):
        return array.group
    shared = {key: value for key, value in array.group.items() if key not in ("spatial:transform", "spatial:shape")}
    return shared | next((level for level in multiscales["layout"] if level["asset"] == array.name), {})


def _epsg_code(crs: str) -> int | None:
    """Return the code of a coordinate reference system in EPSG, which is recorded as a code or as WKT."""
    found = re.fullmatch(r"EPSG:(\d+)", crs) or _EPSG_WKT.fullmatch(crs)
    return None if found is None else int(found[1])


@cache
def _geographic_codes() -> frozenset[int]:
    ranges = [[int(each) for each in text.split("-")] for text in _GEOGRAPHIC_CODES.split()]
    return frozenset(code for ends in ranges for code in range(ends[0], ends[-1] + 1))


def _positive(value: Any) -> float | None:
    """Return a size as a number, None if it is none."""
    size = float(value)
    return size if math.isfinite(size) and size > 0 else None


def _resolution(size: float | None) -> tuple[int, int] | None:
    """Return the number of pixels in a unit as a fraction of two numbers of 32 bits, None if there is none."""
    if size is None:
        return None
    # Numbers that differ by factors of ten, such as 0.325, keep the digits in which they are written.
    exact = 1 / Fraction(repr(size))
    near = exact.limit_denominator(_MAX_RATIONAL if exact < 1 else max(1, int(_MAX_RATIONAL / exact)))
    return (near.numerator, near.denominator) if 0 < near.numerator <= _MAX_RATIONAL else None


def _attempt[T](function: Callable[[], T], default: T) -> T:
    """Return what a function finds in attributes, and the default if they are not as it expects."""
    try:
        return function()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return default
