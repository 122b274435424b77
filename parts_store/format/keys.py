"""Keys: which array a key may belong to, and whether it names a document, a chunk, a part or a protocol object.

Does not know whether anything exists.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Final, Literal
from urllib.parse import quote, unquote

from parts_store.errors import PartsConfigError, describe
from parts_store.format.files.seal import Ends
from parts_store.format.parts import ConcatParts

DOCUMENT: Final = "zarr.json"
ARRAY_V2: Final = ".zarray"
GROUP_V2: Final = ".zgroup"
# The names of all metadata documents, of Zarr v3 and v2.
METADATA_NAMES: Final = (DOCUMENT, ARRAY_V2, GROUP_V2, ".zattrs", ".zmetadata")
PROTOCOL_FOLDER: Final = ".parts-txn"
# The end of the key of a journal, which names the write in progress on a local disk.
JOURNAL: Final = ".journal"
_PROBE: Final = re.compile(rf"(?:.*/)?{re.escape(PROTOCOL_FOLDER)}/probe-")
# A file of one chunk on a local disk: its journal or a staged part, or such a file that is not finished.
_BESIDE: Final = re.compile(r"(?P<digest>[0-9a-f]{32})\.(?:journal|[0-9a-f]{32}\.[0-9]+)(?:\.(?:lock|[0-9a-f]{16}))?")
# Below an array in a session: one node for each part except the anchor.
NODES_FOLDER: Final = "__parts__"

# A number as zarr writes it.
_NUMBER = r"(?:0|[1-9][0-9]*)"
_DEFAULT = re.compile(rf"c(?:/{_NUMBER})*")
# A segment of a chunk's key, for any encoding and any number of dimensions, and the characters that it starts with.
_NAME_OF_CHUNK = re.compile(rf"(?:c|{_NUMBER})(?:\.{_NUMBER})*")
_CHUNK = re.compile(rf"(?:c|{_NUMBER})(?:[./]{_NUMBER})*")
_FIRST: Final = frozenset("c0123456789")


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """An encoding of chunk coordinates into keys."""

    name: Literal["default", "v2"]
    separator: Literal["/", "."]
    ndim: int

    @classmethod
    def from_json(cls, data: object, ndim: int) -> "ChunkKeyEncoding":
        """Return the encoding that a document gives by its name, with or without a configuration."""
        encoding = {"name": data} if isinstance(data, str) else data
        if not isinstance(encoding, dict) or encoding.get("name") not in ("default", "v2"):
            raise PartsConfigError("chunk_key_encoding", "'default' or 'v2'", describe(data))
        name: Literal["default", "v2"] = "default" if encoding["name"] == "default" else "v2"
        configuration = encoding.get("configuration", {})
        if not isinstance(configuration, dict):
            raise PartsConfigError("chunk_key_encoding", "an object as configuration", describe(configuration))
        separator = configuration.get("separator", "/" if name == "default" else ".")
        if separator not in ("/", "."):
            raise PartsConfigError("chunk_key_encoding", "'/' or '.' as separator", describe(separator))
        return cls(name, "/" if separator == "/" else ".", ndim)

    def is_chunk_key(self, relative: str) -> bool:
        """Return whether `relative`, a key relative to its array, is the key of a chunk."""
        return _chunk_pattern(self).fullmatch(relative) is not None

    def coordinates(self, relative: str) -> tuple[int, ...]:
        """Return the position of a chunk in the grid, given its key relative to its array."""
        numbers = relative.removeprefix(f"c{self.separator}").split(self.separator) if self.ndim else []
        return tuple(int(number) for number in numbers)


@lru_cache
def part_pattern(encoding: ChunkKeyEncoding, parts: ConcatParts) -> re.Pattern[str]:
    """Return the pattern of the keys of all parts and chunks of an array: the chunk's key, and a suffix or none.

    No suffix starts with a digit or consists of dots and digits, so a key matches in one way only.
    """
    suffixes = "|".join(re.escape(part.key_suffix) for part in parts.parts)
    return re.compile(f"({_chunk_pattern(encoding).pattern})({suffixes}|)", re.DOTALL)


@lru_cache
def _chunk_pattern(encoding: ChunkKeyEncoding) -> re.Pattern[str]:
    if encoding.name == "default":
        first, numbers = "c", encoding.ndim
    else:
        # The only chunk of an array without dimensions is "0".
        first, numbers = (_NUMBER, encoding.ndim - 1) if encoding.ndim else ("0", 0)
    return re.compile(rf"{first}(?:{re.escape(encoding.separator)}{_NUMBER}){{{numbers}}}")


class PartPlacement(Enum):
    """A choice of where the parts of an array's chunks are stored."""

    # Each part is an object at the chunk's key with its suffix, as concat-parts specifies.
    BESIDE = "beside"
    # All parts are one chunk of a session.
    WHOLE = "whole"
    # Each part is a chunk of a session: the anchor in the array itself, the other parts in nodes below the array.
    SPLIT = "split"


