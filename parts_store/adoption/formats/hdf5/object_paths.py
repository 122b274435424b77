"""ObjectPaths: the paths of the objects that references of an HDF5 file point to."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import h5py

from parts_store.adoption.description import CannotBeReadError

type Address = tuple[int, ...]
"""Where an object is in its file. All names of an object have the same address."""

# The types of objects. Links have other ones.
_OBJECTS = (h5py.h5g.GROUP, h5py.h5g.DATASET, h5py.h5g.TYPE)
# What h5py raises for damaged objects, and for those that do not exist.
_ERRORS = (OSError, RuntimeError, KeyError, TypeError, ValueError)


def address_of(identifier: Any) -> Address:
    """Return the address of an open object."""
    # `h5o.get_info` also adds up the sizes of all members of a group.
    return tuple(h5py.h5g.get_objinfo(identifier).objno)


@dataclass(slots=True)
class ObjectPaths:
    """The paths of all objects of a file, which are listed when the first of them is looked up.

    The HDF5 library would search the whole file for the name of each object that a reference points to.
    """

    file: h5py.File
    _by_address: dict[Address, str] = field(default_factory=dict)

    def path_of(self, reference: Any) -> str:
        """Return the path of the object that a reference points to, an empty text if it points to none."""
        if not reference:
            return ""
        try:
            address = address_of(h5py.h5r.dereference(reference, self.file.id))
        except _ERRORS:
            raise CannotBeReadError("a reference to an object that is not in the file") from None
        if (path := self.path_at(address)) is None:
            raise CannotBeReadError("a reference to an object without a name")
        return path

    def path_at(self, address: Address) -> str | None:
        """Return the path of the object at an address; None if no group has it as a member."""
        if not self._by_address:
            self._list()
        return self._by_address.get(address)

    def _list(self) -> None:
        left: list[tuple[Address, bytes, bool]] = [(address_of(self.file.id), b"/", True)]
        while left:
            address, path, is_group = left.pop()
            if address not in self._by_address:
                self._by_address[address] = path.decode(errors="surrogateescape")
                if is_group:
                    # The first member is the next one.
                    left += reversed(list(self._members(path)))

    def _members(self, path: bytes) -> Iterator[tuple[Address, bytes, bool]]:
        """Yield the addresses and paths of the members of a group, and which of them are groups."""
        with contextlib.suppress(*_ERRORS):
            group = h5py.h5g.open(self.file.id, path)
            for name in group:
                with contextlib.suppress(*_ERRORS):
                    found = h5py.h5g.get_objinfo(group, name, follow_link=False)
                    if found.type in _OBJECTS:
                        yield tuple(found.objno), path.rstrip(b"/") + b"/" + name, found.type == h5py.h5g.GROUP
