"""`parts-store adopt-in-place`."""

from typing import Annotated

import typer

from parts_store.cli.exits import LEFTOVERS, OK
from parts_store.cli.output import Output
from parts_store.cli.parameters import Options, Url, parse_options


def adopt_in_place(
    url: Url,
    *,
    path: Annotated[
        str, typer.Option(help="A group or a dataset in the container; by default all of it.", show_default=False)
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be adopted and skipped, and write nothing.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing if a dataset cannot be adopted.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a zarr.json with other contents.")] = False,
    option: Options = None,
    output: Output,
) -> int:
    """Make an N5 container readable as Zarr where it is.

    A zarr.json is written beside each attributes.json. N5 programs go on
    reading the container, except for z5py, which refuses it.
    """
    from parts_store.adoption import adopt_in_place as adopt_container

    given = parse_options(option)
    with output.progress("adopt", "documents") as progress:
        report = adopt_container(
            url, path, strict=strict, overwrite=overwrite, dry_run=dry_run, progress=progress, **given
        )
    how = ["dry run: nothing was written"] if dry_run else []
    output.show(report.to_json(), [*report.lines(), *how])
    return OK if report.is_complete else LEFTOVERS
