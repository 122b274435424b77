"""A real S3 server for the tests: the one given in the environment, or a MinIO of our own.

Decides where the server comes from; knows nothing of parts_store, and needs nothing but the standard library, so that
`make` can call it. In this order:

1. `PARTS_STORE_S3_ENDPOINT`, with `PARTS_STORE_S3_ACCESS_KEY` and `PARTS_STORE_S3_SECRET_KEY`;
2. MinIO built by Go, once, into the user's cache;
3. MinIO from `docker-compose.yml`, where there is a Docker engine and no Go.

A server that we start listens on a free port of 127.0.0.1, keeps its data in a temporary directory, and ends with the
process that asked for it, however that one ends.

    python integration/server.py prepare    # build or pull what is needed, start nothing
    python integration/server.py serve      # print the server's address as JSON, and serve until standard input closes
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import assert_never

MINIO = "github.com/minio/minio@v0.0.0-20250907161309-07c3a429bfed"
MINIO_RELEASE = "RELEASE.2025-09-07T16-13-09Z"
COMPOSE_FILE = Path(__file__).parent.parent / "docker-compose.yml"
START_SECONDS = 60


class NoServerError(Exception):
    """There is no S3 server, and no way to get one."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running S3 server, and the credentials of a user who may do everything there."""

    endpoint: str
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class Binary:
    """A MinIO program, to be built there first if it is missing."""

    path: Path


@dataclass(frozen=True, slots=True)
class Compose:
    """The MinIO of `docker-compose.yml`."""


type Source = Server | Binary | Compose


def choose(environ: Mapping[str, str], *, cache: Path, has_go: bool, docker_runs: Callable[[], bool]) -> Source:
    """Where the server comes from, or a `NoServerError` that says what is missing."""
    if endpoint := environ.get("PARTS_STORE_S3_ENDPOINT"):
        names = ("PARTS_STORE_S3_ACCESS_KEY", "PARTS_STORE_S3_SECRET_KEY")
        if missing := [name for name in names if not environ.get(name)]:
            raise NoServerError(f"PARTS_STORE_S3_ENDPOINT is set, and {' and '.join(missing)} must be set too")
        return Server(endpoint, environ[names[0]], environ[names[1]])
    binary = cache / f"minio-{MINIO_RELEASE}"
    if binary.exists() or has_go:
        return Binary(binary)
    if docker_runs():
        return Compose()
    raise NoServerError(
        "the integration tests need an S3 server: install Go (MinIO is then built once) or Docker, "
        "or set PARTS_STORE_S3_ENDPOINT"
    )


def choose_here() -> Source:
    """Where the server comes from on this machine."""
    environ = os.environ
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parts-store"
    return choose(environ, cache=cache, has_go=shutil.which("go") is not None, docker_runs=_docker_runs)


def _docker_runs() -> bool:
    """Whether a Docker engine answers and `docker compose` is there; the client alone is no use."""
    if shutil.which("docker") is None:
        return False
    questions = (["docker", "compose", "version"], ["docker", "info"])
    return all(subprocess.run(ask, capture_output=True, check=False).returncode == 0 for ask in questions)


def prepare(source: Source) -> None:
    """Build or pull what the source needs, so that starting it takes seconds."""
    match source:
        case Server():
            pass
        case Binary(path):
            if not path.exists():
                _build(path)
        case Compose():
            subprocess.run(["docker", "compose", "--file", COMPOSE_FILE, "pull", "--quiet", "minio"], check=True)
        case never:
            assert_never(never)


def _build(binary: Path) -> None:
    print(f"building MinIO {MINIO_RELEASE} (once, about five minutes) ...", file=sys.stderr, flush=True)
    binary.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and moved there, so that an interrupted build leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
        built = subprocess.run(["go", "install", MINIO], env={**os.environ, "GOBIN": folder}, check=False)
        if built.returncode != 0:
            raise NoServerError(f"Go could not build {MINIO}: its own words are above")
        (Path(folder) / "minio").replace(binary)


@contextmanager
def running(source: Source) -> Iterator[Server]:
    """The server, from when it answers until the block ends."""
    prepare(source)
    match source:
        case Server():
            yield source
        case Binary(path):
            with _run_binary(path) as server:
                yield server
        case Compose():
            with _run_compose() as server:
                yield server
        case never:
            assert_never(never)


@contextmanager
def _run_binary(binary: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="parts-store-minio-") as folder:
        server = Server(f"http://127.0.0.1:{_free_port()}", "parts-store", secrets.token_hex(16))
        environ = {
            **os.environ,
            "MINIO_ROOT_USER": server.access_key,
            "MINIO_ROOT_PASSWORD": server.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        command = [
            str(binary),
            "server",
            "--quiet",
            "--address",
            server.endpoint.removeprefix("http://"),
            f"{folder}/data",
        ]
        log = Path(folder) / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
        ):
            try:
                _wait_until_healthy(server, process, log)
                yield server
            finally:
                process.terminate()
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()


@contextmanager
def _run_compose() -> Iterator[Server]:
    server_user, server_password = "parts-store", secrets.token_hex(16)
    # A project and ports of its own: the developer's own MinIO, if it runs, is left alone.
    compose = ["docker", "compose", "--file", str(COMPOSE_FILE), "--project-name", f"parts-store-test-{os.getpid()}"]
    environ = {
        **os.environ,
        "MINIO_ROOT_USER": server_user,
        "MINIO_ROOT_PASSWORD": server_password,
        "MINIO_PORT": "0",
        "MINIO_CONSOLE_PORT": "0",
    }
    try:
        subprocess.run([*compose, "up", "--detach", "--wait", "--quiet-pull", "minio"], env=environ, check=True)
        port = subprocess.run(
            [*compose, "port", "minio", "9000"], env=environ, check=True, capture_output=True, text=True
        )
        yield Server(f"http://{port.stdout.strip()}", server_user, server_password)
    finally:
        subprocess.run([*compose, "down", "--volumes", "--timeout", "5"], env=environ, check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.endpoint}/minio/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise NoServerError(f"MinIO did not start: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def supervised() -> Iterator[Server]:
    """The server of this machine, run by a process of its own that ends with this one, even if this one is killed."""
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as supervisor:
        # Popen gives both pipes, because both were asked for.
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        try:
            answer = supervisor.stdout.readline()
            if not answer:
                raise NoServerError("no S3 server for the integration tests; the reason is above")
            yield Server(**json.loads(answer))
        finally:
            supervisor.stdin.close()


def main(command: str) -> int:
    """Carry out `prepare` or `serve`, and return the exit code."""
    try:
        if command == "prepare":
            prepare(choose_here())
        else:
            with running(choose_here()) as server:
                print(json.dumps(asdict(server)), flush=True)
                # Ends when the other end of the pipe is closed, by hand or by death.
                sys.stdin.read()
    except NoServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["serve"]):
        sys.exit("usage: server.py prepare | serve")
    if sys.argv[1] == "serve":
        # Ctrl-C reaches the whole process group, and the tests are to end before their server does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(sys.argv[1]))
