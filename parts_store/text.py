"""Format numbers and keys as text that is printed."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 chunk` or `2,000 chunks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return text with control characters escaped. A key may contain them, and a terminal would obey them."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
