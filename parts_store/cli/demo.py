"""`parts-store demo`."""

from pathlib import Path
from typing import Annotated

import typer

from parts_store.cli.exits import DAMAGED, OK, print_error
from parts_store.cli.parameters import Output


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new folder, or that of an earlier demo, which is replaced.")
    ] = Path("demo-output"),
    *,
    output: Output,
) -> int:
    """Show what the library does, in five steps on this machine.

    It takes less than a minute, and needs no server. The pictures, numbers and
    code of each step are on a page, FOLDER/index.html.
    """
    from parts_store.examples.demo import run

    is_silent = output.as_json or output.is_quiet
    done = run(folder, (lambda _text: None) if is_silent else _say)
    output.show(done.to_json(), [f"open {done.page.as_uri()} in a browser"])
    if not done.is_right:
        print_error("a step of the demo did not find what it should find; please report it")
        return DAMAGED
    return OK


def _say(text: str) -> None:
    print(text, flush=True)
