"""The server of the tests: chosen as documented, and gone when the tests are."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.server import MINIO_RELEASE, Binary, Compose, NoServerError, Server, Source, choose, prepare

ROOT = Path(__file__).parent.parent
GIVEN = {
    "PARTS_STORE_S3_ENDPOINT": "http://127.0.0.1:9000",
    "PARTS_STORE_S3_ACCESS_KEY": "user",
    "PARTS_STORE_S3_SECRET_KEY": "secret",
}


@pytest.mark.parametrize("has_go", [True, False])
@pytest.mark.parametrize("has_docker", [True, False])
@pytest.mark.parametrize("is_built", [True, False])
def test_an_endpoint_wins_over_a_build_and_a_build_over_docker(
    tmp_path: Path, *, has_go: bool, has_docker: bool, is_built: bool
) -> None:
    binary = tmp_path / f"minio-{MINIO_RELEASE}"
    # A file that is empty or cannot be run is what an accident left, not a build.
    binary.write_text("a program" if is_built else "")
    binary.chmod(0o755)

    def chosen(environ: dict[str, str]) -> Source | None:
        try:
            return choose(environ, cache=tmp_path, has_go=has_go, docker_runs=lambda: has_docker)
        except NoServerError:
            return None

    assert chosen(GIVEN) == Server("http://127.0.0.1:9000", "user", "secret")
    expected = Binary(binary) if is_built or has_go else Compose() if has_docker else None
    assert chosen({}) == expected


def test_an_endpoint_without_credentials_is_refused_by_name(tmp_path: Path) -> None:
    environ = {"PARTS_STORE_S3_ENDPOINT": "http://127.0.0.1:9000", "PARTS_STORE_S3_ACCESS_KEY": "user"}
    with pytest.raises(NoServerError, match="PARTS_STORE_S3_SECRET_KEY must be set too"):
        choose(environ, cache=tmp_path, has_go=True, docker_runs=lambda: True)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://", "ftp://127.0.0.1", "http://127.0.0.1:9000/bucket"])
def test_an_endpoint_that_is_no_address_is_refused_by_name(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(NoServerError, match=re.escape(repr(endpoint))):
        choose({**GIVEN, "PARTS_STORE_S3_ENDPOINT": endpoint}, cache=tmp_path, has_go=True, docker_runs=lambda: True)


def test_endpoint_without_a_server_is_one_sentence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NoServerError, match=f"nothing answers at PARTS_STORE_S3_ENDPOINT, {endpoint}"):
            prepare(Server(endpoint, "user", "secret"))


@pytest.mark.parametrize("command", ["prepare", "serve"])
def test_missing_go_docker_and_endpoint_is_one_sentence(tmp_path: Path, command: str) -> None:
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    failed = subprocess.run(
        [sys.executable, ROOT / "integration/server.py", command],
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert re.fullmatch(r"the integration tests need an S3 server: .*, or set PARTS_STORE_S3_ENDPOINT\n", failed.stderr)


WITH_SERVER = """
import signal, sys, time
from integration.server import supervised
# Tests that run in the background ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
with supervised() as server:
    try:
        print(server.endpoint, flush=True)
        time.sleep(600)
    finally:
        print("cleans up", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """Start a process with a server in a new process group, like `make test` in a terminal."""
    if "PARTS_STORE_S3_ENDPOINT" in os.environ:
        pytest.skip("the server at PARTS_STORE_S3_ENDPOINT is not ours to stop")
    command = [sys.executable, "-c", WITH_SERVER]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def address_from(parent: subprocess.Popen[str]) -> tuple[str, int]:
    assert parent.stdout is not None
    host, port = parent.stdout.readline().strip().removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    assert _listens(host, int(port))
    return host, int(port)


def assert_closes(host: str, port: int) -> None:
    deadline = time.monotonic() + 300
    while _listens(host, port):
        assert time.monotonic() < deadline, "MinIO outlives the tests"
        time.sleep(0.1)


def test_server_ends_when_its_parent_is_killed(
    parent: subprocess.Popen[str],
) -> None:
    host, port = address_from(parent)
    parent.kill()
    assert_closes(host, port)


def test_server_survives_an_interrupt_until_cleanup_ends(parent: subprocess.Popen[str]) -> None:
    host, port = address_from(parent)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.stdout is not None
    assert parent.stdin is not None
    assert parent.stdout.readline() == "cleans up\n"
    assert _listens(host, port)
    parent.stdin.close()
    assert_closes(host, port)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=300).close()
    except ConnectionRefusedError:
        return False
    return True


def test_compose_runs_the_release_that_go_builds() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    images = re.findall(r"image: (\S+)", compose)
    assert images == [f"quay.io/minio/minio:{MINIO_RELEASE}"] * 2
