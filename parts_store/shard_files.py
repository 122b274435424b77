"""The argument `shard_file`: the parts and codecs with which every shard of an array is a file of another format."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

import zarr
from zarr.codecs.numcodecs import Zlib
from zarr.storage import MemoryStore

from parts_store.chunk_files import FileLayout
from parts_store.errors import PartsConfigError, StoreConfigError, describe
from parts_store.format.files.description import EXTENSIONS, FORMATS, describe_shards
from parts_store.format.metadata import parse
from parts_store.format.parts import SHARD_INDEX, Part

# The compression that every program reads, at the level at which zlib compresses by default.
_DEFAULT_LEVEL: Final = 6
# What zarr needs to make the document of an array, besides its shape and data type.
_DECIDE_DOCUMENT: Final = (
    *("chunks", "shards", "filters", "compressors", "serializer", "fill_value", "order", "chunk_key_encoding"),
    *("dimension_names", "zarr_format"),
)


def plan_shard_file(shard_file: object, arguments: Mapping[str, Any]) -> FileLayout:
    """Return how to create an array whose shards are files, given the arguments of `zarr.create_array`.

    Raises `StoreConfigError` or `PartsConfigError` if the shards cannot be such files.
    """
    if not isinstance(shard_file, str) or shard_file not in FORMATS:
        raise StoreConfigError("shard_file", f"one of {', '.join(map(repr, FORMATS))}", describe(shard_file))
    if shard_file == "hdf5" and find_spec("h5py") is None:
        raise StoreConfigError("shard_file", "h5py, which `pip install 'parts_store[hdf5]'` installs", "no h5py")
    if arguments.get("shards") is None:
        raise StoreConfigError("shards", "the shape of a shard, because every shard is a file", "None")
    compressors = arguments.get("compressors", "auto")
    if isinstance(compressors, str) and compressors == "auto":
        arguments = {**arguments, "compressors": Zlib(level=_DEFAULT_LEVEL)}
    describe_shards(shard_file, _document(arguments), is_new=True)
    return FileLayout((Part(EXTENSIONS[shard_file]), Part(".index", size=SHARD_INDEX)), {**arguments})


def _document(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that zarr makes of these arguments, which take many forms."""
    data = arguments.get("data")
    shape_and_type = {
        name: getattr(data, name) if arguments.get(name) is None else arguments[name]
        for name in ("shape", "dtype")
        if arguments.get(name) is not None or data is not None
    }
    given = {name: arguments[name] for name in _DECIDE_DOCUMENT if name in arguments}
    store: dict[str, Any] = {}
    zarr.create_array(MemoryStore(store), **shape_and_type, **given)
    document = parse(store["zarr.json"].to_bytes()) if "zarr.json" in store else None
    if document is None:
        raise PartsConfigError("zarr_format", "3, for Zarr v2 has no storage transformers", "2")
    return document
