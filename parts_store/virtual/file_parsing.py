"""Parse many files over an executor: each becomes a tree of virtual datasets. Files that fail are named."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NoReturn

from parts_store.errors import AdoptionError, PartsStoreError, raise_translated
from parts_store.executors import open_workers
from parts_store.progress import report_progress
from parts_store.redaction import hide_in_url, hide_secrets
from parts_store.virtual import source_file
from parts_store.virtual.combine import FileTree
from parts_store.virtual.combine_checks import FileGroup
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.options import AdoptOptions
from parts_store.virtual.parsed_file import ParsedFile, changed, look_at, parse_file, state_of
from parts_store.virtual.registered_files import FileRegistry
from parts_store.virtual.report import Skipped
from parts_store.virtual.virtual_dataset import bind, dataset_of, default_names

# How many files are parsed at the same time without an executor. The HDF5 library parses one after the other, but the
# requests before and after it overlap.
_THREADS: Final = 16
# The attributes that name other variables, which a variable cannot be understood without.
_NAMING: Final = ("coordinates", "bounds", "grid_mapping", "ancillary_variables")


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
            below = f"{path}/" if path else ""
            named = [name for name in node.arrays if f"{below}{name}" in (options.loadable_variables or ())]
            names = dict.fromkeys([*default_names(node), *named])
            tree[path] = FileGroup(url, path, dataset_of(url, node, names, mask_and_scale=False), skipped)
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
    text = hide_secrets(str(error).partition("\n\nDebug source")[0].strip())
    problem = f"the executor did not parse it: {type(error).__name__}: {text}"
    raise_translated(AdoptionError(url, (("the file", problem),)), error)


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
            errors[file.location] = AdoptionError(file.location, (("the file", problem),))
    return errors


# --- files that change ------------------------------------------------------------------------------------------------


def _wait_for_next_second(files: Sequence[ParsedFile], registry: FileRegistry) -> None:
    """Wait until a later change of any file has a later time, because Icechunk compares whole seconds."""
    times = {file.location: _times_of(file) for file in files}
    latest = max((time for found in times.values() for time in found.values()), default=None)
    if latest is None or not source_file.wait_for_next_second(latest):
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
            place = f"{above}/{name}" if above else name
            if place in arrays:
                yield place
                break


def _only(group: PartsGroup, kept: Collection[str], path: str) -> PartsGroup:
    below = f"{path}/" if path else ""
    groups = {name: _only(each, kept, f"{below}{name}") for name, each in group.groups.items()}
    return PartsGroup(
        {name: array for name, array in group.arrays.items() if f"{below}{name}" in kept},
        {name: each for name, each in groups.items() if len(each)},
        group.attributes,
    )
