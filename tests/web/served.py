"""A store with arrays of several forms, and a server of it in a process of its own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import zarr

import parts_store as ps

VALUES = (np.arange(40 * 50, dtype="<u2").reshape(40, 50) * 7 + 3) % 5000
SIZE: dict[str, Any] = {"shape": VALUES.shape, "chunks": (8, 10), "dtype": "<u2", "fill_value": 0}
SHARDS: dict[str, Any] = {**SIZE, "shards": (24, 20)}
NAMES = ("plain", "three", "shards", "index", "tiff", "holes")


def write_arrays(store: Any) -> None:
    """Write an array of each form: plain, in parts, shards, shards with an index beside them, TIFF, missing chunks."""
    parts = [ps.Part(".head", size=4), ps.Part(""), ps.Part(".tail", size=1)]
    zarr.create_array(store, name="plain", **SIZE)[...] = VALUES
    ps.create_array(store, "three", parts=parts, **SIZE)[...] = VALUES
    zarr.create_array(store, name="shards", **SHARDS)[...] = VALUES
    ps.create_array(store, "index", parts=["", ps.Part(".index", size=ps.SHARD_INDEX)], **SHARDS)[...] = VALUES
    ps.create_array(store, "tiff", shard_file="tiff", **SIZE | {"chunks": (16, 16), "shards": (32, 32)})[...] = VALUES
    ps.create_array(store, "holes", parts=["", ps.Part(".index", size=ps.SHARD_INDEX)], **SHARDS)[:20, :15] = VALUES[
        :20, :15
    ]


def expected(name: str) -> Any:
    """Return the values of an array."""
    if name != "holes":
        return VALUES
    values = np.zeros_like(VALUES)
    values[:20, :15] = VALUES[:20, :15]
    return values


@contextmanager
def served(url: str | Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run `parts-store serve`, and return the URL of its page."""
    with running(url, *options, environment=environment) as (page, _):
        yield page


@contextmanager
def running(
    url: str | Path, *options: str, environment: Mapping[str, str] | None = None, stderr: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `parts-store serve`, and return the URL of its page, and the process."""
    command = [sys.executable, "-m", "parts_store.cli", "serve", str(url), "--json", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(environment or {})}
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while "}" not in "".join(lines):
                line = process.stdout.readline()
                assert line, "the server has ended"
                lines.append(line)
            yield json.loads("".join(lines))["page"], process
        finally:
            process.terminate()


def resident(pid: int) -> int:
    """Return how much memory a process of Linux has, in MiB."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) // 1024


def ask(
    url: str, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], bytes]:
    """Return the status, the headers and the body of a response; the path is sent as it is."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response: HTTPResponse = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()
