"""`serve`: a server for a store, in the background of a notebook or in the foreground of a command."""

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, override

import icechunk
import uvicorn

from parts_store import notebook
from parts_store.errors import StoreConfigError
from parts_store.redaction import hide_in_url
from parts_store.store.repositories import open_repository, open_store
from parts_store.store.store import PartsStore
from parts_store.web.app import make_app
from parts_store.web.gateway import Gateway
from parts_store.web.hierarchy import Hierarchy
from parts_store.web.looking import Looker, opener_of, snapshots_of

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "[::1]")
# Icechunk's names of versions, where they differ from ours.
_ARGUMENTS: Final = {"snapshot": "snapshot_id"}
# How many connections are open, and how many wait to be accepted. Beyond them, clients get 503.
_CONNECTIONS: Final = 512
_BACKLOG: Final = 512
# How long the server waits for open connections when it ends, in seconds.
_GRACE: Final = 2


class _Uvicorn(uvicorn.Server):
    """The server of uvicorn, which leaves connections open if their responses are not finished in time."""

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)


class Server:
    """A server that runs in a thread of this process until `stop` is called or the process ends.

    It is a context manager, which stops the server at its end.
    """

    def __init__(self, app: Any, title: str, host: str, port: int) -> None:
        self.title = title
        self._socket = _bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(
            app,
            # Failures are logged by us, in one line each.
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE,
        )
        self._server = _Uvicorn(config)
        self._thread: threading.Thread | None = None

    @property
    def zarr_url(self) -> str:
        """The URL of the Zarr hierarchy."""
        return f"{self.url}zarr/"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Self:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self.run, name="parts-store serve", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<server of {self.title} at {self.url}>"

    def _repr_html_(self) -> str:
        return notebook.table(f"server of {self.title}", {"page": self.url, "Zarr": self.zarr_url})


def serve(
    source: PartsStore | icechunk.Repository | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    cors: Sequence[str] | str = (),
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    virtual: Sequence[str | Path] = (),
    **options: Any,
) -> Server:
    """Serve a store over HTTP: as plain Zarr, and as a page that shows its arrays. It runs in the background.

    Parameters
    ----------
    source
        A `PartsStore`, an Icechunk repository, or the path or URL of either.
    host
        The address to listen on. Any other than 127.0.0.1 lets other machines read the data, without a password.
    port
        The port, 0 for a free one.
    cors
        The origins of web pages that may read from the server, such as `https://neuroglancer-demo.appspot.com`.
    branch, tag, snapshot
        The version of the repository, by at most one of them; the branch `main` if all are None.
    virtual
        Folders with files that chunks of the repository may refer to.
    **options
        Options of obstore, for a URL.

    Returns
    -------
    Server
        The server, with its `url`. `stop()` ends it.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> parts = ["", ps.Part(".b", size=4)]
    >>> array = ps.create_array(store, "a", parts=parts, shape=(8, 8), chunks=(8, 8), dtype="uint8")
    >>> server = ps.serve(store)
    >>> server.stop()
    """
    return new_server(
        *open_source(source, {"branch": branch, "tag": tag, "snapshot": snapshot}, virtual, options),
        host=host,
        port=port,
        cors=cors,
    ).start()


def open_source(
    source: PartsStore | icechunk.Repository | str | Path,
    version: Mapping[str, str | None],
    virtual: Sequence[str | Path],
    options: Mapping[str, Any],
) -> tuple[PartsStore, icechunk.Repository | None, str]:
    """Return the store to serve, its repository if it has one, and the title of the page."""
    chosen = {name: value for name, value in version.items() if value is not None}
    if isinstance(source, PartsStore):
        if chosen or virtual or options:
            raise StoreConfigError("serve", "no version, folders or options for a store that is open", "some of them")
        return source.with_read_only(True), None, _title(str(source))
    if isinstance(source, icechunk.Repository):
        wanted: dict[str, Any] = {_ARGUMENTS.get(name, name): each for name, each in chosen.items()}
        store = PartsStore.from_session(source.readonly_session(**wanted or {"branch": "main"}))
        return store, source, _title(str(store))
    # Raises for a version that does not exist, and for folders that are not given.
    store = open_store(source, **version, virtual=virtual, reads_chunks=True, **options)
    if store.session is None:
        return store, None, _title(str(store))
    # Of a folder the name alone, because others may read the page.
    folder, shown = hide_in_url(str(source)).rstrip("/").removeprefix("file://"), chosen or {"branch": "main"}
    title = folder if "://" in folder else Path(folder).absolute().name
    kind, name = next(iter(shown.items()))
    return store, open_repository(source, virtual=virtual, create=False, **options), f"{title} · {kind} {name}"


def new_server(
    store: PartsStore,
    repository: icechunk.Repository | None,
    title: str,
    *,
    host: str,
    port: int,
    cors: Sequence[str] | str = (),
) -> Server:
    """Return a server that does not run yet."""
    hierarchy = Hierarchy(store, is_fixed=repository is not None)
    looker = Looker(store, hierarchy, title)
    if repository is not None and store.session is not None:
        # What is served stays as it is, and so does its history.
        looker.history = cache(partial(snapshots_of, repository, store.session.snapshot_id))
        looker.at_snapshot = opener_of(repository, looker.history)
    hosts = _LOOPBACK if host in _LOOPBACK else ("*",)
    origins = [cors] if isinstance(cors, str) else list(cors)
    app = make_app(Gateway(store, hierarchy), looker, hosts=hosts, cors=origins)
    return Server(app, title, host, port)


def _title(store: str) -> str:
    """Return what is shown of a store: of a local folder, its name alone, because others may read the page."""
    return re.sub(r'LocalStore\("(?:.*[/\\])?([^/\\]+)[/\\]*"\)', r"\1", store.removeprefix("parts_store://"))


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
            # From now on clients can connect, and wait until the server runs.
            bound.listen(_BACKLOG)
        except BaseException:
            bound.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreConfigError(
            "host and port", "an address and a port that are free", f"{host}:{port} ({reason})"
        ) from error
    return bound
