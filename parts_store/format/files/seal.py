"""The seal of a file that is a shard, by which a reader notices that another program has changed the file.

If another program writes the file again, the index of the shard does not fit the file any more. If the index is in the
same object as the file, its checksum tells that: the last bytes are not the index any more. If the index is an object
of its own, nothing tells it but the tags of an object store. And a program may change a file in place, so that the
index stays valid: all tiles of a TIFF file that are not stored point to one tile of fill values, and if a tile is
written again and needs fewer bytes, only its size in the directory changes.

So the file ends with a seal, a digest of the index and of what describes the tiles. Programs that write a file again
drop the seal, and programs that add to the file put their bytes behind it. HDF5 removes all bytes behind its own
whenever it opens a file to change it, and with them the seal.

| bytes  | content                                                                                                  |
|--------|----------------------------------------------------------------------------------------------------------|
| any    | the sealed end: of a TIFF file, the directories and the tile of fill values; none of an HDF5 file        |
| 8      | `zarrseal`                                                                                               |
| 8      | the size of the sealed start of the file, as a little-endian integer                                     |
| 8      | the size of the sealed end, as a little-endian integer                                                   |
| 8      | the digest (BLAKE2b) of the index, the sealed start and the sealed end, in a row                         |

Files of this version have no sealed start. Earlier versions, and other implementations, have directories there.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

_MAGIC: Final = b"zarrseal"
_SEAL: Final = struct.Struct("<8sQQ8s")
_DIGEST_NBYTES: Final = 8
_MAX_NBYTES: Final = 2**62
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


def build_tail(index: bytes, end: bytes = b"", head: bytes = b"") -> bytes:
    """Return a sealed end with its seal, for a file whose shard has this index, and whose sealed start is `head`."""
    digest = blake2b(index, digest_size=_DIGEST_NBYTES)
    digest.update(head)
    digest.update(end)
    return end + _SEAL.pack(_MAGIC, len(head), len(end), digest.digest())


def sealed_ends(tail: bytes | memoryview) -> Ends | None:
    """Return which bytes of a file its seal is about, given at least the seal; None if the file has no seal."""
    if len(tail) < SEAL_NBYTES:
        return None
    magic, head_nbytes, end_nbytes, _ = _SEAL.unpack(tail[-SEAL_NBYTES:])
    if magic != _MAGIC:
        return None
    # No request can have the largest sizes, which no file has.
    return Ends(min(head_nbytes, _MAX_NBYTES), min(end_nbytes, _MAX_NBYTES) + SEAL_NBYTES)


def is_sealed(head: bytes | memoryview, tail: bytes | memoryview, index: bytes) -> bool:
    """Return whether a file that starts and ends with these bytes is as it was written with this index."""
    ends = sealed_ends(tail)
    if ends is None or not Ends(len(head), len(tail)).covers(ends):
        return False
    end = bytes(tail[-ends.tail :])
    return end == build_tail(index, end[:-SEAL_NBYTES], bytes(head[: ends.head]))
