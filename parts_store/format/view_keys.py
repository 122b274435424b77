"""The keys of views: files beside an array whose shards are files, which show the whole array to other programs."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from parts_store.format.files.description import FileFormat
from parts_store.format.keys import split

type ViewFormat = Literal["vrt", "hdf5", "ome"]
"""A format of views."""

VIEW_FORMATS: Final[tuple[ViewFormat, ...]] = get_args(ViewFormat.__value__)
_EXTENSIONS: Final[Mapping[ViewFormat, str]] = {"vrt": ".vrt", "hdf5": ".h5", "ome": ".companion.ome"}
_ALL_EXTENSIONS: Final = tuple(_EXTENSIONS.values())
# The format of the files that a view shows.
SHOWN_FORMAT: Final[Mapping[ViewFormat, FileFormat]] = {"vrt": "tiff", "hdf5": "hdf5", "ome": "tiff"}
# What the view of an array at the root is called. It is inside the array.
_ROOT_NAME: Final = "array"
# Each view has this text in its first bytes. A file with the name of a view may belong to the user.
MARK: Final = "parts_store view"
MARKED_NBYTES: Final = 4096


def view_key(path: str, view_format: ViewFormat) -> str:
    """Return the key of the view of the array at a path."""
    return (path or _ROOT_NAME) + _EXTENSIONS[view_format]


# The keys of views inside an array at the root.
ROOT_VIEWS: Final = frozenset(view_key("", view_format) for view_format in VIEW_FORMATS)


def may_be_view(key: str) -> bool:
    """Return whether a key has the extension of a view."""
    return key.endswith(_ALL_EXTENSIONS)


def viewed_paths(key: str) -> tuple[tuple[str, ...], FileFormat | None]:
    """Return the paths of the arrays whose view may be at a key, and the format of the files that the view shows."""
    for view_format, extension in _EXTENSIONS.items():
        path = key.removesuffix(extension)
        if path != key and split(path)[1]:
            return ((path, "") if path == _ROOT_NAME else (path,)), SHOWN_FORMAT[view_format]
    return (), None


def is_marked(start: bytes | None) -> bool:
    """Return whether the first bytes of an object are those of a view."""
    return start is not None and MARK.encode() in start
