"""Callables bound again to the codecs of a reopened array, whose padding they make."""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import zarr
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.codecs.padding import PaddingCodec, PaddingFunction


def bind_padding(array: zarr.Array, *functions: PaddingFunction) -> zarr.Array:  # type: ignore[type-arg]
    """The same array, whose chunks get their padding from `functions` when they are written.

    What a callable makes is stored with each chunk, but the callable itself is not. An array that is opened again
    can be read at once; before it can be written, its callables have to be bound:

        array = bind_padding(zarr.open_array("image.zarr"), TiffHeader((256, 256), dtype="uint16"))

    Parameters
    ----------
    array
        An open array. It stays as it is; nothing is stored.
    functions
        One callable for each codec of the array whose padding is dynamic, in the order of the codecs; those inside a
        shard stand at the shard's place, its inner codecs before its index codecs.
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
