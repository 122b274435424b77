"""Decode GRIB messages with eccodes, the reference implementation of the format."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import eccodes
import numpy as np
from numpy.typing import NDArray

_MISSING = 1e300


@dataclass(frozen=True)
class Field:
    """The first field of a message: missing values are NaN, and times are in seconds since 1970."""

    values: NDArray[np.float64]
    points: NDArray[np.float64]
    valid_at: int
    level: float
    member: int | None


def field_of(message: bytes) -> Field:
    with _opened(message) as handle:
        eccodes.codes_set(handle, "missingValue", _MISSING)
        values = eccodes.codes_get_values(handle)
        return Field(
            np.where(values == _MISSING, np.nan, values),
            _points(handle),
            _valid_at(handle),
            _level(handle),
            _key(handle, "perturbationNumber"),
        )


def positions(data: bytes) -> list[tuple[int, int]]:
    """Where every message of a file starts and stops."""
    found, start = [], 0
    while (start := data.find(b"GRIB", start)) >= 0:
        with _opened(data[start:]) as handle:
            stop = start + eccodes.codes_get(handle, "totalLength")
        found.append((start, stop))
        start = stop
    return found


@contextmanager
def _opened(message: bytes) -> Iterator[Any]:
    handle = eccodes.codes_new_from_message(message)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)


def _key(handle: Any, name: str) -> Any:
    return eccodes.codes_get(handle, name) if eccodes.codes_is_defined(handle, name) else None


def _points(handle: Any) -> NDArray[np.float64]:
    """The latitudes and longitudes of all points; messages with the same grid share an array."""
    grid = eccodes.codes_get(handle, "md5GridSection")
    if grid not in _known_grids:
        names = ("latitudes", "longitudes")
        _known_grids[grid] = np.stack([eccodes.codes_get_array(handle, name) for name in names])
    return _known_grids[grid]


_known_grids: dict[str, NDArray[np.float64]] = {}


def _valid_at(handle: Any) -> int:
    date, minutes = _key(handle, "validityDate"), _key(handle, "validityTime")
    day = datetime(date // 10_000, date // 100 % 100, date % 100, minutes // 100, minutes % 100, tzinfo=UTC)
    # eccodes leaves out the seconds, which only edition 2 has.
    return int(day.timestamp()) + (_key(handle, "second") or 0)


def _level(handle: Any) -> float:
    """The level as the file has it, in the units of the edition."""
    if _key(handle, "edition") == 1:
        return float(_key(handle, "level"))
    value, factor = _key(handle, "scaledValueOfFirstFixedSurface"), _key(handle, "scaleFactorOfFirstFixedSurface")
    return float(value / 10.0**factor)
