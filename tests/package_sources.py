"""The sources of published packages, which contain sample files and tests that the installed packages lack."""

import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pip._internal.models.index import PyPI

TEXT: dict[str, Any] = {"capture_output": True, "text": True}


def sources(package: str, version: str | None = None) -> Path:
    """Return the unpacked sources of a package, the newest ones without a version; skip the test without an index.

    They are kept in the user's cache between runs.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "parts-store" / "samples"
    folder = base / (package if version is None else f"{package}-{version}")
    if folder.exists():
        return folder
    # Several test processes may do this at once.
    own = base / f"{folder.name}.{os.getpid()}"
    own.mkdir(parents=True, exist_ok=True)
    try:
        archive = _download(package, version, own)
    except (OSError, ValueError) as error:
        pytest.skip(f"no package index is reachable for the sources of {package}: {type(error).__name__}")
    with tarfile.open(archive) as packed:
        packed.extractall(own, filter="data")
    archive.unlink()
    try:
        own.rename(folder)
    except OSError:
        # Another process was faster.
        if not folder.exists():
            raise
    return folder


def _download(package: str, version: str | None, folder: Path) -> Path:
    """Download sources from the index that pip uses: pip itself would have to build them."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], check=False, **TEXT)
    index: str = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip() or PyPI.simple_url
    headers = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}
    page = f"{index.rstrip('/')}/{package.lower()}/"
    with urllib.request.urlopen(urllib.request.Request(page, headers=headers), timeout=30) as answer:
        links = re.findall(r"""["']([^"'<> ]+/)?([^"'/<> ]+\.tar\.gz)(#[^"']*)?["']""", answer.read().decode())
    name_start = f"{package.lower()}-" if version is None else f"{package.lower()}-{version}.tar.gz"
    versions: dict[str, str] = {
        name: where for where, name, _ in links if where and name.lower().startswith(name_start)
    }
    chosen = max(versions, key=lambda name: [int(each) for each in re.findall(r"\d+", name.split("-", 1)[1])])
    address = urllib.parse.urljoin(page, versions[chosen] + chosen)
    with urllib.request.urlopen(address, timeout=120) as answer:
        (folder / chosen).write_bytes(answer.read())
    return folder / str(chosen)
