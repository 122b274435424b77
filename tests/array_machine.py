"""Machines that do the same to arrays in any store and to NumPy's, and what holds after every step."""

import tempfile
from typing import Any

import icechunk
import numpy as np
import obstore
import zarr
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from obstore.store import LocalStore, MemoryStore
from zarr.core.sync import sync

import parts_store as ps
from tests.conftest import PIPELINES

SIDE = 12


@st.composite
def layouts(draw: st.DrawFn, smallest: int, *, sharded: bool) -> list[ps.Part]:
    """Parts that any chunk fits: the smallest chunk has eight bytes."""
    names = draw(
        st.lists(st.sampled_from([".a", ".b", "-c", "_d", ".long.name", "~ü", ".%41"]), max_size=3, unique=True)
    )
    fixed = [ps.Part(name, size=draw(st.integers(smallest, 2))) for name in names]
    main = ps.Part(draw(st.sampled_from(["", ".main"])))
    index = [ps.Part(".index", size=ps.SHARD_INDEX)] if sharded and draw(st.booleans()) else []
    at = draw(st.integers(0, len(fixed)))
    return [*fixed[:at], main, *fixed[at:], *index]


def values(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Draw values of an array, about half of them the fill value."""
    random = np.random.default_rng(seed)
    numbers = random.integers(1, 2 if dtype == "bool" else 100, shape) * random.integers(0, 2, shape)
    return np.asarray(numbers).astype(dtype)


DTYPES = ["uint8", "int16", "float32", "complex64", "bool", "datetime64[s]"]


class Arrays(RuleBasedStateMachine):
    """Does the same to arrays in a store, and to a dictionary of NumPy's."""

    # The least size of a part, and whether parts are stored one by one.
    smallest = 0
    is_split = False
    encodings: tuple[tuple[str, str], ...] = (("default", "/"), ("default", "."), ("v2", "/"), ("v2", "."))
    store: ps.PartsStore

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.steps: dict[str, tuple[int, ...]] = {}

    def new_store(self) -> ps.PartsStore:
        """A store that knows nothing yet."""
        raise NotImplementedError

    def check_objects(self) -> None:
        """Check what holds after every step."""
        raise NotImplementedError

    # --- what comes and goes --------------------------------------------------------------------------------------

    @rule(data=st.data(), sharded=st.booleans(), dtype=st.sampled_from(DTYPES), ndim=st.integers(0, 3))
    def create(self, data: st.DataObject, dtype: str, ndim: int, *, sharded: bool) -> None:
        name = data.draw(st.sampled_from(["a", "group/b", "group/deep/c", "c", "0"]))
        steps = tuple(data.draw(st.integers(1, 3)) * 2 for _ in range(ndim))
        sharded = sharded and ndim > 0
        # At least eight bytes, whatever the type.
        inner = tuple(max(1, step // 2) for step in steps[:-1]) + ((8,) if ndim else ())
        shards = tuple(2 * each for each in inner)
        shape = tuple(data.draw(st.integers(0, SIDE)) for _ in range(ndim))
        arguments: dict[str, Any] = {
            "shape": shape,
            "dtype": dtype,
            "fill_value": 0,
            "chunks": inner,
            "compressors": data.draw(st.sampled_from([None, [zarr.codecs.GzipCodec(level=1)]])),
            "chunk_key_encoding": dict(
                zip(("name", "separator"), data.draw(st.sampled_from(self.encodings)), strict=True)
            ),
        }
        if sharded:
            arguments["shards"] = shards
        parts = data.draw(layouts(self.smallest, sharded=sharded)) if ndim else [ps.Part(""), ps.Part(".t", size=1)]
        if not ndim:
            arguments["compressors"] = [zarr.codecs.GzipCodec(level=1)]
        is_there = name in self.model
        if is_there or data.draw(st.booleans()):
            arguments["overwrite"] = True
        ps.create_array(self.store, name, parts=parts, split=self.is_split, **arguments)
        self.model[name] = np.zeros(shape, dtype)
        self.steps[name] = shards if sharded else inner
        self.attributes[name] = {}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def overwrite_with_a_plain_array(self, data: st.DataObject) -> None:
        name = self.draw_name(data)
        shape = (3, 3)
        zarr.open_array(self.store, path=name, mode="w", shape=shape, chunks=(2, 2), dtype="int16", fill_value=0)
        self.model[name], self.attributes[name], self.steps[name] = np.zeros(shape, "int16"), {}, (2, 2)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_an_array(self, data: st.DataObject) -> None:
        name = self.draw_name(data)
        del zarr.open_group(self.store)[name]
        self.forget(name)

    @precondition(lambda self: any(name.startswith("group/") for name in self.model))
    @rule(path=st.sampled_from(["group", "group/deep"]))
    def delete_a_group(self, path: str) -> None:
        if path in zarr.open_group(self.store):
            del zarr.open_group(self.store)[path]
        for name in [name for name in self.model if name.startswith(f"{path}/")]:
            self.forget(name)

    def forget(self, name: str) -> None:
        del self.model[name], self.attributes[name], self.steps[name]

    def draw_name(self, data: st.DataObject) -> str:
        name: str = data.draw(st.sampled_from(sorted(self.model)))
        return name

    # --- what is in them ------------------------------------------------------------------------------------------

    def open(self, name: str, pipeline: str, *, fresh: bool = False) -> Any:
        if fresh:
            self.store = self.new_store()
        zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]})
        return zarr.open_array(self.store, path=name)

    def draw_region(self, data: st.DataObject, shape: tuple[int, ...]) -> Any:
        bounds = [sorted(data.draw(st.tuples(*[st.integers(0, side)] * 2))) for side in shape]
        return tuple(slice(start, stop) for start, stop in bounds) or ...

    @precondition(lambda self: self.model)
    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)), fresh=st.booleans(), seed=st.integers(0, 9))
    def write(self, data: st.DataObject, pipeline: str, seed: int, *, fresh: bool) -> None:
        name = self.draw_name(data)
        expected = self.model[name]
        region = self.draw_region(data, expected.shape)
        new = values(expected[region].shape, str(expected.dtype), seed)
        self.open(name, pipeline, fresh=fresh)[region] = new
        expected[region] = new

    @precondition(lambda self: self.model)
    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)), seed=st.integers(0, 9))
    def write_all(self, data: st.DataObject, pipeline: str, seed: int) -> None:
        name = self.draw_name(data)
        new = values(self.model[name].shape, str(self.model[name].dtype), seed)
        self.open(name, pipeline)[...] = new
        self.model[name] = new

    @precondition(lambda self: self.model)
    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)), fresh=st.booleans())
    def read(self, data: st.DataObject, pipeline: str, *, fresh: bool) -> None:
        name = self.draw_name(data)
        region = self.draw_region(data, self.model[name].shape)
        np.testing.assert_array_equal(self.open(name, pipeline, fresh=fresh)[region], self.model[name][region])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)))
    def read_points(self, data: st.DataObject, pipeline: str) -> None:
        name = self.draw_name(data)
        expected = self.model[name]
        if not expected.size or not expected.ndim:
            return
        count = data.draw(st.integers(1, 4))
        at = tuple(data.draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count)) for n in expected.shape)
        np.testing.assert_array_equal(self.open(name, pipeline).vindex[at], expected[at])

    @precondition(lambda self: any(array.ndim for array in self.model.values()))
    @rule(data=st.data(), fresh=st.booleans())
    def resize(self, data: st.DataObject, *, fresh: bool) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, array in self.model.items() if array.ndim)))
        old = self.model[name]
        shape = tuple(data.draw(st.integers(0, SIDE)) for _ in old.shape)
        self.open(name, "batched", fresh=fresh).resize(shape)
        kept = tuple(slice(0, min(before, after)) for before, after in zip(old.shape, shape, strict=True))
        resized = np.zeros(shape, old.dtype)
        resized[kept] = old[kept]
        # zarr deletes the chunks that are gone, and keeps what lies outside in those that are not.
        self.open(name, "batched")[...] = resized
        self.model[name] = resized

    @precondition(lambda self: any(array.ndim for array in self.model.values()))
    @rule(data=st.data(), pipeline=st.sampled_from(sorted(PIPELINES)), seed=st.integers(0, 9))
    def append(self, data: st.DataObject, pipeline: str, seed: int) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, array in self.model.items() if array.ndim)))
        old = self.model[name]
        if old.shape[0] > 2 * SIDE:
            return
        new = values((2, *old.shape[1:]), str(old.dtype), seed)
        self.open(name, pipeline).append(new)
        self.model[name] = np.concatenate([old, new])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), title=st.text(max_size=5))
    def describe(self, data: st.DataObject, title: str) -> None:
        name = self.draw_name(data)
        self.open(name, "fused").attrs["title"] = title
        self.attributes[name]["title"] = title

    @precondition(lambda self: any(array.size for array in self.model.values()))
    @rule(data=st.data())
    def delete_a_chunk(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, array in self.model.items() if array.size)))
        expected, steps = self.model[name], self.steps[name]
        numbers = [
            data.draw(st.integers(0, (side - 1) // step)) for side, step in zip(expected.shape, steps, strict=True)
        ]
        key = self.open(name, "batched").metadata.encode_chunk_key(tuple(numbers))
        self.store.delete_sync(f"{name}/{key}")
        region = tuple(slice(at * step, at * step + step) for at, step in zip(numbers, steps, strict=True))
        expected[region] = 0

    # --- what holds -----------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        for name, expected in self.model.items():
            array = self.open(name, "batched")
            np.testing.assert_array_equal(array[...], expected)
            assert dict(array.attrs) == self.attributes[name]

    @invariant()
    def nothing_of_parts_is_seen_or_left_behind(self) -> None:
        if hasattr(self, "store"):
            self.check_objects()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.check_all()
        zarr.config.reset()


class ArraysInObjects(Arrays):
    """Does the same to arrays in memory or on a disk, and to NumPy's."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    @initialize(on_disk=st.booleans(), level=st.sampled_from(["exclusive", "writers", "full"]))
    def open_place(self, level: Any, *, on_disk: bool) -> None:
        self.objects: Any = LocalStore(self.folder.name, automatic_cleanup=True) if on_disk else MemoryStore()
        self.level, self.keeps_orphans = level, level == "writers" and not on_disk
        self.store = self.new_store()
        zarr.create_group(self.store)

    def new_store(self) -> ps.PartsStore:
        return ps.PartsStore(self.objects, concurrency=self.level)

    def check_objects(self) -> None:
        """Check that every chunk is in all of its parts or in none, and that nothing is beside them."""
        keys = {each["path"] for batch in obstore.list(self.objects) for each in batch}
        stored = {key for key in keys if key.rpartition("/")[2] != "zarr.json"}
        for name in self.model:
            parts = getattr(self.store.parts_of(name), "parts", (ps.Part(""),))
            suffixes = [part.key_suffix for part in parts]
            # The part whose existence is the chunk's, as the specification of the protocol chooses it.
            unsized = [part.key_suffix for part in parts if part.size is None]
            anchor = "" if "" in suffixes else unsized[0]
            longer = [suffix for suffix in suffixes if suffix != anchor]
            own = {key for key in stored if key.startswith(f"{name}/")}
            chunks = {
                key.removesuffix(anchor)
                for key in own
                if key.endswith(anchor) and not any(key.endswith(suffix) for suffix in longer)
            }
            whole = {chunk + suffix for chunk in chunks for suffix in suffixes}
            assert whole <= own
            # Orphans are parts that have outlived their anchor, and nothing else.
            orphans = own - whole
            assert self.keeps_orphans or not orphans
            assert all(any(key.endswith(suffix) for suffix in longer) for key in orphans)
            stored -= own
        assert not stored

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class ArraysInSession(Arrays):
    """Does the same to arrays in a session, and to NumPy's."""

    # No chunk of Icechunk is empty, and its chunks are in a folder `c`.
    smallest = 1
    encodings = (("default", "/"),)

    def __init__(self) -> None:
        super().__init__()
        self.repository = self.new_repository()
        self.session = self.repository.writable_session("main")
        self.store = self.new_store()
        zarr.create_group(self.store)

    def new_repository(self) -> icechunk.Repository:
        """An empty repository for one example."""
        return icechunk.Repository.create(icechunk.in_memory_storage())

    def new_store(self) -> ps.PartsStore:
        return ps.PartsStore.from_session(self.session)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_the_document_of_an_array(self, data: st.DataObject) -> None:
        name = self.draw_name(data)
        self.store.delete_sync(f"{name}/zarr.json")
        self.forget(name)

    @precondition(lambda self: any(array.ndim for array in self.model.values()))
    @rule(data=st.data())
    def delete_the_folder_of_all_chunks(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, array in self.model.items() if array.ndim)))
        sync(self.store.delete_dir(f"{name}/c"))
        self.model[name][...] = 0

    @precondition(lambda self: self.session.has_uncommitted_changes)
    @rule()
    def commit(self) -> None:
        self.session.commit("changes")
        self.check_all()
        self.session = self.repository.writable_session("main")
        self.store = self.new_store()

    @rule(data=st.data(), seed=st.integers(0, 9))
    def discard(self, data: st.DataObject, seed: int) -> None:
        """Commit, change something, and take it back."""
        if self.session.has_uncommitted_changes:
            self.commit()
        model = {name: array.copy() for name, array in self.model.items()}
        attributes = {name: dict(each) for name, each in self.attributes.items()}
        steps = dict(self.steps)
        if self.model:
            self.write_all(data, "batched", seed)
            self.delete_an_array(data)
        self.session.discard_changes()
        self.model, self.attributes, self.steps = model, attributes, steps

    def check_objects(self) -> None:
        require_tidy(self.store, set(self.model))

    def teardown(self) -> None:
        super().teardown()
        assert self.store.verify(checksums=True).is_clean


def require_tidy(store: ps.PartsStore, arrays: set[str]) -> None:
    """Check that the store shows no nodes of parts, and that every node of parts has an array."""
    stored = sync(_keys(store.session.store.list()))
    for key in stored:
        if "__parts__" in key:
            assert key.partition("/__parts__/")[0] in arrays
    chunks = {key for key in stored if "__parts__" not in key}
    assert set(sync(_keys(store.list()))) == chunks
    for path in ["", "group", *arrays, *(f"{name}/c" for name in arrays)]:
        shown = sync(_keys(store.list_prefix(path)))
        assert shown == list(dict.fromkeys(shown))
        assert set(shown) == {key for key in chunks if not path or key.startswith(f"{path}/")}
        names = sync(_keys(store.list_dir(path)))
        assert "__parts__" not in names
    root = zarr.open_group(store, mode="r")
    members = dict(root.members(max_depth=None))
    assert {name for name, member in members.items() if isinstance(member, zarr.Array)} == arrays
    assert not [name for name in members if "__parts__" in name]
    report = store.verify()
    assert report.is_clean, str(report)


async def _keys(listing: Any) -> list[str]:
    return [key async for key in listing]
