"""Values read and written with our pipeline equal those of zarr's own pipeline."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from obstore.store import MemoryStore
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4, Zlib

import parts_store as ps
from parts_store.pipeline.codec_pipeline import PartsCodecPipeline
from tests.conftest import PIPELINES

OURS, ZARRS = PIPELINES["parts"], PIPELINES["batched"]
DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float32", "float64", "complex64", "datetime64[s]"]
PARTS = [None, ["", ps.Part(".tail", size=1)], [ps.Part(".head", size=1), ps.Part("")]]


def values_of(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any) -> NDArray[Any]:
    """Draw values of which many are the fill value, negative zeros or NaNs."""
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    array = generator.integers(0, 100, shape).astype(dtype)
    mask = generator.random(shape) < draw(st.sampled_from([0, 0.5, 1]))
    array = np.where(mask, np.asarray(fill, dtype), array)
    if dtype.kind in "fc":
        odd = generator.random(shape)
        array = np.where(odd < 0.05, np.asarray(-0.0, dtype), np.where(odd > 0.95, np.asarray(np.nan, dtype), array))
    return np.asarray(array, dtype)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the arguments of `zarr.create_array`, with and without shards."""
    ndim = draw(st.integers(1, 3))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shards = tuple(draw(st.integers(1, 3)) * size for size in chunks)
    shape = tuple(draw(st.integers(1, 2 * size + 2)) for size in shards)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    fill: Any = draw(st.sampled_from([0, 1]))
    if dtype.kind == "f":
        fill = draw(st.sampled_from([0.0, -0.0, np.nan, 1.5]))
    if dtype.kind == "M":
        fill = np.datetime64(draw(st.sampled_from(["NaT", "1970-01-01", "2026-11-17"])), "s")
    endian: Any = draw(st.sampled_from(["little", "big"]))
    filters = [TransposeCodec(order=tuple(range(ndim))[::-1])] if draw(st.booleans()) and ndim > 1 else []
    packed: list[list[Any]] = [[ZstdCodec()], [ZstdCodec(level=1, checksum=True)], [GzipCodec()], [BloscCodec()]]
    packed += [[Crc32cCodec()], [LZ4()], [Zlib()]]
    compressors: list[Any] = draw(st.just([]) | st.sampled_from([*packed, [ZstdCodec(), Crc32cCodec()]]))
    inner = [*filters, BytesCodec(endian=endian), *compressors]
    if draw(st.booleans()):
        index_codecs: Any = draw(
            st.sampled_from([[BytesCodec(), Crc32cCodec()], [BytesCodec()], [BytesCodec(endian="big")]])
        )
        codec = ShardingCodec(
            chunk_shape=chunks,
            codecs=inner,
            index_codecs=index_codecs,
            index_location=draw(st.sampled_from(["start", "end"])),
            subchunk_write_order=draw(st.sampled_from(["morton", "lexicographic", "colexicographic", "unordered"])),
        )
        return {"shape": shape, "chunks": shards, "dtype": dtype, "fill_value": fill, "serializer": codec}
    kinds = {"filters": filters, "serializer": BytesCodec(endian=endian), "compressors": compressors}
    return {"shape": shape, "chunks": shards, "dtype": dtype, "fill_value": fill, **kinds}


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Draw a selection: everything, slices with steps, integers, or lists of indexes."""

    def of_axis(size: int) -> Any:
        start = draw(st.integers(0, size - 1))
        kind = draw(st.sampled_from(["all", "slice", "integer", "step"]))
        if kind == "integer":
            return start
        if kind == "all":
            return slice(None)
        stop = draw(st.integers(start + 1, size))
        return slice(start, stop, draw(st.integers(1, 3)) if kind == "step" else None)

    if draw(st.booleans()):
        return tuple(slice(None) for _ in shape)
    return tuple(of_axis(size) for size in shape)


@st.composite
def gathers(draw: st.DrawFn, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Draw a selection by arrays of indexes: points, a mask, or arrays and slices along the axes."""
    kind = draw(st.sampled_from(["points", "mask", "axes"]))
    if kind == "mask":
        mask = np.random.default_rng(draw(st.integers(0, 99))).random(shape) < draw(st.sampled_from([0.1, 0.9]))
        return lambda array: array.vindex[mask]

    def indexes(size: int, count: int) -> NDArray[Any]:
        return np.array([draw(st.integers(0, size - 1)) for _ in range(count)])

    if kind == "points":
        points = tuple(indexes(size, 5) for size in shape)
        return lambda array: array.vindex[points]

    def of_axis(size: int) -> Any:
        kinds: list[Any] = [
            lambda: indexes(size, draw(st.integers(1, 4))),
            lambda: np.arange(size) % 2 == 0,
            lambda: slice(draw(st.integers(0, size - 1)), None, draw(st.integers(1, 3))),
            lambda: draw(st.integers(0, size - 1)),
        ]
        return draw(st.sampled_from(kinds))()

    chosen = tuple(of_axis(size) for size in shape)
    return lambda array: array.oindex[chosen]


