"""Where the pixels of an array are on the Earth, as attributes of the array, its group or its grid mapping say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GRID_MAPPING = "grid_mapping"


@dataclass(frozen=True, slots=True)
class Georeference:
    """A coordinate reference system, and the affine transformation of pixels to its coordinates."""

    # As WKT, PROJJSON or a code such as "EPSG:4326"; None if it is not known.
    crs: str | None = None
    # In the order of GDAL, for the corners of pixels: x, x per column, x per row, y, y per column, y per row.
    transform: tuple[float, ...] | None = None


def find_georeference(
    array: Mapping[str, Any], group: Mapping[str, Any], variable: Mapping[str, Any], axes: Sequence[str | None]
) -> Georeference:
    """Return what the attributes of an array, of its group and of the variable of its grid mapping say.

    `axes` are the names of the height and the width of the array. The array takes precedence over the group.
    """
    crs = _crs(array) or _crs(group) or _text(variable, "crs_wkt") or _text(variable, "spatial_ref")
    return Georeference(crs, _transform(array, axes) or _transform(group, axes) or _geotransform(variable))


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None


def _crs(attributes: Mapping[str, Any]) -> str | None:
    """Return the coordinate reference system that the convention `proj:` records."""
    projjson = attributes.get("proj:projjson")
    known = _text(attributes, "proj:code") or _text(attributes, "proj:wkt2")
    return known or (json.dumps(projjson) if isinstance(projjson, dict) else None)


def _transform(attributes: Mapping[str, Any], axes: Sequence[str | None]) -> tuple[float, ...] | None:
    """Return the transformation that the convention `spatial:` records, None if it is for other axes."""
    if attributes.get("spatial:transform_type", "affine") != "affine":
        return None
    dimensions = attributes.get("spatial:dimensions")
    if dimensions is not None and None not in axes and dimensions != [*axes]:
        return None
    numbers = _numbers(attributes.get("spatial:transform"))
    if numbers is None:
        return None
    a, b, c, d, e, f = numbers
    # With "node", the transformation is for the centers of pixels.
    shift = 0.5 if attributes.get("spatial:registration") == "node" else 0
    return c - shift * (a + b), a, b, f - shift * (d + e), d, e


def _geotransform(attributes: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the transformation that rioxarray and GDAL write."""
    try:
        return _numbers([float(each) for each in str(attributes.get("GeoTransform", "")).split()])
    except ValueError:
        return None


def _numbers(values: object) -> tuple[float, ...] | None:
    is_numbers = isinstance(values, list) and all(isinstance(each, int | float) for each in values)
    return tuple(map(float, values)) if is_numbers and isinstance(values, list) and len(values) == 6 else None
