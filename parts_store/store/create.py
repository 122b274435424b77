"""create_array: create an array whose chunks are stored in parts, or whose chunks or shards are files."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Literal, cast

import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.codecs.numcodecs import Zlib
from zarr.registry import get_codec_class
from zarr.storage import MemoryStore, StorePath

from parts_store._compat.zarr import normalize_path
from parts_store.codecs.pad import pad_codec
from parts_store.errors import PartsConfigError, StoreConfigError, describe
from parts_store.format.files.description import FORMATS, FileFormat
from parts_store.format.keys import PartPlacement
from parts_store.format.layout import require_writable
from parts_store.format.metadata import ONE_OBJECT, parse, with_parts
from parts_store.format.parts import ConcatParts, Part, PartsLike, parse_integer
from parts_store.format.tiff_directory import ByteOrder, Compression
from parts_store.headers import TiffHeader
from parts_store.pipeline.opening import use_pipeline
from parts_store.store.destination import are_apart
from parts_store.store.store import PartsStore

type ChunkFile = Literal["tiff"] | TiffHeader
"""A format of files, or the header of the files."""

# The compression that every program reads, and the level at which zlib compresses by default.
_DEFAULT: Final[Compression] = "deflate"
_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The parts of an array whose chunks are files, and the arguments of `zarr.create_array`."""

    parts: tuple[Part, ...]
    arguments: dict[str, Any]


def plan_chunk_file(chunk_file: object, arguments: Mapping[str, Any]) -> FileLayout:
    """Return how to create an array whose chunks are files, given the arguments of `zarr.create_array`.

    Raises `StoreConfigError` or `HeaderError` if the chunks cannot be such files.
    """
    if not isinstance(chunk_file, TiffHeader) and (not isinstance(chunk_file, str) or chunk_file != "tiff"):
        raise StoreConfigError("chunk_file", "'tiff' or a `ps.headers.TiffHeader`", describe(chunk_file))
    given = chunk_file if isinstance(chunk_file, TiffHeader) else None
    _require_plain(arguments)
    compressor = _compressor(arguments.get("compressors", "auto"), given)
    shape = _chunk_shape(arguments.get("chunks"), given)
    found = TiffHeader(
        shape,
        dtype=_dtype(arguments, given),
        byteorder=_byteorder(arguments.get("serializer", "auto"), given),
        compression=_compression(compressor),
        rgb=None if given is None else given.rgb,
    )
    if given is not None:
        _require_same(given, found)
    codecs: list[BytesBytesCodec] = []
    if compressor is None:
        padding = found.for_encoded(found.chunk_nbytes)
        codecs.append(pad_codec(len(padding), padding=padding))
    else:
        codecs += [compressor, pad_codec(found.nbytes, padding_func=found)]
    chosen = {"chunks": shape, "serializer": BytesCodec(endian=found.byteorder), "compressors": codecs}
    return FileLayout((Part(".tif"),), {**arguments, **chosen})


def _require_plain(arguments: Mapping[str, Any]) -> None:
    if arguments.get("shards") is not None:
        expected = "None, because files inside the objects of shards cannot be opened"
        raise StoreConfigError("shards", expected, describe(arguments["shards"]))
    filters = arguments.get("filters", "auto")
    given = [*filters] if isinstance(filters, Iterable) and not isinstance(filters, str) else [filters]
    if any(each is not None and each != "auto" for each in given):
        raise StoreConfigError("filters", "none, because the file has the values as they are", describe(filters))


def _chunk_shape(chunks: object, given: TiffHeader | None) -> tuple[int, ...]:
    if chunks is None and given is not None:
        return given.shape
    lengths = [parse_integer(each, 1) for each in chunks] if isinstance(chunks, Sequence) else [None]
    if None in lengths or isinstance(chunks, str):
        raise StoreConfigError("chunks", "the shape of an image, such as (256, 256)", describe(chunks))
    return tuple(length for length in lengths if length is not None)


def _dtype(arguments: Mapping[str, Any], given: TiffHeader | None) -> Any:
    dtype: Any = arguments.get("dtype")
    if dtype is None:
        # zarr takes the data type of `data`.
        dtype = getattr(arguments.get("data"), "dtype", None if given is None else given.dtype)
    # A data type may be one of zarr.
    return dtype.to_native_dtype() if hasattr(dtype, "to_native_dtype") else dtype


def _byteorder(serializer: object, given: TiffHeader | None) -> ByteOrder:
    match serializer:
        case "auto":
            return "little" if given is None else given.byteorder
        case {"name": "bytes", **rest}:
            configuration = rest.get("configuration", {})
            endian = configuration.get("endian") if isinstance(configuration, dict) else None
        case BytesCodec():
            endian = serializer.endian
        case _:
            raise StoreConfigError("serializer", "`bytes`, as in a TIFF file", describe(serializer))
    name = getattr(endian, "value", endian)
    return "big" if name == "big" else "little"


