"""Write virtual datasets to an Icechunk session: references in shards, and the values of loaded variables.

A plan is made after everything was checked, and changes nothing. It contains the report of what will be written.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import sync
from parts_store.errors import ManifestError, StoreConfigError
from parts_store.progress import ProgressLike, report_progress
from parts_store.virtual.description import TEXT
from parts_store.virtual.existing_files import first_of
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.references import References, is_rectilinear
from parts_store.virtual.manifests.shards import DEFAULT_SHARD_CHUNKS, Cut, cut, is_cut, plan_of
from parts_store.virtual.manifests.to_icechunk import (
    PlannedArray,
    parse_path,
    plan_array,
    require_locations,
    write_array,
    write_chunks,
    write_document,
)
from parts_store.virtual.ome_zarr import is_channel, join_attributes
from parts_store.virtual.options import AdoptOptions, WriteRegion
from parts_store.virtual.report import AdoptedArray, Adoption, Form, OtherForm, manifest_nbytes
from parts_store.virtual.store_access import (
    DOCUMENT,
    PartsStore,
    Progress,
    destination,
    discard_changes_on_failure,
    join,
    parse,
    run_for_each,
)
from parts_store.virtual.stored_arrays import (
    Continuation,
    compare_with_stored,
    max_index_of,
    names_in,
    place,
    plan_append,
    plan_region,
    require_append_dim,
    require_complete,
    require_no_other_groups,
    require_stored,
)
from parts_store.virtual.stored_values import ChangedValues, NewValues, detect_region, plan_values
from parts_store.virtual.virtual_dataset import SourceGroup, VirtualSource, merged_attributes, read_tree

# How many chunks are deleted at the same time.
_AT_ONCE: Final = 32
# The packages whose codecs every reader has.
_COMMON_CODECS: Final = {"zarr", "numcodecs"}
# What installs the codecs of a package, and makes them known to zarr, if it is not the package itself.
_INSTALL: Final = {"imagecodecs": "imagecodecs-zarr"}


def to_icechunk(
    source: VirtualSource,
    session: Any,
    *,
    path: str = "",
    append_dim: str | None = None,
    region: WriteRegion | None = None,
    shard_chunks: int | None = None,
    overwrite: bool = False,
    progress: ProgressLike = None,
) -> Adoption:
    """Write a virtual dataset to an Icechunk session. Nothing is committed.

    Chunks that are inlined in a manifest are stored in the session, and so are variables that are loaded.

    Parameters
    ----------
    source : xarray.Dataset or xarray.DataTree or ManifestGroup or ManifestStore or PartsGroup
        What to write: a dataset or a tree whose virtual variables contain arrays of VirtualiZarr or `PartsArray`, or a
        group of such arrays.
    session : icechunk.Session or PartsStore
        A writable session, or a `PartsStore` on one. All files have to be in virtual chunk containers of its
        repository.
    path : str
        The path of the group that the source becomes. It may exist: its groups get more members and attributes.
    append_dim : str, optional
        The dimension along which the source is appended to arrays that exist. Arrays without the dimension, and all
        attributes, stay as they are; such arrays of the source must have the values that are stored. A coordinate that
        is loaded has to continue the stored one.
    region : mapping of str to slice, or "auto", optional
        The region of existing arrays that is written: a slice for each dimension, on the boundaries of chunks, or
        `"auto"` to find the loaded coordinates among those that are stored.
    shard_chunks : int, optional
        By default each chunk is a reference of an ordinary Zarr array; arrays of more than 100,000 chunks are cut into
        shards. A number cuts all arrays into shards of up to so many chunks, which only this package reads; 1 cuts
        none. Stored arrays that are changed keep their form.
    overwrite : bool
        Whether to replace existing arrays.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of arrays that are done and of all arrays.

    Returns
    -------
    Adoption
        A report of the arrays, of the form that each has, and of what the other form would take.

    Raises
    ------
    StoreConfigError
        If an argument is not valid, or an array exists. Nothing was written.
    SessionError
        If a file is outside the virtual chunk containers of the repository. Nothing was written.
    ManifestError
        If an array cannot be written as it is, or does not continue the stored one. Nothing was written.
    LocationError
        If an array in shards has to be cut again, and a file that it refers to was changed. Nothing was written.

    Examples
    --------
    A file of one row of numbers for each day, as a virtual dataset:

    >>> import icechunk, pathlib, xarray as xr
    >>> file = pathlib.Path("days.raw").resolve()
    >>> file.write_bytes(np.arange(200, dtype="uint8").tobytes())
    200
    >>> document = {
    ...     "shape": [100, 2],
    ...     "data_type": "uint8",
    ...     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
    ...     "chunk_key_encoding": {"name": "default"},
    ...     "codecs": [{"name": "bytes"}],
    ... }
    >>> manifest = {f"{day}.0": {"path": file.as_uri(), "offset": 2 * day, "length": 2} for day in range(100)}
    >>> days = xr.Dataset({"t": (("day", "x"), ps.manifests.PartsArray(document, [manifest]))})

    A repository that may refer to the files of the folder:

    >>> place = f"{file.parent.as_uri()}/"
    >>> config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=65535)
    >>> folder = icechunk.local_filesystem_store(str(file.parent))
    >>> config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place, store=folder))
    >>> access = {place: icechunk.credentials.LocalFileSystemAccess}
    >>> repository = icechunk.Repository.create(
    ...     icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access=access
    ... )
    >>> session = repository.writable_session("main")
    >>> array = ps.to_icechunk(days, session).arrays[0]
    >>> array.form, array.references, array.other.references
    ('plain', 100, 1)
    >>> store = ps.PartsStore.from_session(session)
    >>> xr.open_zarr(store, consolidated=False)["t"][3].values
    array([6, 7], dtype=uint8)
    """
    options = AdoptOptions(
        path=path, append_dim=append_dim, region=region, shard_chunks=shard_chunks, overwrite=overwrite
    )
    with report_progress(progress, "write", "arrays") as report:
        planned = plan_write(source, session, options)
        planned.write(report)
    return planned.report


def plan_write(source: VirtualSource, session: Any, options: AdoptOptions, location: str = "") -> "PlannedWrite":
    """Return what `to_icechunk` would write, after everything was checked, and the report of it. Change nothing.

    `location` is the name of the files in errors; by default that of those which are referred to.
    """
    store = session if isinstance(session, PartsStore) else PartsStore.from_session(session)
    if store.session is None:
        raise StoreConfigError("session", "an Icechunk session", str(store))
    # Raises if the session is read-only, or was committed.
    store = store.with_read_only(False)
    path = parse_path(options.path)
    tree = {place(path, group): contents for group, contents in read_tree(source).items()}
    if options.append_dim is None and options.region is None:
        return _plan_creation(store, path, tree, options)
    with naming(
        location or _location([array.references for group in tree.values() for array in group.arrays.values()])
    ):
        return _plan_change(store, path, tree, options)


@contextmanager
def naming(files: str) -> Iterator[None]:
    """Name the files that do not fit in the errors of a change of stored arrays."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(f"{files}, {error.subject}", error.expected, error.found) from error


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWrite:
    """A write that was checked, and the report of what it writes."""

    store: PartsStore
    # The paths of what is deleted first.
    obstacles: tuple[str, ...]
    # The documents of groups that are new or change, by their paths.
    documents: Mapping[str, dict[str, Any]]
    values: tuple[NewValues | ChangedValues, ...]
    arrays: tuple[PlannedArray | Continuation, ...]
    report: Adoption

    def write(self, progress: Progress) -> None:
        """Carry out the write; call `progress` with the number of arrays that are done, and of all arrays."""
        # An array that has its new shape and not yet its new chunks would be read as fill values.
        with discard_changes_on_failure(self.store.session):
            self._write(progress)

    def _write(self, progress: Progress) -> None:
        for obstacle in self.obstacles:
            destination.clear(self.store, obstacle)
        for path, document in self.documents.items():
            sync(write_document(self.store, path, document))
        done = sum(len(each.reports) for each in self.values)
        total = done + len(self.arrays)
        for each in self.values:
            each.write()
        for number, array in enumerate(self.arrays, start=done):
            progress(number, total)
            if isinstance(array, Continuation):
                sync(_continue(self.store, array))
            else:
                sync(write_array(self.store, array))
        progress(total, total)


