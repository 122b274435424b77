"""The server begins and ends cleanly, also while clients are connected."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.cli.exits import INTERRUPTED
from parts_store.errors import StoreConfigError
from parts_store.web import server as web_server
from tests.web.served import ask, resident, running

# More than the buffers of a connection hold, so that the server waits for the client.
NBYTES = 64 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    zarr.create_array(path, name="a", data=np.ones(NBYTES, "u1"), chunks=(NBYTES,), compressors=None)
    return path


@contextmanager
def reading(url: str) -> Iterator[socket.socket]:
    """Ask for a chunk, and read its beginning only."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((host, port), timeout=60) as client:
        client.sendall(b"GET /zarr/a/c/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        yield client


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_one_line_also_while_clients_read(folder: Path, interruptible: None) -> None:
    command = [sys.executable, "-m", "parts_store.cli", "serve", str(folder)]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        url = next(line.split()[1] for line in process.stdout if line.split()[:1] == ["page"])
        for _ in range(3):
            stack.enter_context(reading(url))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert errors.splitlines() == ["parts-store: interrupted"]


@pytest.mark.slow
def test_stop_ends_the_server_also_while_clients_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ps.serve(folder) as other:
        server = ps.serve(folder)
        with reading(server.url):
            server.stop()
            server.stop()
        with pytest.raises(OSError, match="refused"), reading(server.url):
            pass
        with reading(other.url):
            pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_clients_that_do_not_read_hold_little_memory_and_no_other_client_up(folder: Path) -> None:
    with running(folder) as (url, process), ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(reading(url))
        used = -1
        while used != (used := resident(process.pid)):
            time.sleep(1)
        # With pieces of 8 MiB for each client, it was more than 1,300 with 50 clients.
        assert used < 1000
        began = time.monotonic()
        assert len(ask(url, "/zarr/a/c/0")[2]) == NBYTES
        assert time.monotonic() - began < 30


def test_more_connections_than_the_server_keeps_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_CONNECTIONS", 5)
    with ps.serve(folder) as server:
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(reading(server.url))
            assert ask(server.url, "/zarr/a/zarr.json")[0] == 503
        while ask(server.url, "/zarr/a/zarr.json")[0] != 200:
            time.sleep(0.1)


def test_the_command_warns_if_other_machines_can_read(folder: Path) -> None:
    with running(folder, "--host", "127.0.0.2", stderr=subprocess.PIPE) as (url, process):
        assert ask(url, "/zarr/a/zarr.json", headers={"Host": "name.of.the.machine"})[0] == 200
        process.terminate()
        assert process.stderr is not None
        assert "anyone who reaches this machine can now read the data" in process.stderr.read()


def test_the_command_logs_why_a_chunk_cannot_be_read(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", parts=["", ps.Part(".end", size=2)], shape=(4,), chunks=(4,), dtype="u1")
    array[:] = 1
    (tmp_path / "a/c/0.end").unlink()
    with running(tmp_path, stderr=subprocess.PIPE) as (url, process):
        assert ask(url, "/zarr/a/c/0")[0] == 500
        process.terminate()
        assert process.stderr is not None
        assert "a/c/0: IncompleteChunkError" in process.stderr.read()


def test_a_chunk_that_is_written_while_it_is_sent_ends_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    array = zarr.create_array(tmp_path, name="a", data=np.ones(NBYTES, "u1"), chunks=(NBYTES,), compressors=None)
    with ps.serve(tmp_path) as server, reading(server.url) as client:
        array[:] = 2
        rest = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert len(rest) < NBYTES
    assert b"\x02" not in rest[1000:]
    assert [record.getMessage() for record in caplog.records if "a/c/0" in record.getMessage()]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99999), ("127.0.0.1", -1), ("", 0), ("203.0.113.1", 0)])
def test_an_address_that_cannot_be_used_is_refused(host: str, port: int) -> None:
    with pytest.raises(StoreConfigError, match="host and port: expected an address and a port that are free"):
        ps.serve(ps.PartsStore.from_url("memory://"), host=host, port=port)
