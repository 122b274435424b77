"""`parts-store` on a real S3 server: stores of objects, Icechunk repositories, and what can go wrong there."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import icechunk
import pytest

import parts_store as ps
from integration.conftest import Bucket
from integration.server import Server, free_port
from parts_store.store.repositories import open_branch, open_store
from tests.cli.places import (
    DAMAGED,
    INTERRUPTED,
    LEFTOVERS,
    OK,
    WRONG,
    Result,
    call,
    make_file,
    make_store,
    require_one_line,
    write_arrays,
)

icechunk.set_logs_filter("error")

# How each command is called on a URL; `{out}` is a folder for what it writes, `{good}` a store in good order.
COMMANDS = {
    "inspect": ["inspect", "{url}"],
    "inspect --sizes": ["inspect", "{url}", "--sizes"],
    "explain": ["explain", "{url}", "a", "0"],
    "verify": ["verify", "{url}"],
    "verify --branch": ["verify", "{url}", "--branch", "main"],
    "repair": ["repair", "{url}"],
    "copy": ["copy", "{url}", "{out}"],
    "copy to": ["copy", "{good}", "{url}"],
    "adopt": ["adopt", "{url}", "{out}"],
    "adopt into": ["adopt", "{file}", "{url}"],
    "check": ["check", "{url}"],
}


@pytest.fixture(autouse=True)
def credentials(server: Server) -> Iterator[None]:
    """Pass credentials as a user is told to: in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(server).items():
            patch.setenv(name, value)
        yield


def environment(server: Server) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def url(bucket: Bucket) -> str:
    """Return the URL of a store of objects in good order."""
    write_arrays(ps.PartsStore(bucket.store("data")))
    return f"s3://{bucket.name}/data"


@pytest.fixture
def repository(bucket: Bucket) -> str:
    """Return the URL of an Icechunk repository in good order."""
    place = f"s3://{bucket.name}/repository"
    store = open_branch(place, create=True)
    write_arrays(store)
    store.session.commit("arrays")
    return place


@pytest.mark.usefixtures("large_parts")
def test_every_command_works_on_objects(
    url: str, bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["verify", url], capsys).out == "2 arrays checked, 8 chunks, 20 objects\nno problems found\n"
    nodes = json.loads(call(["inspect", url, "--sizes", "--json"], capsys).out)["nodes"]
    assert [each["stored"]["objects"] for each in nodes if each["kind"] == "array"] == [8, 12, 2]
    said = json.loads(call(["explain", url, "a", "0", "--json"], capsys).out)
    assert {"a/c/0", "a/c/0.tail"} <= {each["key"] for each in said}
    assert call(["copy", url, tmp_path / "copy"], capsys).code == OK
    assert call(["copy", tmp_path / "copy", f"s3://{bucket.name}/again"], capsys).code == OK
    assert call(["verify", f"s3://{bucket.name}/again"], capsys).code == OK
    bucket.client.remove_object(bucket.name, "data/a/c/0")
    assert call(["verify", url], capsys).code == LEFTOVERS
    assert call(["repair", url], capsys).code == LEFTOVERS
    assert call(["repair", url, "--min-age", "0"], capsys).code == OK
    bucket.client.remove_object(bucket.name, "data/a/c/1.tail")
    result = call(["verify", url], capsys)
    assert result.code == DAMAGED
    expected = "incomplete: a/c/1: no such object: a/c/1.tail -> write the chunk again"
    assert result.out.splitlines()[1].startswith(expected)


def test_every_command_works_on_a_repository(
    repository: str, bucket: Bucket, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["verify", repository], capsys).out == "2 arrays checked, 8 chunks, 8 objects\nno problems found\n"
    said = json.loads(call(["inspect", repository, "--json"], capsys).out)
    assert said["store"] == "icechunk"
    assert [each["path"] for each in said["nodes"]] == ["", "a", "images", "images/img", "plain"]
    assert call(["inspect", repository, "--snapshot", said["snapshot"], "-q"], capsys).code == OK
    assert call(["explain", repository, "a", "0"], capsys).out == "GET  a/c/0 (data)\n"
    assert call(["repair", repository], capsys).code == OK
    assert call(["copy", repository, tmp_path / "copy"], capsys).code == OK
    assert call(["copy", tmp_path / "copy", repository, "--to", "again", "--message", "again"], capsys).code == OK
    assert open_store(repository).parts_of("again/a") == open_store(url).parts_of("a")
    assert call(["adopt", make_file(tmp_path / "t.nc"), repository, "--path", "adopted"], capsys).code == OK
    assert call(["verify", repository, "--prefix", "adopted"], capsys).code == OK


