"""Whole arrays for Bio-Formats: an OME-XML companion file that says in which TIFF file each plane is. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5
from xml.etree import ElementTree as ET

import numpy as np

from parts_store.format.view_keys import MARK
from parts_store.views.sources import ShardSource, ViewedArray, as_number, has_gaps
from parts_store.views.xml import add, as_xml

_SCHEMA: Final = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
_TYPES: Final = {
    "b1": "uint8",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "f4": "float",
    "f8": "double",
    "c8": "complex",
    "c16": "double-complex",
}
_AXES: Final = {"t": "T", "time": "T", "c": "C", "channel": "C", "z": "Z", "depth": "Z"}
# The axes before the height of arrays whose axes have no names, the last one first.
_USUAL: Final = "ZCT"
# Units as OME-Zarr and as OME-XML write them.
_UNITS: Final = {
    "angstrom": "Å",
    "nanometer": "nm",
    "micrometer": "µm",
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
    "nanosecond": "ns",
    "microsecond": "µs",
    "millisecond": "ms",
    "second": "s",
    "minute": "min",
    "hour": "h",
}
# The attributes of `Pixels` for the size of a step along each axis, without their endings.
_STEPS: Final = {"X": "PhysicalSizeX", "Y": "PhysicalSizeY", "Z": "PhysicalSizeZ", "T": "TimeIncrement"}


def ome_of(array: ViewedArray, sources: Sequence[ShardSource], group: Mapping[str, Any]) -> bytes:
    """Return OME-XML that shows the whole array; zeros where no shard exists.

    `group` are the attributes of the group of the array, which may be those of an OME-Zarr image.
    """
    scales = _scales_of(group, array.name)
    axes = _axes_of(array, [name for name, _, _ in scales])
    _require_planes(array, sources)
    if as_number(array) != 0 and has_gaps(array, sources):
        expected = "0 as the fill value where shards are missing, or all shards: `config={'write_empty_chunks': True}`"
        raise array.refuse(f"{expected}, for OME-XML", str(as_number(array)))
    height, width = array.shape[array.height_axis : array.height_axis + 2]
    sizes = {"X": width, "Y": height, "Z": 1, "C": 1, "T": 1, **dict(zip(axes, array.leading, strict=True))}
    root = ET.Element("OME", xmlns=_SCHEMA, Creator=MARK, UUID=_uuid(f"{array.path}.companion.ome"))
    image = add(root, "Image", ID="Image:0", Name=array.name)
    # The last axis of the array changes first.
    order = "XY" + "".join(reversed(axes)) + "".join(axis for axis in "ZCT" if axis not in axes)
    pixels = add(
        image,
        "Pixels",
        ID="Pixels:0",
        DimensionOrder=order,
        Type=_TYPES[f"{array.file.dtype.kind}{array.file.dtype.itemsize}"],
        BigEndian=str(array.file.dtype.str[0] == ">").lower(),
        Interleaved=str(array.file.is_rgb).lower(),
    )
    for axis, size in sizes.items():
        pixels.set(f"Size{axis}", str(size * array.samples if axis == "C" else size))
    for name, value in _steps(scales, [*axes, "Y", "X"]).items():
        pixels.set(name, value)
    labels = _labels(group, sizes["C"])
    for number in range(sizes["C"]):
        add(pixels, "Channel", ID=f"Channel:0:{number}", SamplesPerPixel=array.samples, Name=labels.get(number))
    for source in sources:
        _add_planes(pixels, source, axes)
    return as_xml(root)


def _axes_of(array: ViewedArray, image_axes: Sequence[str]) -> list[str]:
    """Return which axes of OME the axes before the height are."""
    count = len(array.leading)
    names = list(array.dimension_names[:count])
    if None in names and len(image_axes) == len(array.shape):
        names = list(image_axes[:count])
    if all(name is None for name in names) and count <= len(_USUAL):
        found = list(reversed(_USUAL[:count]))
    else:
        found = [_AXES.get((name or "").lower(), "") for name in names]
    if "" in found or len(set(found)) < count or ("C" in found and array.file.is_rgb):
        expected = f"axes before the height with different names of {', '.join(_AXES)}, and no channels of colours"
        raise array.refuse(f"{expected}, for OME-XML; a VRT has bands for all axes", f"{tuple(names)}")
    return found


def _require_planes(array: ViewedArray, sources: Sequence[ShardSource]) -> None:
    """Raise an error unless each image of each file is a whole plane of the array, of a type that OME has."""
    axis = array.height_axis
    plane, shard = array.shape[axis : axis + 2], array.file.shard_shape[axis : axis + 2]
    if f"{array.file.dtype.kind}{array.file.dtype.itemsize}" not in _TYPES:
        raise array.refuse(f"one of {', '.join(sorted(set(_TYPES.values())))}, for OME-XML", str(array.file.dtype))
    if not math.prod(array.shape):
        raise array.refuse("an array that is not empty, for OME-XML", str(array.shape))
    if any(part < whole for part, whole in zip(shard, plane, strict=True)):
        expected = "shards as high and as wide as the array, because OME-XML cannot join files to a plane"
        raise array.refuse(f"{expected}; a VRT can", f"shards of {shard} for planes of {plane}")
    for source in sources:
        if source.stored_shape[axis : axis + 2] != plane:
            found = f"{source.stored_shape[axis : axis + 2]} in {source.filename!r}; write the shard again"
            raise array.refuse(f"images of {plane}", found)


def _add_planes(pixels: ET.Element, source: ShardSource, axes: Sequence[str]) -> None:
    for page, position in enumerate(np.ndindex(*source.stored_shape[: len(axes)])):
        if all(at < length for at, length in zip(position, source.extent, strict=False)):
            place = {f"First{axis}": start + at for axis, start, at in zip(axes, source.origin, position, strict=False)}
            data = add(pixels, "TiffData", IFD=page, PlaneCount=1, **place)
            add(data, "UUID", _uuid(source.filename), FileName=source.filename)


def _uuid(name: str) -> str:
    """Return an identifier that is the same whenever the view is written again."""
    return f"urn:uuid:{uuid5(NAMESPACE_URL, name)}"


def _scales_of(group: Mapping[str, Any], name: str) -> list[tuple[str, str | None, float]]:
    """Return the name, the unit and the size of a step of each axis of an OME-Zarr image; none for other groups."""
    ome = group.get("ome")
    try:
        (image, *_) = ome["multiscales"] if isinstance(ome, dict) else group["multiscales"]
        (level,) = [each for each in image["datasets"] if each["path"] == name]
        steps = np.ones(len(image["axes"]))
        for each in (*level["coordinateTransformations"], *image.get("coordinateTransformations", ())):
            if each["type"] == "scale":
                steps = steps * np.asarray(each["scale"], float)
        axes = [(str(each["name"]), each.get("unit")) for each in image["axes"]]
        return [(axis, unit, float(step)) for (axis, unit), step in zip(axes, steps, strict=True)]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _steps(scales: Sequence[tuple[str, str | None, float]], axes: Sequence[str]) -> dict[str, str]:
    """Return the attributes of `Pixels` for steps whose unit OME has too."""
    found: dict[str, str] = {}
    for axis, (_, unit, step) in zip(axes, scales, strict=False) if len(scales) == len(axes) else ():
        if axis in _STEPS and unit in _UNITS and step > 0:
            found |= {_STEPS[axis]: repr(step), f"{_STEPS[axis]}Unit": _UNITS[unit]}
    return found


def _labels(group: Mapping[str, Any], count: int) -> dict[int, str]:
    """Return the names of the channels of an OME-Zarr image by their numbers."""
    ome = group.get("ome", group)
    omero = ome.get("omero") if isinstance(ome, dict) else None
    channels = omero.get("channels") if isinstance(omero, dict) else None
    if not isinstance(channels, list) or len(channels) != count:
        return {}
    labels = [each.get("label") if isinstance(each, dict) else None for each in channels]
    return {number: label for number, label in enumerate(labels) if isinstance(label, str) and label}
