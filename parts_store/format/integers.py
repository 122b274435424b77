"""Which values count as integers: in options, JSON documents and references."""

import operator
from typing import SupportsIndex


def parse_integer(value: object, minimum: int, maximum: int | None = None) -> int | None:
    """Return a value as an integer, None unless it is one in `minimum <= value <= maximum`.

    NumPy integers count. Booleans do not, although they are integers in Python, because they are no numbers in JSON.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        # A NumPy array has the method, but only some arrays are integers.
        return None
    return number if minimum <= number and (maximum is None or number <= maximum) else None
