"""The parts of a chunk: `Part` and `ConcatParts`, and their JSON form in the proposal concat-parts.

Decides which lists of parts are valid. Knows nothing about arrays, keys and stores.
"""

import operator
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, Final, Self, SupportsIndex

from parts_store.errors import PartsConfigError, describe


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


NAME: Final = "concat-parts"
MAX_PARTS: Final = 64
MAX_SIZE: Final = 2**63 - 1
# The most bytes of a suffix in UTF-8. A file name has at most 255: the chunk's key needs some of them, and the name of
# an unfinished file 20 more.
MAX_SUFFIX: Final = 128

# Suffixes that would give a part the key of another chunk or of a temporary file, would lead out of the array, or would
# become another name on another file system; each with what is expected.
_FORBIDDEN: Final = tuple(
    (re.compile(pattern), f"a suffix that {expected}")
    for pattern, expected in (
        (r"^[0-9]", "does not start with a digit, which would make it another chunk's key"),
        (r"^(?:\.[0-9]+)+\Z", "is more than dots and digits, which would make it another chunk's key"),
        (r"/|\\|\.\.|[\x00-\x1f\x7f\ud800-\udfff]", "has no '/', '\\\\', '..' or control characters"),
        (r"#[0-9]+\Z", "does not end in '#' and digits, as temporary files of obstore do"),
        (r"[. ]\Z", "does not end in a dot or a space, which some file systems drop"),
    )
)


class ShardIndexSize(Enum):
    """A size that stands for the size of an array's shard index until the array is created."""

    SHARD_INDEX = "shard index"

    def __repr__(self) -> str:
        return "SHARD_INDEX"


SHARD_INDEX: Final = ShardIndexSize.SHARD_INDEX


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a chunk: one object at the chunk's key with a suffix.

    Parameters
    ----------
    key_suffix
        The text that is added to the key of the chunk; `""` for the key itself. It has at most 128 bytes in UTF-8, must
        not start with a digit and must not contain slashes, backslashes, `..` or control characters.
    size
        The number of bytes; `SHARD_INDEX` for the size of the array's shard index; None if it may be any number.

    Raises
    ------
    PartsConfigError
        If the suffix or the size is not allowed.

    Examples
    --------
    >>> ps.Part(".header", size=64)
    Part(key_suffix='.header', size=64)
    """

    key_suffix: str
    size: int | ShardIndexSize | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key_suffix, str):
            raise PartsConfigError("key_suffix", "text", describe(self.key_suffix))
        for forbidden, expected in _FORBIDDEN:
            if found := forbidden.search(self.key_suffix):
                raise PartsConfigError("key_suffix", expected, f"{describe(self.key_suffix)} (at {found.group()!r})")
        if (nbytes := len(self.key_suffix.encode())) > MAX_SUFFIX:
            expected = f"a suffix of at most {MAX_SUFFIX} bytes, since file names end at 255"
            raise PartsConfigError("key_suffix", expected, f"{nbytes} bytes: {describe(self.key_suffix)}")
        if not unicodedata.is_normalized("NFC", self.key_suffix):
            expected = "a suffix in Unicode form NFC, since some file systems change other forms"
            raise PartsConfigError("key_suffix", expected, ascii(self.key_suffix))
        if self.size is None or isinstance(self.size, ShardIndexSize):
            return
        expected = f"an integer from 0 to {MAX_SIZE}"
        size = parse_integer(self.size, 0, MAX_SIZE)
        if size is None:
            raise PartsConfigError("size", expected, describe(self.size))
        object.__setattr__(self, "size", size)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Return the part for an object in the JSON form of `concat-parts`.

        Parameters
        ----------
        data
            A mapping with `key_suffix` and, optionally, `size`.
        """
        if not isinstance(data, Mapping):
            raise PartsConfigError("parts", "objects with a 'key_suffix'", describe(data))
        for member in data:
            if member not in ("key_suffix", "size"):
                raise PartsConfigError("parts", "only 'key_suffix' and 'size' in a part", f"the member {member!r}")
        if "key_suffix" not in data:
            raise PartsConfigError("parts", "a 'key_suffix' in every part", describe(dict(data)))
        if "size" in data and data["size"] is None:
            raise PartsConfigError("size", f"an integer from 0 to {MAX_SIZE}", "null")
        return cls(data["key_suffix"], data.get("size"))


type PartsLike = "ConcatParts | Iterable[Part | Mapping[str, Any] | str]"
"""The accepted forms of parts: `ConcatParts`, or a list of parts, of JSON objects, or of suffixes."""


