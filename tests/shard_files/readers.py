"""Readers of shard files that do not use parts_store: programs of each format and of Zarr, and the layout by hand."""

import io
import json
import math
import warnings
import zlib
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - registers zstd for h5py
import numpy as np
import rasterio
import tensorstore
import tifffile
import zarr
import zstandard
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning
from zarr.storage import LocalStore

ZARR = "zarr.core.codec_pipeline.BatchedCodecPipeline"
ZARRS = "zarrs.ZarrsCodecPipeline"


def read_file(path: Path) -> np.ndarray:
    """Return the first image of a TIFF file, or the dataset of an HDF5 file."""
    with path.open("rb") as file:
        is_hdf5 = file.read(4) == b"\x89HDF"
    return read_h5py(path)[1] if is_hdf5 else read_tifffile(path)[0]


def read_zarr(folder: Path, pipeline: str = ZARR) -> np.ndarray:
    """Return the values of an array as zarr reads them from its own store, with its own pipeline or that of zarrs."""
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        array = zarr.open_array(LocalStore(folder, read_only=True), mode="r")
        assert type(array.async_array.codec_pipeline).__name__ == pipeline.rpartition(".")[2]
        return np.asarray(array[...])


def read_tensorstore(folder: Path) -> np.ndarray:
    """Return the values of an array as tensorstore reads them."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


def read_tifffile(path: Path) -> np.ndarray:
    """Return all images of a file, one after the other, as tifffile reads them."""
    with tifffile.TiffFile(path) as file:
        return np.stack([page.asarray() for page in file.pages])


def read_gdal(path: Path, pages: int) -> np.ndarray:
    """Return all images of a file as GDAL reads them."""
    images = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        for page in range(1, pages + 1):
            with rasterio.open(f"GTIFF_DIR:{page}:{path}") as file:
                bands = file.read()
                images.append(bands[0] if len(bands) == 1 else np.moveaxis(bands, 0, -1))
    return np.stack(images)


def read_pillow(path: Path) -> np.ndarray:
    """Return all images of a file as Pillow reads them."""
    images = []
    with Image.open(path) as file:
        for frame in range(getattr(file, "n_frames", 1)):
            file.seek(frame)
            images.append(np.asarray(file))
    return np.stack(images)


def read_h5py(path: Path) -> tuple[str, np.ndarray, dict[str, Any]]:
    """Return the name, the values and the attributes of the only dataset of a file."""
    with h5py.File(path, "r") as file:
        (name,) = file
        return name, file[name][...], dict(file[name].attrs)


def read_layout_version(path: Path) -> int:
    """Return the version of the message that says how the only dataset of an HDF5 file is stored."""
    with h5py.File(path, "r") as file:
        (dataset,) = file.values()
        at = int(h5py.h5o.get_info(dataset.id).addr)
    data = path.read_bytes()
    flags = data[at + 5]
    assert data[at : at + 5] == b"OHDR\2"
    # Without times and limits for attributes, the size of the messages comes next, and then the messages.
    assert not flags & 0b110000
    start = at + 6 + (1 << (flags & 0b11))
    prefix_nbytes = 6 if flags & 0b100 else 4
    while data[start] != 8:
        start += prefix_nbytes + int.from_bytes(data[start + 1 : start + 3], "little")
    return data[start + prefix_nbytes]


def read_plain_layout(folder: Path) -> np.ndarray:
    """Return the values of an array whose shards are files, from the specifications alone: no zarr, no parts_store."""
    document = json.loads((folder / "zarr.json").read_text())
    (sharding,) = document["codecs"]
    inner = sharding["configuration"]
    transformers = document.get("storage_transformers")
    parts = transformers[0]["configuration"]["parts"] if transformers else [{"key_suffix": ""}]
    suffixes = [part["key_suffix"] for part in parts]
    shape, chunk = document["shape"], inner["chunk_shape"]
    shard = document["chunk_grid"]["configuration"]["chunk_shape"]
    endian = inner["codecs"][0].get("configuration", {}).get("endian", "little")
    dtype = np.dtype(document["data_type"]).newbyteorder("<" if endian == "little" else ">")
    values = np.full(shape, np.array(fill_of(document), dtype), dtype)
    grid = [a // b for a, b in zip(shard, chunk, strict=True)]
    for at in np.ndindex(*[-(-a // b) for a, b in zip(shape, shard, strict=True)]):
        paths = [folder / ("c/" + "/".join(map(str, at)) + suffix) for suffix in suffixes]
        if not paths[0].exists():
            continue
        data = b"".join(path.read_bytes() for path in paths)
        index = np.frombuffer(data[-math.prod(grid) * 16 - 4 : -4], "<u8").reshape(-1, 2).tolist()
        for (start, nbytes), position in zip(index, np.ndindex(*grid), strict=True):
            if start == 2**64 - 1:
                continue
            block = np.frombuffer(decoded(data[start : start + nbytes], inner["codecs"][1:]), dtype).reshape(chunk)
            first = [a * s + p * c for a, s, p, c in zip(at, shard, position, chunk, strict=True)]
            target = values[tuple(slice(f, f + c) for f, c in zip(first, chunk, strict=True))]
            target[...] = block[tuple(slice(n) for n in target.shape)]
    return values


def fill_of(document: dict[str, Any]) -> Any:
    fill = document["fill_value"]
    if isinstance(fill, list):
        return complex(*map(float, fill))
    return float(fill) if isinstance(fill, str) else fill


def decoded(data: bytes, codecs: list[dict[str, Any]]) -> bytes:
    for codec in reversed(codecs):
        match codec["name"]:
            case "numcodecs.zlib":
                data = zlib.decompress(data)
            case "zstd":
                data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
            case "numcodecs.fletcher32":
                data = data[:-4]
            case "numcodecs.shuffle":
                size = codec["configuration"]["elementsize"]
                data = np.frombuffer(data, np.uint8).reshape(size, -1).T.tobytes()
    return data
