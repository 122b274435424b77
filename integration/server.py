"""A real S3 server for the tests: the one given in the environment, or a MinIO of our own.

Decides where the server comes from; knows nothing of parts_store, and needs nothing but the standard library, so that
`make` can call it. In this order:

1. the MinIO at `PARTS_STORE_S3_ENDPOINT`, with its root user's `PARTS_STORE_S3_ACCESS_KEY` and
   `PARTS_STORE_S3_SECRET_KEY`;
2. MinIO built by Go, once, into the user's cache;
3. MinIO from `docker-compose.yml`, where there is a Docker engine and no Go.

A server that we start listens on a free port of 127.0.0.1, keeps its data in a temporary directory, and ends with the
process that asked for it, however that one ends.

    python integration/server.py prepare    # build or pull what is needed, start nothing
    python integration/server.py serve      # print the server's address as JSON, and serve until standard input closes
"""

import ctypes
import http
import json
import os
import re
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, assert_never

MINIO = "github.com/minio/minio@v0.0.0-20250907161309-07c3a429bfed"
MINIO_RELEASE = "RELEASE.2025-09-07T16-13-09Z"
COMPOSE_FILE = Path(__file__).parent.parent / "docker-compose.yml"
START_SECONDS = 300
START_TRIES = 3


class NoServerError(Exception):
    """There is no S3 server, and no way to get one."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running S3 server, and the credentials of a user with all rights."""

    endpoint: str
    access_key: str
    secret_key: str

    @property
    def options(self) -> dict[str, Any]:
        """The options of obstore and of the command line for a bucket there."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": "us-east-1",
        }


@dataclass(frozen=True, slots=True)
class Binary:
    """A MinIO program, to be built there first if it is missing."""

    path: Path

    @property
    def is_built(self) -> bool:
        """Whether it can be run as it is."""
        return os.access(self.path, os.X_OK) and self.path.stat().st_size > 0


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
        if not re.fullmatch(r"https?://[^/]+/?", endpoint):
            raise NoServerError(f"PARTS_STORE_S3_ENDPOINT must be http(s)://host[:port], and is {endpoint!r}")
        return Server(endpoint.rstrip("/"), environ[names[0]], environ[names[1]])
    binary = Binary(cache / f"minio-{MINIO_RELEASE}")
    if binary.is_built or has_go:
        return binary
    if docker_runs():
        return Compose()
    raise NoServerError(
        "the integration tests need an S3 server: install Go (MinIO is then built once) or Docker, "
        "or set PARTS_STORE_S3_ENDPOINT"
    )


def choose_here() -> Source:
    """Where the server comes from on this machine."""
    has_go = shutil.which("go") is not None
    return choose(os.environ, cache=cache_folder(), has_go=has_go, docker_runs=_docker_runs)


def cache_folder() -> Path:
    """Where programs that were built once are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parts-store"


def _docker_runs() -> bool:
    """Return whether a Docker engine responds and `docker compose` exists; the client alone is not enough."""
    if shutil.which("docker") is None:
        return False
    questions = (["docker", "compose", "version"], ["docker", "info"])
    return all(subprocess.run(ask, capture_output=True, check=False).returncode == 0 for ask in questions)


def prepare(source: Source) -> None:
    """Build or pull what the source needs, so that starting it takes seconds."""
    match source:
        case Server(endpoint):
            if not answers(endpoint):
                raise NoServerError(f"nothing answers at PARTS_STORE_S3_ENDPOINT, {endpoint}")
        case Binary(path):
            if not source.is_built:
                print(f"building MinIO {MINIO_RELEASE} (once, about five minutes) ...", file=sys.stderr, flush=True)
                build(MINIO, "minio", path)
        case Compose():
            command = ["docker", "compose", "--file", str(COMPOSE_FILE), "pull", "--quiet", "minio"]
            subprocess.run(command, check=True, stdout=sys.stderr)
        case never:
            assert_never(never)


def build(package: str, program: str, binary: Path) -> None:
    """Let Go build a package, and put the program that comes of it where it is to be."""
    binary.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and moved there, so that an interrupted build leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(prefix="building-", dir=binary.parent) as folder:
        built = subprocess.run(["go", "install", package], env={**os.environ, "GOBIN": folder}, check=False)
        if built.returncode != 0:
            raise NoServerError(f"Go could not build {package}: its own words are above")
        (Path(folder) / program).replace(binary)


