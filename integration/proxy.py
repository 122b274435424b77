"""A proxy in front of the S3 server that counts all requests, whichever library sends them.

Forwards every request as it came, its `Host` included, so that S3's signatures stay valid; and notes it when the answer
is known, before the client knows it. Knows nothing of S3, but for the query that makes a GET a listing.
"""

import http.client
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, override
from urllib.parse import parse_qs, unquote, urlsplit

# Of one connection, and so not passed on to the other.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that passed, and how it was answered."""

    method: str
    # Without the slash at its beginning, and unquoted: the bucket and the key.
    path: str
    query: str
    range: str | None
    if_none_match: str | None
    status: int

    @property
    def kind(self) -> str:
        """What the request is to an object store, in the words of `store.stats`."""
        names = parse_qs(self.query, keep_blank_values=True)
        match self.method:
            case "GET" if "list-type" in names:
                return "list"
            case "POST" if "delete" in names:
                return "delete"
            case _:
                return self.method.lower()

    @property
    def key(self) -> str:
        """The key, without the bucket."""
        return self.path.partition("/")[2]

    @property
    def listed(self) -> str | None:
        """The prefix that a listing is of."""
        return parse_qs(self.query).get("prefix", [""])[0] if self.kind == "list" else None

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The range as a half-open one: both None for a whole object, the first negative for bytes from the end."""
        if self.range is None:
            return None, None
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.range)
        if found is None:
            raise ValueError(f"an unexpected range: {self.range!r}")
        first, last = found.groups()
        if not first:
            return -int(last), None
        return int(first), int(last) + 1 if last else None


class _Server(ThreadingHTTPServer):
    """Ends with all its threads and connections, also those that a client keeps for later."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.seen: list[Seen] = []
        self.loses: Callable[[Seen], bool] | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    @override
    def server_close(self) -> None:
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    # The client was faster.
                    continue
        super().server_close()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away is no error, and one that is not answered says so itself."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    @override
    def handle_expect_100(self) -> bool:
        """Ask for the body at once: without the flush, a client of botocore would wait for it forever."""
        is_expected = super().handle_expect_100()
        self.wfile.flush()
        return is_expected

    def _forward(self) -> None:
        # A connection for each request: one that was kept might be closed from the other end at any time.
        upstream = http.client.HTTPConnection(*self.server.upstream, timeout=300)
        try:
            self._send(upstream)
            answer = upstream.getresponse()
            body = answer.read()
        finally:
            upstream.close()
        address = urlsplit(self.path)
        seen = Seen(
            self.command,
            unquote(address.path.lstrip("/")),
            address.query,
            self.headers.get("Range"),
            self.headers.get("If-None-Match"),
            answer.status,
        )
        self.server.seen.append(seen)
        if self.server.loses is not None and self.server.loses(seen):
            self.close_connection = True
            return
        self._answer(answer, body)

    def _send(self, upstream: http.client.HTTPConnection) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP - {"content-length"}:
                upstream.putheader(name, value)
        upstream.endheaders(body)

    def _answer(self, answer: http.client.HTTPResponse, body: bytes) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if self.command == "HEAD":
            # The length of what a GET would bring.
            if (nbytes := answer.getheader("Content-Length")) is not None:
                self.send_header("Content-Length", nbytes)
        elif answer.status not in (http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 -- the names that http.server looks for

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the requests are noted."""


class CountingProxy:
    """A proxy on a free port of this machine, as long as it is entered.

    `requests` is what has passed; clear it to begin anew.
    """

    def __init__(self, endpoint: str) -> None:
        address = urlsplit(endpoint)
        if address.scheme != "http" or address.hostname is None:
            raise ValueError(f"only http:// is forwarded, not {endpoint!r}")
        self._server = _Server((address.hostname, address.port or 80))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def endpoint(self) -> str:
        """The address for clients, in place of the server's."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[Seen]:
        """Every request that has passed, in the order of the answers."""
        return self._server.seen

    def lose(self, loses: Callable[[Seen], bool]) -> None:
        """Close the connection instead of the answer to each request that was carried out and is chosen."""
        self._server.loses = loses

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
