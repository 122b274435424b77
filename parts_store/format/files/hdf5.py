"""Shards as HDF5 files: one dataset, whose chunks are the inner chunks."""

import json
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final

import h5py
import numpy as np
from h5py import h5d, h5f, h5p, h5s, h5t, h5z
from numpy.typing import NDArray
from zarr.abc.codec import Codec
from zarr.codecs import ZstdCodec
from zarr.codecs.numcodecs import Fletcher32, Shuffle, Zlib

from parts_store.format.files.description import ShardFile, numcodec_of
from parts_store.format.files.hdf5_template import Template, find_template
from parts_store.format.shard_index import NO_CHUNK

# The number of zstd in the registry of HDF5 filters.
_ZSTD: Final = 32015
_DEFAULT_LEVEL: Final = 3
# The size by which a file in memory grows at least.
_GROWTH: Final = 1 << 16
# HDF5 stores the size of a name in 16 bits, with some other bytes.
_MAX_NAME_NBYTES: Final = 2**15
# HDF5 takes two files in memory with the same name for one file, and several threads write shards.
_NUMBERS: Final = count()


def hdf5_image(
    file: ShardFile,
    chunks: Sequence[memoryview | None],
    extent: tuple[int, ...],
    name: str,
    attributes: Mapping[str, Any],
) -> tuple[list[bytes], list[tuple[int, int] | None]]:
    """Return the pieces of an HDF5 file with one dataset, and the offset and the size of each inner chunk in it.

    The `extent` is the part of the shard that is in the array. Inner chunks outside of it follow behind the file that
    HDF5 knows.
    """
    opened = _create(sum(each.nbytes for each in chunks if each is not None))
    try:
        dataset = _create_dataset(opened, file, extent, name)
        _set_attributes(dataset, attributes)
        # What describes the dataset comes before the chunks.
        h5f.flush(opened)
        outside: list[tuple[int, memoryview]] = []
        for slot, (start, chunk) in enumerate(zip(file.starts, chunks, strict=True)):
            if chunk is None:
                continue
            if all(map(operator.lt, start, extent)):
                dataset.write_direct_chunk(start, chunk)
            else:
                outside.append((slot, chunk))
        h5f.flush(opened)
        found: dict[tuple[int, ...], tuple[int, int]] = {}
        dataset.chunk_iter(lambda each: found.__setitem__(each.chunk_offset, (each.byte_offset, each.size)))
        image = opened.get_file_image()
        del dataset
    finally:
        opened.close()
    places = [found.get(start) for start in file.starts]
    pieces, at = [image], len(image)
    for slot, chunk in outside:
        places[slot] = (at, chunk.nbytes)
        pieces.append(bytes(chunk))
        at += chunk.nbytes
    return pieces, places


@lru_cache(maxsize=64)
def hdf5_template(file: ShardFile, extent: tuple[int, ...], name: str, attributes: str) -> Template | None:
    """Return the template of the HDF5 files with this dataset, whose `attributes` are JSON text; None if there is none.

    It is found in a file whose last chunk is stored.
    """
    chunks: list[memoryview | None] = [None] * len(file.starts)
    slots = slots_in(file, extent)
    chunks[slots[-1]] = memoryview(b"\1" if file.codecs else bytes(file.chunk_nbytes))
    (image,), places = hdf5_image(file, chunks, extent, name, json.loads(attributes))
    return find_template(image, np.array([places[slot] or (NO_CHUNK, NO_CHUNK) for slot in slots], np.uint64))


def slots_in(file: ShardFile, extent: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the numbers of the inner chunks that are chunks of the dataset, in their order."""
    inside = tuple(slice(-(-length // chunk)) for length, chunk in zip(extent, file.chunk_shape, strict=True))
    return np.arange(len(file.starts)).reshape(file.grid)[inside].ravel()


def _create(data_nbytes: int) -> Any:
    """Return a new file in memory."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fapl_core(max(_GROWTH, data_nbytes + data_nbytes // 64), False)
    # HDF5 otherwise reserves space for metadata that may be added later.
    access.set_meta_block_size(0)
    # The oldest version with an index of chunks that needs few bytes. Programs with an older library than h5py has
    # cannot open a file of the newest version.
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    name = f"parts_store-{next(_NUMBERS)}.h5".encode()
    creation = h5p.create(h5p.FILE_CREATE)
    # With the time in the root group, the same values would give other bytes.
    creation.set_obj_track_times(False)
    return h5f.create(name, h5f.ACC_TRUNC, creation, access)


def _create_dataset(opened: Any, file: ShardFile, extent: tuple[int, ...], name: str) -> Any:
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk(file.chunk_shape)
    creation.set_fill_value(np.asarray(file.fill_value, file.dtype))
    creation.set_obj_track_times(False)
    for codec in file.codecs:
        _add_filter(creation, codec)
    # HDF5 refuses chunks that are larger than the dataset can become.
    largest = tuple(-(-length // chunk) * chunk for length, chunk in zip(extent, file.chunk_shape, strict=True))
    kind = h5t.py_create(file.dtype, logical=True)
    return h5d.create(opened, name.encode(), kind, h5s.create_simple(extent, largest), creation)


def _add_filter(creation: Any, codec: Codec) -> None:
    match codec:
        case Zlib():
            creation.set_deflate(max(0, numcodec_of(codec).level))
        case Shuffle():
            creation.set_shuffle()
        case Fletcher32():
            creation.set_fletcher32()
        case ZstdCodec():
            # HDF5 looks for a filter that is not optional, and the inner chunks are already encoded.
            creation.set_filter(_ZSTD, h5z.FLAG_OPTIONAL, (codec.level or _DEFAULT_LEVEL,))


def _set_attributes(dataset: Any, attributes: Mapping[str, Any]) -> None:
    """Give the attributes of the array to the dataset; those that HDF5 has no type for, as JSON text.

    Attributes with a name that HDF5 cannot have are in `zarr.json` only.
    """
    target = h5py.Dataset(dataset).attrs
    named = {key: value for key, value in attributes.items() if _is_name(key)}
    for key, value in named.items():
        is_list = isinstance(value, list) and len({type(each) for each in value}) == 1
        kinds = {type(each) for each in value} if is_list else {type(value)}
        plain = value if kinds <= {str, int, float, bool} and (value or not is_list) else json.dumps(value)
        try:
            target[key] = plain
        except (TypeError, ValueError, OverflowError):
            target[key] = json.dumps(value)


def _is_name(key: str) -> bool:
    """Return whether HDF5 can have an attribute of this name."""
    # HDF5 ends names with a zero byte. JSON may have half of a surrogate pair, which UTF-8 cannot have.
    encoded = key.encode(errors="replace")
    return 0 < len(encoded) <= _MAX_NAME_NBYTES and b"\0" not in encoded and encoded.decode() == key
