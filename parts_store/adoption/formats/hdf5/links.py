"""Follow the links of HDF5 files to groups and datasets of the same file.

The file is read through a file object: the HDF5 library would look for the target of a link into another file in this
file. Each step of a path is looked up here instead.
"""

from typing import Final

import h5py

from parts_store.adoption.description import CannotBeReadError, NothingLostError
from parts_store.adoption.formats.hdf5.attributes import shown

# The largest number of links that are followed to one object.
_MOST_LINKS: Final = 32


def follow(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return a member of a group, or what a link with this name leads to; raise `CannotBeReadError` without one."""
    found = _look_up(group, name, _MOST_LINKS)
    if not isinstance(found, h5py.Group | h5py.Dataset):
        raise NothingLostError("a named type")
    return found


def _look_up(group: h5py.Group, name: str, left: int) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    encoded = name.encode(errors="surrogateescape")
    if group.id.links.get_info(encoded).type == h5py.h5l.TYPE_HARD:
        identifier = h5py.h5o.open(group.id, encoded)
        # `group[name]` would open the file once more, to ask whether it can be written.
        return h5py.Dataset(identifier, readonly=True) if isinstance(identifier, h5py.h5d.DatasetID) else group[name]
    match group.get(name, getlink=True):
        case h5py.ExternalLink(filename=filename, path=path):
            raise CannotBeReadError(shown(f"a link into another file: {filename}:{path}"))
        case h5py.SoftLink(path=path):
            return follow_path(group, path, left)
    return group[name]


def follow_path(group: h5py.Group, path: str, left: int = _MOST_LINKS) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    """Return the object at a path, from a group or from the root; raise `CannotBeReadError` without one."""
    if not left:
        raise NothingLostError(shown(f"a link to {path}, which leads to more than {_MOST_LINKS} links"))
    found: h5py.Group | h5py.Dataset | h5py.Datatype = group.file["/"] if path.startswith("/") else group
    for step in filter(lambda each: each not in ("", "."), path.split("/")):
        if not isinstance(found, h5py.Group) or found.get(step, getlink=True) is None:
            raise NothingLostError(shown(f"a link to {path}, where nothing is"))
        found = _look_up(found, step, left - 1)
    return found
