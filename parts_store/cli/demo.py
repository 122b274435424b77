"""`parts-store demo`."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from parts_store.cli.exits import OK
from parts_store.cli.output import Output
from parts_store.cli.parameters import AsJson, Debug, Quiet


def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write them into.")] = Path(
        "demo-output"
    ),
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> int:
    """Write some pictures, and read them back."""
    from parts_store.examples import demo as program

    if not json and not quiet:
        program.main(folder)
        return OK
    with redirect_stdout(StringIO()) as printed:
        program.main(folder)
    Output(json, quiet).show({"folder": str(folder), "said": printed.getvalue().splitlines()}, ())
    return OK