@dataclass(frozen=True)
class ConcatParts:
    """A list of the parts of every chunk of an array, in their order in the chunk.

    Parameters
    ----------
    parts
        The parts: as `Part`, as an object in the JSON form of `concat-parts`, or as a suffix for a part of any size.

    Raises
    ------
    PartsConfigError
        If a part is not allowed, two suffixes are equal, or there are none or more than 64 parts.

    Examples
    --------
    >>> parts = ps.ConcatParts([ps.Part(".header", size=64), "", {"key_suffix": ".crc32c", "size": 4}])
    >>> parts.sizes
    (64, None, 4)
    >>> parts.to_json()["configuration"]["parts"][0]
    {'key_suffix': '.header', 'size': 64}
    """

    parts: tuple[Part, ...]

    def __init__(self, parts: Iterable[Part | Mapping[str, Any] | str]) -> None:
        if isinstance(parts, str | bytes | Mapping) or not isinstance(parts, Iterable):
            raise PartsConfigError("parts", "a list of parts", describe(parts))
        object.__setattr__(self, "parts", tuple(_parse_part(part) for part in parts))
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise PartsConfigError("parts", f"1 to {MAX_PARTS} parts", str(len(self.parts)))
        _require_different([part.key_suffix for part in self.parts])

    @classmethod
    def parse(cls, parts: PartsLike) -> "ConcatParts":
        """Return the parts as `ConcatParts`.

        Parameters
        ----------
        parts
            The parts in any accepted form.
        """
        return parts if isinstance(parts, ConcatParts) else cls(parts)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Return the parts of a storage transformer.

        Parameters
        ----------
        data
            The storage transformer as it is in `zarr.json`.
        """
        if not isinstance(data, Mapping) or data.get("name") != NAME:
            raise PartsConfigError("name", repr(NAME), describe(data))
        for member in data:
            if member not in ("name", "configuration", "must_understand"):
                raise PartsConfigError(NAME, "only 'name' and 'configuration'", f"the member {member!r}")
        if not isinstance(data.get("must_understand", False), bool):
            raise PartsConfigError("must_understand", "true or false", describe(data["must_understand"]))
        configuration = data.get("configuration")
        if not isinstance(configuration, Mapping):
            raise PartsConfigError("configuration", "an object with 'parts'", describe(configuration))
        for member in configuration:
            if member != "parts":
                raise PartsConfigError("configuration", "only 'parts'", f"the member {member!r}")
        parts = configuration.get("parts")
        if not isinstance(parts, list | tuple):
            raise PartsConfigError("parts", "a list of objects", describe(parts))
        return cls([Part.from_json(part) for part in parts])

    def to_json(self) -> dict[str, Any]:
        """Return the storage transformer as it is in `zarr.json`."""
        objects: list[dict[str, Any]] = []
        for part in self.parts:
            if isinstance(part.size, ShardIndexSize):
                raise PartsConfigError("size", "a number in place of SHARD_INDEX", repr(part))
            objects.append({"key_suffix": part.key_suffix} | ({} if part.size is None else {"size": part.size}))
        return {"name": NAME, "configuration": {"parts": objects}}

    @cached_property
    def anchor(self) -> int:
        """The number of the part that decides whether a chunk exists.

        The part without a suffix; if there is none, the first without a size; if there is none, the first.
        """
        by_suffix = [index for index, part in enumerate(self.parts) if part.key_suffix == ""]
        return (by_suffix or self.unsized or (0,))[0]

    @cached_property
    def unsized(self) -> tuple[int, ...]:
        """The numbers of the parts without a size."""
        return tuple(index for index, part in enumerate(self.parts) if part.size is None)

    @cached_property
    def sizes(self) -> tuple[int | None, ...]:
        """The size of every part, None if it may be any number."""
        return tuple(part.size if isinstance(part.size, int) else None for part in self.parts)

    def joined(self) -> "ConcatParts":
        """Return parts of the same bytes of which at most one has no size, so that a chunk can be written.

        All parts from the first one without a size to the last one without a size become one part.
        """
        if len(self.unsized) < 2:
            return self
        start, stop = self.unsized[0], self.unsized[-1] + 1
        number = self.anchor if start <= self.anchor < stop else start
        one = Part(self.parts[number].key_suffix)
        return ConcatParts([*self.parts[:start], one, *self.parts[stop:]])

    def with_shard_index(self, nbytes: int | None, *, is_regular: bool = True) -> "ConcatParts":
        """Return the same parts with a number in place of `SHARD_INDEX`.

        Parameters
        ----------
        nbytes
            The size of the shard index, None if the array has no shard index.
        is_regular
            Whether all chunks of the array have the same shape.
        """
        if not any(part.size is SHARD_INDEX for part in self.parts):
            return self
        if nbytes is None:
            expected = "an array whose only codec is `sharding_indexed`, for SHARD_INDEX"
            if not is_regular:
                expected = "a regular chunk grid, for SHARD_INDEX: shards of other shapes have indexes of other sizes"
            raise PartsConfigError("size", expected, "another array" if is_regular else "a rectilinear chunk grid")
        return ConcatParts(replace(part, size=nbytes) if part.size is SHARD_INDEX else part for part in self.parts)


def _require_different(suffixes: Sequence[str]) -> None:
    """Raise `PartsConfigError` if two suffixes are equal, or name the same file on some file systems."""
    seen: dict[str, str] = {}
    for suffix in suffixes:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", suffix).casefold())
        if folded in seen and seen[folded] == suffix:
            raise PartsConfigError("parts", "a different 'key_suffix' for every part", f"{suffix!r} twice")
        if folded in seen:
            expected = "suffixes that differ by more than case and Unicode form, as some file systems require"
            raise PartsConfigError("parts", expected, f"{seen[folded]!a} and {suffix!a}")
        seen[folded] = suffix


def _parse_part(part: object) -> Part:
    match part:
        case Part():
            return part
        case str():
            return Part(part)
        case _:
            return Part.from_json(part)
