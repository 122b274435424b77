"""The end of a file that is a shard, by which a reader notices that another program has changed the file.

The index of the shard is an object beside the file. If another program writes the file again, the index does not fit
the file any more. On object stores, the tags tell that the two do not belong together. A local disk has no tags, so
the file ends with a seal: a digest of the index. Programs that write a file again drop the seal, and programs that add
to the file put their bytes behind it.

In a TIFF file, all tiles that are not stored point to one tile of fill values, which comes just before the seal. The
digest contains it, because a program may change it in place.

| bytes  | content                                                                                |
|--------|----------------------------------------------------------------------------------------|
| any    | the tile of fill values; none if the format needs no such tile, or no tile is missing  |
| 8      | `zarrseal`                                                                             |
| 8      | the size of the tile of fill values, as a little-endian integer                        |
| 8      | the digest (BLAKE2b) of the index, followed by the tile of fill values                 |
"""

from hashlib import blake2b
from typing import Final

from parts_store.errors import ShardFileError

_MAGIC: Final = b"zarrseal"
_DIGEST_NBYTES: Final = 8
SEAL_NBYTES: Final = len(_MAGIC) + 8 + _DIGEST_NBYTES


def build_tail(index: bytes, fill: bytes = b"") -> bytes:
    """Return the end of a file whose shard has this index; `fill` is the tile of fill values."""
    digest = blake2b(index + fill, digest_size=_DIGEST_NBYTES).digest()
    return fill + _MAGIC + len(fill).to_bytes(8, "little") + digest


def tail_nbytes(found: bytes) -> int | None:
    """Return the size of the end of a file, given at least its last `SEAL_NBYTES` bytes; None if it has no seal."""
    seal = found[-SEAL_NBYTES:]
    if len(seal) < SEAL_NBYTES or not seal.startswith(_MAGIC):
        return None
    return SEAL_NBYTES + int.from_bytes(seal[len(_MAGIC) : len(_MAGIC) + 8], "little")


def is_sealed(found: bytes | memoryview, index: bytes) -> bool:
    """Return whether a file that ends with these bytes is as it was written with this index."""
    nbytes = tail_nbytes(bytes(found[-SEAL_NBYTES:]))
    if nbytes is None or nbytes > len(found):
        return False
    return bytes(found[-nbytes:]) == build_tail(index, bytes(found[-nbytes:-SEAL_NBYTES]))


def require_sealed(key: str, found: bytes | memoryview, index: bytes) -> None:
    """Raise `ShardFileError` unless a file at a key, which ends with these bytes, is as it was written."""
    if not is_sealed(found, index):
        raise ShardFileError(key)