async def _continue(store: PartsStore, array: Continuation) -> None:
    """Give an array its new shape, and write its new chunks."""
    stored = array.stored
    if array.shape != stored.metadata.shape:
        buffer = await store.get(join(stored.path, DOCUMENT), default_buffer_prototype())
        document = None if buffer is None else parse(buffer.to_bytes())
        if document is None:
            raise ManifestError(f"array {stored.path!r}", "the array that was there before", "none")
        grid = {} if array.chunk_grid is None else {"chunk_grid": array.chunk_grid.to_dict()}
        await write_document(store, stored.path, {**document, "shape": list(array.shape), **grid})
    await write_chunks(store, array.path, array.references, array.first)
    keys = [join(stored.path, "/".join(["c", *map(str, index)])) for index in array.removed]
    await run_for_each(keys, store.delete, _AT_ONCE)


# --- new arrays -------------------------------------------------------------------------------------------------------


def _plan_creation(
    store: PartsStore, path: str, tree: Mapping[str, SourceGroup], options: AdoptOptions
) -> PlannedWrite:
    """Return how a source is written to a group: as new arrays, or in place of existing ones with `overwrite`."""
    arrays: list[PlannedArray] = []
    reports: list[AdoptedArray] = []
    for where, group in tree.items():
        for name, source in group.arrays.items():
            max_index = max_index_of(store)
            sharded = cut(source.references, options.shard_chunks, max_index=max_index)
            planned = plan_array(join(where, name), sharded.references)
            require_locations(store, planned.references)
            arrays.append(planned)
            reports.append(_report(planned, source.references, sharded.reason, max_index))
    ancestors = destination.read_ancestors(store, path)
    destination.require_outside_arrays(ancestors, path, "path")
    stored = destination.read_nodes(store, list(tree))
    obstacles = _find_obstacles(store, tree, stored)
    # The root cannot be deleted, because it contains the path.
    if obstacles and (not options.overwrite or not obstacles[0]):
        raise destination.not_empty("path", obstacles[0])
    documents = {above: PartsGroup().document() for above, found in ancestors.items() if not found}
    values: list[NewValues] = []
    for where, group in tree.items():
        is_group = stored[where] and not destination.is_array(stored[where])
        known = (parse(stored[where][DOCUMENT]) or {}) if is_group else {}
        attributes = merged_attributes(known.get("attributes", {}), group.attributes)
        document = {**known, **PartsGroup(attributes=attributes).document()}
        if document != known:
            documents[where] = document
        values.append(NewValues.checked(store, where, group.loaded, document["attributes"]))
    loaded = [report for each in values for report in each.reports]
    summary = _summary([array.references for array in arrays], [*loaded, *reports])
    return PlannedWrite(store, tuple(obstacles), documents, tuple(values), tuple(arrays), summary)


