"""PartsGroup: a group of arrays of references, with attributes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, override

from virtualizarr.manifests import ManifestGroup
from zarr.buffer import default_buffer_prototype

from parts_store import notebook
from parts_store._compat.zarr import GroupMetadata
from parts_store.backends.registered_files import Registries, parse_registry
from parts_store.errors import ManifestError, describe
from parts_store.format.keys import NODES_FOLDER, PROTOCOL_FOLDER
from parts_store.manifests import json_format
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import as_manifest_errors
from parts_store.manifests.reading import DEFAULT_GAP, ReadSettings

if TYPE_CHECKING:
    from parts_store.manifests.reference_store import ReferenceStore

# The largest depth of nested groups.
_MAX_DEPTH = 100


class PartsGroup(Mapping[str, "PartsArray | PartsGroup"]):
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
            name: each if each.name else each.with_name(name)
            for name, each in _members(arrays, PartsArray, "arrays").items()
        }
        self._groups = _members(groups, PartsGroup, "groups")
        self._attributes = json_format.require_object({} if attributes is None else attributes, "attributes")
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

    def document(self) -> dict[str, Any]:
        """Return the metadata document of the group as zarr writes it."""
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
                f"{node.dtype} {node.shape}, chunks {node.chunk_shape}" if isinstance(node, PartsArray) else "group",
            )
            for path, node in self.nodes()
        ]
        return notebook.tree("PartsGroup", nodes)

    @override
    def __eq__(self, other: object) -> bool:
        """Return whether another group has the same members and attributes."""
        return (
            isinstance(other, PartsGroup)
            and self._attributes == other.attributes
            and self._groups == other.groups
            and self._arrays.keys() == other.arrays.keys()
            and all(each.is_same(other[name]) for name, each in self._arrays.items())
        )

    # Like a dictionary, a group is compared by its contents.
    __hash__ = None  # type: ignore[assignment]

    def nodes(self, path: str = "") -> Iterator[tuple[str, "PartsArray | PartsGroup"]]:
        """Yield the group itself and every node below it, each with its path; groups come before their members.

        Parameters
        ----------
        path : str
            The path of the group itself.
        """
        yield path, self
        below = f"{path}/" if path else ""
        for name, array in self._arrays.items():
            yield f"{below}{name}", array
        for name, group in self._groups.items():
            yield from group.nodes(f"{below}{name}")

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
            {name: PartsArray.from_manifest_array(each) for name, each in group.arrays.items()},
            {name: cls.from_manifest_group(each) for name, each in group.groups.items()},
            dict(group.metadata.attributes),
        )

    def to_manifest_group(self) -> ManifestGroup:
        """Return the group as a `ManifestGroup`, without checksums; the chunks of all arrays must have one part."""
        return ManifestGroup(
            arrays={name: each.to_manifest_array() for name, each in self._arrays.items()},
            groups={name: each.to_manifest_group() for name, each in self._groups.items()},
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
            {name: each.with_registry(registry) for name, each in self._arrays.items()},
            {name: each.with_registry(registry) for name, each in self._groups.items()},
            self._attributes,
        )

    # --- conversion --------------------------------------------------------------------------------------------

    def to_store(self, registry: Any = None, *, coalesce_gap: int = DEFAULT_GAP) -> "ReferenceStore":
        """Return a read-only zarr store with this group at its root.

        Parameters
        ----------
        registry : ObjectStoreRegistry or mapping of str to store, optional
            The stores that may be read; by default those that the arrays are bound to.
        coalesce_gap : int
            Ranges of a file with at most this number of bytes between them are read in one request.
        """
        from parts_store.manifests.reference_store import ReferenceStore  # noqa: PLC0415 (imports this module)

        registry = None if registry is None else parse_registry(registry)
        found: Registries = ()
        for _, node in self.nodes():
            if isinstance(node, PartsArray):
                found += tuple(each for each in node.registries_for(registry) if each not in found)
        return ReferenceStore(self, found, settings=ReadSettings(coalesce_gap))

    def to_icechunk(self, session: Any, *, path: str = "", overwrite: bool = False) -> None:
        """Write the group to an Icechunk session, with virtual references as chunks. Nothing is committed.

        Parameters
        ----------
        session : icechunk.Session
            A writable session.
        path : str
            The path of the group in the session.
        overwrite : bool
            Whether to delete what is at the path.

        Raises
        ------
        SessionError
            If a file is outside the virtual chunk containers of the repository. Nothing was written.
        StoreConfigError
            If the path is not free. Nothing was written.
        """
        from parts_store.manifests.to_icechunk import write  # noqa: PLC0415 (imports this module)

        write(self, session, path, overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """Return the group as a JSON object, which `from_json` reads; bytes are in base64."""
        return json_format.with_version(
            {
                "node_type": "group",
                "attributes": self.document()["attributes"],
                "arrays": {
                    name: json_format.array_to_json(each.references, each.declared_parts)
                    for name, each in self._arrays.items()
                },
                "groups": {name: each.to_json() for name, each in self._groups.items()},
            }
        )

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the group that `to_json` wrote.

        Parameters
        ----------
        data : dict or str or bytes
            The JSON object, or its text.
        """
        # The whole document is checked before memory is allocated for an array.
        return cls._build(_plan(json_format.parse(data, "group"), "group", 0, json_format.Budget()))

    @classmethod
    def _build(cls, planned: "_PlannedGroup") -> Self:
        arrays = {}
        for name, each in planned.arrays.items():
            references, parts = each.build()
            arrays[name] = PartsArray.of(references, parts, ())
        groups = {name: cls._build(each) for name, each in planned.groups.items()}
        return cls(arrays, groups, planned.attributes)

    def to_kerchunk(self) -> dict[str, Any]:
        """Return the references as kerchunk writes them, for Zarr v3, without checksums.

        Raises `ManifestError` unless every chunk is one range of one file.
        """
        found: dict[str, Any] = {}
        for path, node in self.nodes():
            if isinstance(node, PartsArray):
                found |= json_format.array_to_kerchunk(node.references, path)
            else:
                found[f"{path}/zarr.json" if path else "zarr.json"] = json.dumps(node.document())
        return json_format.kerchunk(found)


