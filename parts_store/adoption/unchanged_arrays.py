"""Compare arrays that an append does not change with those that are stored: their values must be the same."""

from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from parts_store.adoption.appending import StoredArray, require_same_form
from parts_store.adoption.loading import Origin, load_arrays
from parts_store.adoption.source_tree import SourceArray
from parts_store.backends.file_registry import FileRegistry
from parts_store.errors import ManifestError, NoAccessError, PartsStoreError, describe
from parts_store.manifests.array import PartsArray
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore

# The schemes of containers whose files can be read with the options of obstore.
_READABLE: Final = ("file://", "s3://")
_ADVICE: Final = "leave the variable out to keep what is stored (`variables`, `drop_vars`)"


def compare_with_stored(store: PartsStore, stored: StoredArray, source: SourceArray, max_loaded: int) -> str:
    """Raise `ManifestError` unless an array has the values that are stored; return what the report says about it.

    Arrays of more than `max_loaded` bytes, and arrays that refer to files without access, are not compared, and the
    report says so.
    """
    require_same_form(stored, source)
    nbytes = 2 * source.nbytes
    if nbytes > max_loaded:
        return f"not changed, and not compared with what is stored: {nbytes:,} bytes"
    found = _values_of(store, stored, source)
    try:
        expected = np.asarray(zarr.open_array(store, path=stored.path, mode="r")[...])
    except NoAccessError as error:
        return f"not changed, and not compared with what is stored: {error.problem}"
    is_same = np.asarray((found == expected) | ((found != found) & (expected != expected)))  # noqa: PLR0124
    if not is_same.all():
        at = tuple(np.argwhere(~is_same)[0].tolist())
        where = f"array {stored.path!r}, at {list(at)}" if at else f"array {stored.path!r}"
        # An element of an array of texts is a text, and has no `item`.
        old, new = (describe(np.asarray(each[at]).item()) for each in (expected, found))
        raise ManifestError(where, f"{old}, as it is stored", f"{new} in {_location(source)!r}; {_ADVICE}")
    return "not changed"


def _values_of(store: PartsStore, stored: StoredArray, source: SourceArray) -> NDArray[Any]:
    """Return the values of an array; raise `ManifestError` if they cannot be read."""
    try:
        registries = source.registries or (FileRegistry.of_folders(containers_of(store), {}),)
        array = PartsArray.of(source.references, source.parts, registries)
        return load_arrays([array], [Origin(_location(source), stored.path)])[0]
    except PartsStoreError as error:
        expected = "values that can be read, to compare them with those that are stored"
        advice = f"{_ADVICE}, or load it (`loadable_variables`)"
        raise ManifestError(f"array {stored.path!r}", expected, f"{error}; {advice}") from error


def _location(source: SourceArray) -> str:
    return hide_in_url(next(iter(source.references.locations()), "the manifest"))


def containers_of(store: PartsStore) -> list[str]:
    """Return the URLs of the folders that a session may refer to, as far as they can be read here."""
    known = store.session.config.virtual_chunk_containers or {}
    return [each for each in known if each.startswith(_READABLE)]
