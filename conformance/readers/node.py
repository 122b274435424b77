"""The reader in JavaScript: find Node, and install zarrita once into the user's cache.

`python -m conformance.readers.node FOLDER ARRAY OUT.npy` calls it; `--check` only says what is missing.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "javascript"
INSTALL_SECONDS = 120
_MIN_VERSION = 18


class NoNodeError(Exception):
    """There is no Node on this machine, or zarrita could not be installed."""


def command() -> list[str]:
    """Return the command of the reader; raise `NoNodeError`, which says in one line what is missing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NoNodeError("the reader in JavaScript was left out: it needs node and npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    if int(version.removeprefix("v").partition(".")[0]) < _MIN_VERSION:
        raise NoNodeError(
            f"the reader in JavaScript was left out: it needs node {_MIN_VERSION}, found {version.strip()}"
        )
    return [node, str(_installed(npm) / "reader.mjs")]


def _installed(npm: str) -> Path:
    """Return a folder with the reader and the packages that it imports, which Node looks for beside the reader."""
    names = ("package.json", "package-lock.json", "reader.mjs")
    digest = hashlib.sha256(b"\0".join((FOLDER / name).read_bytes() for name in names)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parts-store"
    ready = cache / f"conformance-{digest}"
    if ready.exists():
        return ready
    cache.mkdir(parents=True, exist_ok=True)
    # Made beside its place and moved there, so that an interrupted installation leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(prefix="installing-", dir=cache) as made:
        folder = Path(made) / "reader"
        folder.mkdir()
        for name in names:
            shutil.copy(FOLDER / name, folder)
        _install(npm, folder)
        try:
            folder.rename(ready)
        except OSError:
            # Another process was faster.
            if not ready.exists():
                raise
    return ready


def _install(npm: str, folder: Path) -> None:
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        ended = subprocess.run(
            install, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NoNodeError(
            f"the reader in JavaScript was left out: npm did not install zarrita within {INSTALL_SECONDS} s"
        ) from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [""])[0]
        raise NoNodeError(f"the reader in JavaScript was left out: npm could not install zarrita: {last}")


if __name__ == "__main__":
    try:
        found = command()
    except NoNodeError as missing:
        sys.exit(str(missing))
    if sys.argv[1:] == ["--check"]:
        sys.exit(0)
    sys.exit(subprocess.run([*found, *sys.argv[1:]], check=False).returncode)
