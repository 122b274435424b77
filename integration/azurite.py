"""A real server of the protocol of Azure Blob Storage for the tests: Azurite, which Microsoft develops.

Installed by npm, once, into the user's cache; where there is neither an installation nor npm, `supervised` gives None.
It listens on a free port of 127.0.0.1, keeps its data in memory, and ends with the process that asked for it, however
that one ends. Needs nothing but the standard library, so that `make` can call it.

    python -m integration.azurite prepare    # install what is needed, start nothing
    python -m integration.azurite serve      # print the server's address, and serve until standard input closes
"""

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.server import (
    START_SECONDS,
    START_TRIES,
    NoServerError,
    becomes_ready,
    cache_folder,
    ended_with_us,
    free_port,
    supervisor,
)

VERSION = "3.35.0"
ROOT = Path(__file__).parent.parent
# The account and the key of every emulator of Azure, which Microsoft documents.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
INSTALL_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running server."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """The options of obstore for a container there."""
        return {"endpoint": f"{self.endpoint}/{ACCOUNT}", "account_name": ACCOUNT, "account_key": KEY}

    def make_container(self, name: str) -> None:
        """Make a container, with the only request that obstore has no function for."""
        date = email.utils.formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        signed = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        text = "PUT" + "\n" * 12 + "".join(f"{key}:{value}\n" for key, value in headers.items()) + signed
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.endpoint}/{ACCOUNT}/{name}?restype=container"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, method="PUT", headers=headers), timeout=300):
            pass


def program() -> Path:
    """Return where the program of Azurite is, or will be."""
    return cache_folder() / f"azurite-{VERSION}" / "node_modules" / ".bin" / "azurite-blob"


def why_missing() -> str | None:
    """Install Azurite if it is missing; return None, or a line that says why there is none."""
    npm, left_out = shutil.which("npm"), "the tests on Azurite were left out"
    if shutil.which("node") is None or (npm is None and not program().exists()):
        return f"{left_out}: they need Node.js with npm, which installs Azurite once"
    if npm is None or program().exists():
        return None
    folder = program().parent.parent.parent
    print(f"installing Azurite {VERSION} (once, about a minute) ...", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Installed beside its place and moved there: an interrupted installation leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(prefix="installing-", dir=folder.parent) as made:
        target = Path(made) / "azurite"
        command = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(target), f"azurite@{VERSION}"]
        try:
            installed = subprocess.run(command, stdout=sys.stderr, check=False, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{left_out}: npm did not install Azurite within {INSTALL_SECONDS} s"
        if installed.returncode != 0:
            return f"{left_out}: npm could not install Azurite"
        try:
            target.rename(folder)
        except OSError:
            # Another process was faster.
            if not program().exists():
                raise
    return None


@contextmanager
def running() -> Iterator[Azurite]:
    """Start a server, and stop it when the block ends."""
    with tempfile.TemporaryDirectory(prefix="parts-store-azurite-") as folder, ExitStack() as stack:
        log = Path(folder) / "log"
        for _ in range(START_TRIES):
            port = free_port()
            server = Azurite(f"http://127.0.0.1:{port}")
            where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
            command = [str(program()), *where, "--inMemoryPersistence", "--silent", "--disableTelemetry"]
            process = stack.enter_context(ended_with_us([*command, "--skipApiVersionCheck"], os.environ, log))
            if becomes_ready(server.endpoint, process):
                yield server
                return
            process.terminate()
        raise NoServerError(
            f"Azurite did not start within {START_SECONDS} s: {log.read_text(errors='replace')[-2000:]}"
        )


@contextmanager
def supervised() -> Iterator[Azurite | None]:
    """Start a server in another process, which ends with this process; None if there is no Azurite."""
    if why_missing() is not None:
        yield None
        return
    with supervisor(["-m", "integration.azurite"], "Azurite", ROOT) as answer:
        yield Azurite(answer)


def main(command: str) -> int:
    """Carry out `prepare` or `serve`, and return the exit code."""
    try:
        if command == "prepare":
            if (why := why_missing()) is not None:
                print(why, file=sys.stderr)
        else:
            with running() as server:
                print(server.endpoint, flush=True)
                sys.stdin.read()
    except (NoServerError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["serve"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
