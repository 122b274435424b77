"""Parse and join files, so that they can be written to a session."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from parts_store._compat.zarr import normalize_path
from parts_store.adoption.file_list import Files, list_files
from parts_store.adoption.file_parsing import FileParsing, OnError, skipped_file
from parts_store.adoption.file_trees import FileTree, combine_by_coords, join_trees
from parts_store.adoption.joining import JoinOptions
from parts_store.adoption.loading import DEFAULT_MAX_LOADED
from parts_store.adoption.loading_for_append import load_unlike
from parts_store.adoption.parsed_file import ParsedFile
from parts_store.adoption.parsers import Parser
from parts_store.adoption.report import Adoption, Skipped
from parts_store.adoption.selection import select_variables
from parts_store.adoption.source_tree import Source, read_tree
from parts_store.adoption.to_icechunk import plan_write
from parts_store.adoption.virtual_dataset import dataset_of, default_names
from parts_store.backends.file_registry import FileRegistry, fewest_folders, folder_of
from parts_store.backends.icechunk_storage import folder_url
from parts_store.errors import AdoptionError, PartsStoreError, StoreConfigError, describe
from parts_store.executors import ExecutorLike
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References
from parts_store.manifests.cutting import DEFAULT_SHARD_CHUNKS
from parts_store.manifests.group import PartsGroup
from parts_store.options import parse_count
from parts_store.progress import ProgressLike, report_progress
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore

# The packages whose codecs every reader has.
_OWN_CODECS: Final = {"zarr", "numcodecs", "parts_store"}
# What installs the codecs of a package, and makes them known to zarr, if it is not the package itself.
_INSTALL: Final = {"imagecodecs": "imagecodecs-zarr"}

type Combine = Literal["nested", "by_coords"]


@dataclass(frozen=True, slots=True)
class AdoptionRequest:
    """How files are parsed and joined: arguments of `adopt`."""

    parser: Parser | None = None
    concat_dim: str | None = None
    append_dim: str | None = None
    combine: Combine | None = None
    variables: tuple[str, ...] | None = None
    loadable_variables: tuple[str, ...] | None = None
    executor: ExecutorLike = None
    on_error: OnError = "raise"
    max_loaded_nbytes: int = DEFAULT_MAX_LOADED
    strict: bool = False
    progress: ProgressLike = None

    def __post_init__(self) -> None:
        parse_count("max_loaded_nbytes", self.max_loaded_nbytes)
        if self.on_error not in ("raise", "skip"):
            raise StoreConfigError("on_error", "'raise' or 'skip'", describe(self.on_error))
        if self.combine not in (None, "nested", "by_coords"):
            raise StoreConfigError("combine", "'nested' or 'by_coords'", describe(self.combine))
        if self.parser is not None and not callable(self.parser):
            raise StoreConfigError("parser", "a parser of VirtualiZarr, or of `ps.parsers`", describe(self.parser))
        if self.concat_dim is not None and self.append_dim not in (None, self.concat_dim):
            raise StoreConfigError("append_dim", f"{self.concat_dim!r}, as `concat_dim`", describe(self.append_dim))
        if self.combine == "by_coords" and self.dim is not None:
            raise StoreConfigError("combine", "'nested', because a dimension is named", "'by_coords'")

    @property
    def dim(self) -> str | None:
        """Return the dimension along which files are joined, if it is named."""
        return self.append_dim or self.concat_dim

    def prepare(
        self,
        files: Files,
        options: Mapping[str, Any],
        *,
        virtual: Iterable[str] = (),
        stored_lengths: Mapping[str, int] | None = None,
    ) -> "PreparedFiles":
        """Return what files contain, joined, and ready to be written. Nothing is written.

        `virtual` are paths or URLs of other folders that files may refer to. `stored_lengths` are the lengths of the
        chunks of the arrays that files are appended to.
        """
        urls = list_files(files, dict(options))
        joins = len(urls) > 1 or self.dim is not None
        parsing = FileParsing(
            FileRegistry.of_folders([*map(folder_of, urls), *map(folder_url, virtual)], options),
            self.parser,
            self.loadable_variables or (),
            loads=joins or self.loadable_variables is not None,
            joins=joins,
            executor=self.executor,
            on_error=self.on_error,
            progress=self.progress if len(urls) > 1 else None,
        )
        parsed, failed = parsing.parse(urls)
        _require_names("loadable_variables", parsed, self.loadable_variables or ())
        if self.variables is not None:
            _require_names("variables", parsed, self.variables)
            parsed = [dataclasses.replace(each, group=select_variables(each.group, self.variables)) for each in parsed]
        source: Source = parsed[0].group
        notes: Mapping[str, str] = parsed[0].notes
        if parsing.loads:
            trees, unreadable = self._trees(parsed, parsing)
            parsed = [each for each in parsed if each.location not in unreadable]
            order = {hide_in_url(url): number for number, url in enumerate(urls)}
            failed = tuple(sorted((*failed, *unreadable.values()), key=lambda each: order[each.name]))
            source, notes = self._combine(trees, stored_lengths or {})
        if self.strict:
            _require_complete(parsed)
        locations = tuple(each.location for each in parsed)
        loaded = {path: note for each in reversed(parsed) for path, note in each.loaded.items()}
        return PreparedFiles(
            source,
            notes,
            locations,
            _skipped(parsed),
            failed,
            self.max_loaded_nbytes,
            is_selection=self.variables is not None,
            loaded=loaded,
            unchecked=tuple(sorted({each.format for each in parsed if not each.is_checked})),
        )

    def _trees(
        self, parsed: Sequence[ParsedFile], parsing: FileParsing
    ) -> tuple[list[FileTree], Mapping[str, Skipped]]:
        """Return the groups of files, and the files that are skipped because values of them cannot be decoded."""
        trees: list[FileTree] = []
        errors: dict[str, PartsStoreError] = {}
        for each in parsed:
            try:
                trees.append(self._tree(each, parsing))
            except PartsStoreError as error:
                errors[each.location] = error
        if errors and (self.on_error == "raise" or not trees):
            raise next(iter(errors.values()))
        return trees, {location: skipped_file(location, error) for location, error in errors.items()}

    def _combine(
        self, trees: Sequence[FileTree], stored_lengths: Mapping[str, int]
    ) -> tuple[Source, Mapping[str, str]]:
        """Return the files as one dataset or tree, and notes about its variables."""
        how = JoinOptions(self.max_loaded_nbytes, stored_lengths=stored_lengths)
        if self.dim is not None:
            joined = join_trees(trees, self.dim, how)
        elif self.combine == "nested":
            raise StoreConfigError("combine", "'by_coords', or `concat_dim` for 'nested'", "'nested'")
        else:
            joined = combine_by_coords(trees, how)
        return joined.to_source(), joined.notes

    def _tree(self, parsed: ParsedFile, parsing: FileParsing) -> FileTree:
        """Return the groups of a file as virtual datasets. What is loaded is in them already."""
        root = parsed.group.with_registry(parsing.registry)
        groups = {}
        for path, node in root.nodes():
            if isinstance(node, PartsGroup):
                below = f"{path}/" if path else ""
                named = [name for name in node.arrays if f"{below}{name}" in parsing.loadable_variables]
                names = dict.fromkeys([*default_names(node), *named])
                groups[path] = dataset_of(parsed.location, node, names, mask_and_scale=False)
        skipped = {each.name: each.reason for each in parsed.skipped}
        return FileTree(parsed.location, groups, skipped)


def _require_names(argument: str, parsed: Sequence[ParsedFile], names: Iterable[str]) -> None:
    """Raise `StoreConfigError` unless each of these names is that of a variable in one of the files."""
    known = dict.fromkeys(path for each in parsed for path, node in each.group.nodes() if isinstance(node, PartsArray))
    for name in names:
        if name not in known:
            expected = f"names of variables: {', '.join(known) or 'none'}"
            raise StoreConfigError(argument, expected, describe(name))


def _require_complete(parsed: Sequence[ParsedFile]) -> None:
    for each in parsed:
        lost = tuple((skipped.name, skipped.reason) for skipped in each.skipped if skipped.has_values)
        if lost:
            raise AdoptionError(each.location, lost)


def _skipped(parsed: Sequence[ParsedFile]) -> tuple[Skipped, ...]:
    """Return what is skipped of the files; what is the same in several files, once."""
    if len(parsed) == 1:
        return parsed[0].skipped
    counts: dict[Skipped, list[str]] = {}
    for file in parsed:
        for each in file.skipped:
            counts.setdefault(each, []).append(file.location)
    return tuple(
        dataclasses.replace(each, reason=f"{each.reason} ({_in_files(locations, len(parsed))})")
        for each, locations in counts.items()
    )


def _in_files(locations: Sequence[str], count: int) -> str:
    if len(locations) == count:
        return "in all files"
    others = f" and {len(locations) - 1:,} other files" if len(locations) > 1 else ""
    return f"in {hide_in_url(locations[0])}{others}"


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFiles:
    """Files that are parsed and joined, and can be written to a session."""

    source: Source
    # Why variables were loaded, or not compared, by their paths.
    notes: Mapping[str, str]
    locations: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    failed: tuple[Skipped, ...]
    max_loaded_nbytes: int = DEFAULT_MAX_LOADED
    # Whether the caller chose variables, so that others may be missing.
    is_selection: bool = False
    # Why values were loaded when a file was parsed, or chunks encoded again, by their paths.
    loaded: Mapping[str, str] = field(default_factory=dict)
    # The parsers whose values were not checked.
    unchecked: tuple[str, ...] = ()

    @property
    def _references(self) -> list[References]:
        return [array.references for each in read_tree(self.source).values() for array in each.arrays.values()]

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the URLs of the folders that the references point to."""
        locations = {location for each in self._references for location in each.locations()}
        return tuple(fewest_folders(map(folder_of, locations)))

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the packages, besides this one and zarr, that have codecs of the files."""
        codecs = (codec for each in self._references for codec in each.metadata.codecs)
        packages = {type(codec).__module__.partition(".")[0] for codec in codecs} - _OWN_CODECS
        return tuple(sorted(_INSTALL.get(each, each) for each in packages))

    def write(
        self,
        store: PartsStore,
        path: str,
        *,
        append_dim: str | None = None,
        shard_chunks: int = DEFAULT_SHARD_CHUNKS,
        overwrite: bool = False,
        dry_run: bool = False,
        progress: ProgressLike = None,
    ) -> Adoption:
        """Write the files to a session, and return the report; with `dry_run`, write nothing."""
        source = self.source
        loaded: Mapping[str, str] = {}
        if append_dim is not None:
            source, loaded = load_unlike(self.source, store, path, append_dim, self.max_loaded_nbytes)
        planned = plan_write(
            source,
            store,
            path=path,
            append_dim=append_dim,
            shard_chunks=shard_chunks,
            overwrite=overwrite,
            max_loaded=self.max_loaded_nbytes,
            is_complete=not self.is_selection,
        )
        if not dry_run:
            with report_progress(progress, "write", "arrays") as update:
                planned.write(update)
        return self._complete(planned.report, normalize_path(path), {**self.notes, **loaded})

    def _complete(self, report: Adoption, prefix: str, reasons: Mapping[str, str]) -> Adoption:
        """Return the report of the write, with what is known of the files."""
        below = f"{prefix}/" if prefix else ""
        notes = {f"{below}{name}": note for name, note in reasons.items()}
        loaded = {f"{below}{name}": note for name, note in self.loaded.items()}
        arrays = tuple(
            dataclasses.replace(
                each,
                plan=f"{each.plan}: {notes[each.path]}" if each.path in notes else each.plan,
                loaded=loaded.get(each.path, ""),
            )
            for each in report.arrays
        )
        others = f" and {len(self.locations) - 1:,} other files" if len(self.locations) > 1 else ""
        location = f"{hide_in_url(self.locations[0])}{others}"
        return dataclasses.replace(
            report,
            location=location,
            arrays=arrays,
            skipped=self.skipped,
            failed=self.failed,
            folders=self.folders,
            needs=self.needs,
            unchecked=self.unchecked,
        )
