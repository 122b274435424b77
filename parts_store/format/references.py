"""References: parts that are byte ranges of existing files."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from parts_store.errors import StoreConfigError, describe
from parts_store.format.parts import parse_integer

# The path of such a URL is percent-encoded. In other URLs it is the key of an object, as it is.
ENCODED_SCHEMES: Final = ("file", "http", "https")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to the bytes `offset <= i < offset + length` of an existing file.

    Parameters
    ----------
    location
        The URL of the file, in a virtual chunk container of the repository: `s3://bucket/file.h5`.
    offset
        The first byte.
    length
        The number of bytes.
    checksum
        The file's ETag, or a time with its time zone. A file that has another ETag, or was modified after the time, is
        not read. If None, the time when the reference is written.

    Raises
    ------
    StoreConfigError
        If an argument is wrong.

    Examples
    --------
    >>> ps.Reference("s3://bucket/file.h5", offset=2048, length=512).nbytes
    512
    """

    location: str
    offset: int
    length: int
    checksum: str | datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.location, str) or "://" not in self.location:
            raise StoreConfigError("location", "the URL of a file", describe(self.location))
        for name, least in (("offset", 0), ("length", 1)):
            found = getattr(self, name)
            number = parse_integer(found, least)
            if number is None:
                raise StoreConfigError(name, f"an integer from {least}", describe(found))
            object.__setattr__(self, name, number)
        if self.checksum is not None and not isinstance(self.checksum, str | datetime):
            raise StoreConfigError("checksum", "an ETag or a time", describe(self.checksum))
        if isinstance(self.checksum, datetime) and self.checksum.tzinfo is None:
            raise StoreConfigError("checksum", "a time with its time zone", describe(self.checksum))

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.length


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceTable:
    """References for a block of chunks of one node, all with the same checksum; arrays in the shape of the block."""

    # The index of the first chunk of the block.
    first: tuple[int, ...]
    # The URLs of files; an empty one where the block has no reference.
    locations: NDArray[Any]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    checksum: str | datetime | None

    @property
    def nrefs(self) -> int:
        """The number of references."""
        return int((self.locations != "").sum())
