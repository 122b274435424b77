"""PartsGroup: a group of arrays of references, with attributes."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, override

from virtualizarr.manifests import ManifestGroup
from zarr.buffer import default_buffer_prototype

from parts_store import notebook
from parts_store._compat.zarr import GroupMetadata
from parts_store.errors import ManifestError, describe
from parts_store.virtual.manifests.array import PartsArray, ReferenceNode
from parts_store.virtual.manifests.entries import require_object
from parts_store.virtual.manifests.references import as_manifest_errors, chunk_lengths_of
from parts_store.virtual.store_access import NODES_FOLDER, PROTOCOL_FOLDER, join


class PartsGroup(Mapping[str, "PartsArray | PartsGroup"], ReferenceNode):
    """An immutable Zarr group of arrays of references.

    Parameters
    ----------
    arrays : mapping of str to PartsArray, optional
        The arrays in the group, by their names.
    groups : mapping of str to PartsGroup, optional
        The groups in the group, by their names.
    attributes : mapping of str to JSON, optional
        The attributes of the group.

    Examples
    --------
    >>> from obstore.store import MemoryStore
    >>> store = ps.PartsStore(MemoryStore())
    >>> zarr.create_array(store, name="a", data=np.arange(3))[...]
    array([0, 1, 2])
    >>> group = ps.manifests.PartsGroup({"a": store.manifest("a")}, attributes={"title": "numbers"})
    >>> list(group), group["a"].shape
    (['a'], (3,))
    >>> zarr.open_group(group.to_store(), mode="r")["a"][1:]
    array([1, 2])
    """

    def __init__(
        self,
        arrays: Mapping[str, PartsArray] | None = None,
        groups: Mapping[str, "PartsGroup"] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._arrays = {
            name: array if array.name else array.with_name(name)
            for name, array in _members(arrays, PartsArray, "arrays").items()
        }
        self._groups = _members(groups, PartsGroup, "groups")
        self._attributes = require_object({} if attributes is None else attributes, "attributes")
        if both := sorted(set(self._arrays) & set(self._groups)):
            raise ManifestError("members", "different names for arrays and groups", f"{both[0]!r} twice")

    @property
    def arrays(self) -> dict[str, PartsArray]:
        """The arrays, by their names."""
        return dict(self._arrays)

    @property
    def groups(self) -> dict[str, "PartsGroup"]:
        """The groups, by their names."""
        return dict(self._groups)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes."""
        return dict(self._attributes)

    @property
    def metadata(self) -> GroupMetadata:
        """The metadata of the group."""
        return GroupMetadata(attributes=self.attributes)

    @override
    def document(self) -> dict[str, Any]:
        with as_manifest_errors("attributes", "attributes that can be written as JSON"):
            stored = self.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"]
            document: dict[str, Any] = json.loads(stored.to_bytes())
        return document

    @override
    def __getitem__(self, path: str) -> "PartsArray | PartsGroup":
        """Return the member with a name, or the node at a path below the group."""
        name, _, rest = path.strip("/").partition("/")
        if rest:
            return self._groups[name][rest]
        return self._arrays[name] if name in self._arrays else self._groups[name]

    @override
    def __iter__(self) -> Iterator[str]:
        yield from self._arrays
        yield from self._groups

    @override
    def __len__(self) -> int:
        return len(self._arrays) + len(self._groups)

    def __repr__(self) -> str:
        return f"PartsGroup(arrays={self._arrays}, groups={self._groups}, attributes={self._attributes})"

    def _repr_html_(self) -> str:
        nodes = [
            (
                len(path.split("/")) if path else 0,
                path.rpartition("/")[2] or "/",
                f"{node.dtype} {node.shape}, chunks {chunk_lengths_of(node.metadata)}"
                if isinstance(node, PartsArray)
                else "group",
            )
            for path, node in self.nodes()
        ]
        return notebook.tree("PartsGroup", nodes)

    @override
    def __eq__(self, other: object) -> bool:
        return self.is_same(other)

    @override
    def is_same(self, other: object) -> bool:
        return (
            isinstance(other, PartsGroup)
            and self._attributes == other.attributes
            and self._groups == other.groups
            and self._arrays.keys() == other.arrays.keys()
            and all(array.is_same(other[name]) for name, array in self._arrays.items())
        )

    # Like a dictionary, a group is compared by its contents.
    __hash__ = None  # type: ignore[assignment]

    @override
    def nodes(self, path: str = "") -> Iterator[tuple[str, "PartsArray | PartsGroup"]]:
        yield path, self
        for name, array in self._arrays.items():
            yield join(path, name), array
        for name, group in self._groups.items():
            yield from group.nodes(join(path, name))

    # --- derived groups ---------------------------------------------------------------------------------------------

    @classmethod
    def from_manifest_group(cls, group: ManifestGroup) -> "PartsGroup":
        """Return a `ManifestGroup` of VirtualiZarr as a group of arrays whose chunks have one part.

        Parameters
        ----------
        group : ManifestGroup
            The group to convert.
        """
        if not isinstance(group, ManifestGroup):
            raise ManifestError("group", "a ManifestGroup", f"an object of type {type(group).__name__}")
        return cls(
            {name: PartsArray.from_manifest_array(array) for name, array in group.arrays.items()},
            {name: cls.from_manifest_group(member) for name, member in group.groups.items()},
            dict(group.metadata.attributes),
        )

    def to_manifest_group(self) -> ManifestGroup:
        """Return the group as a `ManifestGroup`, without checksums; the chunks of all arrays must have one part."""
        return ManifestGroup(
            arrays={name: array.to_manifest_array() for name, array in self._arrays.items()},
            groups={name: member.to_manifest_group() for name, member in self._groups.items()},
            attributes=self.attributes,
        )

    def with_registry(self, registry: Any) -> "PartsGroup":
        """Return the same group, with all arrays bound to a registry.

        Parameters
        ----------
        registry : ObjectStoreRegistry or mapping of str to store
            A registry of obspec_utils, or stores by their URLs.
        """
        return PartsGroup(
            {name: array.with_registry(registry) for name, array in self._arrays.items()},
            {name: member.with_registry(registry) for name, member in self._groups.items()},
            self._attributes,
        )


def _members[T](members: Mapping[str, T] | None, kind: type[T], what: str) -> dict[str, T]:
    """Return the members of a group; raise `ManifestError` unless they have valid names and types."""
    found = require_object({} if members is None else members, what)
    for name, member in found.items():
        is_reserved = name in ("zarr.json", NODES_FOLDER, PROTOCOL_FOLDER)
        if not name.strip(".") or "/" in name or is_reserved:
            raise ManifestError(what, "a valid name of a Zarr node", describe(name))
        if not isinstance(member, kind):
            found_type = f"an object of type {type(member).__name__}"
            raise ManifestError(f"{what}, {name!r}", f"a {kind.__name__}", found_type)
    return found
