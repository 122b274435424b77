"""Suggest the path of a group or array for one that is not there."""

from typing import TYPE_CHECKING

from parts_store.errors import PartsStoreError

if TYPE_CHECKING:
    from parts_store.store import PartsStore


def did_you_mean(store: "PartsStore", path: str) -> str:
    """Return the end of an error message with a similar path that exists; nothing if there is none."""
    from parts_store.inspection import similar_path

    try:
        similar = similar_path(store, path)
    except PartsStoreError:
        # The message is about another error. A store that cannot be listed has no suggestions.
        return ""
    return "" if similar is None else f"; did you mean {similar!r}?"
