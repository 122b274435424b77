"""Adopt files: parse them over an executor, combine them, and write arrays that refer to them."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final, NoReturn

from icechunk import Session

from parts_store._compat.zarr import normalize_path
from parts_store.errors import (
    AdoptionError,
    PartsStoreError,
    ReadOnlySessionError,
    StoreConfigError,
    describe,
    raise_translated,
)
from parts_store.executors import ExecutorLike, open_workers
from parts_store.progress import ProgressLike, report_progress
from parts_store.redaction import hide_in_url
from parts_store.text import did_you_mean
from parts_store.virtual.adopt_copy import adopt_copy
from parts_store.virtual.combine import FileGroup, FileTree, combine_files, to_source
from parts_store.virtual.existing_files import (
    Files,
    first_line,
    first_of,
    list_files,
    refused_file,
    wait_for_next_second,
)
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References
from parts_store.virtual.ome_zarr import keep_if_complete
from parts_store.virtual.options import (
    DEFAULT_MAX_LOADED,
    AdoptOptions,
    Combine,
    OnError,
    Uneven,
    parse_names,
    parse_path,
)
from parts_store.virtual.parsed_file import ParsedFile, changed, look_at, parse_file, state_of
from parts_store.virtual.parsers.file_parsers import Parser
from parts_store.virtual.registries import FileRegistry, fewest_folders, folder_of
from parts_store.virtual.report import Adoption, Skipped
from parts_store.virtual.store_access import PartsStore, containers_in, folder_url, is_option, join, outermost
from parts_store.virtual.stored_arrays import containers_of, load_unlike, stored_chunk_lengths
from parts_store.virtual.virtual_dataset import bind, dataset_of, default_names
from parts_store.virtual.write import naming, plan_write

# How many files are parsed at the same time without an executor. The HDF5 library parses one after the other, but the
# requests before and after it overlap.
_THREADS: Final = 16
# The attributes that name other variables, which a variable cannot be understood without.
_NAMING: Final = ("coordinates", "bounds", "grid_mapping", "ancillary_variables")


def adopt(
    files: Files,
    *,
    into: Session | PartsStore,
    path: str = "",
    parser: Parser | None = None,
    concat_dim: str | None = None,
    append_dim: str | None = None,
    combine: Combine | None = None,
    variables: Iterable[str] | None = None,
    loadable_variables: Iterable[str] | None = None,
    executor: ExecutorLike = None,
    on_error: OnError = "raise",
    copy: bool = False,
    shard_chunks: int | None = None,
    uneven: Uneven = "load",
    max_loaded_nbytes: int = DEFAULT_MAX_LOADED,
    strict: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: ProgressLike = None,
    **options: Any,
) -> Adoption:
    """Make existing files readable as Zarr, without a copy of their data. Nothing is committed.

    Parameters
    ----------
    files : str or Path or list of them
        A path; a URL such as `s3://bucket/file.h5`, `gs://`, `az://` or `https://`; a pattern such as `data/*.nc`; or a
        list of them. The files of a pattern are in natural order.
    into : icechunk.Session or PartsStore
        A writable Icechunk session, or a `PartsStore` on a session. The files have to be in virtual chunk containers of
        the repository. The caller commits the session. With `copy`, a `PartsStore` on an object store or a local disk.
    path : str
        The arrays are created at `path/<name in the file>`.
    parser : callable, optional
        A parser of VirtualiZarr, or one of `ps.parsers`. By default the format is recognised by the content of a file.
    concat_dim : str, optional
        The dimension along which files are joined, in the order of the list. If no file has it, each file is one step.
    append_dim : str, optional
        The dimension along which the files are appended to arrays at `path`.
    combine : str, optional
        `"nested"` for the order of the list, `"by_coords"` for the order and the dimensions that the coordinates of the
        files say. By default `"by_coords"` for several files without `concat_dim`.
    variables : list of str, optional
        The variables to adopt, by their paths in the file, with their coordinates; by default all.
    loadable_variables : list of str, optional
        Variables whose values are stored, in addition to coordinates. Others refer to the files.
    executor : concurrent.futures.Executor or distributed.Client or str, optional
        Where files are parsed: an executor, a client of dask, `"dask"` for the current client, or `"lithops"` for what
        Lithops is configured for. By default threads.
    on_error : str
        `"raise"`, or `"skip"` to go on without files that cannot be parsed, or whose coordinates cannot be read or
        decoded; the report lists them.
    copy : bool
        Copy the file to the store, where it becomes the main part of an array and other programs can still open it. The
        server copies it if possible, and on a local disk it is linked. Only for HDF5
        files with one chunked dataset and TIFF files with one tiled image.
    shard_chunks : int, optional
        By default each chunk is a reference of an ordinary Zarr array, which every reader of Zarr and Icechunk
        understands; arrays of more than 100,000 chunks are cut into shards of up to 4,095 chunks. A number cuts all
        arrays into shards of up to so many chunks, which only this package reads; 1 cuts none. A shard has one
        reference for each file that it draws on, and 16 bytes of index for each chunk. Arrays that are appended to
        keep their form.
    uneven : str
        What becomes of variables whose compressed chunks do not make up a regular grid, such as one chunk for each
        month. `"load"` copies their values, up to `max_loaded_nbytes`. `"rectilinear"` refers to the chunks, and makes
        a grid of chunks of several lengths, if each file consists of whole chunks: readers need zarr 3.4 and
        `zarr.config.set({"array.rectilinear_chunks": True})`, also for other arrays of the group, and so does this
        call. `"refuse"` raises an error.
    max_loaded_nbytes : int
        Variables whose chunks cannot be joined are loaded and stored, if they have at most this number of bytes.
    strict : bool
        Whether to raise an error if something in a file cannot be adopted. By default the report lists it.
    overwrite : bool
        Whether to replace existing arrays.
    dry_run : bool
        Return the report, and write nothing.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of files or arrays that are done and the
        number of all of them.
    **options
        Options of obstore for the stores of the files: `endpoint`, `region`, `access_key_id`, `client_options` ...

    Returns
    -------
    Adoption
        A report of what was adopted, and what was not.

    Raises
    ------
    AdoptionError
        If a file cannot be read or does not belong to the others, or with `strict`, if a part of it cannot be adopted.
        Nothing was written.
    StoreConfigError
        If the path is not free, no file is found, or an argument is not valid. Nothing was written.
    ImportError
        If the format of a file needs a package that is not installed.

    Examples
    --------
    >>> import h5py
    >>> with h5py.File("file.h5", "w") as file:
    ...     dataset = file.create_dataset("x", data=np.arange(6), chunks=(2,), compression="gzip")
    >>> store = ps.PartsStore.from_url("copies.zarr")
    >>> report = ps.adopt("file.h5", into=store, copy=True)
    >>> report.arrays[0].path, report.arrays[0].chunks
    ('x', 3)
    >>> zarr.open_array(store, path="x", mode="r")[2:]
    array([2, 3, 4, 5])

    Two days in two files, and a third one:

    >>> import xarray as xr
    >>> for day in range(3):
    ...     xr.Dataset({"t": (("day", "x"), np.full((1, 500), day))}, {"day": [day]}).to_netcdf(f"{day}.nc")
    >>> session = ps.open_repository("days", virtual=["."]).writable_session("main")
    >>> report = ps.adopt(["0.nc", "1.nc"], into=session, concat_dim="day")
    >>> report = ps.adopt("2.nc", into=session, append_dim="day")
    >>> xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False)["t"][:, 0].values
    array([0, 1, 2])
    """
    store = _require_store(into, copy=copy)
    _require_options(options)
    given = AdoptOptions(
        path=path,
        parser=parser,
        concat_dim=concat_dim,
        append_dim=append_dim,
        combine=combine,
        variables=parse_names("variables", variables),
        loadable_variables=parse_names("loadable_variables", loadable_variables),
        executor=executor,
        on_error=on_error,
        shard_chunks=shard_chunks,
        uneven=uneven,
        max_loaded_nbytes=max_loaded_nbytes,
        strict=strict,
        overwrite=overwrite,
        progress=progress,
        is_complete=variables is None,
        # This also refuses a dimension that is not stored, before files are parsed, which may take minutes.
        stored_lengths=(
            {} if copy or append_dim is None else stored_chunk_lengths(store, parse_path(path), append_dim)
        ),
    )
    if copy:
        with report_progress(progress, "adopt", "arrays") as update:
            return adopt_copy(_one(files), store, path, strict=strict, overwrite=overwrite, progress=update, **options)
    prepared = prepare(files, given, options, virtual=containers_of(store))
    return prepared.write(store, dry_run=dry_run, progress=progress)


def _require_store(into: object, *, copy: bool) -> PartsStore:
    """Return the store that files are adopted into; raise an error unless it can be written."""
    if not isinstance(into, PartsStore | Session):
        expected = "a writable session, such as `ps.open_repository(url, virtual=[folder]).writable_session('main')`"
        raise StoreConfigError("into", expected, f"an object of type {type(into).__name__}")
    store = into if isinstance(into, PartsStore) else PartsStore.from_session(into)
    if copy and store.session is not None:
        raise StoreConfigError("copy", "False, because a session refers to the file at its location", "True")
    if not copy and store.session is None:
        expected = "an Icechunk session, in which a part can be a range of a file, or `copy=True`"
        raise StoreConfigError("into", expected, str(store))
    if store.session is not None and store.read_only:
        problem = (
            "the session is read-only or was committed; open another one with `repository.writable_session('main')`"
        )
        raise ReadOnlySessionError("into", problem)
    store.require_writable()
    return store


def _require_options(options: Iterable[str]) -> None:
    """Raise `StoreConfigError` for an option that is spelled almost like an argument of `adopt`."""
    own = signature(adopt).parameters
    for name in options:
        if (suggestion := did_you_mean(name, own)) and not is_option(name):
            raise StoreConfigError("arguments", "arguments of `adopt`, or options of obstore", f"{name}{suggestion}")


def _one(files: Files) -> str | Path:
    if isinstance(files, str | Path):
        return files
    found = list(files)
    if len(found) != 1:
        raise StoreConfigError("files", "one file, because a copy of it becomes an array", f"{len(found)} files")
    return found[0]


# --- steps ------------------------------------------------------------------------------------------------------------


def prepare(
    files: Files, options: AdoptOptions, storage: Mapping[str, Any], *, virtual: Iterable[str] = ()
) -> "PreparedFiles":
    """Return what files contain, combined, and ready to be written. Nothing is written.

    `storage` are options of obstore for the stores of the files, and `virtual` paths or URLs of other folders that
    files may refer to.
    """
    urls = list_files(files, dict(storage))
    joins = len(urls) > 1 or options.dim is not None
    loads = joins or options.loadable_variables is not None
    registry = FileRegistry.of_folders([*map(folder_of, urls), *map(folder_url, virtual)], storage)
    opened, failed = parse_files(urls, registry, options, loads=loads, joins=joins)
    _require_names("loadable_variables", opened, options.loadable_variables)
    _require_names("variables", opened, options.variables)
    if loads:
        source: FileTree | PartsGroup = _combine([file.tree for file in opened], options)
    else:
        source = opened[0].group
    if options.strict:
        _require_complete(opened)
    return PreparedFiles(
        options,
        source,
        Adoption(
            first_of([file.parsed.location for file in opened]),
            (),
            _skipped(opened),
            failed=failed,
            folders=_folders(source),
            unchecked=tuple(sorted({file.parsed.format for file in opened if not file.parsed.is_checked})),
        ),
        {} if loads else opened[0].parsed.notes,
        {path: note for file in reversed(opened) for path, note in file.parsed.loaded.items()},
    )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFiles:
    """Files that are parsed and combined, and can be written to a session."""

    options: AdoptOptions
    source: FileTree | PartsGroup
    # The report, without the arrays.
    report: Adoption
    # What the report says about arrays, by their paths.
    notes: Mapping[str, str]
    # Why values were loaded when a file was parsed, or chunks encoded again, by their paths.
    loaded: Mapping[str, str]

    def write(self, store: PartsStore, *, dry_run: bool = False, progress: ProgressLike = None) -> Adoption:
        """Write the files to a session, and return the report; with `dry_run`, write nothing."""
        source, notes = self.source, dict(self.notes)
        dim = self.options.append_dim
        if not isinstance(source, PartsGroup):
            if dim is not None:
                with naming(self.report.location):
                    source = {path: load_unlike(group, store, self.options, dim) for path, group in source.items()}
            notes |= {path: note for group in source.values() for path, note in group.notes.items()}
        written = source if isinstance(source, PartsGroup) else to_source(source)
        planned = plan_write(written, store, self.options, self.report.location)
        if not dry_run:
            with report_progress(progress, "write", "arrays") as update:
                planned.write(update)
        below = join(normalize_path(self.options.path), "")
        arrays = []
        for array in planned.report.arrays:
            name = array.path.removeprefix(below)
            plan = f"{array.plan}: {notes[name]}" if name in notes else array.plan
            arrays.append(dataclasses.replace(array, plan=plan, loaded=self.loaded.get(name, "")))
        # A reader needs access to the files of earlier adoptions, too, also if nothing here refers to a file.
        folders = outermost(containers_in(store.session))
        copied = planned.report.nbytes_copied
        return dataclasses.replace(self.report, arrays=tuple(arrays), folders=tuple(folders), nbytes_copied=copied)


def _combine(trees: Sequence[FileTree], options: AdoptOptions) -> FileTree:
    """Return what files contain together. If they do not fit, and no file has the dimension, the error says so, too."""
    try:
        return combine_files(trees, options)
    except AdoptionError as error:
        known = dict.fromkeys(str(dim) for tree in trees for group in tree.values() for dim in group.dataset.dims)
        if options.dim is None or options.dim in known:
            raise
        names = ", ".join(map(repr, known)) or "none"
        problem = f"no file has the dimension {options.dim!r}{did_you_mean(options.dim, known)} (dimensions: {names})"
        raise AdoptionError(error.location, (*error.problems, ("the dimension", problem))) from None


# --- parsed files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class OpenedFile:
    """A file that was parsed, and the variables of it that are adopted."""

    parsed: ParsedFile
    # The references of the file, and its virtual datasets, if coordinates are loaded.
    group: PartsGroup
    tree: FileTree


def parse_files(
    urls: Sequence[str], registry: FileRegistry, options: AdoptOptions, *, loads: bool, joins: bool
) -> tuple[list[OpenedFile], tuple[Skipped, ...]]:
    """Return what is in the files, in order, and the files that cannot be parsed.

    With `loads`, coordinates and the variables that are named are loaded. `joins` says whether the arrays of the files
    are joined with others afterwards.

    With `on_error="raise"`, the first error is raised, and files that were not begun are not parsed. Raises
    `AdoptionError` if no file can be parsed, or a file has another format than most of them.
    """
    found: dict[str, OpenedFile] = {}
    failed: dict[str, PartsStoreError] = {}
    # Neither of these two can be sent to another process.
    sent = dataclasses.replace(options, executor=None, progress=None)
    executor = ThreadPoolExecutor(_THREADS) if options.executor is None else nullcontext(options.executor)
    with (
        executor as entered,
        open_workers(entered) as workers,
        report_progress(options.progress if len(urls) > 1 else None, "parse", "files") as update,
    ):
        update(0, len(urls))
        for task in workers.run(partial(_parse_one, registry, sent, loads, joins), urls):
            url = urls[task.number]
            if isinstance(task.error, PartsStoreError) and options.on_error == "skip":
                failed[url] = task.error
            elif task.error is not None:
                _raise(url, task.error)
            else:
                found[url] = _bound(task.result(), registry)
            update(len(found) + len(failed), len(urls))
    failed |= _of_other_formats([found[url].parsed for url in urls if url in found])
    if failed and (options.on_error == "raise" or len(failed) == len(urls)):
        raise next(failed[url] for url in urls if url in failed)
    files = [found[url] for url in urls if url in found and url not in failed]
    _wait_for_next_second([file.parsed for file in files], registry)
    return files, tuple(_skipped_file(url, failed[url]) for url in urls if url in failed)


def _parse_one(registry: FileRegistry, options: AdoptOptions, loads: bool, joins: bool, url: str) -> OpenedFile:
    parsed = parse_file(url, registry, options.parser, joins=joins)
    group = parsed.group if options.variables is None else _select(parsed.group, options.variables)
    skipped = {each.name: each.reason for each in parsed.skipped}
    tree = {}
    for path, node in group.nodes():
        if loads and isinstance(node, PartsGroup):
            named = [name for name in node.arrays if join(path, name) in (options.loadable_variables or ())]
            names = dict.fromkeys([*default_names(node), *named])
            try:
                dataset = dataset_of(url, node, names, mask_and_scale=False)
            except PartsStoreError:
                raise
            except ValueError as error:
                # Arrays of Zarr may give one name to dimensions of several lengths.
                problem = f"expected variables that xarray can have in one dataset, found {first_line(error)}"
                raise AdoptionError(url, ((f"group {path!r}", problem),)) from error
            tree[path] = FileGroup(url, path, dataset, skipped)
    return OpenedFile(parsed, group, tree)


def _bound(file: OpenedFile, registry: FileRegistry) -> OpenedFile:
    tree = {
        path: dataclasses.replace(group, dataset=bind(group.dataset, registry)) for path, group in file.tree.items()
    }
    return dataclasses.replace(file, tree=tree)


# --- errors -----------------------------------------------------------------------------------------------------------


def _raise(url: str, error: Exception) -> NoReturn:
    """Raise the error of a task. One of the executor is raised as an error of the file that it was to parse."""
    if isinstance(error, PartsStoreError | ImportError):
        raise error
    # Such a file is not skipped: if a task ends its process, executors give up the tasks of other files, too.
    problem = f"the executor did not parse it: {type(error).__name__}: {first_line(error)}"
    raise_translated(refused_file(url, problem), error)


def _skipped_file(url: str, error: PartsStoreError) -> Skipped:
    reason = str(error)
    if isinstance(error, AdoptionError):
        reason = "; ".join(problem if name == "the file" else f"{name}: {problem}" for name, problem in error.problems)
    return Skipped(hide_in_url(url), reason)


def _of_other_formats(parsed: Sequence[ParsedFile]) -> dict[str, PartsStoreError]:
    """Return an error for each file that has another format than most of the files; the first one decides a tie."""
    formats = Counter(file.format for file in parsed)
    if len(formats) < 2:
        return {}
    ((usual, count),) = formats.most_common(1)
    example = next(file for file in parsed if file.format == usual)
    known = f"as {count:,} of {len(parsed):,} files have it, for example {hide_in_url(example.location)!r}"
    errors: dict[str, PartsStoreError] = {}
    for file in parsed:
        if file.format != usual:
            problem = f"expected the format {usual}, {known}, found {file.format}; adopt it by itself, or leave it out"
            errors[file.location] = refused_file(file.location, problem)
    return errors


# --- files that change ------------------------------------------------------------------------------------------------


def _wait_for_next_second(files: Sequence[ParsedFile], registry: FileRegistry) -> None:
    """Wait until a later change of any file has a later time, because Icechunk compares whole seconds."""
    times = {file.location: _times_of(file) for file in files}
    latest = max((time for found in times.values() for time in found.values()), default=None)
    if latest is None or not wait_for_next_second(latest):
        return
    # A file may have been changed again in the second of its time, after it was parsed.
    newest = latest.replace(microsecond=0)
    for file in files:
        found = times[file.location]
        is_new = max(found.values(), default=newest) >= newest
        if is_new and state_of(look_at(file.location, (registry,))) != file.state:
            raise changed(file.location)
        # Other files that it refers to. The state of a folder is that of all its files.
        others = {url: time for url, time in found.items() if not f"{url}/".startswith(f"{file.location}/")}
        for url, time in others.items():
            if time >= newest and getattr(look_at(url, (registry,)), "checksum", None) != time:
                raise changed(url)


def _times_of(parsed: ParsedFile) -> dict[str, datetime]:
    """Return the times that references of a file have as checksums, by the URLs of the files that they refer to."""
    arrays = [node for _, node in parsed.group.nodes() if isinstance(node, PartsArray)]
    return {url: time for array in arrays for url, time in array.checksums.items() if isinstance(time, datetime)}


# --- selected variables -----------------------------------------------------------------------------------------------


def _select(group: PartsGroup, names: Collection[str]) -> PartsGroup:
    """Return a group with those of these variables that it has, and the coordinates and others that belong to them.

    A variable is named by its path. Groups without any of them are left out.
    """
    arrays = {path: node for path, node in group.nodes() if isinstance(node, PartsArray)}
    kept: set[str] = set()
    found = arrays.keys() & set(names)
    while found:
        kept |= found
        found = {needed for path in found for needed in _needed(arrays, path)} - kept
    return _only(group, kept, "")


def _needed(arrays: Mapping[str, PartsArray], path: str) -> Iterator[str]:
    """Yield the paths of the variables that a variable refers to: in its group, or in the next group above with it."""
    metadata = arrays[path].metadata
    texts = [metadata.attributes.get(attribute) for attribute in _NAMING]
    names = [name for text in texts if isinstance(text, str) for name in text.replace(":", " ").split()]
    for name in {*names, *filter(None, metadata.dimension_names or ())}:
        above = path
        while above:
            above = above.rpartition("/")[0]
            if (place := join(above, name)) in arrays:
                yield place
                break


def _only(group: PartsGroup, kept: Collection[str], path: str) -> PartsGroup:
    groups = {name: _only(each, kept, join(path, name)) for name, each in group.groups.items()}
    return PartsGroup(
        {name: array for name, array in group.arrays.items() if join(path, name) in kept},
        {name: each for name, each in groups.items() if len(each)},
        keep_if_complete(group.attributes, {each.removeprefix(join(path, "")) for each in kept}),
    )


# --- reports ----------------------------------------------------------------------------------------------------------


def _require_names(argument: str, opened: Sequence[OpenedFile], names: Iterable[str] | None) -> None:
    """Raise `StoreConfigError` unless each of these names is that of a variable in one of the files."""
    groups = [file.parsed.group for file in opened]
    known = dict.fromkeys(path for group in groups for path, node in group.nodes() if isinstance(node, PartsArray))
    for name in names or ():
        if name not in known:
            expected = f"names of variables: {', '.join(known) or 'none'}"
            raise StoreConfigError(argument, expected, f"{describe(name)}{did_you_mean(name, known)}")


def _require_complete(opened: Sequence[OpenedFile]) -> None:
    for file in opened:
        lost = tuple((skipped.name, skipped.reason) for skipped in file.parsed.skipped if skipped.has_values)
        if lost:
            raise AdoptionError(file.parsed.location, lost)


def _skipped(opened: Sequence[OpenedFile]) -> tuple[Skipped, ...]:
    """Return what is skipped of the files; what is the same in several files, once."""
    if len(opened) == 1:
        return opened[0].parsed.skipped
    locations: dict[Skipped, list[str]] = {}
    for file in opened:
        for skipped in file.parsed.skipped:
            locations.setdefault(skipped, []).append(file.parsed.location)
    return tuple(
        dataclasses.replace(
            skipped,
            reason=f"{skipped.reason} (in {'all files' if len(found) == len(opened) else first_of(found)})",
        )
        for skipped, found in locations.items()
    )


def _references(source: FileTree | PartsGroup) -> list[References]:
    if isinstance(source, PartsGroup):
        found: Iterable[Any] = (node for _, node in source.nodes())
    else:
        found = (variable.data for group in source.values() for variable in group.dataset.variables.values())
    return [array.references for array in found if isinstance(array, PartsArray)]


def _folders(source: FileTree | PartsGroup) -> tuple[str, ...]:
    """Return the URLs of the folders that the references point to."""
    locations = {location for references in _references(source) for location in references.locations()}
    return tuple(fewest_folders(map(folder_of, locations)))
