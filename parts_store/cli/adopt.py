"""`parts-store adopt` and `parts-store adopt-in-place`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from parts_store.cli.exits import LEFTOVERS, OK
from parts_store.cli.parameters import (
    Message,
    Options,
    Output,
    Url,
    new_argument,
    new_option,
    parse_options,
    rectilinear_grids,
)
from parts_store.errors import PartsStoreError, SessionError, StoreConfigError

if TYPE_CHECKING:
    from parts_store.store.store import PartsStore
    from parts_store.virtual.parsers.file_parsers import Parser
    from parts_store.virtual.report import Adoption

_FILES: Final = "Which files"
_COPY_ONLY: Final = "no --copy: a copy of one HDF5 or TIFF file becomes an array"


# Parameters of both commands.
DryRun = Annotated[bool, new_option("Print what would be adopted and skipped, and write nothing.", "--dry-run")]
_DRY_RUN: Final = "dry run: nothing was written"


def adopt(
    files: Annotated[
        list[str],
        new_argument("FILE", "The files: paths, s3://, gs://, az:// or https://, or patterns such as 'data/*.nc'."),
    ],
    into: Annotated[
        str,
        new_argument("INTO", "An Icechunk repository, which is created if there is none; with --copy, a Zarr store."),
    ],
    *,
    path: Annotated[str, new_option("The group of the destination that the arrays are written to.")] = "",
    concat_dim: Annotated[
        str | None,
        new_option(
            "The dimension along which files are joined, in the order of their names; without it, the coordinates "
            "of the files decide.",
            metavar="NAME",
            panel=_FILES,
        ),
    ] = None,
    append_dim: Annotated[
        str | None,
        new_option(
            "The dimension along which the files are appended to arrays that are there.", metavar="NAME", panel=_FILES
        ),
    ] = None,
    variable: Annotated[
        list[str] | None,
        new_option(
            "A variable to adopt, with its coordinates; by default all. May be repeated.", metavar="NAME", panel=_FILES
        ),
    ] = None,
    load: Annotated[
        list[str] | None,
        new_option(
            "A variable whose values are stored, and do not refer to the files. May be repeated.",
            metavar="NAME",
            panel=_FILES,
        ),
    ] = None,
    parser: Annotated[
        str | None,
        new_option(
            "The parser, such as NetCDF3Parser of VirtualiZarr or module:Class; by default the content decides.",
            metavar="NAME",
            panel=_FILES,
        ),
    ] = None,
    virtual: Annotated[
        list[str] | None,
        new_option(
            "Another folder that files, or stored arrays, refer to. May be repeated.", metavar="FOLDER", panel=_FILES
        ),
    ] = None,
    uneven: Annotated[
        Literal["rectilinear", "load", "refuse"],
        new_option(
            "What becomes of compressed chunks that do not make up a regular grid, such as one for each month: "
            "`load` copies their values, `rectilinear` refers to them, for readers that set "
            "ZARR_ARRAY__RECTILINEAR_CHUNKS=True, and `refuse` is an error.",
            panel=_FILES,
        ),
    ] = "load",
    shard_chunks: Annotated[
        int | None,
        new_option(
            "Cut arrays into shards of up to so many chunks, which only parts_store reads; by default arrays of more "
            "than 100,000 chunks. 1 cuts none.",
            min=1,
            panel=_FILES,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        new_option(
            "The number of processes that parse files; by default threads of this one.",
            *("-j", "--jobs"),
            min=1,
            panel=_FILES,
        ),
    ] = None,
    skip_errors: Annotated[
        bool, new_option("Go on without files that cannot be parsed.", "--skip-errors", panel=_FILES)
    ] = False,
    dry_run: DryRun = False,
    copy: Annotated[
        bool, new_option("Copy or link the file into the store, where it becomes a part of an array.", "--copy")
    ] = False,
    strict: Annotated[bool, new_option("Write nothing if something in a file cannot be adopted.", "--strict")] = False,
    overwrite: Annotated[bool, new_option("Replace arrays that exist.", "--overwrite")] = False,
    option: Options = None,
    branch: Annotated[str, typer.Option(help="The branch of the repository to commit to.")] = "main",
    message: Message = None,
    output: Output,
) -> int:
    """Make existing files readable as Zarr.

    HDF5, netCDF, TIFF, N5, Zarr and kerchunk files are recognised by their content, others need `--parser`. The data is
    not copied: the arrays refer to the files. Several files become one dataset.
    """
    from parts_store.store.repositories import is_repository, open_branch, options_for
    from parts_store.virtual.adopt import prepare
    from parts_store.virtual.options import AdoptOptions

    given = parse_options(option)
    if copy:
        many = (concat_dim, append_dim, variable, load, parser, virtual, jobs, skip_errors, dry_run, shard_chunks)
        if any(many) or uneven != "load":
            raise StoreConfigError("arguments", _COPY_ONLY, "--copy with options for many files")
        return _copy(files, into, given, path=path, strict=strict, overwrite=overwrite, output=output)
    # The files are parsed before a repository is created for them.
    with _executor(jobs) as executor, rectilinear_grids(), output.progress("parse", "files") as progress:
        options = AdoptOptions(
            path=path,
            parser=_find_parser(parser),
            concat_dim=concat_dim,
            append_dim=append_dim,
            variables=None if variable is None else tuple(variable),
            loadable_variables=None if load is None else tuple(load),
            executor=executor,
            on_error="skip" if skip_errors else "raise",
            shard_chunks=shard_chunks,
            uneven=uneven,
            strict=strict,
            overwrite=overwrite,
            progress=progress,
            is_complete=variable is None,
        )
        is_remote = any(options_for(each, given) for each in (*files, *(virtual or ())))
        prepared = prepare(files, options, given if is_remote else {}, virtual=virtual or ())
    is_new = not is_repository(into, **given)
    if is_new and branch != "main":
        raise StoreConfigError("--branch", "'main', because there is no repository yet", repr(branch))
    if is_new and append_dim is not None:
        raise StoreConfigError("INTO", "a repository with arrays to append to", f"none at {into!r}")
    # What is stored may refer to other folders, and is compared with the files of an append.
    folders = [*prepared.report.folders, *(virtual or ())]
    if is_new or dry_run:
        # Everything is checked before a repository is created.
        scratch = _open_for_reading(into, folders, given, branch=branch, is_new=is_new)
        with rectilinear_grids():
            report = prepared.write(scratch, dry_run=True)
    if not dry_run:
        store = open_branch(into, branch=branch, virtual=folders, create=is_new, **given)
        with rectilinear_grids(), output.progress("adopt", "arrays") as progress:
            report = prepared.write(store, progress=progress)
        store.session.commit(message or f"adopt {report.location}")
        if not is_new:
            _store_folders(into, folders, given)
    how = [_DRY_RUN] if dry_run else report.how_to_open(into, path=path, branch=branch, has_options=bool(given))
    return _show(report, output, how)


def adopt_in_place(
    url: Url,
    *,
    path: Annotated[str, new_option("A group or a dataset in the container; by default all of it.")] = "",
    dry_run: DryRun = False,
    strict: Annotated[bool, new_option("Write nothing if a dataset cannot be adopted.", "--strict")] = False,
    overwrite: Annotated[bool, new_option("Replace a zarr.json with other contents.", "--overwrite")] = False,
    option: Options = None,
    output: Output,
) -> int:
    """Make an N5 container readable as Zarr where it is.

    A zarr.json is written beside each attributes.json. N5 programs go on
    reading the container, except for z5py, which refuses it.
    """
    from parts_store.virtual.in_place import adopt_in_place as adopt_container

    given = parse_options(option)
    with output.progress("adopt", "documents") as progress:
        report = adopt_container(
            url, path, strict=strict, overwrite=overwrite, dry_run=dry_run, progress=progress, **given
        )
    return _show(report, output, [_DRY_RUN] if dry_run else [])


def _show(report: "Adoption", output: Output, how: Sequence[str] = ()) -> int:
    output.show(report.to_json(), report.lines(), code=how)
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
    from parts_store.store.repositories import options_for
    from parts_store.store.store import PartsStore
    from parts_store.virtual.adopt import adopt as adopt_files
    from parts_store.virtual.adopt_copy import require_file

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
    from parts_store.store.repositories import open_branch, open_memory

    if is_new:
        return open_memory(virtual=folders, **given)
    return open_branch(into, branch=branch, virtual=folders, **given)


def _store_folders(into: str, folders: Sequence[str], given: Mapping[str, Any]) -> None:
    """Store in the configuration of a repository which folders its chunks refer to, after the commit was made."""
    from parts_store.store.repositories import open_repository
    from parts_store.virtual.store_access import opening_call

    try:
        open_repository(into, virtual=folders, **given)
    except PartsStoreError as error:
        problem = f"the files were adopted, but their folders are not stored in the configuration: {error}"
        raise SessionError(
            into, f"{problem}; open it with `{opening_call(into, folders, has_options=bool(given))}`"
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
    places = [module] if module else ["parts_store.parsers", "virtualizarr.parsers"]
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
