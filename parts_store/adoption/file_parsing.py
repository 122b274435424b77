"""Parse many files over an executor, and name those that fail."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal, NoReturn

from parts_store.adoption import source_file
from parts_store.adoption.inlined_values import with_values
from parts_store.adoption.parsed_file import ParsedFile, changed, look_at, parse_file, state_of
from parts_store.adoption.parsers import Parser
from parts_store.adoption.report import Skipped
from parts_store.backends.file_registry import FileRegistry
from parts_store.errors import AdoptionError, PartsStoreError, raise_translated
from parts_store.executors import ExecutorLike, open_workers
from parts_store.manifests.array import PartsArray
from parts_store.progress import ProgressLike, report_progress
from parts_store.redaction import hide_in_url, hide_secrets

type OnError = Literal["raise", "skip"]

# How many files are parsed at the same time without an executor. The HDF5 library parses one after the other, but the
# requests before and after it overlap.
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class FileParsing:
    """How files are parsed."""

    registry: FileRegistry
    parser: Parser | None = None
    loadable_variables: tuple[str, ...] = ()
    # Whether to load coordinates, and the variables that are named.
    loads: bool = True
    # Whether the arrays of the files are joined with others afterwards.
    joins: bool = False
    executor: ExecutorLike = None
    on_error: OnError = "raise"
    progress: ProgressLike = None

    def parse(self, urls: Sequence[str]) -> tuple[list[ParsedFile], tuple[Skipped, ...]]:
        """Return what is in the files, in order, and the files that cannot be parsed.

        With `on_error="raise"`, the first error is raised, and files that were not begun are not parsed. Raises
        `AdoptionError` if no file can be parsed, or a file has another format than most of them.
        """
        found: dict[str, ParsedFile] = {}
        failed: dict[str, PartsStoreError] = {}
        names = self.loadable_variables if self.loads else None
        task = partial(parse_and_load, self.registry, self.parser, names, self.joins)
        with (
            self._executor() as executor,
            open_workers(executor) as workers,
            report_progress(self.progress, "parse", "files") as update,
        ):
            update(0, len(urls))
            for each in workers.run(task, urls):
                url = urls[each.number]
                if isinstance(each.error, PartsStoreError) and self.on_error == "skip":
                    failed[url] = each.error
                elif each.error is not None:
                    self._raise(url, each.error)
                else:
                    found[url] = each.result()
                update(len(found) + len(failed), len(urls))
        files, skipped = self._in_order(urls, found, failed)
        self._wait_for_next_second(files)
        return files, skipped

    def _raise(self, url: str, error: Exception) -> NoReturn:
        """Raise the error of a task. One of the executor is raised as an error of the file that it was to parse."""
        if isinstance(error, PartsStoreError | ImportError):
            raise error
        # Such a file is not skipped: if a task ends its process, executors give up the tasks of other files, too.
        text = hide_secrets(str(error).partition("\n\nDebug source")[0].strip())
        problem = f"the executor did not parse it: {type(error).__name__}: {text}"
        raise_translated(AdoptionError(url, (("the file", problem),)), error)

    def _executor(self) -> AbstractContextManager[ExecutorLike]:
        return ThreadPoolExecutor(_THREADS) if self.executor is None else nullcontext(self.executor)

    def _wait_for_next_second(self, parsed: Sequence[ParsedFile]) -> None:
        """Wait until a later change of any file has a later time, because Icechunk compares whole seconds."""
        times = {each.location: _times_of(each) for each in parsed}
        latest = max((time for found in times.values() for time in found.values()), default=None)
        if latest is None or not source_file.wait_for_next_second(latest):
            return
        # A file may have been changed again in the second of its time, after it was parsed.
        newest = latest.replace(microsecond=0)
        for each in parsed:
            found = times[each.location]
            if max(found.values(), default=newest) >= newest and self._state(each.location) != each.state:
                raise changed(each.location)
            # Other files that it refers to. The state of a folder is that of all its files.
            others = {url: time for url, time in found.items() if not f"{url}/".startswith(f"{each.location}/")}
            for url, time in others.items():
                if time >= newest and getattr(look_at(url, (self.registry,)), "checksum", None) != time:
                    raise changed(url)

    def _state(self, url: str) -> tuple[str, ...]:
        return state_of(look_at(url, (self.registry,)))

    def _in_order(
        self, urls: Sequence[str], found: dict[str, ParsedFile], failed: dict[str, PartsStoreError]
    ) -> tuple[list[ParsedFile], tuple[Skipped, ...]]:
        failed |= _of_other_formats([found[url] for url in urls if url in found])
        if failed and (self.on_error == "raise" or len(failed) == len(urls)):
            raise next(failed[url] for url in urls if url in failed)
        parsed_files = [found[url] for url in urls if url in found and url not in failed]
        skipped = tuple(skipped_file(url, failed[url]) for url in urls if url in failed)
        return parsed_files, skipped


def _of_other_formats(parsed: Sequence[ParsedFile]) -> dict[str, PartsStoreError]:
    """Return an error for each file that has another format than most of the files; the first one decides a tie."""
    formats = Counter(each.format for each in parsed)
    if len(formats) < 2:
        return {}
    ((usual, count),) = formats.most_common(1)
    example = next(each for each in parsed if each.format == usual)
    known = f"as {count:,} of {len(parsed):,} files have it, for example {hide_in_url(example.location)!r}"
    errors: dict[str, PartsStoreError] = {}
    for each in parsed:
        if each.format != usual:
            problem = f"expected the format {usual}, {known}, found {each.format}; adopt it by itself, or leave it out"
            errors[each.location] = AdoptionError(each.location, (("the file", problem),))
    return errors


def _times_of(parsed: ParsedFile) -> dict[str, datetime]:
    """Return the times that references of a file have as checksums, by the URLs of the files that they refer to."""
    arrays = [node for _, node in parsed.group.nodes() if isinstance(node, PartsArray)]
    return {url: time for array in arrays for url, time in array.checksums.items() if isinstance(time, datetime)}


def skipped_file(url: str, error: PartsStoreError) -> Skipped:
    """Return a file that is skipped because of an error, for the report."""
    reason = str(error)
    if isinstance(error, AdoptionError):
        reason = "; ".join(problem if name == "the file" else f"{name}: {problem}" for name, problem in error.problems)
    return Skipped(hide_in_url(url), reason)


def parse_and_load(
    registry: FileRegistry, parser: Parser | None, loadable_variables: Iterable[str] | None, joins: bool, url: str
) -> ParsedFile:
    """Return what is in a file. The values of its coordinates, and of named variables, are among it.

    With None in place of names, nothing is loaded. `joins` says whether its arrays are joined with those of others.
    """
    parsed = parse_file(url, registry, parser, joins=joins)
    if loadable_variables is None:
        return parsed
    return dataclasses.replace(parsed, group=with_values(url, parsed.group, loadable_variables))
