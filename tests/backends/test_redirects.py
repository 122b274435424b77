"""A redirect to another host is not followed, whatever the environment says about proxies."""

import contextlib
import http.client
import http.server
import pickle
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
import zarr
from obstore.store import HTTPStore
from virtualizarr.manifests import ChunkManifest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import LocationError, StorageError
from parts_store.manifests import PartsArray

DATA: Final = b'{"zarr_format": 3, "node_type": "group"}'
HASTY: Final[dict[str, Any]] = {"retry_config": {"max_retries": 0}}
KEYS: Final[dict[str, Any]] = {
    "access_key_id": "AKID",
    "secret_access_key": "s" * 20,
    "session_token": "t" * 20,
    "region": "x",
}
CODES: Final = [301, 302, 303, 307, 308]


class _Server6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


class Host:
    """A web server at an address of this machine, which has one document, or redirects to somewhere else."""

    def __init__(self, address: str) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.answer: Callable[[str], tuple[int, str] | None] = lambda _: None
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                host.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                host.respond(self)

            do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - these names are http.server's

        kind = _Server6 if ":" in address else http.server.ThreadingHTTPServer
        self.http = kind((address, 0), Handler)
        self.name = f"{address}:{self.http.server_port}"

    def respond(self, request: http.server.BaseHTTPRequestHandler) -> None:
        code, location = self.answer(request.path) or (200, "")
        body = DATA if code == 200 else b""
        request.send_response(code)
        if location:
            request.send_header("Location", location)
        request.send_header("ETag", '"x"')
        request.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def running(address: str) -> contextlib.AbstractContextManager[Host]:
    """A server at this address while the context lasts; raises at once if there is no such address."""
    return _serving(Host(address))


