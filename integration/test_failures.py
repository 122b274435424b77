"""What a real server says of missing buckets and wrong credentials, in errors of ours."""

import traceback
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from integration.conftest import Bucket
from integration.server import Server
from parts_store.errors import StorageError

HASTY: Final[dict[str, Any]] = {"retry_config": {"max_retries": 0}}
VALUE: Final = cpu.Buffer.from_bytes(bytes(64))
OPERATIONS: Final[dict[str, Callable[[ps.PartsStore], object]]] = {
    "get": lambda store: sync(store.get("a/c/0", default_buffer_prototype())),
    "get_sync": lambda store: store.get_sync("a/c/0"),
    "set_sync": lambda store: store.set_sync("a/c/0", VALUE),
    "set_if_not_exists": lambda store: sync(store.set_if_not_exists("a/c/0", VALUE)),
    "delete_sync": lambda store: store.delete_sync("a/c/0"),
    "delete_dir": lambda store: sync(store.delete_dir("a")),
    "verify": lambda store: store.verify(),
    "open": lambda store: zarr.open_array(store, path="a", mode="r"),
    "create": lambda store: ps.create_array(
        store, "b", shape=(8,), chunks=(8,), dtype="uint8", parts=["", ps.Part(".x", size=2)]
    ),
}


def open_store(
    server: Server, bucket: str, key: str | None = None, secret: str | None = None, **options: Any
) -> ps.PartsStore:
    return ps.PartsStore.from_url(
        f"s3://{bucket}",
        endpoint=server.endpoint,
        access_key_id=key or server.access_key,
        secret_access_key=secret or server.secret_key,
        region="us-east-1",
        **(options or HASTY),
    )


def require_failure(store: ps.PartsStore, operation: str, code: str, *secrets: str) -> None:
    with pytest.raises(StorageError) as caught:
        OPERATIONS[operation](store)
    told = "".join(traceback.format_exception(caught.value))
    assert caught.value.code == code
    assert "Debug source" not in told
    assert not any(secret in told for secret in secrets)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_missing_bucket_is_named_by_its_error_code(server: Server, operation: str) -> None:
    require_failure(open_store(server, "no-such-bucket"), operation, "NoSuchBucket", server.secret_key)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_wrong_credentials_are_named_by_their_error_code(bucket: Bucket, operation: str) -> None:
    server = bucket.server
    unknown = open_store(server, bucket.name, key="unknown-key")
    require_failure(unknown, operation, "InvalidAccessKeyId", "unknown-key", server.secret_key)
    wrong = open_store(server, bucket.name, secret="not-the-secret-of-this-user")
    require_failure(wrong, operation, "SignatureDoesNotMatch", "not-the-secret-of-this-user")


def test_a_bucket_that_is_removed_gives_no_fill_values(bucket: Bucket) -> None:
    # With time for the requests that succeed, also on a busy machine.
    store = open_store(bucket.server, bucket.name, client_options={"allow_http": True})
    parts: list[ps.Part | str] = ["", ps.Part(".x", size=2)]
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (8,), "dtype": "uint8", "compressors": None}
    arrays = [
        ps.create_array(store, "a", parts=parts, **arguments),
        zarr.create_array(store, name="p", **arguments),
    ]
    for array in arrays:
        array[...] = np.arange(1, 9)
    for key in bucket.list_keys():
        bucket.client.remove_object(bucket.name, key)
    bucket.client.remove_bucket(bucket.name)
    try:
        for array in arrays:
            with pytest.raises(StorageError, match="NoSuchBucket"):
                array[...]
    finally:
        bucket.client.make_bucket(bucket.name)
