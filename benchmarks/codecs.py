"""What our codecs cost: encoding and decoding one chunk, against the `bytes` codec alone, in one run.

A chain is timed through zarr's own `ChunkTransform`, without any store. The `bytes` codec of a native, contiguous
chunk is a view and takes no time that could be divided by, so everything is told in units of one copy of the chunk
(`numpy.copyto`, the fastest copy there is), measured in the same run: an extra copy is 1.0.
"""

import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import Codec
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.codecs.numcodecs import PackBits
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.chunk_utils import ChunkTransform
from zarr.dtype import parse_dtype

from parts_store.codecs import OffsetCodec, PackBitsCodec, PadCodec
from parts_store.headers import TiffHeader, tiff

SIDE = 2048
REPEAT, NUMBER = 15, 5


def best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of many calls: what the machine can do when it is left alone."""
    return min(timeit.repeat(call, repeat=REPEAT, number=NUMBER)) / NUMBER


def spec_of(dtype: str) -> ArraySpec:
    return ArraySpec(
        shape=(SIDE, SIDE),
        dtype=parse_dtype(dtype, zarr_format=3),
        fill_value=0,
        config=ArrayConfig.from_dict({}),
        prototype=default_buffer_prototype(),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A chain of codecs, and the bits of the values that it gives back."""

    name: str
    codecs: tuple[Codec, ...]
    dtype: str = "uint16"
    kept: int = 0xFFFF


def cases(shape: tuple[int, int]) -> Iterator[Case]:
    header, maker = tiff(shape, dtype="uint16"), TiffHeader(shape, dtype="uint16")
    little = BytesCodec(endian="little")
    yield Case("bytes alone", (little,))
    yield Case("bytes, pad start (110 bytes)", (little, PadCodec("start", nbytes=110, padding=header)))
    yield Case("bytes, pad end (110 bytes)", (little, PadCodec("end", nbytes=110)))
    yield Case("bytes, offset (110 bytes)", (little, OffsetCodec(110, prefix=header)))
    yield Case("bytes, pad by a callable", (little, PadCodec("start", nbytes=110, padding_func=maker)))
    yield Case("bytes, crc32c (peer)", (little, Crc32cCodec()))
    yield Case("packbits, bool", (PackBitsCodec(),), "bool", 1)
    yield Case("numcodecs.packbits, bool (peer)", (PackBits(), BytesCodec()), "bool", 1)
    yield Case("packbits, uint16, all bits", (PackBitsCodec(),))
    yield Case("packbits, uint16, 8 of 16 bits", (PackBitsCodec(last_bit=7),), kept=0xFF)
    yield Case("packbits, uint16, 12 of 16 bits", (PackBitsCodec(last_bit=11),), kept=0xFFF)


def main() -> None:
    generator = np.random.default_rng(0)
    print(f"one chunk of {SIDE} x {SIDE}; times in copies of that chunk (best of {REPEAT}), smaller is better\n")
    print(f"{'codecs':<34}{'encode':>9}{'decode':>9}")
    for case in cases((SIDE, SIDE)):
        values = generator.integers(0, 2 if case.dtype == "bool" else 4096, (SIDE, SIDE)).astype(case.dtype)
        encode, decode = measure(case, values)
        print(f"{case.name:<34}{encode:>9.2f}{decode:>9.2f}")


def measure(case: Case, values: NDArray[Any]) -> tuple[float, float]:
    """What encoding and decoding the values takes, in copies of them."""
    spec, transform = spec_of(case.dtype), ChunkTransform(codecs=case.codecs)
    chunk = cpu.NDBuffer.from_ndarray_like(values)
    encoded = transform.encode_chunk(chunk, spec)
    assert encoded is not None
    np.testing.assert_array_equal(
        transform.decode_chunk(encoded, spec).as_numpy_array(), values & values.dtype.type(case.kept)
    )
    target = np.empty_like(values)
    copy = best(lambda: np.copyto(target, values))
    encode = best(lambda: transform.encode_chunk(chunk, spec))
    decode = best(lambda: transform.decode_chunk(encoded, spec))
    return encode / copy, decode / copy


if __name__ == "__main__":
    main()