@contextlib.contextmanager
def _serving(host: Host) -> Iterator[Host]:
    thread = threading.Thread(target=host.http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield host
    finally:
        host.http.shutdown()
        thread.join()
        host.http.server_close()


@pytest.fixture
def here() -> Iterator[Host]:
    with running("127.0.0.1") as host:
        yield host


@pytest.fixture
def elsewhere() -> Iterator[Host]:
    # All of 127.0.0.0/8 is this machine.
    with running("127.0.0.2") as host:
        yield host


VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# No program listens there: a request to it fails.
NOWHERE: Final = "http://127.0.0.1:9"
# In none of them, the store is reached through a proxy.
ENVIRONMENTS: Final[dict[str, dict[str, str]]] = {
    "no variables": {},
    "NO_PROXY": {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"},
    "NO_PROXY of the target": {"no_proxy": "127.0.0.2"},
    "NO_PROXY of all hosts": {"NO_PROXY": "*"},
    "proxy for HTTPS": {"https_proxy": NOWHERE},
    "proxy, NO_PROXY of the store": {"http_proxy": NOWHERE, "NO_PROXY": "127.0.0.1"},
    "proxy, NO_PROXY of both": {"ALL_PROXY": NOWHERE, "NO_PROXY": "x/y, 10.0.0.0/8, 127.0.0.0/8"},
}
in_every_environment = pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS, indirect=True)


@pytest.fixture(autouse=True)
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set these variables, and no others about proxies: obstore reads them when a store is opened."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in getattr(request, "param", {}).items():
        monkeypatch.setenv(name, value)


def stores(host: Host, **client_options: Any) -> dict[str, ps.PartsStore]:
    """Every way to open a store there."""
    client: Any = {"allow_http": True, **client_options}
    url = f"http://{host.name}/folder"
    return {
        "URL": ps.PartsStore.from_url(url, client_options=client, **HASTY),
        "URL with a password": ps.PartsStore.from_url(
            f"http://u:pw@{host.name}/folder", client_options=client, **HASTY
        ),
        "HTTPStore": ps.PartsStore(HTTPStore(url, client_options=client, **HASTY)),
        "S3": ps.PartsStore.from_url(
            "s3://bucket", endpoint=f"http://{host.name}", **KEYS, client_options=client_options, **HASTY
        ),
    }


def every_read(host: Host, **client_options: Any) -> Iterator[Callable[[], Any]]:
    """Yield reads of a document of that host by every kind of store, without and with an event loop."""
    for store in stores(host, **client_options).values():
        yield partial(store.get_sync, "zarr.json")
        yield partial(_read_with_loop, store)


def _read_with_loop(store: ps.PartsStore) -> Any:
    return sync(store.get("zarr.json", default_buffer_prototype()))


@pytest.mark.sampled(3)
@in_every_environment
@pytest.mark.parametrize("code", CODES)
def test_a_redirect_to_another_host_is_not_followed(here: Host, elsewhere: Host, code: int) -> None:
    here.answer = lambda _: (code, f"http://{elsewhere.name}/secret?sig=abcdef")
    for get in every_read(here):
        with pytest.raises(StorageError, match="redirects to another host") as caught:
            get()
        assert caught.value.code == "Redirect"
        assert "abcdef" not in str(caught.value)
    assert elsewhere.seen == []
    assert here.seen


@pytest.mark.sampled(8)
@in_every_environment
@pytest.mark.parametrize("code", CODES)
def test_a_redirect_within_the_host_is_followed(here: Host, code: int) -> None:
    here.answer = lambda path: None if path == "/moved" else (code, f"http://{here.name}/moved")
    for get in every_read(here):
        assert get().to_bytes() == DATA


@in_every_environment
def test_a_host_that_is_allowed_is_reached(here: Host, elsewhere: Host) -> None:
    here.answer = lambda _: (302, f"http://{elsewhere.name}/data")
    for get in every_read(here, proxy_excludes="127.0.0.2"):
        assert get().to_bytes() == DATA
    # What was meant for the first host alone stays there.
    assert all("authorization" not in headers for _, headers in elsewhere.seen)


@in_every_environment
def test_a_reference_is_not_followed_to_another_host(here: Host, elsewhere: Host) -> None:
    here.answer = lambda _: (302, f"http://{elsewhere.name}/data")
    metadata: Any = zarr.create_array({}, shape=(4,), chunks=(4,), dtype="uint8", compressors=None).metadata
    entries: Any = {"0": {"path": f"http://{here.name}/file", "offset": 0, "length": 4}}
    client: Any = {"allow_http": True}
    registry = {f"http://{here.name}": HTTPStore(f"http://{here.name}", client_options=client, **HASTY)}
    with pytest.raises(LocationError, match="redirects to another host"):
        np.asarray(PartsArray(metadata, [ChunkManifest(entries)]).with_registry(registry))
    assert here.seen
    assert elsewhere.seen == []


@in_every_environment
def test_a_pickled_store_does_not_follow_either(here: Host, elsewhere: Host) -> None:
    here.answer = lambda _: (302, f"http://{elsewhere.name}/data")
    for store in stores(here).values():
        with pytest.raises(StorageError, match="redirects"):
            pickle.loads(pickle.dumps(store)).get_sync("zarr.json")
    assert elsewhere.seen == []


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "LOCALHOST", "[::1]"])
def test_a_host_is_reached_by_any_of_its_names(address: str) -> None:
    try:
        host = running("::1" if address == "[::1]" else "127.0.0.1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with host as server:
        url = f"http://{address}:{server.http.server_port}/x"
        store = ps.PartsStore.from_url(url, client_options={"allow_http": True}, **HASTY)
        assert store.get_sync("zarr.json").to_bytes() == DATA  # type: ignore[union-attr]


def test_a_proxy_of_the_callers_is_left_alone(here: Host) -> None:
    # All requests go to it, and it decides.
    client = {"allow_http": True, "proxy_url": f"http://{here.name}"}
    store = ps.PartsStore.from_url("http://data.invalid/folder", client_options=client, **HASTY)
    assert store.get_sync("zarr.json").to_bytes() == DATA  # type: ignore[union-attr]
    assert here.seen[0][0] == "http://data.invalid/folder/zarr.json"


# --- a real proxy -----------------------------------------------------------------------------------------------------


class Proxy(Host):
    """A proxy for plain HTTP, which refuses requests to some hosts."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.refused: set[str] = set()

    def respond(self, request: http.server.BaseHTTPRequestHandler) -> None:
        target = urllib.parse.urlsplit(request.path)
        if target.hostname in self.refused:
            request.send_error(403)
            return
        forward = http.client.HTTPConnection(str(target.hostname), target.port)
        forward.request(request.command, target.path, headers=dict(request.headers))
        answer = forward.getresponse()
        body = answer.read()
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def reached(self, host: Host) -> bool:
        return any(path.startswith(f"http://{host.name}/") for path, _ in self.seen)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with _serving(Proxy()) as found:
        assert isinstance(found, Proxy)
        monkeypatch.setenv("http_proxy", f"http://{found.name}")
        yield found


def test_a_proxy_of_the_environment_decides_about_redirects(here: Host, elsewhere: Host, proxy: Proxy) -> None:
    here.answer = lambda _: (302, f"http://{elsewhere.name}/data")
    proxy.refused = {"127.0.0.2"}
    for get in every_read(here):
        with pytest.raises(StorageError):
            get()
    assert proxy.reached(here)
    assert proxy.reached(elsewhere)
    assert elsewhere.seen == []
    proxy.refused = set()
    for get in every_read(here):
        assert get().to_bytes() == DATA
    assert elsewhere.seen
    assert all("authorization" not in headers for _, headers in elsewhere.seen)


def test_behind_a_proxy_a_redirect_to_a_host_of_no_proxy_is_followed(
    here: Host, elsewhere: Host, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This is a limit, which SECURITY.md names.
    monkeypatch.setenv("NO_PROXY", "127.0.0.2")
    here.answer = lambda _: (302, f"http://{elsewhere.name}/data")
    for get in every_read(here):
        assert get().to_bytes() == DATA
    assert elsewhere.seen
    assert not proxy.reached(elsewhere)
    assert all("authorization" not in headers for _, headers in elsewhere.seen)


def test_a_proxy_is_not_used_for_a_store_of_no_proxy(
    here: Host, elsewhere: Host, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    here.answer = lambda _: (302, f"http://{elsewhere.name}/data")
    for get in every_read(here):
        with pytest.raises(StorageError, match="redirects to another host"):
            get()
    assert here.seen
    assert proxy.seen == []
    assert elsewhere.seen == []
