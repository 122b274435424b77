"""Plan and carry out a write to a session: new arrays and groups, or more chunks of arrays that are stored.

A plan is made after everything was checked, and changes nothing. It contains the report of what will be written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from zarr.buffer import default_buffer_prototype

from parts_store import destination
from parts_store._compat.zarr import sync
from parts_store.adoption.appending import (
    Continuation,
    CutAgain,
    max_index_of,
    plan_append,
    plan_region,
)
from parts_store.adoption.change_checks import (
    ChangeChecks,
    names_in,
    place,
    require_complete,
    require_dimensions,
    require_no_other_groups,
    require_stored,
)
from parts_store.adoption.description import TEXT
from parts_store.adoption.report import AdoptedArray, Adoption
from parts_store.adoption.source_tree import SourceArray, SourceGroup, merged_attributes
from parts_store.adoption.stored_values import ChangedValues, NewValues, detect_region, plan_values
from parts_store.adoption.unchanged_arrays import compare_with_stored
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.stats import Progress
from parts_store.errors import ManifestError
from parts_store.format.keys import DOCUMENT, join
from parts_store.format.metadata import parse
from parts_store.manifests.array_references import References
from parts_store.manifests.cutting import cut
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.to_icechunk import (
    PlannedArray,
    plan_array,
    require_locations,
    write_array,
    write_chunks,
    write_document,
)
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore

_AT_ONCE = 32

type ArrayPlan = PlannedArray | Continuation | CutAgain
type Tree = Mapping[str, SourceGroup]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWrite:
    """A write that was checked, and the report of what it writes."""

    store: PartsStore
    # The paths of what is deleted first.
    obstacles: tuple[str, ...]
    # The documents of groups that are new or change, by their paths.
    documents: Mapping[str, dict[str, Any]]
    values: tuple[NewValues | ChangedValues, ...]
    arrays: tuple[ArrayPlan, ...]
    report: Adoption

    def write(self, progress: Progress) -> None:
        """Carry out the write; call `progress` with the number of arrays that are done, and of all arrays."""
        for obstacle in self.obstacles:
            destination.clear(self.store, obstacle)
        sync(_write_documents(self.store, self.documents))
        done = sum(len(each.reports) for each in self.values)
        total = done + len(self.arrays)
        for each in self.values:
            each.write()
        for number, array in enumerate(self.arrays, start=done):
            progress(number, total)
            self._write(array)
        progress(total, total)

    def _write(self, array: ArrayPlan) -> None:
        match array:
            case PlannedArray():
                sync(write_array(self.store, array))
            case CutAgain(again):
                destination.clear(self.store, again.path)
                sync(write_array(self.store, again))
            case Continuation():
                sync(_continue(self.store, array))
            case never:
                assert_never(never)


async def _write_documents(store: PartsStore, documents: Mapping[str, dict[str, Any]]) -> None:
    for path, document in documents.items():
        await write_document(store, path, document)


async def _continue(store: PartsStore, array: Continuation) -> None:
    """Give an array its new shape, and write its new chunks."""
    stored = array.stored
    if array.shape != stored.metadata.shape:
        buffer = await store.get(join(stored.path, DOCUMENT), default_buffer_prototype())
        document = None if buffer is None else parse(buffer.to_bytes())
        if document is None:
            raise ManifestError(f"array {stored.path!r}", "the array that was there before", "none")
        await write_document(store, stored.path, {**document, "shape": list(array.shape)})
    await write_chunks(store, stored.path, array.references, stored.parts, array.first)
    keys = [join(stored.path, "/".join(["c", *map(str, index)])) for index in array.removed]
    await run_for_each(keys, store.delete, _AT_ONCE)


# --- new arrays -------------------------------------------------------------------------------------------------------


def plan_creation(store: PartsStore, path: str, tree: Tree, shard_chunks: int, *, overwrite: bool) -> PlannedWrite:
    """Return how a source is written to a group: as new arrays, or in place of existing ones with `overwrite`."""
    arrays: list[PlannedArray] = []
    reports: list[AdoptedArray] = []
    max_index = max_index_of(store)
    for group, each in tree.items():
        for name, source in each.arrays.items():
            planned, report = _plan_new(place(path, group, name), source, shard_chunks, max_index)
            require_locations(store, planned.references)
            arrays.append(planned)
            reports.append(report)
    ancestors = destination.read_ancestors(store, path)
    destination.require_outside_arrays(ancestors, path, "path")
    obstacles = _find_obstacles(store, path, tree)
    # The root cannot be deleted, because it contains the path.
    if obstacles and (not overwrite or not obstacles[0]):
        raise destination.not_empty("path", obstacles[0])
    documents = {above: PartsGroup().document() for above, found in ancestors.items() if not found}
    groups = _group_documents(store, path, tree)
    documents |= {where: document for where, (document, is_changed) in groups.items() if is_changed}
    values = tuple(
        NewValues.checked(store, place(path, group), each.loaded, groups[place(path, group)][0]["attributes"])
        for group, each in tree.items()
    )
    loaded = [report for each in values for report in each.reports]
    summary = Adoption(_location([each.references for each in arrays]), (*loaded, *reports), ())
    return PlannedWrite(store, tuple(obstacles), documents, values, tuple(arrays), summary)


def _plan_new(path: str, source: SourceArray, shard_chunks: int, max_index: int) -> tuple[PlannedArray, AdoptedArray]:
    sharded = cut(source.references, shard_chunks, max_index=max_index)
    planned = plan_array(path, sharded.references, source.parts if sharded.parts is None else sharded.parts)
    return planned, _report(path, source.references, sharded.references, sharded.reason)


def _group_documents(store: PartsStore, path: str, tree: Tree) -> dict[str, tuple[dict[str, Any], bool]]:
    """Return the documents of all groups after the write, each with whether it differs from the stored one."""
    stored = destination.read_nodes(store, [place(path, group) for group in tree])
    found = {}
    for group, each in tree.items():
        where = place(path, group)
        is_group = stored[where] and not destination.is_array(stored[where])
        known = (parse(stored[where][DOCUMENT]) or {}) if is_group else {}
        merged = merged_attributes(known.get("attributes", {}), each.attributes)
        document = {**known, **PartsGroup(attributes=merged).document()}
        found[where] = (document, document != known)
    return found


def _find_obstacles(store: PartsStore, path: str, tree: Tree) -> list[str]:
    """Return the paths of nodes in the session that groups and arrays of the source would replace.

    A group of the source is merged with a group of the session, so that only an array is an obstacle.
    """
    groups = destination.read_nodes(store, [place(path, group) for group in tree])
    obstacles = [where for where, documents in groups.items() if destination.is_array(documents)]
    for group, each in tree.items():
        names = {*each.arrays, *map(str, each.loaded.variables)}
        found = names_in(store, place(path, group)) if names else ()
        obstacles += [place(path, group, name) for name in found if name in names]
    return obstacles


# --- arrays that are stored -------------------------------------------------------------------------------------------


def plan_change(
    store: PartsStore,
    path: str,
    tree: Tree,
    shard_chunks: int,
    checks: ChangeChecks,
    append_dim: str | None = None,
    region: Mapping[str, slice | str] | str | None = None,
) -> PlannedWrite:
    """Return how a source is appended to stored arrays along a dimension, or written to a region of them."""
    arrays: list[ArrayPlan] = []
    values: list[ChangedValues] = []
    reports: list[AdoptedArray] = []
    require_dimensions(tree, append_dim, region)
    lengths: set[int] = set()
    others: list[str] = []
    for group, each in tree.items():
        where = place(path, group)
        stored, groups = require_stored(store, where, each)
        others += [name for group_name in groups if (name := place(group, group_name)) not in tree]
        slices = detect_region(store, where, each.loaded, region) if region is not None else {}
        free = [append_dim] if append_dim is not None else list(slices)
        if append_dim is not None:
            lengths |= require_complete(where, stored, each, append_dim, is_complete=checks.is_complete)
        values.append(plan_values(store, where, each.loaded, append_dim=append_dim, region=slices))
        for name, source in each.arrays.items():
            old = stored[name]
            if not set(free) & set(old.metadata.dimension_names or ()):
                plan = compare_with_stored(store, old, source, checks.max_loaded)
                reports.append(_report(old.path, source.references, None, plan))
                continue
            require_locations(store, source.references)
            if append_dim is not None:
                planned = plan_append(store, old, source, append_dim, shard_chunks)
            else:
                planned = plan_region(store, old, source, slices, shard_chunks)
            arrays.append(planned)
            reports.append(_report(old.path, source.references, _written(planned), planned.reason))
    if append_dim is not None:
        require_no_other_groups(store, path, others, append_dim, lengths)
    loaded = [report for each in values for report in each.reports]
    new = [each.references for group in tree.values() for each in group.arrays.values()]
    summary = Adoption(_location(new), (*loaded, *reports), ())
    return PlannedWrite(store, (), {}, tuple(values), tuple(arrays), summary)


# --- reports ----------------------------------------------------------------------------------------------------------


def _written(plan: Continuation | CutAgain) -> References:
    return plan.references if isinstance(plan, Continuation) else plan.array.references


def _report(path: str, source: References, written: References | None, plan: str) -> AdoptedArray:
    """Return the report of an array, given its references in the source, and those that are written."""
    columns = () if written is None else written.columns()
    return AdoptedArray(
        path,
        source.metadata.shape,
        "string" if source.dtype == TEXT else str(source.dtype),
        int((~source.is_missing()).sum()),
        sum(int(each.is_in_file.sum()) for each in columns),
        sum(int(each.lengths[each.is_in_file].sum()) for each in source.columns()),
        sum(len(data) for each in columns for data in each.inlined.values()),
        plan,
        chunks_written=sum(len(each.inlined) for each in source.columns()),
    )


def _location(arrays: Sequence[References]) -> str:
    """Return the URL of the file that is referred to; if there are several, the first and the number of the others."""
    found = sorted({location for each in arrays for location in each.locations()})
    if not found:
        return "no files"
    others = f" and {len(found) - 1:,} other files" if len(found) > 1 else ""
    return f"{hide_in_url(found[0])}{others}"