@dataclass(frozen=True)
class Chunk:
    """A chunk of an array with parts: its key, its parts, and the key of each part."""

    chunk_key: str
    parts: ConcatParts
    # The path of its array.
    array: str = ""
    # Whether all parts except the anchor are stored in nodes of their own.
    is_split: bool = False
    # The digest of the array's layout, which is in the tags of its parts; None if it is not checked.
    layout: str | None = None
    # The bytes that are usually compared with the seal of a file, None if the chunk is not such a file.
    ends: Ends | None = None

    @cached_property
    def part_keys(self) -> tuple[str, ...]:
        """The keys of the parts, in their order."""
        if self.is_split:
            nodes = [part_node(self.array, part.key_suffix) for part in self.parts.parts]
            keys = [join(node, self.relative) for node in nodes]
            keys[self.parts.anchor] = self.chunk_key
            return tuple(keys)
        return tuple(self.chunk_key + part.key_suffix for part in self.parts.parts)

    @property
    def other_keys(self) -> tuple[str, ...]:
        """The keys of the parts that are not the anchor, in their order."""
        return tuple(key for key in self.part_keys if key != self.anchor_key)

    @property
    def anchor_key(self) -> str:
        """The key of the part that decides whether the chunk exists."""
        return self.part_keys[self.parts.anchor]

    @property
    def relative(self) -> str:
        """The key relative to its array, which does not change when the array is moved."""
        return self.chunk_key.removeprefix(f"{self.array}/" if self.array else "")

    @cached_property
    def side_folder(self) -> str:
        """The folder of the write protocol for this chunk, named by a digest because keys can be prefixes of keys."""
        digest = blake2b(self.relative.encode(), digest_size=16).hexdigest()
        return join(self.array, f"{PROTOCOL_FOLDER}/{digest}")


def is_metadata(key: str) -> bool:
    """Return whether a key is that of a metadata document, of Zarr v3 or v2."""
    return split(key)[1] in METADATA_NAMES


def split(key: str) -> tuple[str, str]:
    """Return the path of the folder of a key, and its name in the folder."""
    folder, _, name = key.rpartition("/")
    return folder, name


def splits(key: str) -> tuple[tuple[str, str], ...]:
    """Return every path above a key, the root first, each with the rest of the key below it."""
    segments = key.split("/")
    return tuple(("/".join(segments[:count]), "/".join(segments[count:])) for count in range(len(segments)))


def ancestors(path: str) -> tuple[str, ...]:
    """Return every path above a path, the root first; none for the root."""
    return tuple(above for above, _ in splits(path)) if path else ()


def join(path: str, relative: str) -> str:
    """Return the key of `relative` below a path."""
    return f"{path}/{relative}" if path else relative


