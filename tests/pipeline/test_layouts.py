"""The layout of the shards of an array is planned once, and again for anything that decides how shards are stored."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import zarr
from zarr.codecs import ShardingCodec
from zarr.dtype import Float64

from parts_store._compat.zarr import ArrayConfig, ArraySpec
from parts_store.pipeline import chunk
from parts_store.pipeline.chunk import Layouts
from parts_store.pipeline.shard import ShardLayout, plan_layout

type ShardLayouts = Layouts[ShardLayout]


@pytest.fixture
def spec() -> ArraySpec:
    """What zarr says of a shard to a codec."""
    prototype = zarr.buffer.default_buffer_prototype()
    return ArraySpec((4,), Float64(), np.float64(0), ArrayConfig.from_dict({}), prototype)


@pytest.fixture
def layouts() -> ShardLayouts:
    return Layouts(partial(plan_layout, ShardingCodec(chunk_shape=(2,))))


def test_a_layout_is_planned_once(layouts: ShardLayouts, spec: ArraySpec) -> None:
    # zarr makes a new specification for each call.
    assert layouts.of(spec) is layouts.of(replace(spec))


def test_equal_fill_values_with_other_bits_have_layouts_of_their_own(layouts: ShardLayouts, spec: ArraySpec) -> None:
    for fill_value in (0.0, -0.0, 0.0):
        layout = layouts.of(replace(spec, fill_value=fill_value))
        assert layout is not None
        assert np.signbit(layout.fill_value) == np.signbit(fill_value)


def test_another_configuration_has_a_layout_of_its_own(layouts: ShardLayouts, spec: ArraySpec) -> None:
    for stores_empty_chunks in (True, False, True):
        config = ArrayConfig.from_dict({"write_empty_chunks": stores_empty_chunks})
        layout = layouts.of(replace(spec, config=config))
        assert layout is not None
        assert layout.stores_empty_chunks is stores_empty_chunks


def test_a_bounded_number_of_layouts_is_kept(layouts: ShardLayouts, spec: ArraySpec) -> None:
    for size in range(2, 1002, 2):
        layout = layouts.of(replace(spec, shape=(size,)))
        assert layout is not None
        assert layout.shape == (size,)
    assert len(layouts._planned) <= chunk._MOST_SHAPES
    assert pickle.loads(pickle.dumps(layouts))._planned == {}
