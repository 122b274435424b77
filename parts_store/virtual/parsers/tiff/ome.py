"""What TIFF files say about images, for OME-Zarr: axes, pixel sizes, channels and levels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree as ET

from tifffile import TiffFile, TiffPageSeries

from parts_store.virtual.ome_zarr import WHITE, Channel, ImageLevel, OmeImage

# The attributes of `Pixels` with the size of a step along an axis, and the default of the attribute with its unit.
_STEPS: Final = {
    "x": ("PhysicalSizeX", "\u00b5m"),
    "y": ("PhysicalSizeY", "\u00b5m"),
    "z": ("PhysicalSizeZ", "\u00b5m"),
    "t": ("TimeIncrement", "s"),
}
# The range of larger integers says nothing about the values of an image.
_MAX_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image in an OME-XML document: the attributes of `Pixels` and `Channel`."""

    attributes: Mapping[str, str]
    channels: Sequence[Mapping[str, str]]

    def is_of(self, series: TiffPageSeries) -> bool:
        """Return whether this is the image of a series, as far as its size tells."""
        sizes = {name.upper(): str(size) for name, size in zip(series.dims, series.shape, strict=True)}
        return all(self.attributes.get(f"Size{axis}", "").strip() == sizes.get(axis) for axis in "XY")


def read_pixels(tif: TiffFile) -> list[Pixels]:
    """Return the images in the OME-XML document of a file, which tifffile has read before."""
    root = ET.fromstring(tif.ome_metadata or "<OME/>")  # noqa: S314 - documents with definitions are refused before
    images = [image for image in root if image.tag.endswith("Image")]
    return [
        Pixels(pixels.attrib, [each.attrib for each in pixels if each.tag.endswith("Channel")])
        for image in images
        for pixels in image
        if pixels.tag.endswith("Pixels")
    ]


def image_of(series: TiffPageSeries, paths: Sequence[str], pixels: Pixels | None) -> OmeImage:
    """Return the image of a series, whose levels are at these paths; `pixels` is what an OME-XML document says of it.

    The levels show the same place, so that their pixels are larger by the ratio of the numbers of pixels.
    """
    axes = tuple(name.lower() for name in series.dims)
    steps = [_step(series, pixels, axis) for axis in axes]
    levels = [
        ImageLevel(
            path,
            [size * (most / count) for (size, _), most, count in zip(steps, series.shape, each.shape, strict=True)],
        )
        for path, each in zip(paths, series.levels, strict=True)
    ]
    units = [unit for _, unit in steps]
    channels, value_range = ((), None) if pixels is None else (_channels(series, pixels), _range(series, pixels))
    return OmeImage(series.name or "", axes, units, levels, channels, value_range)


def _step(series: TiffPageSeries, pixels: Pixels | None, axis: str) -> tuple[float, str]:
    """Return the size of a step along an axis and its unit: 1 without a unit if they are not known."""
    if pixels is None:
        # tifffile finds them in the descriptions of slides, in micrometers, and otherwise takes the resolution.
        unit = series.coord_units.get(axis.upper(), "")
        found = _number(series.coord_scales.get(axis.upper())) if unit else None
        if found is not None and unit != "micrometer" and axis in "xy":
            # The sizes of tifffile have 24 bits.
            found = 1 / series.keyframe.get_resolution()["xy".index(axis)]
    else:
        name, default = _STEPS.get(axis, ("", ""))
        unit = pixels.attributes.get(f"{name}Unit", default)
        found = _number(pixels.attributes.get(name))
    return (1.0, "") if found is None else (found, unit)


def _number(value: Any) -> float | None:
    """Return a positive number; None for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and found > 0 else None


def _channels(series: TiffPageSeries, pixels: Pixels) -> list[Channel]:
    """Return the channels of an image; none if the document does not name them, or has more or fewer."""
    count = dict(zip(series.dims, series.shape, strict=True)).get("C", 1)
    is_named = any("Name" in each or "Color" in each for each in pixels.channels)
    if len(pixels.channels) != count or not is_named:
        return []
    return [
        Channel(each.get("Name", f"channel {number}"), _color(each.get("Color")))
        for number, each in enumerate(pixels.channels)
    ]


def _color(text: str | None) -> str:
    """Return red, green and blue of a colour: in OME-XML, a signed number of 32 bits, of which 8 are the opacity."""
    try:
        return f"{(int(text or '-1') & 0xFFFFFFFF) >> 8:06X}"
    except ValueError:
        return WHITE


def _range(series: TiffPageSeries, pixels: Pixels) -> tuple[int, int] | None:
    """Return the smallest and the largest value that an image can have, by its type and its significant bits."""
    if series.dtype.kind not in "iu":
        return None
    bits = series.dtype.itemsize * 8
    significant = _number(pixels.attributes.get("SignificantBits"))
    if significant is not None and 1 <= significant < bits:
        bits = int(significant)
    if bits > _MAX_BITS:
        return None
    return (0, 2**bits - 1) if series.dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
