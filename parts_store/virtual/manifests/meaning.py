"""Decide whether two arrays mean the same: whether their stored numbers stand for the same values. Pure.

The attributes of the netCDF and CF conventions say what a stored number stands for. When arrays are joined, the
attributes of the first one hold for all of them, so the others must not differ.
"""

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from parts_store.errors import ManifestError, describe

ATTRIBUTES: Final = (
    *("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    *("flag_values", "flag_meanings", "flag_masks"),
)
"""The attributes that change what a stored number stands for."""

_FILLS: Final = ("_FillValue", "missing_value")
_STANDARD: Final = ("standard", "gregorian")
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class Difference:
    """An attribute that gives the numbers of two arrays different meanings, and both of its values, as text."""

    attribute: str
    expected: str
    found: str


def require_same_meaning(name: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise `ManifestError` if attributes of an array give its numbers another meaning than expected.

    Parameters
    ----------
    name : str
        The name of the array in the message.
    expected : mapping of str to JSON
        The attributes of the first array.
    found : mapping of str to JSON
        The attributes of the array that is joined with it.
    """
    if (difference := find_difference(expected, found)) is not None:
        subject = f"array {name!r}, attribute {difference.attribute!r}"
        raise ManifestError(subject, difference.expected, difference.found)


def find_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Difference | None:
    """Return the first attribute that gives numbers another meaning than expected; None if they mean the same.

    Attributes without an influence on the meaning, such as `long_name`, may differ. An attribute that is absent differs
    from one that is present; only an absent `calendar` is the standard calendar.
    """
    for attribute in ATTRIBUTES:
        first, other = (_value(attributes, attribute) for attributes in (expected, found))
        if not _is_same(attribute, first, other):
            return Difference(attribute, _shown(first, attribute), _shown(other, attribute))
    one, two = _decoded_type(expected), _decoded_type(found)
    if one is None or two is None or _is_same_type(one, two):
        return None
    attribute = "scale_factor" if "scale_factor" in expected else "add_offset"
    shown = [
        f"{_shown(attributes.get(attribute), attribute)}, decoded as {kind.__name__}"
        for attributes, kind in ((expected, one), (found, two))
    ]
    return Difference(attribute, *shown)


def _value(attributes: Mapping[str, Any], name: str) -> Any:
    """Return an attribute, None if it is absent. A NaN is stored as null."""
    value = attributes.get(name)
    if isinstance(value, list | tuple):
        return [math.nan if element is None else element for element in value]
    return math.nan if value is None and name in attributes else value


def _shown(value: Any, attribute: str) -> str:
    is_encoded = attribute in _FILLS and isinstance(value, str)
    return "none" if value is None else describe(_decoded_fill(value) if is_encoded else value)


def _is_same(attribute: str, expected: Any, found: Any) -> bool:
    if attribute == "calendar":
        return bool(_calendar(expected) == _calendar(found))
    if expected is None or found is None:
        return expected is found
    first, other = (_elements(value, is_fill=attribute in _FILLS) for value in (expected, found))
    return len(first) == len(other) and all(map(_is_equal, first, other))


def _calendar(value: Any) -> Any:
    if value is None:
        return _STANDARD[0]
    known = value.lower() if isinstance(value, str) else value
    return _STANDARD[0] if known in _STANDARD else known


def _elements(value: Any, *, is_fill: bool) -> list[Any]:
    """Return the elements of an attribute as Python values: in netCDF, one value and a list of it are the same."""
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    elements = plain if isinstance(plain, list | tuple) else [plain]
    return [_decoded_fill(element) if is_fill and isinstance(element, str) else element for element in elements]


def _decoded_fill(value: str) -> Any:
    """Return the number that a text stands for: JSON has no NaN, and xarray writes floating-point numbers as base64."""
    if value in _NOT_FINITE:
        return float(value)
    try:
        return struct.unpack("<d", base64.b64decode(value, validate=True))[0]
    except (binascii.Error, struct.error, ValueError):
        return value


def _is_equal(first: Any, other: Any) -> bool:
    # NaN is the only value that differs from itself.
    return bool(first == other) or bool(first != first and other != other)  # noqa: PLR0124


def _decoded_type(attributes: Mapping[str, Any]) -> type | None:
    """Return the type that decides about the data type of decoded values; None if numbers are not scaled.

    This is the rule of xarray. A Python number stands for numbers of any size, because JSON has only one size.
    """
    scale, offset = (_number_type(attributes.get(name)) for name in ("scale_factor", "add_offset"))
    if offset is None:
        return scale
    return scale if scale is offset and issubclass(offset, float | np.floating) else float


def _number_type(value: Any) -> type | None:
    if value is None:
        return None
    # xarray takes an array of one element for a Python number.
    return float if isinstance(value, list | tuple | np.ndarray) else type(value)


def _is_same_type(first: type, other: type) -> bool:
    is_float = [issubclass(kind, float | np.floating) for kind in (first, other)]
    has_no_size = float in (first, other) or int in (first, other)
    return is_float[0] == is_float[1] and (first is other or has_no_size)