def create(pipeline: str, parts: Any, options: dict[str, Any], *, writes_empty: bool) -> zarr.Array[Any]:
    patterns = None if parts is None else {"*": parts}
    store = ps.PartsStore(MemoryStore(), parts=patterns, must_understand=False)
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        config: Any = {"write_empty_chunks": writes_empty}
        return zarr.create_array(store, name="a", config=config, **without_default(options))


def without_default(options: dict[str, Any]) -> dict[str, Any]:
    return {"compressors": None, "filters": None, **options}


@pytest.mark.parametrize("parts", PARTS, ids=["no parts", "two", "header"])
@given(data=st.data())
def test_values_are_those_of_zarrs_pipeline(parts: Any, data: st.DataObject) -> None:
    options = data.draw(arrays())
    writes_empty = data.draw(st.booleans())
    ours = create(OURS, parts, options, writes_empty=writes_empty)
    theirs = create(ZARRS, parts, options, writes_empty=writes_empty)
    assert isinstance(ours.async_array.codec_pipeline, PartsCodecPipeline)
    shape, dtype = options["shape"], options["dtype"]
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            shape = tuple(data.draw(st.integers(1, size)) for size in options["shape"])
            ours.resize(shape)
            theirs.resize(shape)
        selection = data.draw(selections(shape))
        target = np.empty(shape, np.uint8)[selection].shape
        values = data.draw(st.composite(values_of)(target, dtype, options["fill_value"]))
        if data.draw(st.booleans()):
            values = values.reshape(-1)[0] if values.size else values
        given = np.array(values)
        ours[selection] = given
        # What was written must not follow the buffer of the caller.
        given.reshape(-1).view("B")[...] ^= 1
        theirs[selection] = values
    shape = options["shape"]
    ours.resize(shape)
    theirs.resize(shape)
    for array in (ours, theirs):
        for pipeline in (OURS, ZARRS):
            with zarr.config.set({"codec_pipeline.path": pipeline}):
                again = zarr.open_array(array.store_path.store, path="a", mode="r")
            np.testing.assert_array_equal(bits(again[...]), bits(theirs[...]))
            selection = data.draw(selections(shape))
            np.testing.assert_array_equal(bits(again[selection]), bits(theirs[selection]))
            select = data.draw(gathers(shape))
            np.testing.assert_array_equal(bits(select(again)), bits(select(theirs)))


NUMBERS = (0.0, -0.0, 1.0, np.nan)
COMPLEX = [complex(real, imaginary) for real in NUMBERS for imaginary in NUMBERS]


def test_inner_chunks_are_empty_by_the_rule_of_zarr() -> None:
    written = np.repeat(np.array(NUMBERS, "f4"), 2)
    options = {"shape": written.shape, "chunks": (2,), "shards": written.shape, "dtype": "f4", "compressors": None}
    for fill_value in NUMBERS:
        found = []
        for pipeline in (OURS, ZARRS):
            array = create(pipeline, None, {**options, "fill_value": fill_value}, writes_empty=False)
            array[...] = written
            found.append(bits(array[...]).tolist())
        assert found[0] == found[1], f"fill value {fill_value}"


