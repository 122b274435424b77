"""`parts-store serve`."""

import ctypes
import sys
from typing import Annotated, Final

from parts_store.cli.exits import OK
from parts_store.cli.parameters import Output, ReadOptions, Url, new_option, parse_options
from parts_store.redaction import hide_in_url

# `M_ARENA_MAX` of glibc, for `mallopt`.
_ARENA_MAX: Final = -8


def serve(
    url: Url,
    *,
    port: Annotated[int, new_option("The port; by default a free one.")] = 0,
    host: Annotated[
        str, new_option("The address to listen on. Any but 127.0.0.1 lets other machines read the data.")
    ] = "127.0.0.1",
    cors: Annotated[
        list[str] | None,
        new_option("The origin of a web page that may read the data. May be repeated.", "--cors", metavar="ORIGIN"),
    ] = None,
    read: ReadOptions,
    output: Output,
) -> int:
    """Serve arrays over HTTP: plain Zarr for every client, and a page that shows them.

    Zarr is below /zarr/, the page is at /. Nothing can be written. Ctrl-C ends
    the server.
    """
    from parts_store.web.server import new_server, open_source

    _share_heaps()
    version = {"branch": read.branch, "tag": read.tag, "snapshot": read.snapshot}
    opened = open_source(url, version, read.virtual or (), parse_options(read.option))
    server = new_server(*opened, host=host, port=port, cors=cors or ())
    if host not in ("127.0.0.1", "localhost", "::1"):
        print("parts-store: anyone who reaches this machine can now read the data, without a password", file=sys.stderr)
    shown = hide_in_url(url)
    lines = [f"{shown}", f"  page  {server.url}", f"  Zarr  {server.zarr_url}", "Ctrl-C ends the server."]
    output.show({"url": shown, "page": server.url, "zarr": server.zarr_url}, lines)
    sys.stdout.flush()
    server.run()
    return OK


def _share_heaps() -> None:
    """Let all threads share two heaps. With one for each thread, the memory of a busy server grows for many minutes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_ARENA_MAX, 2)