def is_protocol_key(key: str) -> bool:
    """Return whether the key belongs to the write protocol."""
    return PROTOCOL_FOLDER in key and PROTOCOL_FOLDER in key.split("/")


def probe_key(path: str, name: str) -> str:
    """Return the key of a probe object below a path, which finds out what the server supports."""
    return join(path, f"{PROTOCOL_FOLDER}/probe-{name}")


def is_probe_key(key: str) -> bool:
    """Return whether the key is the key of a probe object."""
    return _PROBE.match(key) is not None


def side_folder_of(key: str) -> str | None:
    """Return the folder of the write protocol for one chunk that the key is in or beside, None for other keys.

    On a local disk, staged parts and the journal are beside the folder, and the folder does not exist.
    """
    segments = key.split("/")
    if PROTOCOL_FOLDER not in segments[:-1]:
        return None
    at = segments.index(PROTOCOL_FOLDER) + 1
    if at == len(segments) - 1:
        found = _BESIDE.fullmatch(segments[at])
        return None if found is None else "/".join((*segments[:at], found["digest"]))
    return "/".join(segments[: at + 1])


def part_node(array: str, suffix: str) -> str:
    """Return the path of the node that stores the parts with this suffix of an array in a session."""
    name = quote(suffix, safe="")
    # zarr allows no node whose name consists of dots only.
    return join(array, f"{NODES_FOLDER}/{name if name.strip('.') else name.replace('.', '%2E')}")


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A key at or below the node of a part."""

    array: str
    suffix: str
    relative: str

    @property
    def node(self) -> str:
        """The path of the node."""
        return part_node(self.array, self.suffix)


def parse_node_key(key: str) -> NodeKey | None:
    """Return the parts of a key that is at or below the node of a part, None for other keys."""
    segments = key.split("/")
    if NODES_FOLDER not in segments[:-2]:
        return None
    at = segments.index(NODES_FOLDER)
    return NodeKey("/".join(segments[:at]), unquote(segments[at + 1]), "/".join(segments[at + 2 :]))


def is_node_key(key: str) -> bool:
    """Return whether the key is in the folder for the nodes of parts."""
    return NODES_FOLDER in key.split("/")


def is_default_key(relative: str) -> bool:
    """Return whether `relative` is a chunk key of the default encoding, with any number of dimensions."""
    return _DEFAULT.fullmatch(relative) is not None


def may_be_chunk(relative: str) -> bool:
    """Return whether `relative` is a chunk key of any encoding, with any number of dimensions."""
    return _CHUNK.fullmatch(relative) is not None


def may_be_part(key: str) -> bool:
    """Return whether the key could be a chunk key with a suffix; if not, listings show it without a further check."""
    name = split(key)[1]
    return name[:1] in _FIRST and _NAME_OF_CHUNK.fullmatch(name) is None


def candidates(key: str) -> tuple[tuple[str, str], ...]:
    """Return the arrays that a key may belong to, most likely first, each with the rest of the key below it."""
    folder, name = split(key)
    return tuple([(path, key[len(path) + 1 :] if path else key) for path in candidate_paths(folder, name)])


def candidate_paths(folder: str, name: str) -> tuple[str, ...]:
    """Return the arrays that a key in a folder may belong to, most likely first.

    The answer depends only on the folder and on the first character of the name.
    """
    return _candidate_paths(folder, name[:1])


@lru_cache(maxsize=1024)
def _candidate_paths(folder: str, first: str) -> tuple[str, ...]:
    if first == "c":
        return (folder,)
    if first not in _FIRST:
        return ()
    # The encoding v2: any number of the segments before the name are numbers.
    paths, at = [folder], folder
    while at:
        above, _, segment = at.rpartition("/")
        if _NAME_OF_CHUNK.fullmatch(segment) is None:
            break
        if segment[0] == "c":
            # The encoding default: all segments after this one are numbers. It is more likely.
            return (above, *paths)
        paths.append(above)
        at = above
    return tuple(paths)
