"""Whatever an object store answers, only errors of the package leave it, and none of them is an absent chunk."""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import zarr
from obstore.store import S3Store
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import PartsStoreError, StorageError
from tests.s3_server import BUCKET, Call, Reply, S3Server, refusal

# The store is opened while files are free, and obstore starts its threads when none is.
PROGRAM = """
import os, resource, sys
import parts_store as ps

store = ps.PartsStore.from_url(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for attempt in (store.verify, store.repair):
    try:
        attempt()
    except ps.errors.PartsStoreError as error:
        print(type(error).__name__, error)
    for file in files:
        os.close(file)
    files = []
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("resource") is None, reason="no limit of open files on this system")
def test_too_many_open_files_are_not_called_wrong_credentials(tmp_path: Path) -> None:
    ps.create_array(
        ps.PartsStore.from_url(tmp_path), "a", parts=["", ps.Part(".x", size=1)], shape=4, chunks=4, dtype="i4"
    )
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("StorageError")
        assert "too many files were open" in line
        assert "start the process again" in line
        assert "credentials" not in line


VALUES: Final = np.arange(64, dtype="uint8")
PARTS: Final = [ps.Part(".h", size=4), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
HASTY: Final[dict[str, Any]] = {"retry_config": {"max_retries": 0}}
PROTOTYPE: Final = default_buffer_prototype()
RANGES: Final = [RangeByteRequest(0, 3)]
VALUE: Final = cpu.Buffer.from_bytes(bytes(200))


def fill(store: ps.PartsStore) -> ps.PartsStore:
    """A group with an array in parts and one without."""
    zarr.create_group(store)
    arguments: dict[str, Any] = {"shape": (64,), "dtype": "uint8", "compressors": None}
    ps.create_array(store, "a", chunks=(8,), shards=(16,), parts=PARTS, **arguments)[...] = VALUES
    zarr.create_array(store, name="p", chunks=(16,), **arguments)[...] = VALUES
    return store


async def collect(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


def elsewhere() -> ps.PartsStore:
    return ps.PartsStore.from_url("memory://")


OPERATIONS: Final[Mapping[str, Callable[[ps.PartsStore], object]]] = {
    "get": lambda store: sync(store.get("a/c/0", PROTOTYPE)),
    "get_sync": lambda store: store.get_sync("a/c/0"),
    "get_sync, no parts": lambda store: store.get_sync("p/c/0"),
    "get_sync, document": lambda store: store.get_sync("a/zarr.json"),
    "get_ranges": lambda store: sync(collect(store.get_ranges("a/c/0", RANGES, prototype=PROTOTYPE))),
    "get_ranges_sync": lambda store: store.get_ranges_sync("a/c/0", RANGES, prototype=PROTOTYPE),
    "get_partial_values": lambda store: sync(store.get_partial_values(PROTOTYPE, [("a/c/0", None)])),
    "exists": lambda store: sync(store.exists("a/c/0")),
    "getsize": lambda store: sync(store.getsize("a/c/0")),
    "getsize_prefix": lambda store: sync(store.getsize_prefix("a")),
    "set": lambda store: sync(store.set("a/c/1", VALUE)),
    "set_sync": lambda store: store.set_sync("a/c/1", VALUE),
    "set_sync, no parts": lambda store: store.set_sync("p/c/0", VALUE),
    "set_if_not_exists": lambda store: sync(store.set_if_not_exists("a/c/9", VALUE)),
    "set_if_not_exists, no parts": lambda store: sync(store.set_if_not_exists("p/c/9", VALUE)),
    "delete": lambda store: sync(store.delete("a/c/0")),
    "delete_sync": lambda store: store.delete_sync("a/c/0"),
    "delete_sync, no parts": lambda store: store.delete_sync("p/c/0"),
    "delete_dir": lambda store: sync(store.delete_dir("a")),
    "clear": lambda store: sync(store.clear()),
    "list": lambda store: sync(collect(store.list())),
    "list_prefix": lambda store: sync(collect(store.list_prefix("a"))),
    "list_dir": lambda store: sync(collect(store.list_dir("a"))),
    "is_empty": lambda store: sync(store.is_empty("a")),
    "parts_of": lambda store: store.parts_of("a"),
    "explain": lambda store: store.explain("a", np.s_[:3]),
    "verify": lambda store: store.verify(),
    "repair": lambda store: store.repair(min_age=0),
    "manifest": lambda store: store.manifest("a"),
    "copy from": lambda store: ps.copy(store, elsewhere()),
    "copy to": lambda store: ps.copy(fill(elsewhere()), store, path="a", to="z"),
    "create_array": lambda store: ps.create_array(
        store, "n", shape=(8,), chunks=(8,), dtype="uint8", parts=["", ps.Part(".x", size=2)]
    ),
    "zarr.open_array": lambda store: zarr.open_array(store, path="a", mode="r"),
    "zarr.open_group": lambda store: zarr.open_group(store, mode="r"),
    "zarr.consolidate_metadata": zarr.consolidate_metadata,
}

# What a server says, and the code that the error has to have; HEAD has no body, and so only a status.
ANSWERS: Final[Mapping[str, tuple[Reply, tuple[str | None, ...]]]] = {
    "403": (refusal(403), ("AccessDenied", "403")),
    "403, unknown key": (refusal(403, "InvalidAccessKeyId"), ("InvalidAccessKeyId", "403")),
    "403, wrong secret": (refusal(403, "SignatureDoesNotMatch"), ("SignatureDoesNotMatch", "403")),
    "400": (Reply(400, b"no XML"), ("400",)),
    "401": (Reply(401), ("401",)),
    "500": (refusal(500), ("InternalError", "500")),
    "501": (refusal(501), ("NotImplemented", "501")),
    "503": (refusal(503), ("SlowDown", "503")),
    "301": (Reply(301), ("PermanentRedirect",)),
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        fill(ps.PartsStore(running.store()))
        yield running


@contextlib.contextmanager
def failing(server: S3Server, answer: Callable[[Call], Reply | None]) -> Iterator[None]:
    """Answer every request like that, and none of them changes an object."""
    before = dict(server.buckets[BUCKET])
    server.before = answer
    try:
        yield
    finally:
        server.before = None
        assert server.buckets[BUCKET] == before


def require_readable(error: BaseException, codes: tuple[str | None, ...]) -> None:
    """Check that this is an error of ours that tells a person in one line what happened."""
    assert isinstance(error, StorageError), repr(error)
    assert error.code in codes
    assert not isinstance(error, FileNotFoundError | KeyError | OSError)
    told = "".join(traceback.format_exception(error))
    for words in ("Debug source", "RetryError", "test-secret", "reqwest", "<Error>"):
        assert words not in told
    assert "\n" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def failures_of(open_store: Callable[[], ps.PartsStore]) -> Iterator[BaseException]:
    """What every operation raises, each of them on a new store."""
    for name, operation in OPERATIONS.items():
        store = open_store()
        try:
            operation(store)
        # Whatever it is, a panic of Rust included.
        except BaseException as error:
            yield error
        else:
            pytest.fail(f"{name} did not fail")


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_failure_of_a_server_is_a_storage_error(server: S3Server, answer: str) -> None:
    reply, codes = ANSWERS[answer]
    with failing(server, lambda _: reply):
        for error in failures_of(lambda: ps.PartsStore(server.store(**HASTY))):
            require_readable(error, codes)


def test_a_missing_bucket_is_never_an_absent_chunk(server: S3Server) -> None:
    for error in failures_of(lambda: ps.PartsStore(server.store(bucket="absent", **HASTY))):
        require_readable(error, ("NoSuchBucket",))
        assert "create the bucket" in str(error)


def test_deleted_bucket_gives_no_fill_values(server: S3Server) -> None:
    for name in ("a", "p"):
        array = zarr.open_array(ps.PartsStore(server.store(**HASTY)), path=name, mode="r")
        for selection in (np.s_[...], np.s_[:3], np.s_[5:40]):
            np.testing.assert_array_equal(array[selection], VALUES[selection])
            with failing(server, lambda _: refusal(404, "NoSuchBucket")), pytest.raises(StorageError):
                array[selection]
    with failing(server, lambda _: refusal(404)):
        # An object that is absent is absent as before.
        np.testing.assert_array_equal(array[...], np.zeros(64))


def test_a_server_that_is_not_there_is_a_storage_error() -> None:
    options = {"access_key_id": "test", "secret_access_key": "test-secret", "region": "us-east-1", **HASTY}
    for error in failures_of(lambda: ps.PartsStore.from_url("s3://bucket", endpoint="http://127.0.0.1:1", **options)):
        require_readable(error, ("Connect",))
        assert "connection refused" in str(error)
        assert "`endpoint`" in str(error)


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """A server that answers any request with these bytes, or not at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            held = []
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.recv(1 << 16)
                    held.append(connection)
                    if answer is not None:
                        connection.sendall(answer)
                        connection.close()
            for connection in held:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


