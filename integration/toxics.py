"""Toxiproxy in front of the S3 server: a network that is slow, breaks, or cuts answers off, as a test asks for.

Built by Go, once, into the user's cache, like MinIO; where there is neither a build nor Go, `supervised` gives None. It
listens on free ports of 127.0.0.1, and ends with the process that asked for it, however that one ends. Needs nothing
but the standard library, so that `make` can call it.

    python -m integration.toxics prepare    # build what is needed, start nothing
    python -m integration.toxics serve      # print the address of its API, and serve until standard input closes
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from integration.server import (
    START_SECONDS,
    START_TRIES,
    Binary,
    NoServerError,
    Server,
    answers,
    build,
    cache_folder,
    ended_with_us,
    free_port,
    supervisor,
)

VERSION = "v2.12.0"
TOXIPROXY = f"github.com/Shopify/toxiproxy/v2/cmd/server@{VERSION}"
ROOT = Path(__file__).parent.parent

type Direction = Literal["upstream", "downstream"]
"""Which bytes: those of requests, or those of answers."""


@dataclass(frozen=True, slots=True)
class Toxic:
    """Something wrong with the network, by the names that toxiproxy gives it and its attributes."""

    kind: str
    direction: Direction
    attributes: tuple[tuple[str, int], ...]
    # How many of the connections it is wrong with, from 0 to 1.
    share: float = 1.0


def toxic(kind: str, direction: Direction, share: float = 1.0, **attributes: int) -> Toxic:
    """Return a toxic, with its attributes given by name."""
    return Toxic(kind, direction, tuple(attributes.items()), share)


@dataclass(frozen=True, slots=True)
class Proxy:
    """One way through toxiproxy to the server."""

    api: str
    name: str
    # The server as it is seen through the proxy.
    server: Server

    def poison(self, *toxics: Toxic) -> None:
        """Make these, and only these, wrong with the network; open connections see it too."""
        for each in _call(f"{self.api}/proxies/{self.name}/toxics"):
            _call(f"{self.api}/proxies/{self.name}/toxics/{each['name']}", method="DELETE")
        for number, each in enumerate(toxics):
            description = {
                "name": f"toxic-{number}",
                "type": each.kind,
                "stream": each.direction,
                "toxicity": each.share,
                "attributes": dict(each.attributes),
            }
            _call(f"{self.api}/proxies/{self.name}/toxics", description)

    def cut(self) -> None:
        """Close all connections now, and let new ones pass."""
        for is_enabled in (False, True):
            _call(f"{self.api}/proxies/{self.name}", {"enabled": is_enabled})


@contextmanager
def proxied(api: str, server: Server) -> Iterator[Proxy]:
    """Open a new proxy of Toxiproxy to the server."""
    port = free_port()
    description = {
        "name": f"to-s3-{port}",
        "listen": f"127.0.0.1:{port}",
        "upstream": server.endpoint.removeprefix("http://"),
        "enabled": True,
    }
    _call(f"{api}/proxies", description)
    try:
        yield Proxy(api, f"to-s3-{port}", replace(server, endpoint=f"http://127.0.0.1:{port}"))
    finally:
        _call(f"{api}/proxies/to-s3-{port}", method="DELETE")


def _call(url: str, body: Any = None, method: str | None = None) -> Any:
    """Call the API, and return the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    # Never through a proxy of the user's: it is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def choose_here() -> Binary | None:
    """Return the program, built if it is missing, or None if it cannot be built."""
    binary = Binary(cache_folder() / f"toxiproxy-{VERSION}")
    return binary if binary.is_built or shutil.which("go") else None


def prepare(binary: Binary) -> None:
    """Build the program, so that starting it takes no time."""
    if not binary.is_built:
        print(f"building toxiproxy {VERSION} (once, about a minute) ...", file=sys.stderr, flush=True)
        build(TOXIPROXY, "server", binary.path)


@contextmanager
def running(binary: Binary) -> Iterator[str]:
    """Start Toxiproxy, yield the address of its API, and stop it when the block ends."""
    prepare(binary)
    with tempfile.TemporaryDirectory(prefix="parts-store-toxiproxy-") as folder, ExitStack() as stack:
        log = Path(folder) / "log"
        # Another process may take the port before Toxiproxy starts.
        for _ in range(START_TRIES):
            port = free_port()
            command = [str(binary.path), "-host", "127.0.0.1", "-port", str(port)]
            process = stack.enter_context(ended_with_us(command, {**os.environ, "LOG_LEVEL": "warn"}, log))
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if answers(f"http://127.0.0.1:{port}/version"):
                    yield f"http://127.0.0.1:{port}"
                    return
                time.sleep(0.02)
        raise NoServerError(f"toxiproxy did not start: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def supervised() -> Iterator[str | None]:
    """Start a Toxiproxy that ends with this process, and yield the address of its API, or None without one."""
    if choose_here() is None:
        yield None
        return
    with supervisor(["-m", "integration.toxics"], "toxiproxy", ROOT) as api:
        yield api


def main(command: str) -> int:
    """Carry out `prepare` or `serve`, and return the exit code."""
    binary = choose_here()
    if binary is None:
        print("no Go to build toxiproxy with: the tests of a broken network will be skipped", file=sys.stderr)
        return 0
    try:
        if command == "prepare":
            prepare(binary)
        else:
            with running(binary) as api:
                print(api, flush=True)
                # Ends when the other end of the pipe is closed, by hand or by death.
                sys.stdin.read()
    except (NoServerError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["serve"]):
        sys.exit("usage: python -m integration.toxics prepare | serve")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.argv[1] == "serve":
        # Ctrl-C reaches the whole process group, and the tests are to end before their network does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
