"""The parameters that several commands have, and how their values are parsed."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parts_store.errors import StoreConfigError

if TYPE_CHECKING:
    from parts_store.store import PartsStore

# Options of the store itself, which the commands set.
_OWN: Final = (
    *(
        "read_only",
        "parts",
        "concurrency",
        "index_cache_bytes",
        "coalesce_gap",
        "retries",
        "must_understand",
        "durable",
    ),
    *("url", "branch", "tag", "snapshot", "virtual", "create"),
)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PLACE: Final = "Where to look"

Url = Annotated[
    str, typer.Argument(metavar="URL", help="A path, or s3://, gs://, az://, https:// or file://.", show_default=False)
]
Prefix = Annotated[str, typer.Option(help="Only below this path.", rich_help_panel=_PLACE, show_default=False)]
Options = Annotated[
    list[str] | None,
    typer.Option(
        *("-o", "--option"),
        metavar="NAME=VALUE",
        help="An option of obstore, such as endpoint=http://127.0.0.1:9000 or region=us-east-1; a value that begins "
        "with { is JSON. May be repeated.",
        rich_help_panel=_PLACE,
        show_default=False,
    ),
]
Branch = Annotated[
    str | None,
    typer.Option(
        help="The branch of an Icechunk repository; main if none is given.", rich_help_panel=_PLACE, show_default=False
    ),
]
Message = Annotated[
    str | None, typer.Option(help="The message of the commit to an Icechunk repository.", show_default=False)
]
Durable = Annotated[
    bool,
    typer.Option(
        "--durable",
        help="Wait until every write is on the disk, so that it survives a power failure.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options that say how a URL is opened for reading; a command that reads has them as a parameter."""

    option: Options = None
    branch: Branch = None
    tag: Annotated[
        str | None, typer.Option(help="The tag of an Icechunk repository.", rich_help_panel=_PLACE, show_default=False)
    ] = None
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="The snapshot of an Icechunk repository, by its id.", rich_help_panel=_PLACE, show_default=False
        ),
    ] = None
    virtual: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="A folder with files that the chunks of an Icechunk repository may refer to. May be repeated.",
            rich_help_panel=_PLACE,
            show_default=False,
        ),
    ] = None

    def open(self, url: str, *, options: Mapping[str, Any] | None = None, reads_chunks: bool = False) -> "PartsStore":
        """Open a URL for reading.

        `options` replaces the options of obstore. `reads_chunks` says whether chunks will be read, and not only
        metadata.
        """
        from parts_store.repositories import open_store

        return open_store(
            url,
            branch=self.branch,
            tag=self.tag,
            snapshot=self.snapshot,
            virtual=self.virtual or (),
            reads_chunks=reads_chunks,
            **(parse_options(self.option) if options is None else options),
        )


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """Return options of obstore from texts like NAME=VALUE. An error never contains a value."""
    options: dict[str, Any] = {}
    for text in given or ():
        name, is_given, value = text.partition("=")
        if not is_given or not name:
            raise StoreConfigError("option -o", "NAME=VALUE", "a text without a name or without '='")
        if name in _OWN:
            raise StoreConfigError("option -o", "an option of obstore", f"{name!r}, which a command sets itself")
        options[name] = _parse_value(name, value)
    return options


def _parse_value(name: str, value: str) -> Any:
    if not value.startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        pass
    # Outside the handler, so that no traceback shows the value.
    raise StoreConfigError(f"option -o {name}", "JSON, since the value begins with '{'", "something else")


def parse_age(text: str) -> timedelta:
    """Return the age that a number with a unit says: `90s`, `1.5m`, `24h`, `7d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    try:
        if found is not None:
            return timedelta(**{_UNITS[found[2] or "s"]: float(found[1])})
    except OverflowError:
        pass
    raise StoreConfigError("--min-age", "a number with s, m, h or d, such as 24h", repr(text))


def parse_selection(text: str) -> tuple[Any, ...]:
    """Return the selection that a text says, as in the brackets of Python: integers, slices and an ellipsis."""
    chosen: list[Any] = []
    for each in text.split(","):
        if each.strip() == "...":
            chosen.append(...)
            continue
        if not re.fullmatch(r"\s*(-?\d+|(-?\d+)?\s*(:\s*(-?\d+)?\s*){1,2})\s*", each, re.ASCII):
            raise StoreConfigError("SELECTION", "integers, slices or '...', separated by commas", repr(text))
        numbers = [int(number) if number.strip() else None for number in each.split(":")]
        chosen.append(slice(*numbers) if len(numbers) > 1 else numbers[0])
    return tuple(chosen)