@pytest.mark.parametrize("shards", [None, (2 * len(COMPLEX),)], ids=["chunks", "shards"])
def test_complex_numbers_keep_both_parts_for_every_fill_value(shards: Any) -> None:
    written = np.repeat(np.array(COMPLEX, "c8"), 2)
    options = {"shape": written.shape, "chunks": (2,), "shards": shards, "dtype": "c8"}
    for fill_value in COMPLEX:
        array = create(OURS, None, {**options, "fill_value": fill_value}, writes_empty=False)
        array[...] = written
        found = np.asarray(array[...])
        np.testing.assert_array_equal(found.real, written.real, f"fill value {fill_value}")
        np.testing.assert_array_equal(found.imag, written.imag, f"fill value {fill_value}")


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTS, ids=["no parts", "two", "header"])
@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("pipeline", sorted(PIPELINES))
def test_cells_beyond_a_shrunk_shape_come_back(parts: Any, compressors: Any, pipeline: str) -> None:
    """Shrink an array to every length, write every slice at its new end, and let it grow again."""
    size, shard = 8, 4
    options = {"shape": (size,), "chunks": (2,), "shards": (shard,), "dtype": "i4", "compressors": compressors}
    array = create(PIPELINES[pipeline], parts, options, writes_empty=False)
    for start, length in combinations(range(size), 2):
        for value, rest in ((-1, 1), (0, 1), (0, 0)):
            expected = np.arange(1, size + 1)
            expected[length:] *= rest
            array[...] = expected
            array.resize((length,))
            array[start:] = np.full(length - start, value)
            array.resize((size,))
            expected[start:length] = value
            # Shards that are not in the array any more are deleted.
            expected[-(-length // shard) * shard :] = 0
            assert np.asarray(array[...]).tolist() == expected.tolist(), f"{start} to {length}, {value}, {rest}"


def bits(values: Any) -> NDArray[Any]:
    """Return values as bytes, so that negative zeros and NaNs are compared as well."""
    array = np.ascontiguousarray(values)
    return array.reshape(*array.shape, 1).view(np.uint8)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("location", ["start", "end"])
def test_a_shard_without_dimensions_is_written_and_read(location: Any, parts: Any) -> None:
    store = ps.PartsStore(MemoryStore(), parts=parts and {"a": parts})
    shards = ShardingCodec(chunk_shape=(), index_location=location)
    with zarr.config.set({"codec_pipeline.path": OURS}):
        array = zarr.create_array(
            store, name="a", shape=(), dtype="f4", serializer=shards, compressors=None, fill_value=7
        )
        assert array[()] == 7
        array[()] = 42
        assert zarr.open_array(store, path="a")[()] == 42
    with zarr.config.set({"codec_pipeline.path": ZARRS}):
        assert zarr.open_array(store, path="a")[()] == 42


@pytest.mark.parametrize("chunks", [(1, 4, 4), (1, 2, 4)])
@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 1, 4), (2, 4, 1), (1, 1, 3), (2, 1, 4), (2, 4, 4)])
def test_values_of_another_shape_are_written_or_refused_as_by_zarr(
    shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    values = np.arange(1, 1 + np.prod(shape), dtype="uint8").reshape(shape)
    found: list[NDArray[Any] | type[Exception]] = []
    for pipeline in (OURS, ZARRS):
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array = zarr.create_array(
                ps.PartsStore(MemoryStore()), shape=(2, 4, 4), chunks=chunks, shards=(2, 4, 4), dtype="uint8"
            )
            try:
                array[...] = values
            except ValueError as error:
                found.append(type(error))
            else:
                np.testing.assert_array_equal(array[...], np.broadcast_to(values, (2, 4, 4)))
                found.append(np.asarray(array[...]))
    np.testing.assert_equal(found[0], found[1])
