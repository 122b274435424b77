"""Correct what VirtualiZarr's parser for HDF4 files gets wrong, so that no wrong values are read.

kerchunk, which decodes the file for VirtualiZarr, takes floating-point numbers for little-endian, and knows no fill
values of chunks that were never written.
"""

import struct
from collections.abc import Iterator
from typing import Final

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption.report import Skipped
from parts_store.backends.existing_files import StoredFile
from parts_store.errors import AdoptionError
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References, document_of
from parts_store.manifests.group import PartsGroup

# The tag of a number type: four bytes with its version, type, width and class.
_NUMBER_TYPE: Final = 106
# The classes of big-endian numbers: none for bytes, and IEEE.
_BIG_ENDIAN: Final = (0, 1)


def corrected(group: PartsGroup, file: StoredFile) -> tuple[PartsGroup, tuple[Skipped, ...]]:
    """Return the arrays of an HDF4 file with the right byte order, and those that are skipped.

    Raises `AdoptionError` for a file with little-endian numbers, which the parser cannot tell from others.
    """
    if any(each not in _BIG_ENDIAN for each in _classes(file)):
        raise AdoptionError(file.location, (("the file", "its numbers are not big-endian, as HDF4 writes them"),))
    arrays, skipped = {}, []
    for name, array in group.arrays.items():
        if array.references.is_missing().any():
            skipped.append(Skipped(name, "chunks that were never written, whose fill value is not known"))
        else:
            arrays[name] = _big_endian(array)
    return PartsGroup(arrays, attributes=group.attributes), tuple(skipped)


def _big_endian(array: PartsArray) -> PartsArray:
    document = document_of(array.metadata)
    for codec in document["codecs"]:
        if codec["name"] == "bytes" and array.dtype.itemsize > 1:
            codec["configuration"] = {"endian": "big"}
    references = References(ArrayV3Metadata.from_dict(document), array.manifests, array.checksums)
    return PartsArray.of(references, array.declared_parts, array.registries)


def _classes(file: StoredFile) -> Iterator[int]:
    """Yield the class of every number type in the file: a linked list of blocks says where they are."""
    start = 4
    while start:
        count, following = struct.unpack(">HI", file.read(start, start + 6))
        block = file.read(start + 6, start + 6 + 12 * count)
        for tag, _, offset, length in struct.iter_unpack(">HHII", block):
            if tag == _NUMBER_TYPE and length == 4:
                yield file.read(offset, offset + 4)[3]
        start = following
