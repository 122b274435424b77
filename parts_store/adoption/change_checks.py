"""Check that stored arrays can be changed with a source: it has all of them, and nothing that is not stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zarr.codecs import BytesCodec, TransposeCodec

from parts_store import destination
from parts_store._compat.zarr import sync
from parts_store.adoption.appending import StoredArray, read_stored
from parts_store.adoption.source_tree import SourceGroup
from parts_store.errors import ManifestError, StoreConfigError
from parts_store.manifests.array_references import chunk_shape_of
from parts_store.store import PartsStore


@dataclass(frozen=True, slots=True)
class ChangeChecks:
    """What is checked of stored arrays before some of them are changed."""

    # Arrays that do not change are compared if there are at most this number of bytes.
    max_loaded: int
    # Whether the source must have all stored arrays, also those that do not change.
    is_complete: bool


def place(*names: str) -> str:
    """Return the path of a node, given the names above it, some of which may be empty."""
    return "/".join(each for each in names if each)


def names_in(store: PartsStore, path: str) -> list[str]:
    """Return the names of the members of a group."""

    async def names() -> list[str]:
        return [name.strip("/") async for name in store.list_dir(path)]

    return sync(names())


def stored_chunk_lengths(store: PartsStore, path: str, dim: str) -> dict[str, int]:
    """Return the lengths of the chunks of all stored arrays along a dimension, by their paths below a path.

    Only arrays that are not compressed are among them: chunks of files can be cut to the same length.
    """
    found: dict[str, int] = {}
    groups = [""]
    while groups:
        names = [place(group, name) for group in groups for name in names_in(store, place(path, group))]
        stored = read_stored(store, [place(path, name) for name in names])
        for name in names:
            array = stored.get(place(path, name))
            if array is not None and _length(array, dim) is not None and _is_plain(array):
                axis = list(array.metadata.dimension_names or ()).index(dim)
                found[name] = chunk_shape_of(array.chunk_metadata)[axis]
        groups = [name for name in names if place(path, name) not in stored]
    return found


def _is_plain(array: StoredArray) -> bool:
    return all(isinstance(each, BytesCodec | TransposeCodec) for each in array.chunk_metadata.codecs)


def require_dimensions(
    tree: Mapping[str, SourceGroup], append_dim: str | None, region: Mapping[str, slice | str] | str | None
) -> None:
    """Raise `StoreConfigError` unless the source has the dimensions that it is written along."""
    known = {name for each in tree.values() for name in each.dimensions}
    if append_dim is not None and append_dim not in known:
        raise StoreConfigError("append_dim", "a dimension of the source", repr(append_dim))
    if isinstance(region, Mapping) and (unknown := [dim for dim in region if dim not in known]):
        raise StoreConfigError("region", "dimensions of the source", repr(unknown[0]))


def require_stored(store: PartsStore, path: str, group: SourceGroup) -> tuple[dict[str, StoredArray], list[str]]:
    """Return the arrays of a stored group by their names, and the names of its other members.

    Raises an error unless the arrays of the source are among them.
    """
    (documents,) = destination.read_nodes(store, [path]).values()
    if not documents or destination.is_array(documents):
        raise StoreConfigError("path", "a group that is stored, to add to its arrays", f"none at {path!r}")
    names = names_in(store, path)
    found = read_stored(store, [place(path, name) for name in names])
    stored = {each.path.rpartition("/")[2]: each for each in found.values()}
    for name in group.arrays:
        if name not in stored:
            raise ManifestError(f"array {place(path, name)!r}", "an array that is stored", "none")
    return stored, [name for name in names if name not in stored]


def require_complete(
    path: str, stored: Mapping[str, StoredArray], group: SourceGroup, dim: str, *, is_complete: bool
) -> set[int]:
    """Return the length of stored arrays along a dimension; raise `ManifestError` unless the source continues them.

    With `is_complete`, the source must have the other arrays, too.
    """
    given = {*group.arrays, *group.loaded.variables}
    for name in [each for each in stored if each not in given]:
        subject = f"array {place(path, name)!r}"
        if _length(stored[name], dim) is not None:
            raise ManifestError(subject, f"values along {dim!r}, as for the others", "none")
        if is_complete:
            found = "none in the files; if it may be missing, name the variables to append (`variables`)"
            raise ManifestError(subject, "the variable that is stored", found)
    lengths = {name: length for name, each in stored.items() if (length := _length(each, dim)) is not None}
    if len(set(lengths.values())) > 1:
        raise ManifestError(f"group {path!r}", f"stored arrays of one length along {dim!r}", str(lengths))
    return set(lengths.values())


def _length(array: StoredArray, dim: str) -> int | None:
    """Return the length of an array along a dimension, None if it does not have the dimension."""
    names = list(array.metadata.dimension_names or ())
    return array.metadata.shape[names.index(dim)] if dim in names else None


def require_no_other_groups(store: PartsStore, path: str, names: Sequence[str], dim: str, lengths: set[int]) -> None:
    """Raise `ManifestError` if a stored group that the source does not have belongs to those that are continued.

    Its arrays then have the same length along the dimension. Groups with other lengths were stored independently.
    """
    groups = names
    while groups:
        names = [place(group, name) for group in groups for name in names_in(store, place(path, group))]
        stored = read_stored(store, [place(path, name) for name in names])
        for where, each in stored.items():
            if _length(each, dim) in lengths:
                group = where.rpartition("/")[0]
                found = (
                    f"none in the source, without a group {group!r}; if it is independent, append to it first (`path`)"
                )
                raise ManifestError(f"array {where!r}", f"values along {dim!r}, as for the other groups", found)
        groups = [name for name in names if place(path, name) not in stored]
