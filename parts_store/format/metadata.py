"""Metadata documents (`zarr.json`): what they say about parts, and the form in which zarr reads and writes them.

zarr refuses documents with a storage transformer, and some documents that the specification allows. So zarr gets the
document without the transformer and with the members that it requires. The stored document stays as its writer wrote
it. When zarr changes a member, only that member changes in the stored document.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import Any

from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec
from zarr.buffer import default_buffer_prototype
from zarr.registry import get_codec_class

from parts_store._compat.zarr import read_metadata, repaired
from parts_store.errors import PartsConfigError, PartsStoreError, StoreConfigError, UnknownTransformerError, describe
from parts_store.format.coordinates import CoordinateArray, coordinate_paths
from parts_store.format.files.conversion import file_of, usual_ends
from parts_store.format.files.description import FORMATS, FileFormat, describe_shards, member_of, recorded_format
from parts_store.format.files.description import MEMBER as SHARD_FILE
from parts_store.format.files.seal import Ends
from parts_store.format.files.tiff_metadata import ArrayDescription, neighbours
from parts_store.format.keys import ARRAY_V2, DOCUMENT, Chunk, ChunkKeyEncoding, PartPlacement, join
from parts_store.format.layout import Encoded
from parts_store.format.parts import NAME, ConcatParts, Part
from parts_store.format.shard_index import CODEC, ShardIndex, is_sharded, shard_index_of

type Document = dict[str, Any]

type Around = Mapping[str, Any]
"""What other nodes say about an array: members of `ArrayDescription`."""

# Members that zarr requires and the specification's examples leave out.
_DEFAULT_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "zstd": {"level": 0, "checksum": False},
    "gzip": {"level": 5},
}
# The codecs that nearly all arrays turn into bytes with.
_TO_BYTES = ("bytes", "sharding_indexed")
_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
# The members of a document that decide how zarr decodes a chunk, and what it returns for a chunk that does not exist.
_DECIDE_DECODING = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs", "fill_value")
# A member of the stored document, and the `name` that the core specification requires of the object. If it contains
# `must_understand: true`, software that does not know it refuses the array. zarr checks storage transformers only when
# it opens an array by the array's own path. Without this member, zarr would read an array with parts as fill values, or
# as damaged chunks, when it opens the group of the array.
_MARK = "parts_store"
_SPLIT = {"placing": PartPlacement.SPLIT.value}
# The name of the dataset in a file of an array that has no name.
ROOT_NAME = "data"
# The parts of an array that needs no concat-parts: every chunk is one object at its own key.
ONE_OBJECT = (Part(""),)


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """A description of an array with parts: its stored document, and what follows from the document."""

    stored: Document
    parts: ConcatParts
    encoding: ChunkKeyEncoding
    shard_index: ShardIndex | None
    placement: PartPlacement = PartPlacement.BESIDE
    # The digest of the layout, which is in the tags of its chunks.
    layout: str | None = None
    # The digest of everything that decides how a chunk is read: its parts, and how zarr decodes it.
    digest: str = ""
    # The bytes that are usually compared with the seals of the files, None if shards are not such files.
    ends: Ends | None = None

    def chunk(self, path: str, relative: str) -> Chunk:
        """Return a chunk of the array at `path`; a chunk that is stored whole has a single part."""
        key = join(path, relative)
        if self.placement is PartPlacement.WHOLE:
            return Chunk(key, _whole(self.parts), path)
        ends = self.ends if self.placement is PartPlacement.BESIDE else None
        return Chunk(key, self.parts, path, self.placement is PartPlacement.SPLIT, self.layout, ends)

    def as_stored(self, chunk: Chunk, value: memoryview, around: Around | None = None) -> Encoded:
        """Return a chunk as it is stored: a shard as a file, if the document says so."""
        return _as_stored(self.stored, self.encoding, chunk, value, around)

    @property
    def is_safe_for_others(self) -> bool:
        """Whether software without concat-parts reads the array correctly or must refuse it."""
        return has_mark(self.stored) or not needs_mark(self.parts, self.placement)

    @property
    def ends_in_checksum(self) -> bool:
        """Whether the last bytes of every chunk are a checksum of the bytes before them."""
        codecs = self.stored.get("codecs")
        last = codecs[-1] if isinstance(codecs, list) and codecs else None
        return (last.get("name") if isinstance(last, dict) else last) == "crc32c"


def _as_stored(
    document: Document, encoding: ChunkKeyEncoding, chunk: Chunk, value: memoryview, around: Around | None
) -> Encoded:
    """Return a chunk as it is stored: a shard as a file, if the document says so."""
    if (format_name := recorded_format(document)) is None:
        return value
    file = describe_shards(format_name, complete(document))
    name = chunk.array.rpartition("/")[2] or ROOT_NAME
    names = document.get("dimension_names") or ()
    array = ArrayDescription(name, attributes_of(document), names, **(around or {}))
    return file_of(file, value, encoding.coordinates(chunk.relative), document["shape"], array)


@lru_cache
def _whole(parts: ConcatParts) -> ConcatParts:
    """Return a single part in place of all parts; it has a size if all of them have one."""
    sizes = [size for size in parts.sizes if size is not None]
    return ConcatParts([Part("", size=None if parts.unsized else sum(sizes))])


def nodes_around(path: str, document: Document) -> dict[str, str]:
    """Return the paths of the nodes whose attributes the files of an array's shards contain, by what they are."""
    if recorded_format(document) != "tiff":
        return {}
    return neighbours(path, attributes_of(document))


