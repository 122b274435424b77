"""The end of a file that is a shard, by which a reader notices that another program has changed the file.

The index of the shard is an object beside the file. If another program writes the file again, the index does not fit
the file any more. On object stores, the tags tell that the two do not belong together. A local disk has no tags, so
the file ends with a seal: a digest of the index. Programs that write a file again drop the seal, and programs that add
to the file put their bytes behind it.

A program may also change a TIFF file in place. All tiles that are not stored point to one tile of fill values, which
comes just before the seal. If a tile is written again and needs fewer bytes, only its size in the header changes.
Therefore the digest contains the header and the tile of fill values. HDF5 removes all bytes behind its own whenever it
opens a file to change it, and with them the seal.

| bytes  | content                                                                                |
|--------|----------------------------------------------------------------------------------------|
| any    | the tile of fill values; none if the format needs no such tile, or no tile is missing  |
| 8      | `zarrseal`                                                                             |
| 8      | the size of the header at the start of the file, as a little-endian integer            |
| 8      | the size of the tile of fill values, as a little-endian integer                        |
| 8      | the digest (BLAKE2b) of the index, the header and the tile of fill values, in a row    |
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from parts_store.errors import ShardFileError

_MAGIC: Final = b"zarrseal"
_SEAL: Final = struct.Struct("<8sQQ8s")
_DIGEST_NBYTES: Final = 8
SEAL_NBYTES: Final = _SEAL.size


@dataclass(frozen=True, slots=True)
class Ends:
    """How many bytes at the start and at the end of a file are compared with its seal."""

    head: int
    # Including the seal.
    tail: int

    def covers(self, other: "Ends") -> bool:
        """Return whether these bytes include the others."""
        return self.head >= other.head and self.tail >= other.tail


def build_tail(index: bytes, head: bytes = b"", fill: bytes = b"") -> bytes:
    """Return the end of a file whose shard has this index; `head` is its header, `fill` the tile of fill values."""
    digest = blake2b(index, digest_size=_DIGEST_NBYTES)
    digest.update(head)
    digest.update(fill)
    return fill + _SEAL.pack(_MAGIC, len(head), len(fill), digest.digest())


def sealed_ends(tail: bytes | memoryview) -> Ends | None:
    """Return which bytes of a file its seal is about, given at least the seal; None if the file has no seal."""
    if len(tail) < SEAL_NBYTES:
        return None
    magic, head_nbytes, fill_nbytes, _ = _SEAL.unpack(tail[-SEAL_NBYTES:])
    return Ends(head_nbytes, fill_nbytes + SEAL_NBYTES) if magic == _MAGIC else None


def is_sealed(head: bytes | memoryview, tail: bytes | memoryview, index: bytes) -> bool:
    """Return whether a file that starts and ends with these bytes is as it was written with this index."""
    ends = sealed_ends(tail)
    if ends is None or not Ends(len(head), len(tail)).covers(ends):
        return False
    end = bytes(tail[-ends.tail :])
    return end == build_tail(index, bytes(head[: ends.head]), end[:-SEAL_NBYTES])


def require_sealed(key: str, head: bytes | memoryview, tail: bytes | memoryview, index: bytes) -> None:
    """Raise `ShardFileError` unless a file at a key, which starts and ends with these bytes, is as it was written."""
    if not is_sealed(head, tail, index):
        raise ShardFileError(key)
