"""Format numbers, keys and suggestions as text that is printed."""

from collections.abc import Iterable
from difflib import get_close_matches
from textwrap import fill


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 chunk` or `2,000 chunks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(nbytes: int) -> str:
    """Return a number of bytes with a unit, such as `12 bytes` or `3.4 MB`."""
    if nbytes < 1000:
        return count(nbytes, "byte")
    units = ("kB", "MB", "GB", "TB", "PB")
    # The largest unit of which there is at least one, after rounding.
    power = next((power for power in range(1, len(units)) if nbytes < 999.95 * 1000**power), len(units))
    return f"{nbytes / 1000**power:,.1f} {units[power - 1]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: a known name that is spelled almost like this one; nothing without one."""
    similar = get_close_matches(name, list(known), 1)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def wrapped(text: str, width: int) -> str:
    """Return a line that is broken at words where it is longer than a terminal is wide."""
    if len(text) <= width:
        return text
    return fill(text, max(width, 20), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def printable(text: str) -> str:
    """Return text with control characters escaped. A key may contain them, and a terminal would obey them."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
