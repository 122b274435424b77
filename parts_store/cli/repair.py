"""`parts-store repair`."""

from enum import StrEnum
from typing import Annotated

import typer

from parts_store.cli.output import Output
from parts_store.cli.parameters import Branch, Durable, Message, Options, Prefix, Url, parse_age, parse_options
from parts_store.cli.reports import require_something, show_report


class Level(StrEnum):
    """A value of the option `concurrency` of `PartsStore`."""

    EXCLUSIVE = "exclusive"
    WRITERS = "writers"
    FULL = "full"


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
    concurrency: Annotated[Level, typer.Option(help="The level that the writers of the arrays use.")] = Level.WRITERS,
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
    from parts_store.repositories import open_writable

    store = open_writable(url, branch=branch, concurrency=concurrency.value, durable=durable, **parse_options(option))
    with output.progress("repair", "findings") as progress:
        report = store.repair(
            prefix,
            min_age=age,
            drop_incomplete=drop_incomplete,
            retag=retag,
            must_understand=must_understand,
            progress=progress,
        )
    require_something(report, store, url, prefix)
    if store.session is not None and any(each.is_repaired for each in report.findings):
        store.session.commit(message or "parts-store repair")
    return show_report(report, output)
