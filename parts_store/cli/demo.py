"""`parts-store demo`."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from parts_store.cli.exits import OK
from parts_store.cli.output import Output


def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write to.")] = Path("demo-output"),
    *,
    output: Output,
) -> int:
    """Write example images, and read them back."""
    from parts_store.examples import demo as program

    if not output.as_json and not output.is_quiet:
        program.main(folder)
        return OK
    with redirect_stdout(StringIO()) as printed:
        program.main(folder)
    output.show({"folder": str(folder), "said": printed.getvalue().splitlines()}, ())
    return OK
