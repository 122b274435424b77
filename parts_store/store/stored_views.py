"""Which keys are views of arrays: listings hide them, and they are deleted with their array."""

from collections.abc import Mapping, Sequence

from zarr.abc.store import RangeByteRequest

from parts_store.engine.steps import Get, Steps, content, remove
from parts_store.format.files.description import recorded_format
from parts_store.format.view_keys import MARKED_NBYTES, VIEW_FORMATS, is_marked, view_key, viewed_paths
from parts_store.store.catalog import Catalog, CatalogEntry, described_files


def is_view(key: str, entries: Mapping[str, CatalogEntry]) -> bool:
    """Return whether a key is that of a view, given what is at the paths of the arrays that it may belong to."""
    paths, shown = viewed_paths(key)
    return any(recorded_format(described_files(entries[path]) or {}) == shown for path in paths)


def read_starts(keys: Sequence[str]) -> Steps[list[bytes | None]]:
    """Return the bytes of views that tell that this package wrote them; None for keys without an object."""
    outcomes = yield tuple(Get(key, RangeByteRequest(0, MARKED_NBYTES), "whether it is a view") for key in keys)
    return [content(outcome) for outcome in outcomes]


def remove_views(catalog: Catalog, path: str) -> Steps[None]:
    """Delete the views of the array at a path, if there is one; those of an array at the root are inside it."""
    if not path or described_files((yield from catalog.read_many((path,)))[path]) is None:
        return
    keys = [view_key(path, view_format) for view_format in VIEW_FORMATS]
    starts = yield from read_starts(keys)
    found = tuple(key for key, start in zip(keys, starts, strict=True) if is_marked(start))
    if found:
        yield from remove(found, "views of the array")
