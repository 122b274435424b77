"""Arrays with our codecs give back what was written: any shape, dtype, chain of codecs and pipeline."""

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parts_store.codecs.pad import dynamic_mark
from tests.codecs.arrays import Stored
from tests.effort import examples

DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float32", "float64", "complex64", "complex128"]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


@st.composite
def padding_codecs(draw: st.DrawFn) -> dict[str, Any]:
    # Two bytes of the mark are a callable's padding, which is not to be written here.
    content = draw(st.binary(max_size=20).filter(lambda drawn: len(drawn) < 2 or drawn != dynamic_mark(len(drawn))))
    text = {} if draw(st.booleans()) else {"padding": base64.b64encode(content).decode()}
    if draw(st.booleans()):
        location = draw(st.sampled_from(["start", "end"]))
        return {"name": "pad", "configuration": {"location": location, "nbytes": len(content), **text}}
    prefix = {"prefix": text["padding"]} if text else {}
    return {"name": "offset", "configuration": {"offset": len(content), **prefix}}


compressors = st.sampled_from(
    [
        {"name": "gzip", "configuration": {"level": 1}},
        {"name": "zstd", "configuration": {"level": 1, "checksum": True}},
        {"name": "crc32c"},
    ]
)
serializers = st.sampled_from(
    [{"name": "bytes", "configuration": {"endian": endian}} for endian in ("little", "big")]
    + [{"name": "packbits", "configuration": {"padding_encoding": at}} for at in ("none", "first_byte", "last_byte")]
)
chains = st.tuples(serializers, st.lists(padding_codecs() | compressors, max_size=4)).map(
    lambda chain: [chain[0], *chain[1]]
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], list[Any]]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(max_dims=3, max_side=9))
    inner = tuple(draw(st.integers(1, side)) for side in shape)
    codecs: list[Any] = draw(chains)
    chunks = inner
    if draw(st.booleans()):
        chunks = tuple(side * draw(st.integers(1, 3)) for side in inner)
        # What has a fixed size may stand in the index too.
        index = [LITTLE, *draw(st.lists(padding_codecs() | st.just({"name": "crc32c"}), max_size=2))]
        place = draw(st.sampled_from(["start", "end"]))
        members = {"chunk_shape": list(inner), "codecs": codecs, "index_codecs": index, "index_location": place}
        codecs = [{"name": "sharding_indexed", "configuration": members}, *draw(st.lists(padding_codecs(), max_size=1))]
    elements = hnp.from_dtype(np.dtype(dtype), allow_nan=False if np.dtype(dtype).kind in "fc" else None)
    values = draw(hnp.arrays(dtype, shape, elements=elements))
    return values, chunks, codecs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:zarr.errors.ZarrUserWarning")
@settings(max_examples=examples(100))
@given(case=arrays(), data=st.data())
def test_arrays_round_trip_whole_and_in_part(case: Any, data: st.DataObject, pipeline: str) -> None:
    values, chunks, codecs = case
    array = Stored(values.shape, values.dtype.name, chunks, codecs)
    array.write(values)
    np.testing.assert_array_equal(array.read(), values)
    selection = data.draw(hnp.basic_indices(values.shape, allow_ellipsis=False).filter(_is_forward))
    np.testing.assert_array_equal(np.asarray(array.open()[selection]), values[selection])
    array.open()[selection] = values.flat[0]
    values[selection] = values.flat[0]
    np.testing.assert_array_equal(array.read(), values)


def _is_forward(selection: Any) -> bool:
    """Whether zarr takes it: no negative steps."""
    parts = selection if isinstance(selection, tuple) else (selection,)
    return all(not isinstance(part, slice) or part.step is None or part.step > 0 for part in parts)