def _compressor(compressors: Any, given: TiffHeader | None) -> BytesBytesCodec | None:
    if isinstance(compressors, str) and compressors == "auto":
        match _DEFAULT if given is None else given.compression:
            case "none":
                return None
            case "deflate":
                return Zlib(level=_LEVEL)
            case "zstd":
                return ZstdCodec()
    if compressors is None:
        return None
    is_one = isinstance(compressors, Mapping) or not isinstance(compressors, Iterable)
    found = [compressors] if is_one else list(compressors)
    if not found:
        return None
    codec = found[0]
    if isinstance(codec, Mapping) and isinstance(name := codec.get("name"), str):
        codec = get_codec_class(name).from_dict(dict(codec))
    if len(found) > 1 or not isinstance(codec, ZstdCodec | Zlib):
        expected = "None, `zarr.codecs.ZstdCodec`, or `zarr.codecs.numcodecs.Zlib` for deflate"
        raise StoreConfigError("compressors", expected, describe(compressors))
    return codec


def _compression(compressor: BytesBytesCodec | None) -> Compression:
    match compressor:
        case None:
            return "none"
        case ZstdCodec():
            return "zstd"
        case _:
            return "deflate"


def _require_same(given: TiffHeader, found: TiffHeader) -> None:
    """Raise `HeaderError` unless the header that a caller passed is that of the chunks of the array."""
    given.require_chunk(found.shape, found.dtype)
    for name in ("compression", "byteorder"):
        if (one := getattr(given, name)) != (other := getattr(found, name)):
            raise StoreConfigError("chunk_file", f"a header with the {name} of the array, {other!r}", repr(one))


# The compression of shards that are files: the one that most programs of each format, and all of Zarr, can read.
_SHARD_COMPRESSORS: Final[Mapping[str, tuple[BytesBytesCodec, ...]]] = {"tiff": (ZstdCodec(),), "hdf5": ()}
# What zarr needs to make the document of an array, besides its shape and data type.
_DECIDE_DOCUMENT: Final = (
    *("chunks", "shards", "filters", "compressors", "serializer", "fill_value", "order", "chunk_key_encoding"),
    *("dimension_names", "zarr_format"),
)