TRUNCATED = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: x\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\nabc"
)
BROKEN: Final[Mapping[str, tuple[bytes | None, str]]] = {
    "no answer": (None, "client_options={'timeout': '120s'}"),
    "truncated body": (TRUNCATED, "response body error"),
    "no HTTP": (b"\x00\x01\x02 nonsense\r\n\r\n", ""),
    "nothing": (b"", ""),
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("operation", ["get", "get_sync", "get_ranges_sync", "verify", "list", "zarr.open_array"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_answer_is_a_storage_error(broken: str, operation: str) -> None:
    answer, advice = BROKEN[broken]
    with listening(answer) as endpoint:
        store = ps.PartsStore(
            S3Store(
                "bucket",
                endpoint=endpoint,
                access_key_id="test",
                secret_access_key="test-secret",
                region="us-east-1",
                client_options={"allow_http": True, "timeout": "200ms" if answer is None else "300s"},
                retry_config={"max_retries": 0},
            )
        )
        with pytest.raises(PartsStoreError) as caught:
            OPERATIONS[operation](store)
    require_readable(caught.value, ("Timeout", "Connect", None))
    assert advice in str(caught.value)


def test_a_repair_that_cannot_reach_the_store_does_not_report_success(server: S3Server) -> None:
    store = ps.PartsStore(server.store(**HASTY))
    server.put_object("a/c/7.h", b"abcd")
    with (
        failing(server, lambda call: refusal(403) if call.method in ("PUT", "POST", "DELETE") else None),
        pytest.raises(StorageError, match="AccessDenied"),
    ):
        store.repair(min_age=0)
    assert ps.PartsStore(server.store(**HASTY)).repair(min_age=0).is_clean


def test_an_error_of_a_local_disk_is_a_storage_error(tmp_path: Path) -> None:
    store = fill(ps.PartsStore.from_url(tmp_path / "store"))
    (tmp_path / "store" / "a" / "c" / "x").write_bytes(b"no folder")
    writes: list[Callable[[], object]] = [
        lambda: store.set_sync("a/c/x/1", VALUE),
        lambda: sync(store.set("a/c/x/1", VALUE)),
    ]
    for write in writes:
        with pytest.raises(StorageError) as caught:
            write()
        assert "Not a directory" in str(caught.value)
        assert "Debug" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_credentials_of_the_environment_reach_the_server(server: S3Server) -> None:
    given = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key-of-the-environment",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "parts_store.cli", "inspect", f"s3://{BUCKET}"]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, check=True)
    assert "a: uint8 (64,)" in done.stdout
    assert "Credential=key-of-the-environment/" in server.calls[-1].headers["authorization"]