def _find_obstacles(
    store: PartsStore, tree: Mapping[str, SourceGroup], stored: Mapping[str, destination.Documents]
) -> list[str]:
    """Return the paths of nodes in the session that groups and arrays of the source would replace.

    A group of the source is merged with a group of the session, so that only an array is an obstacle.
    """
    obstacles = [where for where, documents in stored.items() if destination.is_array(documents)]
    for where, group in tree.items():
        found = names_in(store, where) if group.names else ()
        obstacles += [join(where, name) for name in found if name in group.names]
    return obstacles


# --- arrays that are stored -------------------------------------------------------------------------------------------


def _plan_change(store: PartsStore, path: str, tree: Mapping[str, SourceGroup], options: AdoptOptions) -> PlannedWrite:
    """Return how a source is appended to stored arrays along a dimension, or written to a region of them."""
    append_dim, region = options.append_dim, options.region
    _require_dimensions(tree, options)
    arrays: list[Continuation | PlannedArray] = []
    values: list[ChangedValues] = []
    loaded: list[AdoptedArray] = []
    reports: list[AdoptedArray] = []
    lengths: set[int] = set()
    other_groups: list[str] = []
    found = {where: require_stored(store, where, group) for where, group in tree.items()}
    if append_dim is not None:
        require_append_dim(path, [array for stored, _ in found.values() for array in stored.values()], append_dim)
    for where, group in tree.items():
        stored, groups = found[where]
        other_groups += [below for name in groups if (below := join(where, name)) not in tree]
        slices = detect_region(store, where, group.loaded, region) if region is not None else {}
        if append_dim is not None:
            lengths |= require_complete(where, stored, group, append_dim, is_complete=options.is_complete)
        changed, unchanged = plan_values(store, where, group.loaded, append_dim=append_dim, region=slices)
        values += changed
        loaded += [*(report for each in changed for report in each.reports), *unchanged]
        free = {append_dim} if append_dim is not None else set(slices)
        for name, source in group.arrays.items():
            old = stored[name]
            if not free & set(old.metadata.dimension_names or ()):
                plan = compare_with_stored(store, old, source, options.max_loaded_nbytes)
                reports.append(_described(old.path, source.references, plan))
                continue
            require_locations(store, source.references)
            if append_dim is not None:
                planned, reason = plan_append(store, old, source, append_dim, options)
            else:
                planned, reason = plan_region(store, old, source, slices, options)
            arrays.append(planned)
            reports.append(_report(planned, source.references, reason, max_index_of(store)))
    documents = {} if append_dim is None else _documents_with_channels(store, tree, append_dim)
    if append_dim is not None:
        require_no_other_groups(store, other_groups, append_dim, lengths)
    new = [array.references for group in tree.values() for array in group.arrays.values()]
    summary = _summary(new, [*loaded, *reports])
    # Arrays that are cut again.
    obstacles = tuple(array.path for array in arrays if isinstance(array, PlannedArray))
    return PlannedWrite(store, obstacles, documents, tuple(values), tuple(arrays), summary)


