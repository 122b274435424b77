"""What N5 containers say about images with levels, for OME-Zarr.

There are two conventions. In that of COSEM each level has a `transform`. In that of N5-Viewer, BigDataViewer, Paintera
and Neuroglancer the levels are called `s0`, `s1` and so on. They have `downsamplingFactors`, themselves or in a list of
a group above, and `resolution` and `units`, or `pixelResolution`, are those of `s0`. All lists are in N5's order: x, y,
z; only a `transform` says its order.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parts_store.virtual.ome_zarr import KEY, ImageLevel, OmeImage, ome_attributes
from parts_store.virtual.parsers.n5.dataset import N5Dataset, axes_of, is_in_n5_order
from parts_store.virtual.store_access import ancestors, join

_LEVEL: Final = re.compile(r"s(0|[1-9][0-9]{0,3})")
# The axes of arrays of two and three dimensions whose axes have no names.
_USUAL: Final = {2: ("x", "y"), 3: ("x", "y", "z")}
# What cannot be expressed by the size and the place of pixels.
_AFFINE: Final = "affineTransform"

type Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the pixels of a level are, with the axes in N5's order."""

    axes: tuple[str, ...]
    units: tuple[str, ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...]


def add_ome_attributes(groups: dict[str, Attributes], datasets: dict[str, N5Dataset]) -> None:
    """Give groups of levels the attribute of OME-Zarr, and the levels the names of its axes.

    A group whose levels are not all there, or are described in another way or not at all, stays as it is.
    """
    numbered: dict[str, list[int]] = {}
    for path in datasets:
        above, _, name = path.rpartition("/")
        if path and (found := _LEVEL.fullmatch(name)) is not None:
            numbered.setdefault(above, []).append(int(found[1]))
    for path, attributes in list(groups.items()):
        listed = _listed_levels(attributes)
        numbers = sorted(numbered.get(path, []))
        names = list(listed) or [f"s{number}" for number in numbers if numbers == list(range(len(numbers)))]
        levels = [datasets[join(path, name)] for name in names if join(path, name) in datasets]
        if KEY in attributes or len(levels) < len(names) or not names:
            continue
        # From the innermost group to the root.
        holders = [attributes, *(groups.get(above, {}) for above in reversed(ancestors(path)))]
        places = _places_of([listed.get(name) for name in names], levels, holders)
        image = None if places is None else _image_of(path.rpartition("/")[2], names, places)
        if image is not None and (made := ome_attributes(image)):
            groups[path] = {**attributes, **made}
            for name in names:
                where = join(path, name)
                datasets[where] = dataclasses.replace(datasets[where], axes=tuple(image.axes[::-1]))


def _listed_levels(attributes: Attributes) -> dict[str, Any]:
    """Return the transforms of the levels that `multiscales` lists, by their paths; None for one without it."""
    images = attributes.get("multiscales")
    image = images[0] if isinstance(images, list) and len(images) == 1 else None
    levels = image.get("datasets") if isinstance(image, dict) else None
    found = [level for level in levels if isinstance(level, dict)] if isinstance(levels, list) else []
    return {level["path"]: level.get("transform") for level in found if isinstance(level.get("path"), str)}


def _places_of(
    listed: Sequence[Any], levels: Sequence[N5Dataset], holders: Sequence[Attributes]
) -> list[_Place] | None:
    """Return the places of all levels; None if they are not known."""
    if any(_AFFINE in each for each in (holders[0], *(level.attributes for level in levels))):
        return None
    transforms = [
        level.attributes.get("transform") if transform is None else transform
        for transform, level in zip(listed, levels, strict=True)
    ]
    if any(transform is not None for transform in transforms):
        places = [_transformed(transform, level) for transform, level in zip(transforms, levels, strict=True)]
    else:
        places = _downsampled(levels, [levels[0].attributes, *holders])
    known = [place for place in places if place is not None]
    return known if known and len(known) == len(levels) else None


