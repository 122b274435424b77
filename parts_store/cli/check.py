"""`parts-store check`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from parts_store.cli.exits import DAMAGED, OK
from parts_store.cli.parameters import Options, Output, Url, parse_options
from parts_store.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def check(
    url: Url,
    *,
    option: Options = None,
    output: Output,
) -> int:
    """Check whether a server supports what writing needs.

    A small object is written and deleted again. The exit code is 1 if the
    server does not support the default level of concurrency.
    """
    from parts_store.repositories import open_writable

    # This level needs nothing of the server. The others refuse a store whose conditional PUT requests are disabled.
    features = open_writable(url, concurrency="exclusive", **parse_options(option)).check()
    output.show(features.to_json(), str(features).splitlines(), lambda: _table(features.rows))
    return OK if features.supports_default else DAMAGED


def _table(rows: Mapping[str, str]) -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, answer in rows.items():
        style = {"yes": "green", "no": "red"}.get(answer, "")
        table.add_row(Text(printable(name)), Text(printable(answer), style=style))
    return [table]
