"""Bind callables that make padding to the codecs of an array that was opened again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import zarr
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.codecs.padding import PaddingCodec, PaddingFunction


def bind_padding(array: zarr.Array, *functions: PaddingFunction) -> zarr.Array:  # type: ignore[type-arg]
    """Return the same array with `functions` as the callables that make the padding of its chunks.

    The padding that a callable makes is stored with each chunk. The callable itself is not stored. An array that is
    opened again can be read immediately. Before it can be written, its callables have to be bound.

    Parameters
    ----------
    array
        An open array. It is not changed, and nothing is stored.
    *functions
        One callable for each codec whose padding is made by a callable, in the order of the codecs. For a sharded
        array, the inner codecs come first, then the codecs of the index.

    Returns
    -------
    zarr.Array
        An array that can be written.

    Raises
    ------
    TypeError
        If `array` is not a zarr array.
    ValueError
        If the number of callables is not the number of such codecs.

    Examples
    --------
    >>> header = ps.headers.TiffHeader((64, 64), dtype="uint8", compression="zstd")
    >>> codecs = [zarr.codecs.ZstdCodec(), ps.codecs.pad_codec(header.nbytes, padding_func=header)]
    >>> created = zarr.create_array("tiles.zarr", shape=(64, 64), chunks=(64, 64), dtype="uint8", compressors=codecs)
    >>> array = ps.codecs.bind_padding(zarr.open_array("tiles.zarr"), header)
    >>> array[:] = 1
    """
    if not isinstance(array, zarr.Array):
        raise TypeError(f"expected a zarr.Array, found {array!r}")
    metadata = array.metadata
    codecs = metadata.codecs if isinstance(metadata, ArrayV3Metadata) else ()
    count = sum(_count_dynamic(codec) for codec in codecs)
    if count == 0:
        raise ValueError(f"array {array.name!r} has no codec whose padding is made by a callable")
    if count != len(functions):
        raise ValueError(f"array {array.name!r}: expected {count} callables, found {len(functions)}")
    remaining = iter(functions)
    bound = replace(cast("ArrayV3Metadata", metadata), codecs=tuple(_bind(codec, remaining) for codec in codecs))
    return type(array)(replace(array.async_array, metadata=bound))


def _count_dynamic(codec: Codec) -> int:
    match codec:
        case PaddingCodec():
            return int(codec.content.is_dynamic)
        case ShardingCodec():
            return sum(_count_dynamic(inner) for inner in (*codec.codecs, *codec.index_codecs))
        case _:
            return 0


def _bind(codec: Codec, functions: Iterator[PaddingFunction]) -> Codec:
    match codec:
        case PaddingCodec() if codec.content.is_dynamic:
            return codec.bound(next(functions))
        case ShardingCodec():
            inner = tuple(_bind(each, functions) for each in codec.codecs)
            index = tuple(_bind(each, functions) for each in codec.index_codecs)
            return replace(codec, codecs=inner, index_codecs=index)
        case _:
            return codec
