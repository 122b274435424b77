"""URLs, options, secrets, other processes, and users with read access only."""

import pickle
import secrets
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import parts_store as ps
from integration.conftest import Bucket
from integration.server import Server
from integration.store.arrays import VALUES, create_chunks, create_shards, stored
from parts_store import ConcatParts, Part, PartsStore
from parts_store.errors import StorageError, StoreConfigError
from tests.conftest import PIPELINES


def options_for(user: Server) -> dict[str, Any]:
    """Return the options of obstore for the server."""
    return {
        **user.options,
        "virtual_hosted_style_request": False,
        "client_options": {"allow_http": True},
    }


def test_a_url_opens_the_same_store_as_obstore(bucket: Bucket) -> None:
    store = PartsStore.from_url(f"s3://{bucket.name}/data", **options_for(bucket.server))
    create_shards(store)
    assert {key.partition("/")[0] for key in bucket.list_keys()} == {"data"}
    np.testing.assert_array_equal(zarr.open_array(PartsStore(bucket.store("data")), path="shards")[...], VALUES)
    readable = PartsStore.from_url(f"s3://{bucket.name}/data", read_only=True, **options_for(bucket.server))
    assert readable.read_only
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_array(readable, path="shards", mode="r")[...] = 1


def test_parts_may_be_given_with_the_url(bucket: Bucket) -> None:
    parts = ConcatParts(["", Part(".tail", size=4)])
    store = PartsStore.from_url(f"s3://{bucket.name}", parts={"*": parts}, **options_for(bucket.server))
    zarr.create_array(store, name="a", shape=(8,), chunks=(8,), dtype="u1")[...] = np.arange(1, 9)
    assert {"a/c/0", "a/c/0.tail"} < bucket.list_keys()


def spoken(error: BaseException) -> str:
    """Return all texts of an error and of its causes."""
    return f"{error} {error!r} {error.args!r} {''.join(traceback.format_exception(error))}"


