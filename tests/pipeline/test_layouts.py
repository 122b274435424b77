"""The layout of the shards of an array is planned once, and again for anything that decides how shards are stored."""

import pickle
from typing import Any

import numpy as np
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store._compat.zarr import ArrayConfig, ArraySpec
from parts_store.pipeline import shard
from parts_store.pipeline.shard import Layouts


def sharded(fill_value: float = 0.0) -> zarr.Array[Any]:
    store = ps.PartsStore(MemoryStore())
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (2,), "shards": (4,), "dtype": "f8"}
    zarr.create_array(store, fill_value=fill_value, **arguments)
    return ps.open_array(store, mode="r+")


def spec_of(array: zarr.Array[Any]) -> ArraySpec:
    inner = array.async_array
    prototype = zarr.buffer.default_buffer_prototype()
    return ArraySpec((4,), inner.metadata.dtype, inner.metadata.fill_value, inner.config, prototype)


def test_a_layout_is_planned_once() -> None:
    array = sharded()
    layouts = Layouts(array.async_array.codec_pipeline.array_bytes_codec)  # type: ignore[attr-defined]
    # zarr makes a new specification for each call.
    assert layouts.of(spec_of(array)) is layouts.of(spec_of(array))


def test_equal_fill_values_with_other_bits_have_layouts_of_their_own() -> None:
    array = sharded()
    spec = spec_of(array)
    layouts = Layouts(array.async_array.codec_pipeline.array_bytes_codec)  # type: ignore[attr-defined]
    for fill_value in (0.0, -0.0, 0.0):
        layout = layouts.of(replace_fill_value(spec, fill_value))
        assert layout is not None
        assert np.signbit(layout.fill_value) == np.signbit(fill_value)


def replace_fill_value(spec: ArraySpec, fill_value: float) -> ArraySpec:
    return ArraySpec(spec.shape, spec.dtype, fill_value, spec.config, spec.prototype)


def test_another_configuration_has_a_layout_of_its_own() -> None:
    array = sharded()
    spec = spec_of(array)
    layouts = Layouts(array.async_array.codec_pipeline.array_bytes_codec)  # type: ignore[attr-defined]
    for stores_empty_chunks in (True, False, True):
        config = ArrayConfig.from_dict({"write_empty_chunks": stores_empty_chunks})
        layout = layouts.of(ArraySpec(spec.shape, spec.dtype, spec.fill_value, config, spec.prototype))
        assert layout is not None
        assert layout.stores_empty_chunks is stores_empty_chunks


def test_a_bounded_number_of_layouts_is_kept() -> None:
    array = sharded()
    spec = spec_of(array)
    layouts = Layouts(array.async_array.codec_pipeline.array_bytes_codec)  # type: ignore[attr-defined]
    for size in range(2, 1002, 2):
        layout = layouts.of(ArraySpec((size,), spec.dtype, spec.fill_value, spec.config, spec.prototype))
        assert layout is not None
        assert layout.shape == (size,)
    assert len(layouts._planned) <= shard._MOST_SHAPES
    assert pickle.loads(pickle.dumps(layouts))._planned == {}
