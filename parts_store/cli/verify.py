"""`parts-store verify`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from parts_store.cli.output import Output
from parts_store.cli.parameters import Prefix, ReadOptions, Url
from parts_store.cli.reports import require_something, show_report


def verify(
    url: Url,
    *,
    prefix: Prefix = "",
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Read all chunks that end in a crc32c, and compare.")
    ] = False,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Check on the workers of this dask scheduler.", show_default=False),
    ] = None,
    read: ReadOptions,
    output: Output,
) -> int:
    """Find damaged chunks and leftovers.

    Nothing is changed. A chunk is damaged if a part is missing, has a wrong
    size, or belongs to another write. Leftovers are parts without a chunk, and
    objects that writers which died have left beside chunks.
    """
    store = read.open(url, reads_chunks=checksums)
    with _client(dask) as client, output.progress("verify", "chunks") as progress:
        report = store.verify(prefix, checksums=checksums, executor=client, progress=progress)
    require_something(report, store, url, prefix)
    return show_report(report, output)


@contextmanager
def _client(address: str | None) -> Iterator[Any]:
    if address is None:
        yield None
        return
    from distributed import Client

    with Client(address) as client:
        yield client
