"""Arrays in parts behave like NumPy's: random parts, shards, data types, pipelines, and all that changes them."""

import tempfile
from typing import Any

import hypothesis.stateful
import numpy as np
import obstore
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from tests.conftest import PIPELINES
from tests.effort import examples

DTYPES = ["uint8", "int16", "float32", "complex64", "bool"]


@st.composite
def layouts(draw: st.DrawFn, *, sharded: bool) -> list[ps.Part]:
    """Parts that any chunk fits: the smallest is a shard with one inner chunk of eight bytes, and its index."""
    names = draw(st.lists(st.sampled_from([".a", ".b", "-c", "_d", ".long.name"]), max_size=3, unique=True))
    fixed = [ps.Part(name, size=draw(st.integers(0, 2))) for name in names]
    main = ps.Part(draw(st.sampled_from(["", ".main"])))
    index = [ps.Part(".index", size=ps.SHARD_INDEX)] if sharded and draw(st.booleans()) else []
    at = draw(st.integers(0, len(fixed)))
    return [*fixed[:at], main, *fixed[at:], *index]


class Arrays(RuleBasedStateMachine):
    """Does the same to an array in parts and to one of NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    @initialize(
        data=st.data(),
        on_disk=st.booleans(),
        sharded=st.booleans(),
        dtype=st.sampled_from(DTYPES),
        level=st.sampled_from(["exclusive", "writers", "full"]),
    )
    def create(self, data: st.DataObject, dtype: str, level: Any, *, on_disk: bool, sharded: bool) -> None:
        place: Any = LocalStore(self.folder.name, automatic_cleanup=True) if on_disk else MemoryStore()
        self.objects, self.dtype, self.level = place, dtype, level
        self.keeps_orphans = level == "writers" and not on_disk
        shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
        chunks: dict[str, Any] = {"chunks": (2, 4), "shards": (4, 8)} if sharded else {"chunks": (4, 8)}
        arguments: dict[str, Any] = {
            **chunks,
            "shape": shape,
            "dtype": dtype,
            "compressors": data.draw(st.sampled_from([None, [zarr.codecs.GzipCodec(level=1)]])),
            "chunk_key_encoding": {
                "name": data.draw(st.sampled_from(["default", "v2"])),
                "separator": data.draw(st.sampled_from(["/", "."])),
            },
        }
        self.parts = data.draw(layouts(sharded=sharded))
        self.name = data.draw(st.sampled_from(["a", "group/a", "c", "0"]))
        ps.create_array(ps.PartsStore(place), self.name, parts=self.parts, **arguments)
        self.expected = np.zeros(shape, dtype)

    def open(self, pipeline: str, *, fresh: bool) -> Any:
        if fresh or not hasattr(self, "store"):
            self.store = ps.PartsStore(self.objects, concurrency=self.level)
        zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]})
        return zarr.open_array(self.store, path=self.name)

    def draw_region(self, data: st.DataObject) -> tuple[slice, ...]:
        bounds = [sorted(data.draw(st.tuples(*[st.integers(0, side)] * 2))) for side in self.expected.shape]
        return tuple(slice(start, stop) for start, stop in bounds)

    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)), fresh=st.booleans())
    def write(self, data: st.DataObject, pipeline: str, *, fresh: bool) -> None:
        region = self.draw_region(data)
        values = data.draw(st.sampled_from([0, 1, 7])) * np.ones(self.expected[region].shape)
        noise = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 2, values.shape)
        self.open(pipeline, fresh=fresh)[region] = (values * noise).astype(self.dtype)
        self.expected[region] = (values * noise).astype(self.dtype)

    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)), fresh=st.booleans())
    def read(self, data: st.DataObject, pipeline: str, *, fresh: bool) -> None:
        region = self.draw_region(data)
        np.testing.assert_array_equal(self.open(pipeline, fresh=fresh)[region], self.expected[region])

    @rule(data=st.data(), fresh=st.booleans())
    def resize(self, data: st.DataObject, *, fresh: bool) -> None:
        shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
        self.open("batched", fresh=fresh).resize(shape)
        kept = tuple(slice(0, min(old, new)) for old, new in zip(self.expected.shape, shape, strict=True))
        resized = np.zeros(shape, self.dtype)
        resized[kept] = self.expected[kept]
        # zarr deletes the chunks that are gone, and keeps what lies outside in those that are not.
        self.open("batched", fresh=False)[...] = resized
        self.expected = resized

    @rule(title=st.text(max_size=5))
    def describe(self, title: str) -> None:
        self.open("fused", fresh=True).attrs["title"] = title
        assert self.open("fused", fresh=True).attrs["title"] == title

    @rule(data=st.data())
    def delete_a_chunk(self, data: st.DataObject) -> None:
        array = self.open("batched", fresh=True)
        row, column = (
            data.draw(st.integers(0, (side - 1) // step)) for side, step in zip(array.shape, (4, 8), strict=True)
        )
        self.store.delete_sync(f"{self.name}/{array.metadata.encode_chunk_key((row, column))}")
        self.expected[4 * row : 4 * row + 4, 8 * column : 8 * column + 8] = 0

    @invariant()
    def every_chunk_is_in_all_its_parts_or_in_none_and_nothing_is_beside_them(self) -> None:
        if hasattr(self, "store"):
            keys = {each["path"] for batch in obstore.list(self.objects) for each in batch}
            stored = {key for key in keys if key.rpartition("/")[2] != "zarr.json"}
            suffixes = [part.key_suffix for part in self.parts]
            # The part whose existence is the chunk's, as the specification of the protocol chooses it.
            unsized = [part.key_suffix for part in self.parts if part.size is None]
            anchor = "" if "" in suffixes else unsized[0]
            longer = [suffix for suffix in suffixes if suffix != anchor]
            chunks = {
                key.removesuffix(anchor)
                for key in stored
                if key.endswith(anchor) and not any(key.endswith(suffix) for suffix in longer)
            }
            whole = {chunk + suffix for chunk in chunks for suffix in suffixes}
            assert whole <= stored
            # Orphans are parts that have outlived their anchor, and nothing else.
            orphans = stored - whole
            assert self.keeps_orphans or not orphans
            assert all(any(key.endswith(suffix) for suffix in longer) for key in orphans)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            np.testing.assert_array_equal(self.open("batched", fresh=True)[...], self.expected)
        zarr.config.reset()
        self.folder.cleanup()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_array_in_parts_behaves_like_a_numpy_array() -> None:
    chosen = settings(
        max_examples=examples(60), stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
    )
    hypothesis.stateful.run_state_machine_as_test(Arrays, settings=chosen)