def coordinates_around(path: str, document: Document) -> dict[str, str]:
    """Return the paths of the arrays of which the files of an array's shards contain a part, by their dimensions."""
    names = document.get("dimension_names")
    if recorded_format(document) != "hdf5" or not isinstance(names, list):
        return {}
    return coordinate_paths(path, names)


def coordinate_array(path: str, stored: bytes | None) -> CoordinateArray | None:
    """Return the array with this stored document, None if there is none that can be coordinates."""
    document = None if stored is None else parse(stored)
    if document is None or not is_array(document) or document.get("storage_transformers"):
        return None
    return CoordinateArray.at(path, complete(document))


def attributes_of(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the attributes of a node; none if there is no node."""
    attributes = (document or {}).get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def parse(data: bytes) -> Document | None:
    """Return the document, None if `data` is not a JSON object; zarr reports that when it opens the node."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def dump(document: Mapping[str, Any]) -> bytes:
    """Return the document as bytes, in the form that zarr writes."""
    return json.dumps(document, indent=2).encode()


def without_constants(data: bytes) -> bytes:
    """Return a document without the numbers that JSON does not have: NaN becomes null, and infinity becomes `1e999`.

    Python reads `1e999` as infinity, and xarray takes null for NaN. A document without them is returned as it is.
    """
    if b"NaN" not in data and b"Infinity" not in data:
        return data
    # A text that is not in the document stands for infinity until the document is text again.
    mark = next(each for number in count() if (each := f"infinity {number}").encode() not in data)
    marks = {"NaN": None, "Infinity": mark, "-Infinity": f"-{mark}"}
    try:
        text = json.dumps(json.loads(data, parse_constant=marks.__getitem__), indent=2)
    except (ValueError, RecursionError):
        return data
    return text.replace(f'"-{mark}"', "-1e999").replace(f'"{mark}"', "1e999").encode()


def dump_compact(document: Mapping[str, Any]) -> bytes:
    """Return a document that is not stored as bytes: in one line, which is several times as fast."""
    return json.dumps(document).encode()


def is_array(document: Mapping[str, Any]) -> bool:
    """Return whether this is the document of a Zarr v3 array."""
    return document.get("zarr_format") == 3 and document.get("node_type") == "array"


def is_group(document: Mapping[str, Any]) -> bool:
    """Return whether this is the document of a Zarr v3 group."""
    return document.get("zarr_format") == 3 and document.get("node_type") == "group"


def describes_array(name: str, data: bytes) -> bool:
    """Return whether a document with this name and content makes a node an array, of Zarr v3 or v2."""
    return name == ARRAY_V2 or (name == DOCUMENT and is_array(parse(data) or {}))


def read_array(document: Document, path: str, placement: PartPlacement = PartPlacement.BESIDE) -> ArrayRecord | None:
    """Return what the document says about the array's parts, which are placed like this; None if it has no parts."""
    transformers = document.get("storage_transformers")
    if transformers is None or transformers == []:
        return None
    if not isinstance(transformers, list):
        raise UnknownTransformerError(path, describe(transformers))
    names = [each.get("name") if isinstance(each, dict) else each for each in transformers]
    if names != [NAME]:
        raise UnknownTransformerError(path, ", ".join(describe(name) for name in names))
    deciding = {name: document[name] for name in ("storage_transformers", *_DECIDE_DECODING) if name in document}
    shape = document.get("shape")
    try:
        # The lengths of the dimensions do not matter.
        deciding["shape"] = [0] * len(shape) if isinstance(shape, list) else shape
        parts, encoding, layout, digest = _read_layout(json.dumps(deciding))
    except PartsConfigError as error:
        raise error.of_array(path) from error
    _require_known_mark(document, path)
    shard_index = shard_index_of(complete(document)) if is_sharded(document) else None
    return ArrayRecord(document, parts, encoding, shard_index, placement, layout, digest, _ends(document))


def read_plain_files(document: Document) -> ArrayRecord | None:
    """Return the record of an array whose shards are files and single objects, None for any other array."""
    layout = plain_layout(dump_compact(document)) if recorded_format(document) is not None else None
    if layout is None or document.get("storage_transformers"):
        return None
    return ArrayRecord(document, ConcatParts(ONE_OBJECT), layout.encoding, layout.shard_index, ends=layout.ends)


def _ends(document: Document) -> Ends | None:
    """Return which bytes are usually compared with a seal, None if shards are not files, or of an unknown format."""
    if (format_name := recorded_format(document)) is None:
        return None
    try:
        return usual_ends(describe_shards(format_name, complete(document)))
    # A shard can be read without knowing the format of the file. A write raises the error.
    except Exception:
        return None


@lru_cache(maxsize=1024)
def _read_layout(deciding: str) -> tuple[ConcatParts, ChunkKeyEncoding, str, str]:
    """Return the parts, the encoding of the keys, and the digests of an array with these members.

    The arrays of a group often have the same members, and share the result.
    """
    document = repaired(json.loads(deciding))
    parts = ConcatParts.from_json(document["storage_transformers"][0])
    encoding = ChunkKeyEncoding.from_json(document.get("chunk_key_encoding"), _ndim(document["shape"]))
    layout = layout_of(document, parts)
    digest = _digest([layout, *(document.get(name) for name in _DECIDE_DECODING)])
    return parts, encoding, layout, digest


def layout_of(document: Document, parts: ConcatParts) -> str:
    """Return the digest of the layout of an array's chunks, which is in the tags of their parts.

    The layout consists of the parts in their order, the chunk shape of a regular grid, and the name of the data type.
    It contains neither the codecs, which each version of zarr writes differently, nor the shape of the array.
    """
    grid, data_type = document.get("chunk_grid"), document.get("data_type")
    configuration = grid.get("configuration") if isinstance(grid, dict) and grid.get("name") == "regular" else None
    chunk_shape = configuration.get("chunk_shape") if isinstance(configuration, dict) else None
    if isinstance(data_type, dict) and set(data_type) == {"name"}:
        data_type = data_type["name"]
    named = data_type if isinstance(data_type, str) else None
    of_parts = [[part.key_suffix, size] for part, size in zip(parts.parts, parts.sizes, strict=True)]
    return _digest([of_parts, chunk_shape, named])


def _digest(value: object) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=4).hexdigest()