def test_options_do_the_same_as_the_environment(
    url: str, server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in environment(server):
        monkeypatch.delenv(name)
    options = [f"endpoint={server.endpoint}", f"access_key_id={server.access_key}", "region=us-east-1"]
    given = [word for each in [*options, f"secret_access_key={server.secret_key}"] for word in ("-o", each)]
    assert call(["verify", url, *given], capsys).code == OK


# --- what can go wrong -----------------------------------------------------------------------------------------------


def tried(command: str, url: str, options: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Result:
    good, file = make_store(tmp_path / "good"), make_file(tmp_path / "t.nc")
    words = [each.format(url=url, out=tmp_path / "out", good=good, file=file) for each in COMMANDS[command]]
    return call([*words, *options], capsys)


def require_failure(result: Result, secret: str) -> None:
    assert (result.code, result.out) == (WRONG, ""), result
    *traced, line = result.err.splitlines(keepends=True)
    require_one_line(line)
    assert "unexpected error" not in line
    assert secret not in "".join([*traced, line])


@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "debug"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bucket_that_is_not_there(
    command: str, debug: list[str], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_failure(tried(command, "s3://no-such-bucket/data", debug, tmp_path, capsys), server.secret_key)


@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "debug"])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials(
    command: str,
    debug: list[str],
    wrong: str,
    url: str,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(wrong, "wrong-value-of-this-test")
    result = tried(command, url, debug, tmp_path, capsys)
    require_failure(result, server.secret_key)
    assert wrong != "AWS_SECRET_ACCESS_KEY" or "wrong-value-of-this-test" not in result.err


@pytest.mark.parametrize("command", COMMANDS)
def test_no_network(
    command: str,
    bucket: Bucket,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    options = ["-o", 'retry_config={"max_retries": 0}']
    require_failure(tried(command, f"s3://{bucket.name}/data", options, tmp_path, capsys), server.secret_key)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in ("copy to", "adopt into", "check")])
def test_a_prefix_that_is_not_zarr(
    command: str, bucket: Bucket, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.store().put("data/text", b"text")
    for prefix in ("typo", "data"):
        (tmp_path / prefix).mkdir()
        require_failure(
            tried(command, f"s3://{bucket.name}/{prefix}", [], tmp_path / prefix, capsys), server.secret_key
        )


@pytest.mark.usefixtures("large_parts")
@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "explain", "copy"])
def test_an_array_that_is_damaged(
    command: str, url: str, bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.store().put("data/a/zarr.json", b"{")
    result = tried(command, url, [], tmp_path, capsys)
    if command == "copy":
        # The bytes of a document that zarr cannot read can be copied all the same.
        assert result.code in (OK, DAMAGED)
        return
    assert result.code == DAMAGED
    if command == "explain":
        require_one_line(result.err)
    else:
        assert result.err == ""


def test_read_only_user_cannot_repair(
    url: str,
    bucket: Bucket,
    reader: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket.client.remove_object(bucket.name, "data/a/c/0")
    for name, value in environment(reader).items():
        monkeypatch.setenv(name, value)
    assert call(["verify", url], capsys).code == LEFTOVERS
    result = call(["repair", url, "--min-age", "0"], capsys)
    assert result.code in (WRONG, LEFTOVERS)
    assert reader.secret_key not in result.err + result.out
    if result.code == WRONG:
        require_one_line(result.err)


@pytest.mark.parametrize("nth", [300, 5000])
@pytest.mark.parametrize("place", ["disk", "minio"])
def test_ctrl_c_in_bench_is_one_line_and_leaves_nothing(place: str, nth: int, bucket: Bucket, tmp_path: Path) -> None:
    def count_objects() -> int:
        return sum(each.is_file() for each in tmp_path.rglob("*")) if place == "disk" else len(bucket.list_keys())

    url = str(tmp_path) if place == "disk" else f"s3://{bucket.name}"
    # 4,096 chunks of an array wait in the event loop. A shell lets background jobs ignore SIGINT.
    restore = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-m", "parts_store.cli", "bench", url, "--side=2048", "--chunk=32", "--shard=0"]
    with subprocess.Popen([sys.executable, "-c", restore, *command], stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 300
        while count_objects() < nth and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (INTERRUPTED, "parts-store: interrupted\n")
    assert count_objects() == 0
