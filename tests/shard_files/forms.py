"""The two forms of an array whose shards are files: one object for each shard, or a file and its index as parts."""

from typing import Any, Final

import parts_store as ps

FORMS: Final = ("object", "parts")
EXTENSIONS: Final = {"tiff": ".tif", "hdf5": ".h5"}


def create(store: ps.PartsStore, name: str | None, form: str, shard_file: Any, **arguments: Any) -> Any:
    """Return a new array of this form."""
    parts = [ps.Part(EXTENSIONS[shard_file]), ps.Part(".index", size=ps.SHARD_INDEX)] if form == "parts" else None
    return ps.create_array(store, name, parts=parts, shard_file=shard_file, **arguments)


def extension(form: str, shard_file: str) -> str:
    """Return what follows the key of a shard in the name of its file."""
    return EXTENSIONS[shard_file] if form == "parts" else ""