@pytest.mark.parametrize("option", ["no_such_option", "secret_acces_key", "mkdir", "prefixes"])
def test_unknown_option_is_refused_by_name_without_its_value(server: Server, option: str) -> None:
    value = secrets.token_hex(8)
    with pytest.raises(StoreConfigError, match=option) as caught:
        PartsStore.from_url("s3://bucket", **(options_for(server) | {option: value}))
    assert server.secret_key not in spoken(caught.value)
    assert value not in spoken(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/folder", "s4://bucket", "://bucket", "s3://"])
def test_an_unknown_scheme_is_refused(server: Server, url: str) -> None:
    with pytest.raises(StoreConfigError) as caught:
        PartsStore.from_url(url, **options_for(server))
    assert server.secret_key not in spoken(caught.value)


def test_password_in_a_url_is_in_no_error_message(server: Server) -> None:
    with pytest.raises(StoreConfigError) as caught:
        PartsStore.from_url(f"ftp://user:{server.secret_key}@host/folder")
    assert server.secret_key not in spoken(caught.value)
    store = PartsStore.from_url(f"https://user:{server.secret_key}@host.invalid/folder")
    for shown in (repr(store), str(store), store._repr_html_()):
        assert server.secret_key not in shown


def test_a_store_shows_no_secret(bucket: Bucket) -> None:
    url, options = f"s3://{bucket.name}/data", options_for(bucket.server)
    for store in (PartsStore.from_url(url, **options), PartsStore(bucket.store())):
        array = create_shards(store)
        seen = (
            store,
            array,
            store.stats,
            store.explain("shards", np.s_[:5, :5]),
            array.info,
            store.with_read_only(True),
        )
        for shown in (*map(repr, seen), *map(str, seen), store._repr_html_(), f"{store}"):
            assert bucket.server.secret_key not in shown
        assert bucket.name in repr(store)


def test_the_errors_of_a_server_show_no_secret(bucket: Bucket, reader: Server) -> None:
    create_chunks(PartsStore(bucket.store()))
    elsewhere = Server("http://127.0.0.1:9", bucket.server.access_key, bucket.server.secret_key)
    unknown = Server(bucket.server.endpoint, bucket.server.access_key, "not-the-secret-of-that-user")
    hasty: dict[str, Any] = {"retry_config": {"max_retries": 0}}
    for user in (elsewhere, unknown):
        store = PartsStore.from_url(f"s3://{bucket.name}", **(options_for(user) | hasty))
        with pytest.raises(StorageError) as caught:
            store.get_sync("chunks/c/0/0")
        assert user.secret_key not in spoken(caught.value)
    with pytest.raises(StorageError) as caught:
        PartsStore(bucket.store(user=reader)).set_sync("chunks/c/0/0", cpu.Buffer.from_bytes(bytes(64 * 32)))
    assert reader.secret_key not in spoken(caught.value)


ELSEWHERE = """
import pickle, sys
import numpy as np
store, array = pickle.load(sys.stdin.buffer)
store.stats.reset()
values = array[...]
assert store.get_sync("chunks/c/0/0") is not None
calls = store.stats.calls
array[:32] = 7
import zarr
sys.stdout.buffer.write(pickle.dumps((values, calls, zarr.open(store)["shards"][:5, :5])))
"""


def test_a_store_and_its_arrays_work_in_another_process(bucket: Bucket) -> None:
    store = PartsStore(bucket.store("data"), parts={"new*": ["", Part(".tail", size=1)]})
    array = create_chunks(store)
    create_shards(store)
    command = [sys.executable, "-W", "error", "-c", ELSEWHERE]
    done = subprocess.run(command, input=pickle.dumps((store, array)), stdout=subprocess.PIPE, check=True)
    values, calls, corner = pickle.loads(done.stdout)
    np.testing.assert_array_equal(values, VALUES)
    np.testing.assert_array_equal(corner, VALUES[:5, :5])
    # What the store knew went with it: three parts of three chunks were read, and no document.
    assert {kind: count for kind, count in calls.items() if count} == {"get": 9}
    assert np.all(array[:32] == 7)
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    zarr.create_array(again, name="new", shape=(4,), chunks=(4,), dtype="u1")[...] = 1
    assert {"data/new/c/0", "data/new/c/0.tail"} < bucket.list_keys()


def test_read_only_user_reads_everything(bucket: Bucket, reader: Server) -> None:
    store = PartsStore(bucket.store())
    create_shards(store)
    create_chunks(store)
    before = stored(bucket)
    theirs = PartsStore(bucket.store(user=reader))
    root = zarr.open_group(theirs, mode="r")
    for path in PIPELINES.values():
        with zarr.config.set({"codec_pipeline.path": path}):
            for name in ("shards", "chunks"):
                array = zarr.open_array(theirs, path=name, mode="r")
                np.testing.assert_array_equal(array[...], VALUES)
                np.testing.assert_array_equal(array[3:40, 3:5], VALUES[3:40, 3:5])
    assert sorted(root) == ["chunks", "shards"]
    assert theirs.parts_of("chunks") == store.parts_of("chunks")
    assert sync(theirs.getsize("chunks/c/0/0")) == 32 * 64
    assert sync(theirs.exists("shards/c/1/1"))
    assert stored(bucket) == before


def _resize(store: PartsStore) -> None:
    zarr.open_array(store, path="chunks").resize((10, 10))


def _write(store: PartsStore) -> None:
    zarr.open_array(store, path="chunks")[...] = 1


def _write_inner_chunk(store: PartsStore) -> None:
    zarr.open_array(store, path="shards")[:3, :3] = 1


def _set_attribute(store: PartsStore) -> None:
    zarr.open_array(store, path="chunks").attrs["colour"] = "red"


def _create(store: PartsStore) -> None:
    ps.create_array(store, "new", parts=["", Part(".tail", size=1)], shape=(4,), dtype="u1")


def _overwrite(store: PartsStore) -> None:
    ps.create_array(store, "chunks", parts=[""], shape=(4,), dtype="u1", overwrite=True)


WRITES: dict[str, Callable[[PartsStore], Any]] = {
    "write": _write,
    "write a new chunk": lambda store: store.set_sync("chunks/c/9/9", cpu.Buffer.from_bytes(bytes(2048))),
    "write an inner chunk": _write_inner_chunk,
    "write if absent": lambda store: sync(store.set_if_not_exists("chunks/c/9/9", cpu.Buffer.from_bytes(bytes(2048)))),
    "attribute": _set_attribute,
    "resize": _resize,
    "create": _create,
    "overwrite": _overwrite,
    "delete": lambda store: sync(store.delete("chunks/c/0/0")),
    "delete at once": lambda store: store.delete_sync("chunks/c/0/0"),
    "delete a folder": lambda store: sync(store.delete_dir("chunks")),
    "clear": lambda store: sync(store.clear()),
}


@pytest.mark.parametrize("write", WRITES)
def test_read_only_user_changes_nothing(bucket: Bucket, reader: Server, write: str) -> None:
    store = PartsStore(bucket.store())
    create_shards(store)
    create_chunks(store)
    before = stored(bucket)
    theirs = PartsStore(bucket.store(user=reader))
    # S3 answers a DELETE of several objects with an error for each, which obstore calls a generic one.
    with pytest.raises(StorageError, match=r"Access ?Denied"):
        WRITES[write](theirs)
    assert stored(bucket) == before
    # What was not written is not believed to be.
    for name in ("shards", "chunks"):
        np.testing.assert_array_equal(zarr.open_array(theirs, path=name, mode="r")[...], VALUES)