def why_not_opened(served: Document) -> str | None:
    """Return why zarr cannot open the array with this document, None if it can."""
    try:
        read_metadata(served)
    # zarr raises many kinds of errors for a document that it cannot read.
    except Exception as error:
        return f"zarr cannot open it: {type(error).__name__}: {error}"
    return None


def is_split(document: Document) -> bool:
    """Return whether each part except the anchor is stored in a node of its own, in a session."""
    mark = document.get(_MARK)
    return isinstance(mark, dict) and _configuration(mark).get("placing") == PartPlacement.SPLIT.value


def _configuration(mark: Document) -> Document:
    """Return the configuration of this package's member; before it had a `name`, the member contained it itself."""
    if "name" not in mark:
        return {key: value for key, value in mark.items() if key != "must_understand"}
    found = mark.get("configuration", {})
    return found if isinstance(found, dict) else {"": found}


def _require_known_mark(document: Document, path: str) -> None:
    """Raise if the member of this package must be understood and has content that this version does not know."""
    mark = document.get(_MARK, {})
    if isinstance(mark, dict):
        if mark.get("must_understand", True) is False:
            return
        members = mark.keys() - {"configuration", "must_understand"}
        is_known = "name" not in mark or (members == {"name"} and mark["name"] == _MARK)
        if is_known and _configuration(mark) in ({}, _SPLIT):
            return
    expected = f"the name {_MARK!r}, no configuration or {_SPLIT}, and no other members"
    raise PartsConfigError(_MARK, expected, f"{describe(mark)}, which needs a newer version of parts_store", path)


