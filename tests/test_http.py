"""Arrays in parts read over plain HTTP: from a web server that knows ranges, and from one that does not."""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import HTTPStore
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ConcurrentWriteError, IncompleteChunkError, StoreConfigError
from tests.s3_server import BUCKET, Call, S3Server, Stored

VALUES = np.arange(1, 32 * 32 + 1, dtype="uint16").reshape(32, 32)
PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's own web server, which knows no ranges and no ETags."""

    def log_message(self, *_: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """A web server that accepts many connections at once; with the default of 5, clients wait for a second."""

    request_queue_size = 128


@contextmanager
def without_ranges(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def with_ranges(folder: Path) -> Iterator[str]:
    def load(call: Call) -> None:
        objects, path = server.buckets[BUCKET], folder / call.key
        if not path.is_file():
            objects.pop(call.key, None)
            return
        data, modified = path.read_bytes(), path.stat().st_mtime_ns
        time = datetime.fromtimestamp(modified / 1e9, UTC)
        objects[call.key] = Stored(data, f'"{modified}-{len(data)}"', {}, time)

    with S3Server() as server:
        server.before = load
        yield f"{server.endpoint}/{BUCKET}"


@pytest.fixture(params=[with_ranges, without_ranges])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a web server that shows a folder."""
    with request.param(tmp_path) as shown:
        yield shown


def write(folder: Path, values: Any = VALUES) -> ps.PartsStore:
    store = ps.PartsStore.from_url(folder)
    array = ps.create_array(
        store, "a", parts=PARTS, shape=(32, 32), chunks=(8, 8), shards=(16, 16), dtype="uint16", overwrite=True
    )
    array[...] = values
    return store


def over_http(address: str) -> ps.PartsStore:
    return ps.PartsStore(HTTPStore(address, client_options={"allow_http": True}, retry_config={"max_retries": 0}))


@pytest.mark.sampled(3)
def test_an_array_in_parts_is_read_over_http(address: str, tmp_path: Path, pipeline: str) -> None:
    write(tmp_path)
    array = zarr.open_array(over_http(address), path="a", mode="r")
    np.testing.assert_array_equal(array[...], VALUES)
    np.testing.assert_array_equal(array[3:21, 5:30], VALUES[3:21, 5:30])
    assert array[31, 31] == VALUES[31, 31]


@pytest.mark.sampled(2)
def test_a_missing_part_is_an_error_over_http_too(address: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "a/c/0/0.index").unlink()
    array = zarr.open_array(over_http(address), path="a", mode="r")
    for selection in (np.s_[:16, :16], np.s_[2, 2]):
        with pytest.raises(IncompleteChunkError):
            array[selection]


def test_data_of_another_write_than_the_index_is_refused_over_http_too(address: str, tmp_path: Path) -> None:
    store = write(tmp_path)
    reader = over_http(address)
    array = zarr.open_array(reader, path="a", mode="r")
    index = reader._operations.catalog.arrays()["a"].shard_index
    assert index is not None
    assert reader.get_sync("a/c/0/0", byte_range=index.request) is not None
    # Another size, so that a server which knows no ETags, and seconds at best, shows it too.
    zarr.open_array(store, path="a")[:16, :16] = np.random.default_rng(0).integers(1, 2**16, (16, 16))
    prototype = default_buffer_prototype()
    with pytest.raises(ConcurrentWriteError):
        reader.get_ranges_sync("a/c/0/0", [RangeByteRequest(70, 90)], prototype=prototype)
    np.testing.assert_array_equal(array[16:, 16:], VALUES[16:, 16:])


def test_what_http_cannot_do_is_not_promised_and_refused_by_name(address: str, tmp_path: Path) -> None:
    write(tmp_path)
    store = over_http(address)
    assert store.read_only
    assert not any((store.supports_writes, store.supports_deletes, store.supports_listing))
    with pytest.raises(ValueError, match="read-only"):
        store.delete_sync("a/c/0/0")
    with pytest.raises(StoreConfigError, match="one that can only be read"):
        store.with_read_only(read_only=False)
    copied = ps.create_array(
        ps.PartsStore.from_url("memory://"),
        "a",
        parts=[""],
        data=zarr.open_array(store, path="a", mode="r"),
        overwrite=True,
    )
    np.testing.assert_array_equal(copied[...], VALUES)

    async def listed() -> list[str]:
        return [key async for key in store.list()]

    with pytest.raises(StoreConfigError, match="expected a store that can be listed"):
        sync(listed())