def _members[T](members: Mapping[str, T] | None, kind: type[T], what: str) -> dict[str, T]:
    """Return the members of a group; raise `ManifestError` unless they have valid names and types."""
    found = json_format.require_object({} if members is None else members, what)
    for name, member in found.items():
        is_reserved = name in ("zarr.json", NODES_FOLDER, PROTOCOL_FOLDER)
        if not name.strip(".") or "/" in name or is_reserved:
            raise ManifestError(what, "a valid name of a Zarr node", describe(name))
        if not isinstance(member, kind):
            found_type = f"an object of type {type(member).__name__}"
            raise ManifestError(f"{what}, {name!r}", f"a {kind.__name__}", found_type)
    return found


@dataclass(frozen=True, slots=True)
class _PlannedGroup:
    """A group that JSON describes, before memory is allocated for the chunks of its arrays."""

    arrays: dict[str, json_format.PlannedArray]
    groups: "dict[str, _PlannedGroup]"
    attributes: dict[str, Any]


def _plan(data: dict[str, Any], where: str, depth: int, budget: json_format.Budget) -> _PlannedGroup:
    """Return the group that JSON describes, with everything checked except the chunks of its arrays."""
    if depth > _MAX_DEPTH:
        raise ManifestError(where, f"at most {_MAX_DEPTH} nested groups", "more")
    arrays, groups = {}, {}
    for name, each in json_format.require_object(data.get("arrays", {}), f"{where}, arrays").items():
        inside = f"{where}, array {describe(name)}"
        arrays[name] = json_format.plan_array(json_format.require_object(each, inside), inside, budget)
    for name, each in json_format.require_object(data.get("groups", {}), f"{where}, groups").items():
        inside = f"{where}, group {describe(name)}"
        groups[name] = _plan(json_format.require_object(each, inside), inside, depth + 1, budget)
    attributes = json_format.require_object(data.get("attributes", {}), f"{where}, attributes")
    return _PlannedGroup(arrays, groups, attributes)
