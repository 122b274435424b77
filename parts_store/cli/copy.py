"""`parts-store copy`."""

from dataclasses import asdict
from typing import Annotated

import typer

from parts_store.cli.exits import OK, did_you_mean
from parts_store.cli.parameters import Durable, Message, Output, ReadOptions, new_argument, new_option, parse_options
from parts_store.errors import StoreConfigError

_DESTINATION = "Destination"


def copy(
    source: Annotated[str, new_argument("SOURCE", "Where to copy from: a path or a URL.")],
    destination: Annotated[str, new_argument("DESTINATION", "Where to copy to: a path or a URL.")],
    *,
    path: Annotated[str, new_option("Copy this group or array only.")] = "",
    to: Annotated[str | None, new_option("The path in the destination; the same if none is given.")] = None,
    overwrite: Annotated[bool, new_option("Delete the arrays and groups at that path first.", "--overwrite")] = False,
    no_verify: Annotated[bool, new_option("Do not read the copy back and compare.", "--no-verify")] = False,
    max_concurrency: Annotated[int, typer.Option(min=1, help="How many chunks are copied at once.")] = 16,
    read: ReadOptions,
    to_option: Annotated[
        list[str] | None,
        new_option(
            "An option of obstore for the destination only. May be repeated.", metavar="NAME=VALUE", panel=_DESTINATION
        ),
    ] = None,
    to_branch: Annotated[
        str | None,
        new_option("The branch of an Icechunk repository to commit to; main if none is given.", panel=_DESTINATION),
    ] = None,
    create_repository: Annotated[
        bool, new_option("Create an Icechunk repository if there is none.", "--create-repository", panel=_DESTINATION)
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
    from parts_store.store.repositories import open_branch, open_writable, options_for

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
