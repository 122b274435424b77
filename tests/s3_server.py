"""A small S3 server in memory, whose features can be switched off.

    with S3Server(Flaws(ignores_if_match_on_put=True)) as server:
        store = server.store(prefix="data")     # an S3Store of obstore
        server.before = lambda call: None       # called before each request; a Reply answers in the server's place

The server checks no signatures. It listens on a free port of 127.0.0.1 and is stopped when the context is left.
`server.calls` lists every request that arrived. `server.put_object` replaces an object as another program would.
"""

import email.utils
import hashlib
import http.server
import re
import secrets
import socket
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, override
from xml.sax.saxutils import escape

from obstore.store import S3Store

BUCKET = "bucket"
_METADATA = "x-amz-meta-"
_REASONS = {
    304: "NotModified",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


@dataclass(frozen=True, slots=True)
class Flaws:
    """What the server gets wrong."""

    ignores_if_none_match: bool = False
    ignores_if_match_on_put: bool = False
    ignores_if_match_on_get: bool = False
    drops_metadata: bool = False
    # Metadata is kept in lower case.
    lowers_metadata: bool = False
    # Only so many characters of metadata are kept.
    most_metadata: int | None = None
    # A PUT with any condition is answered with 501.
    rejects_conditional_puts: bool = False
    # Two objects with the same bytes have different ETags. This is no flaw; it is what GCS and Azure do.
    has_unique_etags: bool = False
    # A request for the last bytes of an object is answered with the whole object.
    ignores_suffix_ranges: bool = False
    # Listings are answered with 403.
    refuses_listings: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A request that arrived. Names of headers are in lower case."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def conditions(self) -> tuple[str, ...]:
        """The names of the conditions that the request carries."""
        return tuple(name for name in ("if-match", "if-none-match") if name in self.headers)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as the server keeps it."""

    data: bytes
    etag: str
    metadata: Mapping[str, str]
    modified: datetime


def refusal(status: int, code: str | None = None, message: str = "refused by the test server") -> Reply:
    """Return an S3 error document; its code follows from the status unless it is given."""
    text = f"<Error><Code>{code or _REASONS[status]}</Code><Message>{escape(message)}</Message></Error>"
    return Reply(status, text.encode(), {"Content-Type": "application/xml"})


class S3Server:
    """An S3 server in memory that runs in threads of this process."""

    def __init__(self, flaws: Flaws | None = None) -> None:
        self.flaws = flaws or Flaws()
        self.before: Callable[[Call], Reply | None] | None = None
        self.calls: list[Call] = []
        self.buckets: dict[str, dict[str, Stored]] = {BUCKET: {}}
        self._uploads: dict[str, tuple[Call, dict[int, bytes]]] = {}
        self._lock = threading.RLock()
        self._http = _HttpServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="s3-test-server")

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.close_connections()
        self._http.server_close()

    def options(self) -> dict[str, Any]:
        """Return the options that obstore needs to reach this server."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": "test",
            "secret_access_key": "test-secret",
            "region": "us-east-1",
            # Tests make the server wait, and must not end because the client gives up.
            "client_options": {"allow_http": True, "timeout": "600s"},
        }

    def store(self, *, bucket: str = BUCKET, prefix: str | None = None, **options: Any) -> S3Store:
        """Return a store of obstore that talks to this server."""
        return S3Store(bucket, prefix=prefix, **{**self.options(), **options})

    def put_object(self, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object as another program would, without a request."""
        with self._lock:
            self.buckets[BUCKET][key] = self._stored(data, metadata or {})

    def objects(self) -> dict[str, bytes]:
        """Return the objects of the default bucket."""
        with self._lock:
            return {key: stored.data for key, stored in self.buckets[BUCKET].items()}

    def counts(self) -> dict[str, int]:
        """Return how many requests arrived, by method."""
        methods = [call.method for call in list(self.calls)]
        return {method: methods.count(method) for method in sorted(set(methods))}

    def _stored(self, data: bytes, metadata: Mapping[str, str], etag: str | None = None) -> Stored:
        digest = etag or hashlib.md5(data).hexdigest()
        name = secrets.token_hex(16) if self.flaws.has_unique_etags else digest
        return Stored(data, f'"{name}"', self._kept(metadata), datetime.now(UTC))

    def _kept(self, metadata: Mapping[str, str]) -> dict[str, str]:
        if self.flaws.drops_metadata:
            return {}
        kept = {name: text[: self.flaws.most_metadata] for name, text in metadata.items()}
        return {name: text.lower() for name, text in kept.items()} if self.flaws.lowers_metadata else kept

    def answer(self, call: Call) -> Reply:
        """Carry out a request."""
        self.calls.append(call)
        if self.before is not None and (reply := self.before(call)) is not None:
            return reply
        with self._lock:
            if call.bucket not in self.buckets:
                if call.method == "PUT" and not call.key:
                    self.buckets[call.bucket] = {}
                    return Reply(200)
                return refusal(404, "NoSuchBucket", f"no bucket {call.bucket}")
            return self._answer(call, self.buckets[call.bucket])

    def _answer(self, call: Call, objects: dict[str, Stored]) -> Reply:
        match call.method:
            case "GET" if not call.key:
                return self._list(call, objects)
            case "GET" | "HEAD":
                return self._get(call, objects)
            case "PUT" if "uploadid" in call.query:
                self._uploads[call.query["uploadid"]][1][int(call.query["partnumber"])] = call.body
                return Reply(200, headers={"ETag": f'"{hashlib.md5(call.body).hexdigest()}"'})
            case "PUT":
                return self._put(call, objects)
            case "POST" if "delete" in call.query:
                return _delete_many(call, objects)
            case "POST":
                return self._upload(call, objects)
            case "DELETE":
                if self._uploads.pop(call.query.get("uploadid", ""), None) is None:
                    objects.pop(call.key, None)
                return Reply(204)
            case _:
                return refusal(501)

    def _put(self, call: Call, objects: dict[str, Stored]) -> Reply:
        if call.conditions and self.flaws.rejects_conditional_puts:
            return refusal(501, message="A header you provided implies functionality that is not implemented")
        there = objects.get(call.key)
        if "if-none-match" in call.headers and not self.flaws.ignores_if_none_match and there is not None:
            return refusal(412)
        if "if-match" in call.headers and not self.flaws.ignores_if_match_on_put:
            if there is None:
                return refusal(404)
            if call.headers["if-match"] != there.etag:
                return refusal(412)
        if (source := call.headers.get("x-amz-copy-source")) is not None:
            original = objects.get(urllib.parse.unquote(source).lstrip("/").partition("/")[2])
            if original is None:
                return refusal(404)
            new = objects[call.key] = self._stored(original.data, original.metadata)
            return Reply(200, f"<CopyObjectResult><ETag>{escape(new.etag)}</ETag></CopyObjectResult>".encode())
        new = objects[call.key] = self._stored(call.body, _metadata(call))
        return Reply(200, headers={"ETag": new.etag})

    def _get(self, call: Call, objects: dict[str, Stored]) -> Reply:
        there = objects.get(call.key)
        if there is None:
            return refusal(404)
        if not self.flaws.ignores_if_match_on_get and call.headers.get("if-match", there.etag) != there.etag:
            return refusal(412)
        unmodified = call.headers.get("if-unmodified-since")
        # A condition on the ETag takes precedence over one on the time.
        if unmodified is not None and "if-match" not in call.headers:
            limit = email.utils.parsedate_to_datetime(unmodified)
            if there.modified.replace(microsecond=0) > limit:
                return refusal(412)
        if call.headers.get("if-none-match") == there.etag:
            return Reply(304)
        headers = {
            "ETag": there.etag,
            "Last-Modified": email.utils.format_datetime(there.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            **{_METADATA + name: value for name, value in there.metadata.items()},
        }
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("range", ""))
        if wanted is None or (not wanted[1] and self.flaws.ignores_suffix_ranges):
            return Reply(200, there.data, headers)
        size = len(there.data)
        start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
        stop = min(size, int(wanted[2]) + 1) if wanted[1] and wanted[2] else size
        if start >= size:
            return refusal(416)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return Reply(206, there.data[start:stop], headers)

    def _list(self, call: Call, objects: dict[str, Stored]) -> Reply:
        if self.flaws.refuses_listings:
            return refusal(403)
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        after = call.query.get("continuation-token") or call.query.get("start-after", "")
        limit = int(call.query.get("max-keys", 1000))
        names: dict[str, Stored | None] = {}
        for key in sorted(objects):
            if key.startswith(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                folder = prefix + head + delimiter
                names.setdefault(folder if found else key, None if found else objects[key])
        rest = [name for name in names if name > after]
        shown, more = rest[:limit], len(rest) > limit
        lines = [f"<Name>{call.bucket}</Name><KeyCount>{len(shown)}</KeyCount><MaxKeys>{limit}</MaxKeys>"]
        lines.append(f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(more).lower()}</IsTruncated>")
        if more:
            lines.append(f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>")
        for name in shown:
            stored = names[name]
            if stored is None:
                lines.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            modified = stored.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            lines.append(f"<Contents><Key>{escape(name)}</Key><Size>{len(stored.data)}</Size>")
            lines.append(f"<ETag>{escape(stored.etag)}</ETag><LastModified>{modified}</LastModified></Contents>")
        text = f"<ListBucketResult>{''.join(lines)}</ListBucketResult>"
        return Reply(200, text.encode(), {"Content-Type": "application/xml"})

    def _upload(self, call: Call, objects: dict[str, Stored]) -> Reply:
        """Begin or complete an upload in several parts."""
        name = call.query.get("uploadid")
        if name is None:
            name = secrets.token_hex(8)
            self._uploads[name] = (call, {})
            where = f"<Bucket>{call.bucket}</Bucket><Key>{escape(call.key)}</Key>"
            text = f"<InitiateMultipartUploadResult>{where}<UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            return Reply(200, text.encode())
        begun, parts = self._uploads.pop(name)
        data = b"".join(parts[number] for number in sorted(parts))
        digests = b"".join(hashlib.md5(parts[number]).digest() for number in sorted(parts))
        etag = f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"
        new = objects[call.key] = self._stored(data, _metadata(begun), etag)
        result = f"<CompleteMultipartUploadResult><ETag>{escape(new.etag)}</ETag></CompleteMultipartUploadResult>"
        return Reply(200, result.encode())


def _metadata(call: Call) -> dict[str, str]:
    return {name.removeprefix(_METADATA): text for name, text in call.headers.items() if name.startswith(_METADATA)}


def _delete_many(call: Call, objects: dict[str, Stored]) -> Reply:
    keys = [each.text or "" for each in ET.fromstring(call.body).iter() if each.tag.endswith("Key")]
    for key in keys:
        objects.pop(key, None)
    deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
    return Reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())


class _HttpServer(http.server.ThreadingHTTPServer):
    """An HTTP server that can close the connections that its clients keep open."""

    daemon_threads = True
    block_on_close = False
    # With the default of 5, a client that connects 16 times at once tries some of them again after a second.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(http.server.BaseHTTPRequestHandler):
    """Translates HTTP into calls and back."""

    owner: S3Server
    protocol_version = "HTTP/1.1"
    # A response is two small writes: without this, the second waits for the first to be acknowledged.
    disable_nagle_algorithm = True

    @override
    def log_message(self, *_: Any) -> None:
        pass

    @override
    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            # The client, or the end of the test, closed the connection.
            self.close_connection = True

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urllib.parse.urlsplit(self.path)
        bucket, _, key = urllib.parse.unquote(address.path).lstrip("/").partition("/")
        query = urllib.parse.parse_qs(address.query, keep_blank_values=True)
        lowered = {name.lower(): values[0] for name, values in query.items()}
        headers = {name.lower(): text for name, text in self.headers.items()}
        reply = self.owner.answer(Call(self.command, bucket, key, lowered, headers, body))
        self.send_response(reply.status)
        for name, text in reply.headers.items():
            self.send_header(name, text)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD" and reply.status not in (204, 304):
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - these names are http.server's
