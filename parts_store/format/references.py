"""A part that is a range of a file which exists already."""

from dataclasses import dataclass
from datetime import datetime

from parts_store.errors import StoreConfigError, describe


@dataclass(frozen=True, slots=True)
class Reference:
    """Bytes `offset <= i < offset + length` of a file, by its URL.

    Parameters
    ----------
    location
        The URL of the file, in a virtual chunk container of the repository: `s3://bucket/file.h5`.
    offset, length
        Which bytes of it.
    checksum
        The file's ETag, or the time when it was last modified: one that was changed since is not read. If None, that is
        the time when the reference is written.
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
            if isinstance(found, bool) or not isinstance(found, int) or found < least:
                raise StoreConfigError(name, f"an integer from {least}", describe(found))
        if self.checksum is not None and not isinstance(self.checksum, str | datetime):
            raise StoreConfigError("checksum", "an ETag, or a time", describe(self.checksum))
        if isinstance(self.checksum, datetime) and self.checksum.tzinfo is None:
            raise StoreConfigError("checksum", "a time with its time zone", describe(self.checksum))

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.length
