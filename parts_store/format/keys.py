"""What a key is: a document, a chunk, a part of one, the protocol's own, or something else.

Decides which array a key may belong to, and what listings show. Does not know whether anything exists.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Final, Literal, assert_never
from urllib.parse import quote, unquote

from parts_store.errors import PartsConfigError, describe
from parts_store.format.parts import ConcatParts

DOCUMENT: Final = "zarr.json"
PROTOCOL_FOLDER: Final = ".parts-txn"
_PROBE: Final = re.compile(rf"(?:.*/)?{re.escape(PROTOCOL_FOLDER)}/probe-")
# Below an array in a session: a node for each of its parts but the anchor.
NODES_FOLDER: Final = "__parts__"

# A number, as zarr writes it.
_NUMBER = r"(?:0|[1-9][0-9]*)"
# The rest of a key below its array, if it may be a chunk's or a part's under any encoding and of any dimension.
_DEFAULT_LIKE = re.compile(rf"c(?:[/.]{_NUMBER})*(?P<suffix>[^/]*)")
_DEFAULT = re.compile(rf"c(?:/{_NUMBER})*")
_V2_LIKE = re.compile(rf"{_NUMBER}(?:[/.]{_NUMBER})*(?P<suffix>[^/]*)")


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """How an array names its chunks."""

    name: Literal["default", "v2"]
    separator: Literal["/", "."]
    ndim: int

    @classmethod
    def from_json(cls, data: object, ndim: int) -> "ChunkKeyEncoding":
        """The encoding that a document describes, by its name alone or with a configuration."""
        encoding = {"name": data} if isinstance(data, str) else data
        if not isinstance(encoding, dict) or encoding.get("name") not in ("default", "v2"):
            raise PartsConfigError("chunk_key_encoding", "'default' or 'v2'", describe(data))
        name: Literal["default", "v2"] = "default" if encoding["name"] == "default" else "v2"
        configuration = encoding.get("configuration", {})
        if not isinstance(configuration, dict):
            raise PartsConfigError("chunk_key_encoding", "an object as configuration", describe(configuration))
        separator = configuration.get("separator", "/" if name == "default" else ".")
        match separator:
            case "/":
                return cls(name, "/", ndim)
            case ".":
                return cls(name, ".", ndim)
            case _:
                raise PartsConfigError("chunk_key_encoding", "'/' or '.' as separator", describe(separator))

    def is_chunk_key(self, relative: str) -> bool:
        """Whether this is the key of a chunk, relative to its array."""
        return _chunk_pattern(self).fullmatch(relative) is not None


@lru_cache
def _chunk_pattern(encoding: ChunkKeyEncoding) -> re.Pattern[str]:
    match encoding.name:
        case "default":
            first, numbers = "c", encoding.ndim
        case "v2":
            # The only chunk of an array without dimensions is "0".
            first, numbers = (_NUMBER, encoding.ndim - 1) if encoding.ndim else ("0", 0)
        case never:
            assert_never(never)
    return re.compile(rf"{first}(?:{re.escape(encoding.separator)}{_NUMBER}){{{numbers}}}")


class PartPlacement(Enum):
    """Where the parts of an array's chunks are."""

    # Each its own object, at the chunk's key and its suffix: what concat-parts says.
    BESIDE = "beside"
    # All of them one chunk of a session, for there a commit keeps them together.
    WHOLE = "whole"
    # Each its own chunk of a session: the anchor the array's, every other one that of a node below the array.
    SPLIT = "split"


@dataclass(frozen=True)
class Chunk:
    """A chunk whose array has parts: its key, its parts, and the key of each."""

    chunk_key: str
    parts: ConcatParts
    # The path of its array.
    array: str = ""
    # Whether the parts but the anchor are chunks of nodes of their own.
    is_split: bool = False
    # The digest of the array's layout, which the tags of its parts carry; None if it does not matter.
    layout: str | None = None

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
        """The key of the part whose existence is the chunk's."""
        return self.part_keys[self.parts.anchor]

    @property
    def relative(self) -> str:
        """The key, relative to its array: what stays when the array is moved."""
        return self.chunk_key.removeprefix(f"{self.array}/" if self.array else "")

    @cached_property
    def side_folder(self) -> str:
        """The folder of what the write protocol keeps of this chunk; by a digest, for keys are prefixes of others."""
        digest = blake2b(self.relative.encode(), digest_size=16).hexdigest()
        return join(self.array, f"{PROTOCOL_FOLDER}/{digest}")


def split(key: str) -> tuple[str, str]:
    """A key as the path of its folder and the name in it."""
    folder, _, name = key.rpartition("/")
    return folder, name


def join(path: str, relative: str) -> str:
    """The key of something below a path."""
    return f"{path}/{relative}" if path else relative


def is_protocol_key(key: str) -> bool:
    """Whether the key belongs to the write protocol."""
    return PROTOCOL_FOLDER in key.split("/")


def probe_key(path: str, name: str) -> str:
    """Return the key of an object below a path with which a server is asked what it supports."""
    return join(path, f"{PROTOCOL_FOLDER}/probe-{name}")


def is_probe_key(key: str) -> bool:
    """Whether the key is that of an object with which a server is asked what it supports."""
    return _PROBE.match(key) is not None


def side_folder_of(key: str) -> str | None:
    """The folder of what the write protocol keeps of one chunk, if the key is in one."""
    segments = key.split("/")
    if PROTOCOL_FOLDER not in segments[:-2]:
        return None
    return "/".join(segments[: segments.index(PROTOCOL_FOLDER) + 2])


def part_node(array: str, suffix: str) -> str:
    """The path of the node whose chunks are the parts with this suffix of an array in a session."""
    name = quote(suffix, safe="")
    # A name of dots alone is no name of a node.
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
    """What a key says if it is at or below the node of a part, None if it is not."""
    segments = key.split("/")
    if NODES_FOLDER not in segments[:-2]:
        return None
    at = segments.index(NODES_FOLDER)
    return NodeKey("/".join(segments[:at]), unquote(segments[at + 1]), "/".join(segments[at + 2 :]))


def is_node_key(key: str) -> bool:
    """Whether the key is at or below a folder for the nodes of parts."""
    return NODES_FOLDER in key.split("/")


def is_default_key(relative: str) -> bool:
    """Whether this, below an array, is the key of a chunk by the default encoding, of any number of dimensions."""
    return _DEFAULT.fullmatch(relative) is not None


def may_be_part(key: str) -> bool:
    """Whether the key could be a chunk's with a suffix: if not, listings may show it without asking whose it is."""
    return any(suffix for _, _, suffix in _guesses(key))


def candidates(key: str) -> tuple[tuple[str, str], ...]:
    """The arrays that a key may belong to, each with the rest of the key below it; the likeliest first."""
    return tuple((path, relative) for path, relative, _ in _guesses(key))


def _guesses(key: str) -> Iterator[tuple[str, str, str]]:
    segments = key.split("/")
    for pattern in (_DEFAULT_LIKE, _V2_LIKE):
        for count in range(len(segments) - 1, -1, -1):
            relative = "/".join(segments[count:])
            if found := pattern.fullmatch(relative):
                yield "/".join(segments[:count]), relative, found["suffix"]
