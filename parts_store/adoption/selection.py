"""Select variables of a file, with the coordinates that belong to them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from parts_store.manifests.array import PartsArray
from parts_store.manifests.group import PartsGroup

# The attributes that name other variables, which a variable cannot be understood without.
_NAMING: Final = ("coordinates", "bounds", "grid_mapping", "ancillary_variables")


def select_variables(group: PartsGroup, names: Collection[str]) -> PartsGroup:
    """Return a group with those of these variables that it has, and all that belongs to them.

    A variable is named by its path. Groups without any of them are left out.
    """
    arrays = {path: node for path, node in group.nodes() if isinstance(node, PartsArray)}
    kept: set[str] = set()
    found = arrays.keys() & set(names)
    while found:
        kept |= found
        found = {each for path in found for each in _needed(arrays, path)} - kept
    return _only(group, kept, "")


def _needed(arrays: Mapping[str, PartsArray], path: str) -> Iterator[str]:
    """Yield the paths of the variables that a variable refers to: in its group, or in the next group above with it."""
    metadata = arrays[path].metadata
    texts = [metadata.attributes.get(attribute) for attribute in _NAMING]
    names = [name for text in texts if isinstance(text, str) for name in text.replace(":", " ").split()]
    for name in {*names, *filter(None, metadata.dimension_names or ())}:
        above = path
        while above:
            above = above.rpartition("/")[0]
            place = f"{above}/{name}" if above else name
            if place in arrays:
                yield place
                break


def _only(group: PartsGroup, kept: Collection[str], path: str) -> PartsGroup:
    below = f"{path}/" if path else ""
    groups = {name: _only(each, kept, f"{below}{name}") for name, each in group.groups.items()}
    return PartsGroup(
        {name: each for name, each in group.arrays.items() if f"{below}{name}" in kept},
        {name: each for name, each in groups.items() if len(each)},
        group.attributes,
    )
