"""`parts-store copy`."""

from dataclasses import asdict
from typing import Annotated

import typer

from parts_store.cli.exits import OK
from parts_store.cli.output import Output
from parts_store.cli.parameters import Durable, Message, ReadOptions, parse_options
from parts_store.cli.suggestions import did_you_mean
from parts_store.errors import StoreConfigError

_DESTINATION = "Destination"


def copy(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Where to copy from: a path or a URL.", show_default=False)
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="Where to copy to: a path or a URL.", show_default=False)
    ],
    *,
    path: Annotated[str, typer.Option(help="Copy this group or array only.", show_default=False)] = "",
    to: Annotated[
        str | None, typer.Option(help="The path in the destination; the same if none is given.", show_default=False)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the arrays and groups at that path first.")
    ] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not read the copy back and compare.")] = False,
    max_concurrency: Annotated[int, typer.Option(min=1, help="How many chunks are copied at once.")] = 16,
    read: ReadOptions,
    to_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of obstore for the destination only. May be repeated.",
            rich_help_panel=_DESTINATION,
            show_default=False,
        ),
    ] = None,
    to_branch: Annotated[
        str | None,
        typer.Option(
            help="The branch of an Icechunk repository to commit to; main if none is given.",
            rich_help_panel=_DESTINATION,
            show_default=False,
        ),
    ] = None,
    create_repository: Annotated[
        bool,
        typer.Option(
            "--create-repository", help="Create an Icechunk repository if there is none.", rich_help_panel=_DESTINATION
        ),
    ] = False,
    durable: Durable = False,
    message: Message = None,
    output: Output,
) -> int:
    """Copy arrays and groups to another store, and compare.

    An array keeps its parts. Options given with -o are used for the source and
    for the destination, unless it is a folder of this machine.
    """
    from parts_store.copying import copy as copy_arrays
    from parts_store.repositories import open_branch, open_writable, options_for

    both = parse_options(read.option)
    reading = read.open(source, options=options_for(source, both), reads_chunks=True)
    more = {**options_for(destination, both), **parse_options(to_option)}
    if create_repository:
        writing = open_branch(destination, branch=to_branch or "main", create=True, durable=durable, **more)
    else:
        writing = open_writable(destination, branch=to_branch, create=True, durable=durable, **more)
    try:
        with output.progress("copy", "chunks") as progress:
            copied = copy_arrays(
                reading,
                writing,
                path=path,
                to=to,
                overwrite=overwrite,
                verify=not no_verify,
                max_concurrency=max_concurrency,
                progress=progress,
            )
    except StoreConfigError as error:
        if error.subject != "path":
            raise
        found = f"{error.found}{did_you_mean(reading, path)}"
        raise StoreConfigError("--path", error.expected, found) from error
    if writing.session is not None:
        writing.session.commit(message or "parts-store copy")
    output.show(asdict(copied), [f"copied {copied}"])
    return OK
