"""`zarr.json`: the storage transformer lifted out for zarr, the document completed, and both put back on writing.

zarr refuses documents with a storage transformer, and some that the specification shows. So it is served the document
without the transformer and with the members it asks for; what is stored stays as its writer wrote it, and where zarr
changes a member, that member changes and no other.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import ShardingCodec
from zarr.dtype import UInt64
from zarr.registry import get_codec_class

from parts_store._compat.zarr import ArrayConfig, ArraySpec, ArrayV3Metadata, RegularChunkGridMetadata
from parts_store.errors import PartsConfigError, PartsStoreError, UnknownTransformerError, describe
from parts_store.format.keys import Chunk, ChunkKeyEncoding, PartPlacement, join
from parts_store.format.parts import NAME, ConcatParts, Part
from parts_store.format.ranges import Wanted

type Document = dict[str, Any]

# What zarr asks for where the specification's documents leave it out.
_DEFAULT_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "zstd": {"level": 0, "checksum": False},
    "gzip": {"level": 5},
}
_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
_EMPTY = np.iinfo(np.uint64).max
# The members of a document that decide how zarr decodes a chunk, and what it returns where there is none.
_DECIDE_DECODING = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs", "fill_value")
# A member of the stored document. With `must_understand: true` in it, software that does not know it refuses the array.
# zarr checks storage transformers only where it opens an array by its own path, so without this member it reads an
# array in parts as fill values, or as damaged chunks, when it opens the group above.
_MARK = "parts_store"


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Where a shard's index is, and how it is encoded."""

    nbytes: int
    location: Literal["start", "end"]
    slots: int
    # The type of its numbers, None where other codecs than `bytes` and `crc32c` encode it.
    dtype: str | None
    has_checksum: bool

    @property
    def request(self) -> ByteRequest:
        """The request by which zarr reads the index."""
        return SuffixByteRequest(self.nbytes) if self.location == "end" else RangeByteRequest(0, self.nbytes)

    @property
    def is_understood(self) -> bool:
        """Whether the index tells us what it tells zarr."""
        return self.dtype is not None

    def is_sound(self, index: bytes) -> bool:
        """Whether the index fits its checksum."""
        return self._table(index) is not None

    def may_have_holes(self, index: bytes) -> bool:
        """Whether the index says of some inner chunk, or might say, that there is none."""
        table = self._table(index)
        return table is None or bool(_is_hole(table).any())

    def slots_of(self, index: bytes, wanted: Sequence[Wanted]) -> tuple[int, ...] | None:
        """Which inner chunks these ranges are; None if the index does not tell, for it has holes or names one twice."""
        table = self._table(index)
        if table is None or _is_hole(table).any():
            return None
        slots = {(start, start + nbytes): slot for slot, (start, nbytes) in enumerate(table.tolist())}
        if len(slots) < self.slots:
            return None
        found = [slots.get((each.start, each.end)) if isinstance(each, RangeByteRequest) else None for each in wanted]
        return tuple(slot for slot in found if slot is not None) if None not in found else None

    def ranges_of(self, index: bytes, slots: Sequence[int]) -> tuple[RangeByteRequest | None, ...] | None:
        """Where these inner chunks are, None where there is none; None if the index does not tell."""
        table = self._table(index)
        if table is None:
            return None
        holes = _is_hole(table)
        rows = table.tolist()
        return tuple(None if holes[slot] else RangeByteRequest(rows[slot][0], sum(rows[slot])) for slot in slots)

    def encode(self, places: Sequence[tuple[int, int] | None]) -> bytes:
        """The index that says where every inner chunk begins and how many bytes it has, None where there is none."""
        if self.dtype is None:
            raise TypeError("an index that we do not understand")
        table = np.array([(_EMPTY, _EMPTY) if place is None else place for place in places], self.dtype)
        data = table.tobytes()
        return data + (google_crc32c.value(data).to_bytes(4, "little") if self.has_checksum else b"")

    def _table(self, index: bytes) -> NDArray[np.uint64] | None:
        """The offset and size of every inner chunk, None if other codecs than we know encode them, or it is damaged."""
        table, checksum = index[: self.slots * 16], index[self.slots * 16 :]
        expected = google_crc32c.value(table).to_bytes(4, "little") if self.has_checksum else b""
        if self.dtype is None or len(table) < self.slots * 16 or checksum != expected:
            return None
        return np.frombuffer(table, self.dtype).reshape(self.slots, 2)