def _image_of(name: str, names: Sequence[str], places: Sequence[_Place]) -> OmeImage | None:
    """Return the image with its axes in the order of Zarr; None if levels have other axes or units than the first."""
    first = places[0]
    if any((each.axes, each.units) != (first.axes, first.units) for each in places):
        return None
    levels = [
        ImageLevel(path, place.scale[::-1], place.translation[::-1]) for path, place in zip(names, places, strict=True)
    ]
    return OmeImage(name, first.axes[::-1], first.units[::-1], levels)


def _transformed(transform: Any, level: N5Dataset) -> _Place | None:
    """Return the place that a `transform` of COSEM gives a level."""
    if not isinstance(transform, dict):
        return None
    ndim = level.ndim
    scale, translation = _numbers(transform.get("scale"), ndim), _numbers(transform.get("translate", [0] * ndim), ndim)
    axes = axes_of({"transform": transform}, ndim)
    if scale is None or translation is None or axes is None or level.axes not in (None, axes):
        return None
    units = _texts(transform.get("units"), ndim)
    if not is_in_n5_order(transform):
        scale, translation, units = scale[::-1], translation[::-1], units[::-1]
    return _Place(axes, units, scale, translation)


def _downsampled(levels: Sequence[N5Dataset], holders: Sequence[Attributes]) -> list[_Place | None]:
    """Return the places that levels have by their factors. `holders` are the attributes of `s0`, and of groups above.

    A pixel of a level is the mean of pixels of `s0`, and is in the middle of them.
    """
    ndim, axes = levels[0].ndim, levels[0].axes or _USUAL.get(levels[0].ndim)
    found = next(filter(None, (_resolution(each, ndim) for each in holders)), None)
    factors = [_factors(level.attributes, number, holders[1:], ndim) for number, level in enumerate(levels)]
    if axes is None or (found is None and not any(factors)) or any(each.axes not in (None, axes) for each in levels):
        return []
    sizes, units = found or ((1.0,) * ndim, ("",) * ndim)
    offset = next(filter(None, (_numbers(each.get("offset"), ndim) for each in holders[:2])), (0.0,) * ndim)
    places: list[_Place | None] = []
    for number, factor in enumerate(factors):
        # Only that of the first level is known without being written.
        if factor is None and number:
            return []
        steps = factor or (1.0,) * ndim
        scale = tuple(size * step for size, step in zip(sizes, steps, strict=True))
        middle = tuple(begin + size * (step - 1) / 2 for begin, size, step in zip(offset, sizes, steps, strict=True))
        places.append(_Place(axes, units, scale, middle))
    return places


def _factors(own: Attributes, number: int, holders: Sequence[Attributes], ndim: int) -> tuple[float, ...] | None:
    """Return the factors of a level: its own, or those in a list of the nearest group that has one."""
    lists = [each.get(name) for each in holders for name in ("downsamplingFactors", "scales")]
    listed = [each[number] for each in lists if isinstance(each, list) and number < len(each)]
    found = (_numbers(each, ndim) for each in [own.get("downsamplingFactors"), *listed])
    return next(filter(None, found), None)


def _resolution(attributes: Attributes, ndim: int) -> tuple[tuple[float, ...], tuple[str, ...]] | None:
    """Return the sizes of pixels and their units; None if the attributes do not have them."""
    if (sizes := _numbers(attributes.get("resolution"), ndim)) is not None:
        return sizes, _texts(attributes.get("units"), ndim)
    given = attributes.get("pixelResolution")
    if isinstance(given, dict):
        sizes = _numbers(given.get("dimensions"), ndim)
        return None if sizes is None else (sizes, _texts([given.get("unit")] * ndim, ndim))
    sizes = _numbers(given, ndim)
    return None if sizes is None else (sizes, _texts(attributes.get("units"), ndim))


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """Return a list of numbers; None for anything else."""
    if not isinstance(value, list) or len(value) != count:
        return None
    is_number = all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    try:
        return tuple(map(float, value)) if is_number else None
    # An integer of JSON can have any size.
    except OverflowError:
        return None


def _texts(value: Any, count: int) -> tuple[str, ...]:
    """Return a list of texts; empty texts for anything else."""
    is_list = isinstance(value, list) and len(value) == count and all(isinstance(each, str) for each in value)
    return tuple(value) if is_list else ("",) * count
