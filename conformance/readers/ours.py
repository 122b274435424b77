"""The reader of this package: `python -m conformance.readers.ours FOLDER ARRAY OUT.npy`.

With `--pipeline`, the array is opened with the codec pipeline of the package, otherwise with that of zarr.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.errors import MetadataValidationError, UnknownCodecError

import parts_store as ps
from conformance.readers.protocol import UnreadableError, main
from parts_store import errors

# The first class that fits counts.
CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (errors.UnknownTransformerError, "unknown-transformer"),
    (errors.PartsConfigError, "bad-configuration"),
    (errors.CodecConfigError, "bad-configuration"),
    (errors.CodecError, "bad-data"),
    (errors.IncompleteChunkError, "missing-part"),
    (errors.PartSizeError, "wrong-size"),
    (errors.ShardFileError, "changed-file"),
    (UnknownCodecError, "unknown-extension"),
)


def read_with_zarr(folder: Path, array: str) -> np.ndarray[Any, Any]:
    """Return the values of an array as zarr reads them."""
    return _read(folder, array, zarr.open_array)


def read_with_pipeline(folder: Path, array: str) -> np.ndarray[Any, Any]:
    """Return the values of an array as the codec pipeline of this package reads them."""
    return _read(folder, array, ps.open_array)


def _read(folder: Path, array: str, open_array: Any) -> np.ndarray[Any, Any]:
    opened = None
    try:
        opened = open_array(ps.PartsStore.from_url(str(folder), read_only=True), path=array, mode="r")
        return np.asarray(opened[...])
    # zarr and the codecs raise many kinds of errors.
    except Exception as error:
        name = class_of(error, is_open=opened is not None)
        raise UnreadableError(name, f"{type(error).__name__}: {error}") from error


def class_of(error: Exception, *, is_open: bool) -> str | None:
    """Return the class of an error in the words of the kit, None if there is no word for it."""
    for kind, name in CLASSES:
        if isinstance(error, kind):
            return name
    if isinstance(error, MetadataValidationError) and "extra fields" in str(error):
        return "unknown-extension"
    if "computed checksum" in str(error):
        return "bad-checksum"
    # What zarr, NumPy and the libraries of compressors raise for bytes that they cannot decode.
    return "bad-data" if is_open else None


if __name__ == "__main__":
    options = [each for each in sys.argv[1:] if each == "--pipeline"]
    main(read_with_pipeline if options else read_with_zarr, [each for each in sys.argv[1:] if each not in options])