def _is_hole(table: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.all(table == _EMPTY, axis=1)


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """What the store knows of an array with parts: its stored document, and what follows from it."""

    stored: Document
    parts: ConcatParts
    encoding: ChunkKeyEncoding
    shard_index: ShardIndex | None
    placement: PartPlacement = PartPlacement.BESIDE
    # The digest that the tags of its chunks carry.
    layout: str | None = None
    # The digest of all that decides how a chunk is read: its parts, and how zarr decodes it.
    digest: str = ""

    def chunk(self, path: str, relative: str) -> Chunk:
        """A chunk of the array, which is at this path, as it is stored: if whole, as a single part."""
        key = join(path, relative)
        if self.placement is PartPlacement.WHOLE:
            return Chunk(key, _whole(self.parts), path)
        return Chunk(key, self.parts, path, self.placement is PartPlacement.SPLIT, self.layout)

    @property
    def is_safe_for_others(self) -> bool:
        """Whether software without concat-parts reads the array right, or is told to refuse it."""
        return has_mark(self.stored) or not needs_mark(self.parts, self.placement)

    @property
    def ends_in_checksum(self) -> bool:
        """Whether the last bytes of every chunk are a checksum of those before."""
        codecs = self.stored.get("codecs")
        last = codecs[-1] if isinstance(codecs, list) and codecs else None
        return (last.get("name") if isinstance(last, dict) else last) == "crc32c"


@lru_cache
def _whole(parts: ConcatParts) -> ConcatParts:
    """One part in place of these: of their size, if all of them have one."""
    sizes = [size for size in parts.sizes if size is not None]
    return ConcatParts([Part("", size=None if parts.unsized else sum(sizes))])


def parse(data: bytes) -> Document | None:
    """The document, or None if it is no JSON object: zarr then says what it thinks of it."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def dump(document: Mapping[str, Any]) -> bytes:
    """The document as zarr writes it."""
    return json.dumps(document, indent=2).encode()


def is_array(document: Mapping[str, Any]) -> bool:
    """Whether this is the document of an array of Zarr v3."""
    return document.get("zarr_format") == 3 and document.get("node_type") == "array"


def is_group(document: Mapping[str, Any]) -> bool:
    """Return whether this is the document of a group of Zarr v3."""
    return document.get("zarr_format") == 3 and document.get("node_type") == "group"


def read_array(document: Document, path: str, *, in_session: bool = False) -> ArrayRecord | None:
    """What the document says of the array's parts; None if it has none."""
    transformers = document.get("storage_transformers")
    if transformers is None or transformers == []:
        return None
    if not isinstance(transformers, list):
        raise UnknownTransformerError(path, describe(transformers))
    names = [each.get("name") if isinstance(each, dict) else each for each in transformers]
    if names != [NAME]:
        raise UnknownTransformerError(path, ", ".join(describe(name) for name in names))
    try:
        parts = ConcatParts.from_json(transformers[0])
        encoding = ChunkKeyEncoding.from_json(document.get("chunk_key_encoding"), _ndim(document.get("shape")))
    except PartsConfigError as error:
        raise error.of_array(path) from error
    placement = PartPlacement.BESIDE
    _require_known_mark(document, path)
    if in_session:
        placement = PartPlacement.SPLIT if is_split(document) else PartPlacement.WHOLE
    layout = layout_of(document, parts)
    digest = _digest([layout, *(document.get(name) for name in _DECIDE_DECODING)])
    return ArrayRecord(document, parts, encoding, shard_index_of(complete(document)), placement, layout, digest)


def layout_of(document: Document, parts: ConcatParts) -> str:
    """Return the digest of the layout of an array's chunks, which the tags of their parts carry.

    The layout is the parts in their order, the shape of a chunk where it is regular, and the data type where it is a
    name. It contains neither the codecs, which every version of zarr writes in another way, nor the shape of the array.
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
    """Return why zarr cannot open the array of a document that it is served, None if it can."""
    try:
        ArrayV3Metadata.from_dict(served)
    # Whatever zarr says of a document that it cannot read.
    except Exception as error:
        return f"zarr cannot open it: {type(error).__name__}: {error}"
    return None


def is_split(document: Document) -> bool:
    """Whether the parts of the array's chunks are chunks of nodes of their own, in a session."""
    mark = document.get(_MARK)
    return isinstance(mark, dict) and mark.get("placing") == PartPlacement.SPLIT.value


def _require_known_mark(document: Document, path: str) -> None:
    """Raise if our member says that it must be understood, and something in it is not."""
    mark = document.get(_MARK, {})
    if isinstance(mark, dict) and mark.get("must_understand", True) is False:
        return
    is_known = isinstance(mark, dict) and mark.keys() <= {"must_understand", "placing"}
    if not is_known or mark.get("placing", PartPlacement.SPLIT.value) != PartPlacement.SPLIT.value:
        expected = f"'must_understand', and 'placing': {PartPlacement.SPLIT.value!r}, and no other members"
        raise PartsConfigError(_MARK, expected, f"{describe(mark)}, which needs a newer version of parts_store", path)


def has_mark(document: Document) -> bool:
    """Return whether software that does not know this package's member has to refuse the array."""
    mark = document.get(_MARK)
    # A member that does not say so has to be understood.
    return isinstance(mark, dict) and mark.get("must_understand", True) is not False


def needs_mark(parts: ConcatParts, placement: PartPlacement) -> bool:
    """Return whether the object at a chunk's key is not the whole chunk, so that a plain reader would misread it."""
    if placement is PartPlacement.WHOLE:
        return False
    return any(part.key_suffix != "" and part.size != 0 for part in parts.parts)


def with_mark(document: Document, parts: ConcatParts, placement: PartPlacement, *, must_understand: bool) -> Document:
    """Return the document with the member that an array with these parts, placed so, gets."""
    mark: Document = {}
    if must_understand and needs_mark(parts, placement):
        mark["must_understand"] = True
    if placement is PartPlacement.SPLIT:
        mark = {"must_understand": False, **mark, "placing": PartPlacement.SPLIT.value}
    rest = without_mark(document)
    return {**rest, _MARK: mark} if mark else rest


def without_mark(document: Document) -> Document:
    """Return the document without the member of this package."""
    return {key: value for key, value in document.items() if key != _MARK}


def arriving(document: Document, *, in_session: bool, must_understand: bool) -> Document:
    """Return the document of an array as it is stored when the array is copied into another store.

    A session keeps each chunk of a copied array whole.
    """
    try:
        record = read_array(document, "", in_session=in_session)
    except PartsStoreError:
        # The copy of an array that cannot be understood is refused elsewhere, by its path.
        return document
    if record is None:
        return document
    placement = PartPlacement.WHOLE if in_session else PartPlacement.BESIDE
    return with_mark(document, record.parts, placement, must_understand=must_understand)


def _ndim(shape: object) -> int:
    if not isinstance(shape, list):
        raise PartsConfigError("shape", "a list of integers", describe(shape))
    return len(shape)


def complete(document: Document) -> Document:
    """The document that zarr is served: without the transformer, and with what zarr asks for."""
    if not document.get("storage_transformers"):
        return _completed(document)
    return _completed({key: value for key, value in without_mark(document).items() if key != "storage_transformers"})


def _completed(document: Document) -> Document:
    """Return the document with the members that zarr asks for and the specifications' documents leave out."""
    served = dict(document)
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
    kinds = [_codec_class(codec) for codec in completed]
    if any(kind is None or issubclass(kind, ArrayBytesCodec) for kind in kinds):
        return completed
    # concat-parts' first example has compressors alone; bytes are what arrays of it are made of.
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
    # Unknown, or from a package that cannot be imported: zarr says so when it opens the array.
    except Exception:
        return None


def normalise(served: Document) -> Document | None:
    """The document as zarr writes it after reading it; None if zarr cannot read it."""
    try:
        metadata = ArrayV3Metadata.from_dict(served)
        buffer = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"]
        return parse(buffer.to_bytes())
    # Whatever is wrong with the document, it is zarr's to say when it is asked to open it.
    except Exception:
        return None


def put_back(new: Document, stored: Document) -> Document:
    """The document to store where zarr writes `new` for an array whose document is `stored`.

    A member that zarr did not change stays as it is stored, or absent; one that it changed, added or removed is so.
    """
    served = complete(stored)
    before = normalise(served) or served
    result = {}
    for key, value in stored.items():
        if key == "storage_transformers" or key not in before:
            result[key] = value
        elif key in new:
            result[key] = value if is_same(new[key], before[key]) else new[key]
    added = {
        key: value
        for key, value in new.items()
        if key not in stored and not (key in before and is_same(value, before[key]))
    }
    return result | added


def is_same(one: object, other: object) -> bool:
    """Whether two values are the same in JSON: true is not 1 there, nor 1 the same as 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def with_parts(
    document: Document,
    parts: ConcatParts,
    path: str,
    *,
    placement: PartPlacement = PartPlacement.BESIDE,
    must_understand: bool = True,
) -> Document:
    """The document of a new array with these parts, `SHARD_INDEX` resolved."""
    try:
        index = shard_index_of(document)
        resolved = parts.with_shard_index(None if index is None else index.nbytes)
    except PartsConfigError as error:
        raise error.of_array(path) from error
    if placement is PartPlacement.SPLIT and len(resolved.parts) > 1 and 0 in resolved.sizes:
        raise PartsConfigError("size", "at least 1, for a session keeps no chunk without bytes", "0", path)
    stored = {**document, "storage_transformers": [resolved.to_json()]}
    return with_mark(stored, resolved, placement, must_understand=must_understand)


def shard_index_of(served: Document) -> ShardIndex | None:
    """The index of the array's shards, None if it has none that zarr reads by itself."""
    try:
        metadata = ArrayV3Metadata.from_dict(served)
    # A document that zarr cannot read is refused when zarr opens it; until then it has no shards.
    except Exception:
        return None
    codec = metadata.sharding_codec
    if codec is None or not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        return None
    # zarr refuses an index whose encoded size varies since 3.4.1; zarr 3.4.0 accepts it.
    if not all(each.is_fixed_size for each in codec.index_codecs):
        return None
    slots = math.prod(
        shard // chunk for shard, chunk in zip(metadata.chunk_grid.chunk_shape, codec.chunk_shape, strict=True)
    )
    nbytes = slots * 16
    spec = ArraySpec(
        shape=(slots, 2),
        dtype=UInt64(endianness="little"),
        fill_value=_EMPTY,
        config=ArrayConfig.from_dict({}),
        prototype=default_buffer_prototype(),
    )
    for each in codec.index_codecs:
        nbytes = each.compute_encoded_size(nbytes, spec)
    dtype, has_checksum = _index_encoding(codec)
    return ShardIndex(nbytes, codec.index_location, slots, dtype, has_checksum)


def _index_encoding(codec: ShardingCodec) -> tuple[str | None, bool]:
    """The type of the index's numbers, None if its encoding is not one that we know; and if a checksum follows."""
    first, *rest = (each.to_dict() for each in codec.index_codecs)
    has_checksum = rest == [{"name": "crc32c"}]
    for endian, dtype in (("little", "<u8"), ("big", ">u8")):
        if first == {"name": "bytes", "configuration": {"endian": endian}} and (has_checksum or not rest):
            return dtype, has_checksum
    return None, False
