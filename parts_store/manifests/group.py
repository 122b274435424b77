"""PartsGroup: arrays of references, and groups of them, with attributes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, override

from virtualizarr.manifests import ManifestGroup
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import GroupMetadata
from parts_store.errors import ManifestError, describe
from parts_store.format.keys import NODES_FOLDER, PROTOCOL_FOLDER
from parts_store.manifests import json_format
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import as_refusals
from parts_store.manifests.fetching import DEFAULT_GAP, ReadSettings, Registries, parse_registry

if TYPE_CHECKING:
    from parts_store.manifests.reference_store import ReferenceStore

# So many groups may be in one another.
_MAX_DEPTH = 100


class PartsGroup(Mapping[str, "PartsArray | PartsGroup"]):
    """A Zarr group of arrays as references. It does not change.

    Parameters
    ----------
    arrays, groups
        The members, by their names.
    attributes
        The attributes of the group.
    """

    def __init__(
        self,
        arrays: Mapping[str, PartsArray] | None = None,
        groups: Mapping[str, "PartsGroup"] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._arrays = _members(arrays, PartsArray, "arrays")
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
        """The document of the group, as zarr writes it."""
        with as_refusals("attributes", "attributes that can be written as JSON"):
            stored = self.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"]
            document: dict[str, Any] = json.loads(stored.to_bytes())
        return document

    @override
    def __getitem__(self, path: str) -> "PartsArray | PartsGroup":
        """A member by its name, or one below by its path."""
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

    @override
    def __eq__(self, other: object) -> bool:
        """Whether another has the same members and attributes."""
        return (
            isinstance(other, PartsGroup)
            and self._attributes == other.attributes
            and self._groups == other.groups
            and self._arrays.keys() == other.arrays.keys()
            and all(each.is_same(other[name]) for name, each in self._arrays.items())
        )

    # Like a dictionary: it is compared by what is in it.
    __hash__ = None  # type: ignore[assignment]

    def nodes(self, path: str = "") -> Iterator[tuple[str, "PartsArray | PartsGroup"]]:
        """The group itself and everything below it, each with its path: groups before what is in them."""
        yield path, self
        below = f"{path}/" if path else ""
        for name, array in self._arrays.items():
            yield f"{below}{name}", array
        for name, group in self._groups.items():
            yield from group.nodes(f"{below}{name}")

    # --- other groups ---------------------------------------------------------------------------------------------

    @classmethod
    def from_manifest_group(cls, group: ManifestGroup) -> "PartsGroup":
        """VirtualiZarr's group, with arrays whose chunks have one part."""
        if not isinstance(group, ManifestGroup):
            raise ManifestError("group", "a ManifestGroup", f"an object of type {type(group).__name__}")
        return cls(
            {name: PartsArray.from_manifest_array(each) for name, each in group.arrays.items()},
            {name: cls.from_manifest_group(each) for name, each in group.groups.items()},
            dict(group.metadata.attributes),
        )

    def to_manifest_group(self) -> ManifestGroup:
        """The same group as VirtualiZarr's, if the chunks of all arrays have one part; without checksums of files."""
        return ManifestGroup(
            arrays={name: each.to_manifest_array() for name, each in self._arrays.items()},
            groups={name: each.to_manifest_group() for name, each in self._groups.items()},
            attributes=self.attributes,
        )

    def with_registry(self, registry: Any) -> "PartsGroup":
        """The same group, with all arrays bound to a registry."""
        return PartsGroup(
            {name: each.with_registry(registry) for name, each in self._arrays.items()},
            {name: each.with_registry(registry) for name, each in self._groups.items()},
            self._attributes,
        )

    # --- where it goes --------------------------------------------------------------------------------------------

    def to_store(self, registry: Any = None, *, coalesce_gap: int = DEFAULT_GAP) -> "ReferenceStore":
        """A zarr store with this group at its root, which is read through the references.

        The files are those of `registry`; if it is None, of the registries that the arrays are bound to.
        """
        from parts_store.manifests.reference_store import ReferenceStore  # noqa: PLC0415 (made of groups)

        registry = None if registry is None else parse_registry(registry)
        found: Registries = ()
        for _, node in self.nodes():
            if isinstance(node, PartsArray):
                found += tuple(each for each in node.registries_for(registry) if each not in found)
        return ReferenceStore(self, found, settings=ReadSettings(coalesce_gap))

    def to_icechunk(self, session: Any, *, path: str = "", overwrite: bool = False) -> None:
        """Write the group to an Icechunk session, with its chunks as virtual references; nothing is committed.

        Locations outside of the repository's containers are refused before anything is written.
        """
        from parts_store.manifests.to_icechunk import write  # noqa: PLC0415 (made of groups)

        write(self, session, path, overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """The group as JSON, from which `from_json` makes it again; bytes are in base64."""
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
        """The group that `to_json` wrote: an object, or its text."""
        # Of a document that is too large, no array takes memory.
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
        """The references as kerchunk writes them, of Zarr v3, if every chunk is one range of one file."""
        found: dict[str, Any] = {}
        for path, node in self.nodes():
            if isinstance(node, PartsArray):
                found |= json_format.array_to_kerchunk(node.references, path)
            else:
                found[f"{path}/zarr.json" if path else "zarr.json"] = json.dumps(node.document())
        return json_format.kerchunk(found)


def _members[T](members: Mapping[str, T] | None, kind: type[T], what: str) -> dict[str, T]:
    """The members of a group, if their names can be those of nodes."""
    found = json_format.require_object({} if members is None else members, what)
    for name, member in found.items():
        is_reserved = name.startswith("__") or name in ("zarr.json", NODES_FOLDER, PROTOCOL_FOLDER)
        if not name.strip(".") or "/" in name or is_reserved:
            raise ManifestError(what, "the name of a node of Zarr", describe(name))
        if not isinstance(member, kind):
            found_type = f"an object of type {type(member).__name__}"
            raise ManifestError(f"{what}, {name!r}", f"a {kind.__name__}", found_type)
    return found


@dataclass(frozen=True, slots=True)
class _PlannedGroup:
    """A group that JSON describes, before memory is taken for the chunks of its arrays."""

    arrays: dict[str, json_format.PlannedArray]
    groups: "dict[str, _PlannedGroup]"
    attributes: dict[str, Any]


def _plan(data: dict[str, Any], where: str, depth: int, budget: json_format.Budget) -> _PlannedGroup:
    """Return the group that JSON describes, checked but for the chunks; `budget` is for the whole document."""
    if depth > _MAX_DEPTH:
        raise ManifestError(where, f"at most {_MAX_DEPTH} groups in one another", "more")
    arrays, groups = {}, {}
    for name, each in json_format.require_object(data.get("arrays", {}), f"{where}, arrays").items():
        inside = f"{where}, array {describe(name)}"
        arrays[name] = json_format.plan_array(json_format.require_object(each, inside), inside, budget)
    for name, each in json_format.require_object(data.get("groups", {}), f"{where}, groups").items():
        inside = f"{where}, group {describe(name)}"
        groups[name] = _plan(json_format.require_object(each, inside), inside, depth + 1, budget)
    attributes = json_format.require_object(data.get("attributes", {}), f"{where}, attributes")
    return _PlannedGroup(arrays, groups, attributes)
