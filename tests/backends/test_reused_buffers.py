"""A value that was written does not change if the caller changes its buffer afterwards."""

import asyncio
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import cpu

import parts_store as ps

COUNT = 3
# As many bytes as Icechunk can store inline, and more than that.
INLINE, LARGE = 65_532, 65_540
PLACES = ["memory", "disk", "session", "session in memory"]
PARTS = [None, ["", ps.Part(".tail", size=4)]]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return an obstore store or an Icechunk session."""
    if request.param in ("memory", "disk"):
        return MemoryStore() if request.param == "memory" else LocalStore(tmp_path)
    in_memory = request.param == "session in memory"
    storage = icechunk.in_memory_storage() if in_memory else icechunk.local_filesystem_storage(str(tmp_path))
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=2**16 - 1)
    return icechunk.Repository.create(storage, config).writable_session("main")


def create(place: Any, parts: Any, nbytes: int) -> Any:
    """Create an array of uncompressed chunks; return it as the store opens it again, with the configured pipeline."""
    is_session = isinstance(place, icechunk.Session)
    store = ps.PartsStore.from_session(place) if is_session else ps.PartsStore(place)
    shape: dict[str, Any] = {
        "shape": (COUNT * nbytes // 4,),
        "chunks": (nbytes // 4,),
        "dtype": "i4",
        "compressors": None,
    }
    if parts is None:
        zarr.create_array(store, name="a", **shape)
    else:
        ps.create_array(store, "a", parts=parts, **shape)
    return zarr.open_array(store, path="a")


@pytest.mark.parametrize("parts", PARTS, ids=["no parts", "parts"])
@pytest.mark.parametrize("nbytes", [INLINE, LARGE])
@pytest.mark.usefixtures("pipeline")
def test_written_chunks_do_not_follow_the_array_of_the_caller(place: Any, parts: Any, nbytes: int) -> None:
    array = create(place, parts, nbytes)
    given = np.empty(nbytes // 4, "i4")
    for number in range(COUNT):
        given[:] = number + 1
        array[number * len(given) : (number + 1) * len(given)] = given
    given[:] = -1
    expected = np.repeat(np.arange(1, COUNT + 1), len(given))
    np.testing.assert_array_equal(array[...], expected)
    if isinstance(place, icechunk.Session):
        place.commit("written")
        np.testing.assert_array_equal(array[...], expected)


@pytest.mark.parametrize("parts", PARTS, ids=["no parts", "parts"])
@pytest.mark.parametrize("method", ["set", "set_sync", "set_many_sync", "set_if_not_exists"])
def test_set_values_do_not_follow_the_buffer_of_the_caller(place: Any, parts: Any, method: str) -> None:
    store: ps.PartsStore = create(place, parts, 64).store
    given = np.full(64, 1, "B")
    buffer = cpu.Buffer.from_array_like(given)
    match method:
        case "set":
            asyncio.run(store.set("a/c/0", buffer))
        case "set_if_not_exists":
            asyncio.run(store.set_if_not_exists("a/c/0", buffer))
        case "set_sync":
            store.set_sync("a/c/0", buffer)
        case _:
            store.set_many_sync([("a/c/0", buffer)])
    given[:] = 2
    found = store.get_sync("a/c/0")
    assert found is not None
    assert found.to_bytes() == bytes([1]) * 64
