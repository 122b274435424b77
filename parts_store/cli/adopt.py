"""`parts-store adopt`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parts_store.cli.exits import LEFTOVERS, OK
from parts_store.cli.output import Output
from parts_store.cli.parameters import Message, Options, parse_options
from parts_store.errors import PartsStoreError, SessionError, StoreConfigError

if TYPE_CHECKING:
    from parts_store.adoption import Adoption
    from parts_store.adoption.parsers import Parser
    from parts_store.store import PartsStore

_FILES: Final = "Which files"
_COPY_ONLY: Final = "no --copy: a copy of one HDF5 or TIFF file becomes an array"


def adopt(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="The files: paths, s3://, gs://, az:// or https://, or patterns such as 'data/*.nc'.",
            show_default=False,
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
    concat_dim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The dimension along which files are joined, in the order of their names; without it, the coordinates "
            "of the files decide.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    append_dim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The dimension along which the files are appended to arrays that are there.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A variable to adopt, with its coordinates; by default all. May be repeated.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A variable whose values are stored, and do not refer to the files. May be repeated.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    parser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The parser, such as NetCDF3Parser of VirtualiZarr or module:Class; by default the content decides.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    virtual: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="Another folder that files, or stored arrays, refer to. May be repeated.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            *("-j", "--jobs"),
            min=1,
            help="The number of processes that parse files; by default threads of this one.",
            rich_help_panel=_FILES,
            show_default=False,
        ),
    ] = None,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Go on without files that cannot be parsed.", rich_help_panel=_FILES)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be adopted and skipped, and write nothing.")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy or link the file into the store, where it becomes a part of an array.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if something in a file cannot be adopted.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace arrays that exist.")] = False,
    option: Options = None,
    branch: Annotated[str, typer.Option(help="The branch of the repository to commit to.")] = "main",
    message: Message = None,
    output: Output,
) -> int:
    """Make existing files readable as Zarr.

    HDF5, netCDF, TIFF, N5, Zarr and kerchunk files are recognised by their content, others need `--parser`. The data is
    not copied: the arrays refer to the files. Several files become one dataset.
    """
    from parts_store.adoption.preparation import AdoptionRequest
    from parts_store.repositories import is_repository, open_branch, options_for

    given = parse_options(option)
    if copy:
        if any((concat_dim, append_dim, variable, load, parser, virtual, jobs, skip_errors, dry_run)):
            raise StoreConfigError("arguments", _COPY_ONLY, "--copy with options for many files")
        return _copy(files, into, given, path=path, strict=strict, overwrite=overwrite, output=output)
    # The files are parsed before a repository is created for them.
    with _executor(jobs) as executor, output.progress("parse", "files") as progress:
        request = AdoptionRequest(
            parser=_find_parser(parser),
            concat_dim=concat_dim,
            append_dim=append_dim,
            variables=None if variable is None else tuple(variable),
            loadable_variables=None if load is None else tuple(load),
            executor=executor,
            on_error="skip" if skip_errors else "raise",
            strict=strict,
            progress=progress,
        )
        is_remote = any(options_for(each, given) for each in (*files, *(virtual or ())))
        prepared = request.prepare(files, given if is_remote else {}, virtual=virtual or ())
    is_new = not is_repository(into, **given)
    if is_new and branch != "main":
        raise StoreConfigError("--branch", "'main', because there is no repository yet", repr(branch))
    if is_new and append_dim is not None:
        raise StoreConfigError("INTO", "a repository with arrays to append to", f"none at {into!r}")
    # What is stored may refer to other folders, and is compared with the files of an append.
    folders = [*prepared.folders, *(virtual or ())]
    if is_new or dry_run:
        # Everything is checked before a repository is created.
        scratch = _open_for_reading(into, folders, given, branch=branch, is_new=is_new)
        report = prepared.write(scratch, path, append_dim=append_dim, overwrite=overwrite, dry_run=True)
    if not dry_run:
        store = open_branch(into, branch=branch, virtual=folders, create=is_new, **given)
        with output.progress("adopt", "arrays") as progress:
            report = prepared.write(store, path, append_dim=append_dim, overwrite=overwrite, progress=progress)
        store.session.commit(message or f"adopt {report.location}")
        if not is_new:
            _store_folders(into, folders, given)
    how = ["dry run: nothing was written"] if dry_run else report.how_to_open(into, path=path, branch=branch)
    return _show(report, output, how)


def _show(report: "Adoption", output: Output, how: Sequence[str] = ()) -> int:
    output.show(report.to_json(), [*report.lines(), *how])
    return OK if report.is_complete else LEFTOVERS


def _copy(
    files: Sequence[str],
    into: str,
    given: Mapping[str, Any],
    *,
    path: str,
    strict: bool,
    overwrite: bool,
    output: Output,
) -> int:
    from parts_store.adoption import adopt as adopt_files
    from parts_store.adoption import require_file
    from parts_store.repositories import options_for
    from parts_store.store import PartsStore

    if len(files) != 1:
        raise StoreConfigError("FILE", "one file, because a copy of it becomes an array", f"{len(files)} files")
    (file,) = files
    # Before a folder is created for the file.
    require_file(file, **options_for(file, given))
    store = PartsStore.from_url(into, **options_for(into, given))
    with output.progress("adopt", "arrays") as progress:
        report = adopt_files(
            file,
            into=store,
            path=path,
            copy=True,
            strict=strict,
            overwrite=overwrite,
            progress=progress,
            **options_for(file, given),
        )
    return _show(report, output)


def _open_for_reading(
    into: str, folders: Sequence[str], given: Mapping[str, Any], *, branch: str, is_new: bool
) -> "PartsStore":
    """Return a store for a dry run: on the repository, or in memory if there is none yet."""
    from parts_store.repositories import open_branch, open_memory

    if is_new:
        return open_memory(virtual=folders, **given)
    return open_branch(into, branch=branch, virtual=folders, **given)


def _store_folders(into: str, folders: Sequence[str], given: Mapping[str, Any]) -> None:
    """Store in the configuration of a repository which folders its chunks refer to, after the commit was made."""
    from parts_store.repositories import open_repository

    try:
        open_repository(into, virtual=folders, **given)
    except PartsStoreError as error:
        problem = f"the files were adopted, but their folders are not stored in the configuration: {error}"
        raise SessionError(
            into, f"{problem}; open it with `ps.open_repository(URL, virtual={list(folders)})`"
        ) from error


@contextmanager
def _executor(jobs: int | None) -> Iterator[Any]:
    """Yield an executor of this number of processes; None for threads, False for this thread."""
    if jobs is None or jobs == 1:
        yield None if jobs is None else False
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # The threads of obstore do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
        yield executor


def _find_parser(name: str | None) -> "Parser | None":
    """Return the parser that a name says: a class of VirtualiZarr, one of ours, or `module:Class`."""
    if name is None:
        return None
    from importlib import import_module

    module, _, attribute = name.rpartition(":")
    places = [module] if module else ["parts_store.adoption.parsers", "virtualizarr.parsers"]
    for place in places:
        try:
            found = getattr(import_module(place), attribute, None)
        except ImportError as error:
            raise StoreConfigError("--parser", f"a module that can be imported, found {error}", repr(name)) from None
        if isinstance(found, type):
            made: Parser = found()
            return made
    expected = "HDF5, TIFF, a parser of VirtualiZarr such as NetCDF3Parser, or module:Class"
    raise StoreConfigError("--parser", expected, repr(name))
