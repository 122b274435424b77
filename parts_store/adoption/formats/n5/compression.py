"""Convert the compression of N5 datasets to codecs of Zarr."""

from collections.abc import Mapping
from typing import Any, Final

from parts_store.adoption.description import CannotBeReadError, Json

_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")


def codecs_of(attributes: Mapping[str, Any]) -> list[Json]:
    """Return the codecs for the compression in the attributes of a dataset: one, or none if it is not compressed.

    Levels and the like matter only for writing, so a value out of range is replaced. Raises `CannotBeReadError` if
    there is no codec.
    """
    # The first version of N5 had the name only.
    given = attributes.get("compression", attributes.get("compressionType"))
    compression = {"type": given} if isinstance(given, str) else given
    if not isinstance(compression, dict) or not isinstance(compression.get("type"), str):
        raise CannotBeReadError(f"expected a `compression` with a `type`, found {str(given)[:100]!r}")
    match compression["type"]:
        case "raw":
            return []
        case "gzip":
            level = _number(compression, "level", 0, 9, 5)
            name = "numcodecs.zlib" if compression.get("useZlib") is True else "gzip"
            return [{"name": name, "configuration": {"level": level}}]
        case "zstd":
            level = _number(compression, "level", -131072, 22, 3)
            return [{"name": "zstd", "configuration": {"level": level, "checksum": False}}]
        case "bzip2":
            return [{"name": "numcodecs.bz2", "configuration": {"level": _number(compression, "blockSize", 1, 9, 9)}}]
        case "xz":
            return [{"name": "numcodecs.lzma", "configuration": {"preset": _number(compression, "preset", 0, 9, 6)}}]
        case "lz4":
            return [{"name": "parts_store.n5_lz4", "configuration": {}}]
        case "blosc":
            return [{"name": "blosc", "configuration": _blosc(compression)}]
        case other:
            raise CannotBeReadError(f"a compression that Zarr has no codec for: {other[:100]}")


def _blosc(compression: Mapping[str, Any]) -> Json:
    """Return the configuration of blosc. It matters only for writing: each block contains its own."""
    name = compression.get("cname", "blosclz")
    if name not in _BLOSC_COMPRESSORS:
        raise CannotBeReadError(f"a compression that Zarr has no codec for: blosc with {str(name)[:100]}")
    return {
        "cname": name,
        "clevel": _number(compression, "clevel", 0, 9, 5),
        "shuffle": _BLOSC_SHUFFLES[_number(compression, "shuffle", 0, 2, 1)],
        "typesize": _number(compression, "typesize", 1, 255, 1),
        "blocksize": _number(compression, "blocksize", 0, 2**31 - 1, 0),
    }


def _number(compression: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    """Return a member that is an integer in a range; the default if it is anything else."""
    value = compression.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else default
