"""The attribute `ome` of OME-Zarr 0.5: made from what a file says about an image, and joined with those of other files.

The attribute is on the group that contains the levels of the image. What OME-Zarr cannot express has no attribute: it
allows the axes time, channel, and two or three of space, in this order.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

KEY: Final = "ome"
_VERSION: Final = "0.5"
# The letters of axes by their names. Samples such as red, green and blue are channels, too.
_LETTERS: Final = {**{letter: letter for letter in "tcszyx"}, "time": "t", "channel": "c"}
_TYPES: Final = {"t": "time", "c": "channel", "s": "channel", "z": "space", "y": "space", "x": "space"}
# The axes that an image can have, in their order.
_AXES: Final = re.compile("t?[cs]?z?yx")
# The largest number of characters of the labels of all channels.
_MAX_TEXT: Final = 1 << 20
WHITE: Final = "FFFFFF"

_PREFIXES: Final = (
    {"": "", "d": "deci", "c": "centi", "m": "milli", "u": "micro", "\u00b5": "micro", "\u03bc": "micro"}
    | {"n": "nano", "p": "pico", "f": "femto", "a": "atto", "z": "zepto", "y": "yocto"}
    | {"h": "hecto", "k": "kilo", "M": "mega", "G": "giga", "T": "tera", "P": "peta", "E": "exa"}
    | {"Z": "zetta", "Y": "yotta"}
)
# The units that OME-Zarr names, by their symbols.
_SYMBOLS: Final = {
    "space": {f"{symbol}m": f"{prefix}meter" for symbol, prefix in _PREFIXES.items()}
    | {"\u00c5": "angstrom", "\u212b": "angstrom", "in": "inch", "ft": "foot", "mi": "mile", "yd": "yard"}
    | {"pc": "parsec"},
    "time": {f"{symbol}s": f"{prefix}second" for symbol, prefix in _PREFIXES.items()}
    | {"min": "minute", "h": "hour", "d": "day"},
}
# Other names of units.
_NAMES: Final = {"space": {"micron": "micrometer"}, "time": {"sec": "second"}}


@dataclass(frozen=True, slots=True)
class ImageLevel:
    """An array of an image: the image itself, or the image with fewer pixels."""

    # The path in the group of the image.
    path: str
    # The distance between two elements along each axis, and the place of the first one; empty if it is 0.
    scale: Sequence[float]
    translation: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of an image, with its colour in six hexadecimal digits."""

    label: str
    color: str = WHITE


@dataclass(frozen=True, slots=True)
class OmeImage:
    """What a file says about an image."""

    name: str
    axes: Sequence[str]
    # As the file has them; empty for an axis without a unit, or with one that is not known.
    units: Sequence[str]
    # The largest first.
    levels: Sequence[ImageLevel]
    # All channels in order, or none.
    channels: Sequence[Channel] = ()
    # The smallest and the largest value that the image can have.
    value_range: tuple[int, int] | None = None


def ome_attributes(image: OmeImage) -> dict[str, Any]:
    """Return the attribute `ome` for the group of an image; no attribute if OME-Zarr cannot express the image."""
    if not (_are_axes(image.axes) and image.levels and _are_ordered(image.levels)):
        return {}
    axes = [_axis(name, unit) for name, unit in zip(image.axes, image.units, strict=True)]
    multiscale = {"axes": axes, "datasets": [_dataset(level) for level in image.levels]}
    named = {"name": image.name, **multiscale} if image.name else multiscale
    return {KEY: {"version": _VERSION, "multiscales": [named], **_omero(image)}}


def _are_axes(names: Sequence[str]) -> bool:
    return _AXES.fullmatch("".join(_LETTERS.get(name, "?") for name in names)) is not None


def _are_ordered(levels: Sequence[ImageLevel]) -> bool:
    """Return whether all numbers can be stored, and no level is larger than the one before it."""
    numbers = [number for level in levels for number in (*level.scale, *level.translation)]
    is_valid = all(map(math.isfinite, numbers)) and all(size > 0 for level in levels for size in level.scale)
    return is_valid and all(
        a <= b for one, other in pairwise(levels) for a, b in zip(one.scale, other.scale, strict=True)
    )