def has_mark(document: Document) -> bool:
    """Return whether software that does not know this package's member has to refuse the array."""
    mark = document.get(_MARK)
    # The specification: a member without `must_understand` has to be understood.
    return isinstance(mark, dict) and mark.get("must_understand", True) is not False


def needs_mark(parts: ConcatParts, placement: PartPlacement) -> bool:
    """Return whether software without concat-parts would misread the array: an object is not a whole chunk."""
    if placement is PartPlacement.WHOLE:
        return False
    return any(part.key_suffix != "" and part.size != 0 for part in parts.parts)


def with_mark(document: Document, parts: ConcatParts, placement: PartPlacement, *, must_understand: bool) -> Document:
    """Return the document with the member of this package that an array with these parts and this placement needs."""
    must_understand = must_understand and needs_mark(parts, placement)
    is_split = placement is PartPlacement.SPLIT
    rest = {key: value for key, value in document.items() if key != _MARK}
    if not must_understand and not is_split:
        return rest
    configuration = {"configuration": _SPLIT} if is_split else {}
    return {**rest, _MARK: {"name": _MARK, **configuration, "must_understand": must_understand}}


def arriving(document: Document, placement: PartPlacement, *, must_understand: bool) -> Document:
    """Return the document of an array as it is stored when the array is copied into another store.

    The `placement` is where that store keeps the parts of the copy. Several parts without a size, such as those that
    refer to several files, become one part, because a chunk cannot be divided into them.
    """
    try:
        record = read_array(document, "")
    except PartsStoreError:
        # The copy of such an array is refused elsewhere, with an error that names its path.
        return document
    if record is None:
        return document
    parts = record.parts.joined()
    if parts != record.parts:
        document = {**document, "storage_transformers": [parts.to_json()]}
    return with_mark(document, parts, placement, must_understand=must_understand)


def _ndim(shape: object) -> int:
    if not isinstance(shape, list):
        raise PartsConfigError("shape", "a list of integers", describe(shape))
    return len(shape)