def _documents_with_channels(
    store: PartsStore, tree: Mapping[str, SourceGroup], append_dim: str
) -> dict[str, dict[str, Any]]:
    """Return the documents of groups whose images get more channels; all other attributes stay as they are."""
    changed: dict[str, dict[str, Any]] = {}
    if not is_channel(append_dim):
        return changed
    for where, stored in destination.read_nodes(store, list(tree)).items():
        document = parse(stored.get(DOCUMENT, b"")) or {}
        known = document.get("attributes", {})
        attributes = join_attributes([known, tree[where].attributes], append_dim, is_new=False)
        if attributes != known:
            changed[where] = {**document, "attributes": attributes}
    return changed


def _require_dimensions(tree: Mapping[str, SourceGroup], options: AdoptOptions) -> None:
    """Raise `StoreConfigError` unless the source has the dimensions that it is written along."""
    known = {name for group in tree.values() for name in group.dimensions}
    if options.append_dim is not None and options.append_dim not in known:
        raise StoreConfigError("append_dim", "a dimension of the source", repr(options.append_dim))
    region = options.region if isinstance(options.region, Mapping) else {}
    if unknown := [dim for dim in region if dim not in known]:
        raise StoreConfigError("region", "dimensions of the source", repr(unknown[0]))


# --- reports ----------------------------------------------------------------------------------------------------------


def _described(path: str, source: References, plan: str) -> AdoptedArray:
    """Return the report of an array that is not written, given its references in the source."""
    return AdoptedArray(
        path,
        source.metadata.shape,
        "string" if source.dtype == TEXT else str(source.dtype),
        int((~source.is_missing()).sum()),
        0,
        sum(int(each.lengths[each.is_in_file].sum()) for each in source.columns),
        0,
        plan,
        chunks_written=sum(len(each.inlined) for each in source.columns),
    )


def _report(planned: PlannedArray | Continuation, source: References, reason: str, max_index: int) -> AdoptedArray:
    """Return the report of an array that is written, given its references in the source."""
    columns = planned.references.columns
    references = sum(int(each.is_in_file.sum()) for each in columns)
    copied = sum(len(data) for each in source.columns for data in each.inlined.values())
    described = _described(planned.path, source, reason or "plain references")
    form = _form_of(planned, has_references=references > 0 or not copied)
    other = None
    if form == "shards":
        other = OtherForm.of("plain", described.chunks, described.chunks)
    elif form == "plain" and isinstance(plan := plan_of(source, DEFAULT_SHARD_CHUNKS, max_index=max_index), Cut):
        other = OtherForm.of("shards", int((plan.shards.numbers >= 0).sum()), described.chunks)
    return dataclasses.replace(
        described,
        references=references,
        nbytes_written=sum(len(data) for each in columns for data in each.inlined.values()),
        form=form,
        needs=_needs(source),
        nbytes_copied=copied,
        nbytes_manifests=manifest_nbytes(form, references, described.chunks),
        other=other,
    )


def _form_of(planned: PlannedArray | Continuation, *, has_references: bool) -> Form:
    """Return the form of an array that is written."""
    metadata, parts = planned.references.metadata, planned.references.parts
    if parts is not None:
        return "shards" if is_cut(metadata, parts) else "parts"
    if is_rectilinear(metadata) or (isinstance(planned, Continuation) and planned.chunk_grid is not None):
        return "rectilinear"
    return "plain" if has_references else "values"


def _needs(source: References) -> tuple[str, ...]:
    """Return the packages that register codecs of an array, besides zarr and numcodecs, which every reader has."""
    packages = {type(codec).__module__.partition(".")[0] for codec in source.metadata.codecs} - _COMMON_CODECS
    return tuple(sorted(_INSTALL.get(package, package) for package in packages))


def _summary(references: Sequence[References], reports: Sequence[AdoptedArray]) -> Adoption:
    """Return the report of arrays that are written."""
    return Adoption(_location(references), tuple(reports), (), sum(each.nbytes_copied for each in reports))


def _location(arrays: Sequence[References]) -> str:
    """Return the URL of the file that is referred to; if there are several, the first and the number of the others."""
    return first_of(sorted({location for each in arrays for location in each.locations()}))
