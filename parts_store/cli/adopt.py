"""`parts-store adopt`."""

from typing import Annotated

import typer

from parts_store.cli.exits import LEFTOVERS, OK
from parts_store.cli.output import Output
from parts_store.cli.parameters import Message, Options, parse_options


def adopt(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The file: a path, or s3://, gs://, az:// or https://.", show_default=False
        ),
    ],
    into: Annotated[
        str,
        typer.Argument(
            metavar="INTO",
            help="An Icechunk repository, which is created if there is none; with --copy, a Zarr store.",
            show_default=False,
        ),
    ],
    *,
    path: Annotated[
        str, typer.Option(help="The group of the destination that the arrays are written to.", show_default=False)
    ] = "",
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy or link the file into the store, where it becomes a part of an array.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if something in the file cannot be adopted.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace arrays that exist.")] = False,
    option: Options = None,
    branch: Annotated[str, typer.Option(help="The branch of the repository to commit to.")] = "main",
    message: Message = None,
    output: Output,
) -> int:
    """Make an HDF5 or netCDF4 file readable as Zarr.

    The data is not copied: the arrays refer to the file.
    """
    from parts_store.adoption import adopt as adopt_file
    from parts_store.adoption import require_file
    from parts_store.repositories import folder_of, open_branch, options_for
    from parts_store.store import PartsStore

    given = parse_options(option)
    # Before a repository is created for the file.
    require_file(file, **options_for(file, given))
    if copy:
        store = PartsStore.from_url(into, **options_for(into, given))
    else:
        store = open_branch(into, branch=branch, virtual=[folder_of(file)], create=True, **given)
    with output.progress("adopt", "arrays") as progress:
        report = adopt_file(
            file,
            into=store,
            path=path,
            copy=copy,
            strict=strict,
            overwrite=overwrite,
            progress=progress,
            **options_for(file, given),
        )
    if store.session is not None and report.arrays:
        store.session.commit(message or f"adopt {report.location}")
    output.show(report.to_json(), str(report).splitlines())
    return OK if report.is_complete else LEFTOVERS