def complete(document: Document) -> Document:
    """Return the document without the members of this package, and with the members that zarr requires."""
    # A handle that has not read the member, such as that of a new array, must not remove it.
    hidden = (SHARD_FILE, *((_MARK, "storage_transformers") if document.get("storage_transformers") else ()))
    served = {key: value for key, value in document.items() if key not in hidden}
    # The examples in the specification leave out some members that zarr requires.
    served.setdefault("fill_value", _default_fill_value(document.get("data_type")))
    if isinstance(codecs := document.get("codecs"), list):
        served["codecs"] = _complete_codecs(codecs)
    return served


def _default_fill_value(data_type: object) -> object:
    name = data_type.get("name") if isinstance(data_type, dict) else data_type
    match name:
        case "bool":
            return False
        case "string" | "str":
            return ""
        case str() if name.startswith("complex"):
            return [0, 0]
        case _:
            return 0


def _complete_codecs(codecs: list[Any]) -> list[Any]:
    completed = [_complete_codec(codec) for codec in codecs]
    if any(isinstance(codec, dict) and codec.get("name") in _TO_BYTES for codec in completed):
        return completed
    kinds = [_codec_class(codec) for codec in completed]
    if any(kind is None or issubclass(kind, ArrayBytesCodec) for kind in kinds):
        return completed
    # The first example in the specification of concat-parts has compressors only.
    at = sum(1 for kind in kinds if kind is not None and issubclass(kind, ArrayArrayCodec))
    return [*completed[:at], _LITTLE_ENDIAN, *completed[at:]]


def _complete_codec(codec: object) -> object:
    if isinstance(codec, dict) and isinstance(name := codec.get("name"), str):
        inner = codec.get("configuration")
        if name == "sharding_indexed" and isinstance(inner, dict) and isinstance(chain := inner.get("codecs"), list):
            return {**codec, "configuration": {**inner, "codecs": _complete_codecs(chain)}}
        if "configuration" not in codec and name in _DEFAULT_CONFIGURATIONS:
            return {**codec, "configuration": _DEFAULT_CONFIGURATIONS[name]}
    return codec


def _codec_class(codec: object) -> type | None:
    if not isinstance(codec, dict) or not isinstance(name := codec.get("name"), str):
        return None
    try:
        return get_codec_class(name)
    # The codec is unknown, or its package cannot be imported: zarr reports that when it opens the array.
    except Exception:
        return None


def normalise(served: Document) -> Document | None:
    """Return the document as zarr writes it after reading it; None if zarr cannot read it."""
    try:
        metadata = read_metadata(served)
        buffer = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"]
        return parse(buffer.to_bytes())
    # zarr reports what is wrong with the document when it opens the array.
    except Exception:
        return None


def put_back(new: Document, stored: Document) -> Document:
    """Return the document to store when zarr writes `new` for an array whose document is `stored`.

    A member that zarr did not change stays as it is stored, or stays absent. A member that zarr changed, added,
    removed or repaired is changed, added, removed or repaired.
    """
    served = complete(stored)
    before, valid = normalise(served) or served, repaired(served)
    result = {}
    for key, value in stored.items():
        if key == "storage_transformers" or key not in before:
            result[key] = value
        elif key in new:
            is_unchanged = is_same(new[key], before[key]) and is_same(valid[key], served[key])
            result[key] = value if is_unchanged else new[key]
    added = {
        key: value
        for key, value in new.items()
        if key not in stored and not (key in before and is_same(value, before[key]))
    }
    changed = result | added
    _require_same_files(stored, changed)
    return changed


def _require_same_files(stored: Document, changed: Document) -> None:
    """Raise `StoreConfigError` if the shards of a changed array cannot be the files that they were before."""
    name = recorded_format(stored)
    if name not in FORMATS or is_same(stored.get("shape"), changed.get("shape")):
        return
    try:
        before, now = (describe_shards(name, complete(each)) for each in (stored, changed))
        is_same_kind = before.is_rgb == now.is_rgb
    except StoreConfigError:
        is_same_kind = False
    if not is_same_kind:
        expected = f"a last axis of length {stored['shape'][-1]}, which decides whether it contains the colours"
        raise StoreConfigError(SHARD_FILE, expected, str(changed["shape"][-1]))


