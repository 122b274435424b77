"""`parts-store verify` and `parts-store repair`, and the report that both print."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from parts_store.cli.exits import DAMAGED, LEFTOVERS, OK, NothingFoundError, did_you_mean
from parts_store.cli.parameters import (
    Branch,
    Durable,
    Message,
    Options,
    Output,
    Prefix,
    ReadOptions,
    Url,
    new_option,
    new_table,
    parse_age,
    parse_options,
    rectilinear_grids,
)
from parts_store.redaction import hide_in_url

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parts_store.maintenance.report import Report
    from parts_store.store.store import PartsStore


def verify(
    url: Url,
    *,
    prefix: Prefix = "",
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Read all chunks that end in a crc32c, and compare.")
    ] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode all chunks of all arrays.")] = False,
    dask: Annotated[str | None, new_option("Check on the workers of this dask scheduler.", metavar="ADDRESS")] = None,
    read: ReadOptions,
    output: Output,
) -> int:
    """Find damaged chunks and leftovers.

    Nothing is changed. A chunk is damaged if a part is missing, has a wrong
    size, or belongs to another write. Leftovers are parts without a chunk, and
    objects that writers which died have left beside chunks.
    """
    store = read.open(url, reads_chunks=checksums or decode)
    with rectilinear_grids(), _client(dask) as client, output.progress("verify", "chunks") as progress:
        report = store.verify(prefix, checksums=checksums, decode=decode, executor=client, progress=progress)
    _require_something(report, store, url, prefix)
    return _show_report(report, output)


def repair(
    url: Url,
    *,
    prefix: Prefix = "",
    min_age: Annotated[
        str, typer.Option(help="Remove leftovers that are older than this: a number with s, m, h or d.")
    ] = "24h",
    drop_incomplete: Annotated[
        bool, typer.Option("--drop-incomplete", help="Delete chunks that cannot be read; nothing else has their bytes.")
    ] = False,
    retag: Annotated[
        bool, typer.Option("--retag", help="Take the parts of a chunk that another program wrote for one write.")
    ] = False,
    must_understand: Annotated[
        bool,
        typer.Option(
            "--must-understand", help="Tell software that does not know parts to refuse arrays it would misread."
        ),
    ] = False,
    concurrency: Annotated[
        Literal["exclusive", "writers", "full"], typer.Option(help="The level that the writers of the arrays use.")
    ] = "writers",
    durable: Durable = False,
    option: Options = None,
    branch: Branch = None,
    message: Message = None,
    output: Output,
) -> int:
    """Finish interrupted writes, and delete leftovers.

    Chunks that cannot be read are deleted with --drop-incomplete only. Repairs
    of an Icechunk repository are committed to the branch.
    """
    age = parse_age(min_age)
    from parts_store.store.repositories import open_writable

    store = open_writable(url, branch=branch, concurrency=concurrency, durable=durable, **parse_options(option))
    with rectilinear_grids(), output.progress("repair", "findings") as progress:
        report = store.repair(
            prefix,
            min_age=age,
            drop_incomplete=drop_incomplete,
            retag=retag,
            must_understand=must_understand,
            progress=progress,
        )
    _require_something(report, store, url, prefix)
    if store.session is not None and any(each.is_repaired for each in report.findings):
        store.session.commit(message or "parts-store repair")
    return _show_report(report, output)


@contextmanager
def _client(address: str | None) -> Iterator[Any]:
    if address is None:
        yield None
        return
    from distributed import Client

    with Client(address) as client:
        yield client


def _require_something(report: "Report", store: "PartsStore", url: str, prefix: str) -> None:
    """Raise unless a report is about at least one array, or about damage."""
    if report.arrays or report.is_damaged:
        return
    below = f" below {prefix!r}" if prefix else ""
    shown = hide_in_url(url)
    raise NothingFoundError(
        f"{shown}: no array with parts, shard files or references was found there{below}, nothing was checked"
        f"{did_you_mean(store, prefix) or '; `parts-store inspect` shows what is there'}"
    )


def _show_report(report: "Report", output: Output) -> int:
    """Print a report, and return the exit code for it."""
    output.show(report.to_json(), str(report).splitlines(), lambda: _tables(report))
    if report.is_damaged:
        return DAMAGED
    return OK if report.is_clean else LEFTOVERS


def _tables(report: "Report") -> "list[RenderableType]":
    from rich.text import Text

    first, *_, last = str(report).splitlines()
    rows = [
        [("not understood", "red"), (path or "/", ""), (problem, ""), ("", "")]
        for path, problem in report.not_understood
    ]
    for each in report.worst_first:
        style = {"good": "green", "open": "yellow", "bad": "red"}[each.state]
        found = f"{each.detail}: {', '.join(each.keys)}"
        rows.append([(each.label, style), (each.chunk_key, ""), (found, ""), (each.advice, "")])
    style = "bold red" if report.is_damaged else "bold green" if report.is_clean else "bold yellow"
    return [
        Text(first),
        *([new_table(("problem", "chunk", "what was found", "what to do"), rows)] if rows else []),
        *([Text(report.omitted)] if report.omitted else []),
        Text(last, style=style),
    ]
