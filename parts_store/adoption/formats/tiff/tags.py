"""Convert the tags of a TIFF page to attributes in JSON."""

import base64
import math
from enum import Enum
from typing import Any, Final

import numpy as np
from tifffile import TiffPage, TiffTag

from parts_store.adoption.report import Skipped

# The tags that say how the values are stored, which the metadata of the array does, too.
_STRUCTURE: Final = frozenset(
    {256, 257, 258, 259, 266, 273, 277, 278, 279, 284, 288, 289, 317, 322, 323, 324, 325, 330, 339, 347, 512, 513, 514}
    | {32996, 32997, 32998}
)
# The largest number of bytes of a text, and of other values.
_MAX_TEXT: Final = 1 << 20
_MAX_NBYTES: Final = 1 << 14
_ASCII: Final = 2


def attributes_of(page: TiffPage, name: str, skipped: list[Skipped]) -> dict[str, Any]:
    """Return the tags of a page by their names. Bytes are in base64. Tags that are too large are skipped."""
    found: dict[str, Any] = {}
    for tag in page.tags:
        if tag.code in _STRUCTURE:
            continue
        limit = _MAX_TEXT if int(tag.dtype) == _ASCII else _MAX_NBYTES
        if tag.valuebytecount > limit:
            problem = f"{tag.valuebytecount:,} bytes, and at most {limit:,} are attributes"
            skipped.append(Skipped(f"{name}, tag {tag.name}", problem))
            continue
        try:
            found.setdefault(tag.name, _to_json(_value(tag)))
        # tifffile raises any error for a damaged tag.
        except Exception as error:
            skipped.append(Skipped(f"{name}, tag {tag.name}", f"it cannot be read: {error}"))
    return found


def _value(tag: TiffTag) -> Any:
    return tag.value


def _to_json(value: Any) -> Any:
    match value:
        case Enum():
            return value.name
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            return {"base64": base64.b64encode(value).decode()}
        case np.ndarray() | np.generic():
            return _to_json(value.tolist())
        case list() | tuple():
            return [_to_json(each) for each in value]
        case dict():
            return {str(key): _to_json(each) for key, each in value.items()}
    return str(value)
