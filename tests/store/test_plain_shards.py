"""Shards without parts that any program replaces, deletes or creates again are never read as a mixture or as nothing.

The store keeps the index of a shard. The other programs are zarr with its own stores, and obstore. What is read is
compared with the values that were written last. If a shard is replaced during a read, the old or the new values are
read, all of one write, or the read raises `ConcurrentWriteError`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import obstore
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore
from zarr.storage import ObjectStore

import parts_store as ps
from parts_store.errors import ConcurrentWriteError
from parts_store.store import chunk_reads
from parts_store.transactions import journaled
from tests.conftest import PIPELINES
from tests.effort import examples
from tests.s3_server import Flaws, S3Server
from tests.store.interrupted import Watched

type Values = NDArray[np.uint16]

SHARD = 8
KINDS = ("memory", "disk", "aged disk", "S3", "unique ETags", "If-Match ignored on GET")
FLAWS = {
    "S3": Flaws(),
    "unique ETags": Flaws(has_unique_etags=True),
    "If-Match ignored on GET": Flaws(ignores_if_match_on_get=True),
}
# A time for each file that is written on the aged disk, all of them long ago.
TIMES = count(1_000_000_000)
RECENT = 1_500_000_000


@dataclass(frozen=True)
class Layout:
    """The shards of an array."""

    chunks: tuple[int, int]
    index_location: Literal["start", "end"]
    is_compressed: bool

    @property
    def arguments(self) -> dict[str, Any]:
        shards = {"shape": (SHARD, SHARD), "index_location": self.index_location}
        compressors = {} if self.is_compressed else {"compressors": None}
        return {"chunks": self.chunks, "shards": shards, "dtype": "uint16", **compressors}


@dataclass(frozen=True)
class Write:
    """A write of some or all values, by the store or by another program."""

    seed: int
    rows: slice
    columns: slice
    has_holes: bool
    is_own: bool

    def applied(self, values: Values) -> Values:
        changed = values.copy()
        drawn = np.random.default_rng(self.seed).integers(1, 2**10, values.shape).astype("uint16")
        if self.has_holes:
            drawn[:4, :] = 0
        # Inner chunks of different sizes, so that the indexes of two writes differ.
        drawn[self.seed % 8 :] = self.seed
        changed[self.rows, self.columns] = drawn[self.rows, self.columns]
        return changed


@dataclass(frozen=True)
class Read:
    """A read, with a pipeline; during which another program may write the array before the request of this number."""

    pipeline: str
    rows: slice
    columns: slice
    write: Write | None = None
    before_request: int = 0


@dataclass(frozen=True)
class Delete:
    """The deletion of a shard."""

    shard: int
    is_own: bool


@dataclass(frozen=True)
class Resize:
    """Another number of shards."""

    shards: int
    is_own: bool


@dataclass(frozen=True)
class Create:
    """The array is created again."""

    layout: Layout
    is_own: bool


def slices(most: int) -> st.SearchStrategy[slice]:
    bounds = st.tuples(st.integers(0, most - 1), st.integers(1, most))
    return bounds.map(lambda each: slice(each[0], min(sum(each), most)))


LAYOUTS = st.builds(
    Layout, st.sampled_from([(4, 4), (2, 8), (8, 2), (2, 2)]), st.sampled_from(["start", "end"]), st.booleans()
)
OUTSIDE = st.builds(Write, st.integers(1, 50), slices(SHARD), slices(2 * SHARD), st.booleans(), st.just(False))
WRITES = st.one_of(
    OUTSIDE,
    st.builds(Write, st.integers(1, 50), slices(SHARD), slices(2 * SHARD), st.booleans(), st.booleans()),
    st.builds(Write, st.integers(1, 50), st.just(slice(None)), st.just(slice(None)), st.booleans(), st.booleans()),
)
WAYS = st.sampled_from(sorted(PIPELINES))
READS = st.one_of(
    st.builds(Read, WAYS, slices(SHARD), slices(2 * SHARD)),
    st.builds(Read, WAYS, slices(SHARD), slices(SHARD), OUTSIDE, st.integers(1, 4)),
)
ACTIONS = st.lists(
    st.one_of(
        *(READS, READS, READS, WRITES),
        st.builds(Delete, st.integers(0, 1), st.booleans()),
        st.builds(Resize, st.integers(1, 3), st.booleans()),
        st.builds(Create, LAYOUTS, st.booleans()),
    ),
    min_size=4,
    max_size=24,
)


@dataclass(slots=True)
class Meddling(Watched):
    """A backend that calls a function before the request of a given number for a chunk."""

    meddle: Callable[[], None]
    number: int
    seen: int = 0

    def before(self, request: Any) -> None:
        if "/c/" in getattr(request, "key", ""):
            self.seen += 1
            if self.seen == self.number:
                self.meddle()


def objects_in(objects: Any, folder: str) -> dict[str, bytes]:
    keys = [each["path"] for batch in obstore.list(objects, prefix=folder) for each in batch]
    return {key: bytes(obstore.get(objects, key).bytes()) for key in keys}


@dataclass
class World:
    """An array, its values, the store under test, and the same objects for other programs."""

    objects: Any
    ours: ps.PartsStore
    # On the aged disk, the folder.
    folder: Path | None
    values: Values = field(default_factory=lambda: np.zeros((SHARD, 2 * SHARD), "uint16"))

    def store(self, *, is_own: bool) -> Any:
        return self.ours if is_own else ObjectStore(self.objects)

    def age(self) -> None:
        """Give a time of its own, long ago, to every file that does not have one."""
        for path in self.folder.rglob("*") if self.folder is not None else ():
            if path.is_file() and path.stat().st_mtime > RECENT:
                time = next(TIMES)
                os.utime(path, (time, time))

    def create(self, create: Create) -> None:
        self.values = np.zeros((SHARD, 2 * SHARD), "uint16")
        store = self.store(is_own=create.is_own)
        zarr.create_array(store, name="a", shape=self.values.shape, overwrite=True, **create.layout.arguments)

    def write(self, write: Write) -> None:
        self.values = write.applied(self.values)
        array: Any = zarr.open_array(self.store(is_own=write.is_own), path="a")
        array[write.rows, write.columns] = self.values[write.rows, write.columns]
        self.age()

    def delete(self, delete: Delete) -> None:
        key = f"a/c/0/{delete.shard}"
        if delete.is_own:
            self.ours.delete_sync(key)
        elif key in objects_in(self.objects, "a/c"):
            obstore.delete(self.objects, key)
        self.values[:, delete.shard * SHARD : (delete.shard + 1) * SHARD] = 0

    def resize(self, resize: Resize) -> None:
        shape = (SHARD, resize.shards * SHARD)
        array: Any = zarr.open_array(self.store(is_own=resize.is_own), path="a")
        array.resize(shape)
        before, self.values = self.values, np.zeros(shape, "uint16")
        kept = min(before.shape[1], shape[1])
        self.values[:, :kept] = before[:, :kept]

    def read(self, read: Read) -> None:
        array = self.opened(read.pipeline)
        region = (read.rows, read.columns)
        if read.write is None:
            np.testing.assert_array_equal(array[region], self.values[region])
            return
        before, after = self.values, read.write.applied(self.values)
        written = self.shards_of(after)
        backend = self.ours._backend

        def replace() -> None:
            self.values = after
            for key, data in written.items():
                obstore.put(self.objects, key, data)
            if gone := objects_in(self.objects, "a/c").keys() - written.keys():
                obstore.delete(self.objects, list(gone))
            self.age()

        meddling = Meddling(backend, replace, read.before_request)
        array.store._backend = meddling
        try:
            found = array[region]
        except ConcurrentWriteError:
            assert meddling.seen >= read.before_request
        else:
            assert any(np.array_equal(found, values[region]) for values in (before, self.values))
        finally:
            array.store._backend = backend

    def shards_of(self, values: Values) -> dict[str, bytes]:
        """Return the shards as another program writes them."""
        elsewhere = MemoryStore()
        obstore.put(elsewhere, "a/zarr.json", obstore.get(self.objects, "a/zarr.json").bytes())
        array: Any = zarr.open_array(ObjectStore(elsewhere), path="a")
        array[...] = values
        return objects_in(elsewhere, "a/c")

    def opened(self, pipeline: str) -> Any:
        with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
            return zarr.open_array(self.ours, path="a", mode="r")

    def do(self, action: Read | Write | Delete | Resize | Create) -> None:
        match action:
            case Read():
                self.read(action)
            case Write():
                self.write(action)
            case Delete():
                self.delete(action)
            case Resize():
                self.resize(action)
            case Create():
                self.create(action)


@contextmanager
def world(kind: str) -> Iterator[World]:
    with ExitStack() as stack:
        if kind in FLAWS:
            server = stack.enter_context(S3Server(FLAWS[kind]))
            yield World(server.store(prefix="data"), ps.PartsStore(server.store(prefix="data")), None)
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        objects = MemoryStore() if kind == "memory" else LocalStore(folder)
        yield World(objects, ps.PartsStore(objects), folder if kind == "aged disk" else None)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_small", [False, True])
def test_every_read_is_of_one_write(kind: str, monkeypatch: pytest.MonkeyPatch, *, is_small: bool) -> None:
    if not is_small:
        monkeypatch.setattr(chunk_reads, "_SMALL", 0)
    if kind == "aged disk":
        # No program can make a file old.
        monkeypatch.setattr(journaled, "_COARSEST_CLOCK_SECONDS", 0)

    @settings(max_examples=examples(20 if kind in FLAWS else 60))
    @given(LAYOUTS, ACTIONS)
    def check(layout: Layout, actions: list[Read | Write | Delete | Resize | Create]) -> None:
        with world(kind) as made:
            made.do(Create(layout, is_own=False))
            for action in actions:
                made.do(action)

    check()