@contextmanager
def running(source: Source) -> Iterator[Server]:
    """Start a server, and stop it when the block ends."""
    match source:
        case Server():
            prepare(source)
            yield source
        case Binary(path):
            prepare(source)
            with _run_binary(path) as server:
                yield server
        case Compose():
            with _run_compose() as server:
                yield server
        case never:
            assert_never(never)


@contextmanager
def _run_binary(binary: Path) -> Iterator[Server]:
    secret = secrets.token_hex(16)
    # The developer's own settings of MinIO are for the developer's own MinIO.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MINIO_")}
    environ |= {"MINIO_ROOT_USER": "parts-store", "MINIO_ROOT_PASSWORD": secret}
    environ |= {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
    with tempfile.TemporaryDirectory(prefix="parts-store-minio-") as folder, ExitStack() as stack:
        log = Path(folder) / "log"
        # Another process may take the port before MinIO starts.
        for _ in range(START_TRIES):
            server = Server(f"http://127.0.0.1:{free_port()}", "parts-store", secret)
            address = server.endpoint.removeprefix("http://")
            command = [str(binary), "server", "--quiet", "--address", address, f"{folder}/data"]
            process = stack.enter_context(ended_with_us(command, environ, log))
            if becomes_ready(f"{server.endpoint}/minio/health/ready", process):
                yield server
                return
            process.terminate()
        raise NoServerError(f"MinIO did not start within {START_SECONDS} s: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def ended_with_us(command: list[str], environ: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends with the block, and with this process, which must have one thread."""
    with (
        log.open("ab") as output,
        subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Out of reach of Ctrl-C, which is for the tests; they still need their server to clean up.
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()


def die_with_parent() -> None:
    """Asks the kernel, where it is Linux, to end this process when its parent is killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


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
        command = [*compose, "up", "--detach", "--wait", "--quiet-pull", "minio"]
        # Standard output is for our answer alone.
        subprocess.run(command, env=environ, check=True, stdout=sys.stderr)
        port = subprocess.run(
            [*compose, "port", "minio", "9000"], env=environ, check=True, capture_output=True, text=True
        )
        yield Server(f"http://{port.stdout.strip()}", server_user, server_password)
    finally:
        command = [*compose, "down", "--volumes", "--timeout", "5"]
        subprocess.run(command, env=environ, check=True, stdout=sys.stderr)


def free_port() -> int:
    """Return a free port of this machine, which another process may take at any time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def becomes_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server that a process runs answers at a URL; return False if it ends, or never answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if answers(url):
            # If another process answers on this port, the server has ended or is about to end.
            time.sleep(0.1)
            return process.poll() is None
        time.sleep(0.05)
    return False


def answers(url: str) -> bool:
    """Return whether a server at an address is ready."""
    # Never through a proxy: the server is on this machine, or the caller's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=60):
            return True
    except urllib.error.HTTPError as error:
        # Any answer will do but "not ready yet".
        return error.code != http.HTTPStatus.SERVICE_UNAVAILABLE
    except OSError:
        return False


@contextmanager
def supervised() -> Iterator[Server]:
    """Start a server in another process, which ends with this process, even if this process is killed."""
    with supervisor([__file__], "S3 server") as answer:
        yield Server(**json.loads(answer))


@contextmanager
def supervisor(program: Sequence[str], what: str, folder: Path | None = None) -> Iterator[str]:
    """Start a program, and yield the first line it prints; it ends with the block or with this process."""
    command = [sys.executable, *program, "serve"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        # Popen gives both pipes, because both were asked for.
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            answer = process.stdout.readline().strip()
            if not answer:
                raise NoServerError(f"no {what} for the integration tests; the reason is above")
            yield answer
        finally:
            process.stdin.close()


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
    except (NoServerError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["serve"]):
        sys.exit("usage: server.py prepare | serve")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.argv[1] == "serve":
        # Ctrl-C reaches the whole process group, and the tests are to end before their server does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
