"""Places to copy from and to, filled with arrays of every kind."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import obstore
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps

TWO = [ps.Part(""), ps.Part(".tail", size=2)]
INDEXED = [ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
TWO_VALUES: NDArray[Any] = np.arange(1, 17, dtype="uint16")
SHARD_VALUES: NDArray[Any] = np.random.default_rng(0).integers(1, 250, (8, 8)).astype("uint8")
PLAIN_VALUES: NDArray[Any] = np.linspace(0, 1, 6)
FILL = 7


@dataclass
class Place:
    """A store, and what is really there, seen without it."""

    store: ps.PartsStore
    raw: Callable[[], dict[str, bytes]]
    session: Any = None
    repository: Any = None


def objects_in(objects: Any) -> dict[str, bytes]:
    keys = sorted(each["path"] for each in obstore.list(objects).collect())
    return {key: bytes(obstore.get(objects, key).bytes()) for key in keys}


def chunks_in(session: Any) -> dict[str, bytes]:
    """Return everything that Icechunk lists in a session, nodes of parts included."""

    async def collect() -> dict[str, bytes]:
        store = session.store
        keys = [key async for key in store.list()]
        found = {key: await store.get(key, default_buffer_prototype()) for key in sorted(keys)}
        return {key: value.to_bytes() for key, value in found.items() if value is not None}

    return sync(collect())


def new_place(kind: str, folder: Path, cls: type[ps.PartsStore] = ps.PartsStore, **options: Any) -> Place:
    if kind in ("session", "whole", "split"):
        repository = icechunk.Repository.create(icechunk.in_memory_storage())
        session = repository.writable_session("main")
        return Place(cls.from_session(session, **options), lambda: chunks_in(session), session, repository)
    objects: Any = MemoryStore()
    if kind == "disk":
        objects = LocalStore(folder / f"objects-{len(list(folder.iterdir()))}", mkdir=True, automatic_cleanup=True)
    return Place(cls(objects, **options), lambda: objects_in(objects))


def fill(store: ps.PartsStore, *, split: bool = False, below: str = "") -> None:
    """Nested groups, arrays with parts, in shards and not, one of them without some chunks, one without dimensions."""
    root = zarr.create_group(store, path=below, attributes={"of": "the root"})
    root.create_group("deep", attributes={"depth": 1}).create_group("er", attributes={"depth": [2, None]})
    at = f"{below}/" if below else ""
    arguments: dict[str, Any] = {"split": True} if split else {}
    two = ps.create_array(
        store,
        f"{at}two",
        parts=TWO,
        shape=(16,),
        chunks=(4,),
        dtype="uint16",
        compressors=None,
        fill_value=FILL,
        attributes={"unit": "m", "weird": {"nested": [1.5, "ü"]}},
        **arguments,
    )
    two[:4], two[8:] = TWO_VALUES[:4], TWO_VALUES[8:]
    shards = ps.create_array(
        store,
        f"{at}deep/er/shards",
        parts=INDEXED,
        shape=(8, 8),
        chunks=(2, 2),
        shards=(4, 4),
        dtype="uint8",
        **arguments,
    )
    shards[...] = SHARD_VALUES
    scalar = ps.create_array(store, f"{at}deep/scalar", parts=TWO, shape=(), dtype="int32", **arguments)
    scalar[...] = -5
    ps.create_array(store, f"{at}empty", parts=TWO, shape=(4,), chunks=(2,), dtype="uint8", **arguments)
    plain = zarr.create_array(
        store, name=f"{at}deep/plain", shape=(6,), chunks=(4,), dtype="float64", fill_value=np.nan
    )
    plain[...] = PLAIN_VALUES


# What `fill` writes: the chunks by their keys, and the nodes.
CHUNKS = [
    *("deep/er/shards/c/0/0", "deep/er/shards/c/0/1", "deep/er/shards/c/1/0", "deep/er/shards/c/1/1"),
    *("deep/plain/c/0", "deep/plain/c/1", "deep/scalar/c", "two/c/0", "two/c/2", "two/c/3"),
]
ARRAYS = ("two", "deep/er/shards", "deep/scalar", "empty", "deep/plain")
PARTS = {"two": TWO, "deep/er/shards": INDEXED, "deep/scalar": TWO, "empty": TWO}


def require_filled(store: ps.PartsStore, below: str = "") -> None:
    """Check that zarr reads what `fill` wrote."""
    root = zarr.open_group(store, path=below, mode="r")
    two: Any = root["two"]
    assert two[...].tolist() == [1, 2, 3, 4, FILL, FILL, FILL, FILL, *range(9, 17)]
    assert two.fill_value == FILL
    assert dict(two.attrs) == {"unit": "m", "weird": {"nested": [1.5, "ü"]}}
    shards: Any = root["deep/er/shards"]
    assert np.array_equal(shards[...], SHARD_VALUES)
    assert np.array_equal(shards[1:3, 5:6], SHARD_VALUES[1:3, 5:6])
    assert (shards.chunks, shards.shards) == ((2, 2), (4, 4))
    scalar: Any = root["deep/scalar"]
    assert scalar[...] == -5
    plain: Any = root["deep/plain"]
    assert np.array_equal(plain[...], PLAIN_VALUES)
    assert np.isnan(plain.fill_value)
    empty: Any = root["empty"]
    assert not empty[...].any()
    assert dict(root.attrs) == {"of": "the root"}
    assert dict(root["deep"].attrs) == {"depth": 1}
    assert dict(root["deep/er"].attrs) == {"depth": [2, None]}


def whole_chunks(objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return the chunks, joined from the objects of their parts."""
    chunks = {}
    for key in CHUNKS:
        suffixes = next(([each.key_suffix for each in PARTS[path]] for path in PARTS if key.startswith(path)), [""])
        chunks[key] = b"".join(objects[key + suffix] for suffix in suffixes)
    return chunks


def documents_of(objects: dict[str, bytes]) -> list[str]:
    return [key for key in objects if key.endswith("zarr.json")]


def put(store: ps.PartsStore, key: str, data: bytes) -> None:
    obstore.put(store.store, key, data)


def of_v2(store: ps.PartsStore) -> None:
    zarr.create_array(store, name="old", shape=(4,), chunks=(2,), dtype="uint8", zarr_format=2)[...] = 1
