"""`parts-store`: the library's calls from a shell, what they return printed, for people or as JSON.

Exit codes: 0 all is well; 1 chunks are damaged; 2 the call is wrong, or the store cannot be reached; 3 nothing is
damaged, but a repair would tidy up, or something in a file was not adopted.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn, override

from parts_store.backends.objects import BaseError
from parts_store.errors import PartsStoreError, StoreConfigError, describe
from parts_store.plan.document import ArrayRecord
from parts_store.stats import Progress, Report
from parts_store.store import PartsStore
from parts_store.upkeep import look

OK, DAMAGED, WRONG, UNTIDY = 0, 1, 2, 3
# What a wrong address, a store that is not there, an array that is not there or another than was thought, a selection
# beyond it, and a package that is not installed make.
_MISTAKES = (OSError, BaseError, ValueError, IndexError, ImportError)
# Options of the store itself, which are the commands' to set.
_OWN = (
    *("read_only", "parts", "concurrency", "index_cache_bytes", "coalesce_gap", "retries", "must_understand"),
    "url",
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (PartsStoreError, *_MISTAKES) as error:
        # Of obstore's errors, the first line says what it is.
        print(f"parts-store: {str(error).strip().partition(chr(10))[0]}", file=sys.stderr)
        return WRONG
    return code


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("parts-store", description="Zarr arrays whose chunks are several objects.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, epilog=__doc__.split("\n\n")[1])
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print JSON")
        return command

    demo = add("demo", _demo, "Write and read some pictures.")
    demo.add_argument("folder", type=Path, help="where to write them")
    inspect = add("inspect", _inspect, "Show which arrays have parts, and which.")
    _add_place(inspect)
    explain = add("explain", _explain, "Show the requests that reading a selection makes.")
    _add_place(explain, has_prefix=False)
    explain.add_argument("path", help="the path of the array")
    explain.add_argument("selection", nargs="?", type=_selection, default="...", help="as in Python: '0:64, 5, ...'")
    verify = add("verify", _verify, "Find chunks that are incomplete, mixed, orphaned, of a wrong size or interrupted.")
    _add_place(verify)
    verify.add_argument("--checksums", action="store_true", help="read chunks that end in a crc32c, and compare")
    verify.add_argument("--dask", metavar="ADDRESS", help="look from the workers of this dask scheduler")
    adopt = add("adopt", _adopt, "Make an HDF5 or netCDF4 file readable as Zarr, without a copy of its data.")
    adopt.add_argument("file", help="a path, or s3://, gs://, az://, https://")
    adopt.add_argument("into", help="an Icechunk repository, made if there is none; with --copy, a Zarr store")
    adopt.add_argument("--path", default="", help="where in it the arrays appear")
    adopt.add_argument("--branch", default="main", help="the branch that is committed to: main")
    adopt.add_argument("--message", help="of the commit")
    adopt.add_argument("--copy", action="store_true", help="copy or link the file to where it is a part of an array")
    adopt.add_argument("--strict", action="store_true", help="write nothing if not all of the file can be adopted")
    adopt.add_argument("--overwrite", action="store_true", help="replace arrays that are there")
    _add_options(adopt)
    check = add("check", _check, "Find out whether a server supports what writing needs; exit code 1: it does not.")
    check.add_argument("url", help="a path, or s3://, gs://, az://, https://, file://")
    _add_options(check)
    repair = add("repair", _repair, "Finish committed writes, and remove what dead writers have left.")
    _add_place(repair)
    repair.add_argument("--concurrency", default="writers", help="the level of the array's writers: writers")
    repair.add_argument("--min-age", type=_age, default="24h", help="how old a dead writer's things are: 24h")
    repair.add_argument("--drop-incomplete", action="store_true", help="remove chunks that cannot be read")
    repair.add_argument("--retag", action="store_true", help="let parts without tags count as one write")
    repair.add_argument(
        "--must-understand",
        action="store_true",
        help="tell software without concat-parts to refuse arrays that it would misread",
    )
    return parser


def _add_place(command: argparse.ArgumentParser, *, has_prefix: bool = True) -> None:
    """Where the arrays are."""
    command.add_argument("url", help="a path, or s3://, gs://, az://, https://, file://")
    _add_options(command)
    if has_prefix:
        command.add_argument("--prefix", default="", help="look below this path only")


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        *("-o", "--option"),
        action="append",
        type=_option,
        default=[],
        metavar="NAME=VALUE",
        help="an option of obstore's; JSON if it is an object",
    )


def _option(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not is_given or not name or name in _OWN:
        raise argparse.ArgumentTypeError(f"expected an option of obstore's as NAME=VALUE, found {text!r}")
    try:
        return name, json.loads(value) if value.startswith("{") else value
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected JSON after {name}=") from None


def _age(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    try:
        return timedelta(**{_UNITS[found[2] or "s"]: float(found[1])}) if found is not None else _no_age(text)
    except OverflowError:
        return _no_age(text)


def _no_age(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"expected a number with s, m, h or d, found {text!r}")


def _open(options: argparse.Namespace, **more: Any) -> PartsStore:
    return PartsStore.from_url(options.url, **more, **dict(options.option))


def _demo(options: argparse.Namespace) -> int:
    # It needs Pillow, and nothing else does.
    from parts_store import demo  # noqa: PLC0415

    if not options.json:
        demo.main(options.folder)
        return OK
    with redirect_stdout(StringIO()) as printed:
        demo.main(options.folder)
    print(json.dumps({"folder": str(options.folder), "said": printed.getvalue().splitlines()}, indent=2))
    return OK


def _inspect(options: argparse.Namespace) -> int:
    store = _open(options, read_only=True)
    store.require_listable()
    scope = look(store, options.prefix)
    counts = Counter(listing.chunk.array for listing in scope.survey.chunks.values())
    arrays = {path: _described(record, counts[path]) for path, record in scope.arrays.items()}
    if options.json:
        problems = {path: {"problem": problem} for path, problem in scope.not_understood}
        print(json.dumps(arrays | problems, indent=2))
    else:
        for path, each in arrays.items():
            parts = ", ".join(f"{part['key_suffix']!r} ({part.get('size', 'the rest')})" for part in each["parts"])
            print(f"{path or '/'}: shape {each['shape']}, {each['chunks']} chunks, parts {parts}")
        for path, problem in scope.not_understood:
            print(f"not understood: {path or '/'}: {problem}")
    return DAMAGED if scope.not_understood else OK


def _described(record: ArrayRecord, chunks: int) -> dict[str, Any]:
    parts = record.parts.to_json()["configuration"]["parts"]
    return {"shape": record.stored.get("shape"), "parts": parts, "chunks": chunks}


def _explain(options: argparse.Namespace) -> int:
    store = _open(options, read_only=True)
    requests = store.explain(options.path, options.selection)
    if options.json:
        names = ("kind", "key", "start", "stop", "why")
        print(json.dumps([{name: getattr(each, name) for name in names} for each in requests], indent=2))
    for each in requests if not options.json else ():
        span = "" if each.start is None else f" [{each.start}:{'' if each.stop is None else each.stop}]"
        print(f"{each.kind.upper():6} {each.key}{span}  {each.why}")
    return OK


def _selection(text: str) -> Any:
    """A selection as it stands in brackets: integers, slices and an ellipsis."""
    chosen: list[Any] = []
    for each in text.split(","):
        if each.strip() == "...":
            chosen.append(...)
            continue
        if not re.fullmatch(r"\s*(-?\d+|(-?\d+)?\s*(:\s*(-?\d+)?\s*){1,2})\s*", each, re.ASCII):
            raise argparse.ArgumentTypeError(f"expected integers, slices or '...', with commas, found {text!r}")
        numbers = [int(number) if number.strip() else None for number in each.split(":")]
        chosen.append(slice(*numbers) if len(numbers) > 1 else numbers[0])
    return tuple(chosen)


def _verify(options: argparse.Namespace) -> int:
    store = _open(options, read_only=True)
    with _progress("chunks", shown=not options.json) as progress, _client(options.dask) as client:
        report = store.verify(options.prefix, checksums=options.checksums, client=client, progress=progress)
    return _print(report, options)


def _check(options: argparse.Namespace) -> int:
    if "://" not in options.url or options.url.startswith("file://"):
        options.option = [("mkdir", False), *options.option]
    # At this level, since a store with conditional PUTs disabled opens at no other.
    features = _open(options, concurrency="exclusive").check()
    print(json.dumps(features.to_json(), indent=2) if options.json else features)
    return OK if features.supports_default else DAMAGED


def _repair(options: argparse.Namespace) -> int:
    if "://" not in options.url or options.url.startswith("file://"):
        # What is not there needs no repair, nor to be made.
        options.option = [("mkdir", False), *options.option]
    store = _open(options, concurrency=options.concurrency)
    with _progress("findings", shown=not options.json) as progress:
        report = store.repair(
            options.prefix,
            min_age=options.min_age,
            drop_incomplete=options.drop_incomplete,
            retag=options.retag,
            must_understand=options.must_understand,
            progress=progress,
        )
    return _print(report, options)


def _adopt(options: argparse.Namespace) -> int:
    # Only who adopts needs h5py.
    from parts_store.adoption import adopt  # noqa: PLC0415
    from parts_store.adoption.repositories import writable_session  # noqa: PLC0415

    arguments: dict[str, Any] = {name: getattr(options, name) for name in ("path", "strict", "overwrite")}
    more = dict(options.option)
    session = None if options.copy else writable_session(options.into, options.file, options.branch, more)
    into = PartsStore.from_url(options.into, **more) if session is None else session
    with _progress("arrays", shown=not options.json) as progress:
        report = adopt(options.file, into=into, copy=options.copy, progress=progress, **arguments, **more)
    if session is not None and report.arrays:
        session.commit(options.message or f"adopt {report.location}")
    print(json.dumps(report.to_json(), indent=2) if options.json else report)
    return OK if report.is_complete else UNTIDY


def _print(report: Report, options: argparse.Namespace) -> int:
    if options.prefix and not report.arrays and not report.not_understood:
        raise StoreConfigError("prefix", "an array with parts there, above or below", describe(options.prefix))
    print(json.dumps(report.to_json(), indent=2) if options.json else report)
    if report.is_damaged:
        return DAMAGED
    return OK if report.is_tidy else UNTIDY


@contextmanager
def _client(address: str | None) -> Iterator[Any]:
    if address is None:
        yield None
        return
    # Only who asks for it needs it.
    from distributed import Client  # noqa: PLC0415

    with Client(address) as client:
        yield client


@contextmanager
def _progress(unit: str, *, shown: bool) -> Iterator[Progress | None]:
    """A bar on a terminal, and nothing elsewhere."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm  # noqa: PLC0415
    except ImportError:
        # Nobody has to see how far it is.
        yield None
        return

    with tqdm(unit=f" {unit}") as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


if __name__ == "__main__":
    sys.exit(main())
