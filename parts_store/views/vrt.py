"""Whole arrays for GDAL and QGIS: a VRT whose sources are the TIFF files of an array. Pure.

Each position along the axes before the height is a band; each colour of it is a band, too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np

from parts_store.format.georeference import Georeference
from parts_store.format.view_keys import MARK
from parts_store.views.sources import ShardSource, ViewedArray, as_number, has_gaps
from parts_store.views.xml import add, as_xml

# GDAL opens half precision only since version 3.11; single precision has the same values.
_TYPES: Final = {
    "b1": "Byte",
    "u1": "Byte",
    "u2": "UInt16",
    "u4": "UInt32",
    "u8": "UInt64",
    "i1": "Int8",
    "i2": "Int16",
    "i4": "Int32",
    "i8": "Int64",
    "f2": "Float32",
    "f4": "Float32",
    "f8": "Float64",
    "c8": "CFloat32",
    "c16": "CFloat64",
}
_COLORS: Final = ("Red", "Green", "Blue", "Alpha")
_MAX_BANDS: Final = 65536
_MAX_SIDE: Final = 2**31 - 1
# Elements of a band, and the attributes of an array that they are taken from, by the conventions of netCDF.
_OF_ATTRIBUTES: Final = {"UnitType": "units", "Offset": "add_offset", "Scale": "scale_factor"}


def vrt_of(array: ViewedArray, sources: Sequence[ShardSource], georeference: Georeference) -> bytes:
    """Return a VRT that shows the whole array; where no shard exists, the fill value, which is the nodata value."""
    height, width = array.shape[array.height_axis : array.height_axis + 2]
    _require_bands(array, height, width)
    root = ET.Element("VRTDataset", rasterXSize=str(width), rasterYSize=str(height))
    root.append(ET.Comment(f" {MARK} "))
    if georeference.crs is not None:
        add(root, "SRS", georeference.crs)
    if georeference.transform is not None:
        add(root, "GeoTransform", ", ".join(map(repr, georeference.transform)))
    nodata = _nodata(array, sources)
    pages: dict[tuple[int, ...], list[tuple[ShardSource, int]]] = {}
    for source in sources:
        stored = source.stored_shape[: len(array.leading)]
        for page, position in enumerate(np.ndindex(*stored)):
            if all(at < length for at, length in zip(position, source.extent, strict=False)):
                place = tuple(at + start for at, start in zip(position, source.origin, strict=False))
                pages.setdefault(place, []).append((source, page))
    number = 0
    for place in np.ndindex(*array.leading):
        for sample in range(array.samples):
            number += 1
            band = add(root, "VRTRasterBand", dataType=_data_type(array), band=number)
            _describe(band, array, place, sample, nodata)
            for source, page in pages.get(place, ()):
                _add_source(band, array, source, page, sample)
    return as_xml(root)


def _require_bands(array: ViewedArray, height: int, width: int) -> None:
    """Raise an error unless GDAL opens a VRT of this name and size."""
    if ":" in array.name:
        # GDAL would take it for a URL, or for a part of a file.
        raise array.refuse("a name without a colon, for a VRT", repr(array.name))
    bands = math.prod(array.leading) * array.samples
    if not (0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE and 0 < bands <= _MAX_BANDS):
        limit = f"1 to {_MAX_BANDS} bands of 1 to {_MAX_SIDE} pixels along each side, for a VRT"
        raise array.refuse(limit, f"{bands} bands of {height} by {width} pixels")


def _data_type(array: ViewedArray) -> str:
    return _TYPES[f"{array.file.dtype.kind}{array.file.dtype.itemsize}"]


def _nodata(array: ViewedArray, sources: Sequence[ShardSource]) -> str | None:
    """Return the fill value as text, None for a complex number that GDAL cannot have as the nodata value."""
    fill = as_number(array)
    if array.file.dtype.kind == "c":
        if fill.imag != 0:
            if has_gaps(array, sources):
                expected = "a fill value without an imaginary part where shards are missing, for a VRT"
                raise array.refuse(expected, str(fill))
            return None
        fill = fill.real
    return repr(int(fill)) if array.file.dtype.kind in "biu" else repr(float(fill))


def _describe(band: ET.Element, array: ViewedArray, place: tuple[int, ...], sample: int, nodata: str | None) -> None:
    """Add what is known of a band: where it is along the axes of the array, its nodata value, unit and colour."""
    names = [name or f"axis {axis}" for axis, name in enumerate(array.dimension_names)]
    parts = [f"{name}={at}" for name, at in zip(names, place, strict=False)]
    if array.file.is_rgb:
        parts.append(_COLORS[sample].lower())
    if parts:
        add(band, "Description", ", ".join(parts))
    if nodata is not None:
        add(band, "NoDataValue", nodata)
    for element, value in _of_attributes(array.attributes).items():
        add(band, element, value)
    add(band, "ColorInterp", _COLORS[sample] if array.file.is_rgb else "Gray")


def _of_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    found = {element: attributes.get(name) for element, name in _OF_ATTRIBUTES.items()}
    return {
        element: str(value)
        for element, value in found.items()
        if isinstance(value, str if element == "UnitType" else int | float) and not isinstance(value, bool)
    }


def _add_source(band: ET.Element, array: ViewedArray, source: ShardSource, page: int, sample: int) -> None:
    axis = array.height_axis
    height, width = source.extent[axis : axis + 2]
    stored_height, stored_width = source.stored_shape[axis : axis + 2]
    block_height, block_width = array.file.chunk_shape[axis : axis + 2]
    y, x = source.origin[axis : axis + 2]
    element = add(band, "SimpleSource")
    # The name of the file alone is its first image, which every version of GDAL finds relative to the VRT.
    # GDAL removes spaces before a name.
    relative = f"./{source.filename}" if source.filename.startswith(" ") else source.filename
    name = relative if page == 0 else f"GTIFF_DIR:{page + 1}:{relative}"
    add(element, "SourceFilename", name, relativeToVRT=1)
    add(element, "SourceBand", str(sample + 1))
    # With its properties, GDAL opens a file when it is first read, and not all files at once.
    add(
        element,
        "SourceProperties",
        RasterXSize=stored_width,
        RasterYSize=stored_height,
        DataType=_data_type(array),
        BlockXSize=block_width,
        BlockYSize=block_height,
    )
    add(element, "SrcRect", xOff=0, yOff=0, xSize=width, ySize=height)
    add(element, "DstRect", xOff=x, yOff=y, xSize=width, ySize=height)