def _axis(name: str, unit: str) -> dict[str, str]:
    kind = _TYPES[_LETTERS[name]]
    known = find_unit(unit, kind)
    return {"name": name, "type": kind} | ({"unit": known} if known else {})


def find_unit(text: str, kind: str) -> str | None:
    """Return the name that OME-Zarr has for a unit of space or time; None if it has none."""
    symbols = _SYMBOLS.get(kind, {})
    known = {name: name for name in symbols.values()} | _NAMES.get(kind, {})
    return symbols.get(text.strip()) or known.get(text.strip().lower().removesuffix("s"))


def _dataset(level: ImageLevel) -> dict[str, Any]:
    transformations: list[dict[str, Any]] = [{"type": "scale", "scale": list(level.scale)}]
    if any(level.translation):
        transformations.append({"type": "translation", "translation": list(level.translation)})
    return {"path": level.path, "coordinateTransformations": transformations}


def _omero(image: OmeImage) -> dict[str, Any]:
    """Return the member for the channels. Each of them needs a range of values that are shown."""
    if image.value_range is None or sum(len(channel.label) for channel in image.channels) > _MAX_TEXT:
        return {}
    least, most = image.value_range
    window = {"min": least, "max": most, "start": least, "end": most}
    channels = [
        {"label": channel.label, "color": channel.color, "active": True, "window": window} for channel in image.channels
    ]
    return {"omero": {"channels": channels}} if channels else {}


# --- files that are joined, and arrays that are left out --------------------------------------------------------------


def is_channel(dim: str) -> bool:
    """Return whether a dimension is that of channels."""
    return _TYPES.get(_LETTERS.get(dim, "")) == "channel"


def join_attributes(files: Sequence[Mapping[Any, Any]], dim: str, *, is_new: bool) -> dict[Any, Any]:
    """Return the attributes of a group in several files that are joined along a dimension: those of the first one.

    A new dimension becomes the first axis of an image of OME-Zarr. If it cannot be that axis, the attribute `ome` is
    left out. An image that is joined along its channels has the channels of all files.
    """
    first = dict(files[0])
    try:
        ome = _joined([each[KEY] for each in files], dim, is_new=is_new)
    # The attribute can be that of another file, and have any contents, or not be there.
    except (AttributeError, LookupError, TypeError, ValueError):
        return first
    return {key: ome if key == KEY else value for key, value in first.items() if key != KEY or ome is not None}


def _joined(files: Sequence[Mapping[str, Any]], dim: str, *, is_new: bool) -> dict[str, Any] | None:
    """Return the attribute of files that are joined; None if OME-Zarr cannot express the image."""
    first = dict(files[0])
    if is_new:
        images = first["multiscales"]
        if not all(_are_axes([dim, *(axis["name"] for axis in image["axes"])]) for image in images):
            return None
        first["multiscales"] = [_with_axis(image, dim) for image in images]
    if is_channel(dim) and "omero" in first:
        omero = first.pop("omero")
        if all("omero" in each for each in files):
            channels = [channel for each in files for channel in each["omero"]["channels"]]
            first["omero"] = {**omero, "channels": channels}
    return first


def _with_axis(image: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an image with one more axis before the others."""
    first = {"scale": 1.0, "translation": 0.0}
    datasets = []
    for level in image["datasets"]:
        kinds = [(each["type"], each[each["type"]]) for each in level["coordinateTransformations"]]
        changed = [{"type": kind, kind: [first[kind], *numbers]} for kind, numbers in kinds]
        datasets.append({**level, "coordinateTransformations": changed})
    return {**image, "axes": [_axis(name, ""), *image["axes"]], "datasets": datasets}


def keep_if_complete(attributes: Mapping[str, Any], arrays: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a group without `ome` if arrays of its image are not among those that are adopted."""
    try:
        paths = {level["path"] for image in attributes[KEY]["multiscales"] for level in image["datasets"]}
    except (LookupError, TypeError):
        paths = set()
    return {key: value for key, value in attributes.items() if key != KEY or paths <= set(arrays)}