def plan_shard_file(shard_file: object, parts: PartsLike, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `zarr.create_array` for an array whose shards are files, given those of the caller.

    Raises `StoreConfigError` or `PartsConfigError` if the shards cannot be such files, in these parts.
    """
    if not isinstance(shard_file, str) or shard_file not in FORMATS:
        raise StoreConfigError("shard_file", f"one of {', '.join(map(repr, FORMATS))}", describe(shard_file))
    if shard_file == "hdf5" and find_spec("h5py") is None:
        raise StoreConfigError("shard_file", "h5py, which `pip install 'parts_store[hdf5]'` installs", "no h5py")
    if arguments.get("shards") is None:
        raise StoreConfigError("shards", "the shape of a shard, because every shard is a file", "None")
    compressors = arguments.get("compressors", "auto")
    if isinstance(compressors, str) and compressors == "auto":
        arguments = {**arguments, "compressors": _SHARD_COMPRESSORS[shard_file]}
    file_format = cast("FileFormat", shard_file)
    with_parts(_document(arguments), ConcatParts.parse(parts), "", shard_file=file_format)
    return {**arguments}


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


def create_array(
    store: PartsStore,
    name: str | None = None,
    *,
    parts: PartsLike | None = None,
    chunk_file: ChunkFile | None = None,
    shard_file: FileFormat | None = None,
    overwrite: bool = False,
    split: bool = False,
    must_understand: bool | None = None,
    **arguments: Any,
) -> zarr.Array[Any]:
    """Create an array whose chunks are stored in parts, or whose chunks or shards are files of another format.

    Give one of `parts`, `chunk_file` and `shard_file`, or `shard_file` with `parts`.

    Parameters
    ----------
    store
        The store.
    name
        The path of the array in the store; the root if None.
    parts
        The parts of every chunk, in order: `Part` objects, the JSON objects of the specification, or key suffixes. The
        size `SHARD_INDEX` becomes the size of this array's shard index.
    chunk_file
        `"tiff"` if every chunk is a TIFF file that other programs can open, with the extension `.tif`; or a
        `ps.headers.TiffHeader`, if the shape does not say whether the last axis contains the colours. The compression
        is deflate, unless `compressors` is None, `zarr.codecs.ZstdCodec` or `zarr.codecs.numcodecs.Zlib`.
    shard_file
        `"tiff"` or `"hdf5"` if every shard is a file of this format that other programs can open. The inner chunks are
        the tiles of the image, or the chunks of the dataset. The index of the shard is behind the end of the file, so
        that all Zarr programs read the array. TIFF files are compressed with zstd and HDF5 files are not compressed,
        unless `compressors` says otherwise.
        With `parts=[ps.Part(".tif"), ps.Part(".index", size=ps.SHARD_INDEX)]`, the index is an object beside the file,
        whose name has an extension.
        The image or dataset ends where the array ends. After the array was resized, the files at its edge keep their
        size until their shards are written again.
    overwrite
        Whether to delete first what is at that path. `data` must not be an array that is stored there.
    split
        In an Icechunk session, whether each part is stored as a chunk of its own, so that it can refer to an existing
        file. Otherwise all parts of a chunk are stored together.
    must_understand
        Whether the array tells software without concat-parts, which would misread it, to refuse it. None for the
        option of the store.
    arguments
        The arguments of `zarr.create_array`.

    Returns
    -------
    zarr.Array
        The array, which uses the codec pipeline of this package.

    Raises
    ------
    PartsConfigError
        If the parts do not fit the array.
    StoreConfigError
        If shards of this shape, data type or compression cannot be such files, or if `data` would be deleted before it
        is read.
    HeaderError
        If a chunk of this shape and data type cannot be such a file, or the header is for other chunks.
    ServerFeatureError
        If the server lacks what writing arrays with parts needs.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(store, "a", parts=["", ps.Part(".crc", size=4)], shape=(8,), chunks=(4,), dtype="uint8")
    >>> array[:] = 7
    >>> int(array[5])
    7

    Every chunk a TIFF file:

    >>> store = ps.PartsStore.from_url("images.zarr")
    >>> tiles = ps.create_array(store, "a", chunk_file="tiff", shape=(128, 128), chunks=(64, 64), dtype="uint16")
    >>> tiles[:64, :64] = 1
    >>> import tifffile
    >>> tifffile.imread("images.zarr/a/c/0/0.tif").shape
    (64, 64)

    Every shard a TIFF file with tiles:

    >>> large = ps.create_array(
    ...     store, "b", shard_file="tiff", shape=(512, 512), chunks=(64, 64), shards=(256, 256), dtype="uint16"
    ... )
    >>> large[:, :] = 1
    >>> tifffile.imread("images.zarr/b/c/1/1").shape
    (256, 256)
    """
    if not isinstance(store, PartsStore):
        raise StoreConfigError("store", "a PartsStore", f"an object of type {type(store).__name__}")
    given = {"parts": parts, "chunk_file": chunk_file, "shard_file": shard_file}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1 and names != ["parts", "shard_file"]:
        expected = "one of `parts`, `chunk_file` and `shard_file`, or `shard_file` with `parts`"
        raise StoreConfigError("parts", expected, " and ".join(names) or "none of them")
    path = normalize_path(name)
    if arguments.get("zarr_format", 3) not in (3, None):
        raise PartsConfigError("zarr_format", "3, for Zarr v2 has no storage transformers", "2", path)
    is_plain = shard_file is not None and parts is None
    parts = ONE_OBJECT if parts is None else parts
    if shard_file is not None:
        arguments = plan_shard_file(shard_file, parts, arguments)
    elif chunk_file is not None:
        layout = plan_chunk_file(chunk_file, arguments)
        parts, arguments = layout.parts, layout.arguments
    if not split:
        # With `split`, parts may be set one by one, as references.
        require_writable(ConcatParts.parse(parts))
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
    if overwrite and shard_file is None:
        # zarr deletes what is there before it writes a document that the store may refuse.
        placement = PartPlacement.SPLIT if split else PartPlacement.BESIDE
        with_parts(_document(arguments), ConcatParts.parse(parts), path, placement=placement)
    creating = store.with_parts({escaped: parts}, split=split, must_understand=must_understand, shard_file=shard_file)
    _require_data_apart(store, path, overwrite=overwrite, **arguments)
    # This comes before zarr creates the groups above: a server that ignores conditions would replace their documents.
    if not is_plain:
        creating.require_server(path, parts)
    array = zarr.create_array(creating, name=path or None, overwrite=overwrite, **arguments)
    inner = dataclasses.replace(array.async_array, store_path=StorePath(store, path))
    created = type(array)(inner)
    use_pipeline(created)
    return created


def _require_data_apart(
    store: PartsStore, path: str, *, overwrite: bool, data: object = None, write_data: bool = True, **_: Any
) -> None:
    """Raise `StoreConfigError` if zarr would delete the data before it reads it."""
    if not (overwrite and write_data and isinstance(data, zarr.Array | zarr.AsyncArray)):
        return
    if not are_apart(data.store_path.store, data.path, store, path):
        problem = f"an array apart from {path!r}, because `overwrite=True` deletes {path!r} before `data` is read"
        # The root of a store contains all of its paths.
        other, new = ("store", f"{path}-new") if path else ("other_store", "")
        safely = (
            f"to convert it, write it to a new path, and copy it back:\n"
            f"    ps.create_array({other}, {new!r}, data=data, ...)\n"
            f"    ps.copy({other}, store, path={new!r}, to={path!r}, overwrite=True)"
        )
        raise StoreConfigError("data", problem, f"the array at {data.path!r}; {safely}")
