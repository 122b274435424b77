"""The argument `chunk_file`: the part and the codecs with which every chunk of an array is a file of another format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.codecs.numcodecs import Zlib
from zarr.registry import get_codec_class

from parts_store.codecs.pad import pad_codec
from parts_store.errors import StoreConfigError, describe
from parts_store.format.integers import parse_integer
from parts_store.format.parts import Part
from parts_store.format.tiff_directory import ByteOrder, Compression
from parts_store.headers.tiff import TiffHeader

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
