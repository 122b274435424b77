"""The exceptions of parts_store: one tree, grouped by what a handler would do.

    PartsStoreError
    ├── CodecError (a ValueError)       a chunk cannot be encoded, or what is stored cannot be decoded
    │   ├── CodecConfigError            the codec's configuration is wrong: mend the call or the document
    │   └── UnboundPaddingError         the padding is made by a callable, and none is bound: bind one
    └── HeaderError (a ValueError)      the file format has no header for such a chunk

None of them is a `FileNotFoundError` or a `KeyError`: zarr would take those for absence, and turn damage into fill
values. All of them survive pickling, because their fields are their `args`.
"""

import reprlib
from typing import override

__all__ = [
    "CodecConfigError",
    "CodecError",
    "HeaderError",
    "PartsStoreError",
    "UnboundPaddingError",
]

_FOUND = reprlib.Repr(maxstring=80, maxother=80)


def describe(value: object) -> str:
    """The value as an error message shows it: its `repr`, cut where it is long."""
    try:
        return _FOUND.repr(value)
    except Exception:
        return f"a value of type {type(value).__name__}"


class PartsStoreError(Exception):
    """The root of everything that parts_store raises on purpose."""


class CodecError(PartsStoreError, ValueError):
    """A chunk cannot be encoded, or what is stored is not what the codec writes."""

    def __init__(self, codec: str, expected: str, found: str) -> None:
        super().__init__(codec, expected, found)
        self.codec, self.expected, self.found = codec, expected, found

    @override
    def __str__(self) -> str:
        return f"codec {self.codec!r}: expected {self.expected}, found {self.found}"


class CodecConfigError(CodecError):
    """A member of a codec's configuration is missing, unknown or not what it should be."""

    def __init__(self, codec: str, member: str, expected: str, found: str) -> None:
        super().__init__(codec, expected, found)
        self.args = (codec, member, expected, found)
        self.member = member

    @override
    def __str__(self) -> str:
        return f"codec {self.codec!r}, member {self.member!r}: expected {self.expected}, found {self.found}"


class UnboundPaddingError(CodecError):
    """A chunk would be written, its padding is made by a callable, and none is bound."""

    def __init__(self, codec: str, argument: str) -> None:
        super().__init__(codec, f"a callable bound as {argument!r}", "none")
        self.args = (codec, argument)
        self.argument = argument

    @override
    def __str__(self) -> str:
        return (
            f"codec {self.codec!r}: this array's chunks get their padding from a callable, which is never stored; "
            "bind it with `parts_store.codecs.bind_padding(array, callable)` and write to the array that returns"
        )


class HeaderError(PartsStoreError, ValueError):
    """A file format has no header that describes such a chunk."""

    def __init__(self, file_format: str, expected: str, found: str) -> None:
        super().__init__(file_format, expected, found)
        self.file_format, self.expected, self.found = file_format, expected, found

    @override
    def __str__(self) -> str:
        return f"{self.file_format} header: expected {self.expected}, found {self.found}"
