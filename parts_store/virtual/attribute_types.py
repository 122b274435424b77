"""The types of attributes that JSON has no types for, such as float32, in a member of `zarr.json`.

zarr, tensorstore and zarrs keep or ignore the member. xarray decides by the type of `scale_factor` which data type the
decoded values have. The member also names the attributes that are not in the adopted file.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

BYTES: Final = "bytes"
"""The name of the type of bytes."""

_MEMBER: Final = "parts_store.attribute_types"
_TYPES: Final = "types"
_ADDED: Final = "added"
# The types of numbers that JSON keeps: Python reads a number as one of them.
_KEPT: Final = (np.dtype("f8"), np.dtype("i8"))
_NUMBERS: Final = frozenset(
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)] + ["float16", "float32", "float64"]
)


def type_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of the type of an attribute, None if JSON keeps it or if it has no name here."""
    if dtype.kind == "S":
        return BYTES
    return dtype.name if dtype.name in _NUMBERS and dtype.newbyteorder("=") not in _KEPT else None


def to_member(types: Mapping[str, str], added: Sequence[str] = ()) -> dict[str, Any]:
    """Return the member of a metadata document that records the types of attributes, and which of them were added.

    Without types and added attributes there is no member.
    """
    recorded = {_TYPES: dict(types), **({_ADDED: list(added)} if added else {})}
    member = {"name": _MEMBER, "must_understand": False, "configuration": recorded}
    return {_MEMBER: member} if types or added else {}


def types_in(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the types that a metadata document records, by attribute."""
    types = _recorded(document, _TYPES)
    return {key: name for key, name in types.items() if isinstance(name, str)} if isinstance(types, dict) else {}


def added_in(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the attributes that are not in the adopted file, as a metadata document records them."""
    added = _recorded(document, _ADDED)
    return [each for each in added if isinstance(each, str)] if isinstance(added, list) else []


def _recorded(document: Mapping[str, Any], name: str) -> Any:
    member = document.get(_MEMBER)
    if not isinstance(member, dict):
        return None
    # Before the member had a `name`, it contained the configuration itself.
    recorded = member.get("configuration") if "name" in member else member
    return recorded.get(name) if isinstance(recorded, dict) else None


def with_types(attributes: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Return attributes with their types. A value that was changed since, and does not fit its type, stays as it is."""
    return {key: _restored(value, types[key]) if key in types else value for key, value in attributes.items()}


def _restored(value: Any, name: str) -> Any:
    if name == BYTES:
        return value.encode() if isinstance(value, str) else value
    found = np.asarray(value)
    if name not in _NUMBERS or found.dtype.kind not in "iuf":
        return value
    try:
        with np.errstate(all="ignore"):
            # Not by way of `found`: for large and small integers together, NumPy chooses a type that rounds them.
            typed = np.asarray(value, dtype=name)
    except (OverflowError, ValueError):
        return value
    is_same = typed.tolist() == value if typed.dtype.kind in "iu" else np.array_equal(typed, found, equal_nan=True)
    return typed[()] if is_same else value
