"""ObjectPaths: the paths of the objects that references of an HDF5 file point to."""

from dataclasses import dataclass, field
from typing import Any

import h5py

from parts_store.adoption.description import CannotBeReadError


@dataclass(slots=True)
class ObjectPaths:
    """The paths of all objects of a file, which are listed when the first reference is looked up.

    The HDF5 library would search the whole file for each reference.
    """

    file: h5py.File
    _by_address: dict[int, str] = field(default_factory=dict)

    def path_of(self, reference: Any) -> str:
        """Return the path of the object that a reference points to, an empty text if it points to none."""
        if not reference:
            return ""
        if not self._by_address:
            self._list()
        address = h5py.h5o.get_info(h5py.h5r.dereference(reference, self.file.id)).addr
        if address not in self._by_address:
            raise CannotBeReadError("a reference to an object without a name")
        return self._by_address[address]

    def _list(self) -> None:
        self._by_address[h5py.h5o.get_info(self.file.id).addr] = "/"

        def add(name: bytes, info: Any) -> None:
            self._by_address.setdefault(info.addr, f"/{name.decode(errors='surrogateescape')}")

        h5py.h5o.visit(self.file.id, add, info=True)