def is_same(one: object, other: object) -> bool:
    """Return whether two values are the same in JSON, where `true`, 1 and 1.0 differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def with_parts(
    document: Document,
    parts: ConcatParts,
    path: str,
    *,
    placement: PartPlacement = PartPlacement.BESIDE,
    must_understand: bool = True,
    shard_file: FileFormat | None = None,
) -> Document:
    """Return the document of a new array with these parts, with numbers in place of `SHARD_INDEX`."""
    try:
        index = shard_index_of(document)
        grid = document.get("chunk_grid")
        is_regular = not isinstance(grid, dict) or grid.get("name") == "regular"
        resolved = parts.with_shard_index(None if index is None else index.nbytes, is_regular=is_regular)
    except PartsConfigError as error:
        raise error.of_array(path) from error
    if placement is PartPlacement.SPLIT and len(resolved.parts) > 1 and 0 in resolved.sizes:
        raise PartsConfigError("size", "at least 1, because a session stores no empty chunks", "0", path)
    stored = {**document, "storage_transformers": [resolved.to_json()]}
    if shard_file is not None:
        _require_shard_file(shard_file, document, resolved, path)
        if resolved.parts == ONE_OBJECT:
            return {**document, SHARD_FILE: member_of(shard_file)}
        stored[SHARD_FILE] = member_of(shard_file)
    return with_mark(stored, resolved, placement, must_understand=must_understand)


def _require_shard_file(shard_file: FileFormat, document: Document, parts: ConcatParts, path: str) -> None:
    """Raise `PartsConfigError` unless the shards of a new array can be files of this format, in these parts."""
    index = describe_shards(shard_file, document, is_new=True).index
    if parts.parts == ONE_OBJECT:
        if not index.has_checksum:
            expected = "an index with the codec `crc32c`, by which programs notice that a file was written again"
            raise StoreConfigError(SHARD_FILE, expected, "an index without a checksum")
    elif len(parts.parts) != 2 or parts.sizes != (None, index.nbytes):
        expected = f"the file, and behind it the index of {index.nbytes} bytes, for `shard_file`"
        raise PartsConfigError("parts", expected, describe(parts.sizes), path)


@dataclass(frozen=True, slots=True)
class PlainLayout:
    """How the shards of an array without parts are read and written: their keys, and their index."""

    encoding: ChunkKeyEncoding
    shard_index: ShardIndex
    # The document, if it says that shards are files.
    of_files: Document | None = None
    # The bytes that are usually compared with the seals of the files, None if shards are not such files.
    ends: Ends | None = None

    def as_stored(self, chunk: Chunk, value: memoryview, around: Around | None = None) -> Encoded:
        """Return a shard as it is stored: as a file, if the document says so."""
        return value if self.of_files is None else _as_stored(self.of_files, self.encoding, chunk, value, around)


# zarr takes about as long to read a document as to open the array, so each document is read once, when a chunk of its
# array is first used.
@lru_cache(maxsize=1024)
def plain_layout(stored: bytes) -> PlainLayout | None:
    """Return how the chunks of an array with this stored document are read; None if they are passed through."""
    document = parse(stored) if CODEC.encode() in stored else None
    if document is None:
        return None
    index, shape = shard_index_of(complete(document)), document.get("shape")
    if index is None or not isinstance(shape, list):
        return None
    try:
        encoding = ChunkKeyEncoding.from_json(document.get("chunk_key_encoding"), len(shape))
    except PartsConfigError:
        return None
    of_files = None if recorded_format(document) is None else document
    return PlainLayout(encoding, index, of_files, _ends(document))
