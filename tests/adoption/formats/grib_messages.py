"""Write messages of GRIB edition 2: one field on a regular grid of latitudes and longitudes, with simple packing."""

import struct
from typing import Any

from numpy.typing import NDArray

_MISSING = 0xFFFFFFFF
_DEGREE = 1_000_000


def message(values: NDArray[Any], hour: int) -> bytes:
    """Return a message with whole numbers, as the temperature 2 m above ground at an hour of 2026-01-01."""
    height, width = values.shape
    identification = struct.pack(">HHBBBHBBBBBBB", 7, 0, 2, 1, 1, 2026, 1, 1, hour, 0, 0, 0, 1)
    grid = struct.pack(">BIBBH", 0, values.size, 0, 0, 0) + struct.pack(
        ">BBIBIBIIIIIIIBIIIIB",
        *(6, 255, _MISSING, 255, _MISSING, 255, _MISSING, width, height, 0, _MISSING),
        *(60 * _DEGREE, 0, 48, (61 - height) * _DEGREE, (width - 1) * _DEGREE, _DEGREE, _DEGREE, 0),
    )
    product = struct.pack(">HH", 0, 0) + struct.pack(
        ">BBBBBHBBIBBIBBI", 0, 0, 2, 0, 96, 0, 0, 1, 0, 103, 0, 2, 255, 0, 0
    )
    lowest = float(values.min())
    packing = struct.pack(">IHfHHBB", values.size, 0, lowest, 0, 0, 16, 0)
    data = (values - lowest).astype(">u2").tobytes()
    sections = {1: identification, 3: grid, 4: product, 5: packing, 6: b"\xff", 7: data}
    body = b"".join(struct.pack(">IB", 5 + len(each), number) + each for number, each in sections.items()) + b"7777"
    return b"GRIB" + struct.pack(">HBBQ", 0, 0, 2, 16 + len(body)) + body
