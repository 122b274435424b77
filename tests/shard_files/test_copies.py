"""The inner chunks of a shard are stored as a file without a copy, and what is around them is made once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import tifffile
import zarr
from obstore.store import LocalStore
from zarr.core.buffer import cpu

import parts_store as ps
from parts_store.backends import local_files
from parts_store.format.layout import pieces_of
from tests.s3_server import S3Server
from tests.shard_files import forms, readers

FORMATS = ("tiff", "hdf5")
LAYOUT: dict[str, Any] = {"shape": (64, 64), "chunks": (16, 16), "shards": (32, 32), "dtype": "uint16"}
COMPRESSORS: dict[str, Any] = {
    "none": None,
    "zlib": zarr.codecs.numcodecs.Zlib(level=1),
    "zstd": zarr.codecs.ZstdCodec(),
}
# 16 bytes for each inner chunk, and a checksum.
INDEX_NBYTES = 4 * 16 + 4


def shards(compressor: Any) -> dict[str, np.ndarray]:
    """Return the shards of an array as zarr encodes them."""
    store: dict[str, Any] = {}
    zarr.create_array(store, compressors=compressor, **LAYOUT)[...] = values()
    return {key: value.as_numpy_array() for key, value in store.items() if key.startswith("c/")}


def values() -> np.ndarray:
    return np.random.default_rng(1).integers(1, 9, (64, 64)).astype("uint16")


def address(data: Any) -> int:
    """Return where bytes are in the memory."""
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def keep(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, written: list[Any], argument: int) -> None:
    """Keep what a function is given that writes an object or a file."""
    original: Callable[..., Any] = getattr(module, name)

    def call(*args: Any, **options: Any) -> Any:
        written.append(args[argument])
        return original(*args, **options)

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize("codec", COMPRESSORS)
@pytest.mark.parametrize("shard_file", FORMATS)
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("place", ["disk", "server"])
def test_the_encoded_inner_chunks_are_written_without_a_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, form: str, shard_file: Any, codec: str
) -> None:
    encoded = shards(COMPRESSORS[codec])
    written: list[Any] = []
    with S3Server() as server:
        store = ps.PartsStore(LocalStore(tmp_path) if place == "disk" else server.store())
        forms.create(store, "a", form, shard_file, compressors=COMPRESSORS[codec], **LAYOUT)
        if place == "disk":
            keep(monkeypatch, local_files, "write_new", written, 2)
        else:
            keep(monkeypatch, obstore, "put", written, 2)
        for key, shard in encoded.items():
            written.clear()
            store.set_sync(f"a/{key}", cpu.Buffer.from_array_like(shard))
            # A file has no gaps between its inner chunks, which are in the shard in their order.
            pieces = [piece for data in written for piece in (data if isinstance(data, list) else pieces_of(data))]
            found = {address(piece): piece.nbytes for piece in pieces if piece.nbytes}
            assert found[address(shard)] == shard.nbytes - INDEX_NBYTES
        np.testing.assert_array_equal(ps.open_array(store, "a")[...], values())


def described(path: Path, shard_file: str) -> tuple[str, float]:
    """Return the name of the dataset, and the size of a pixel, as the file says them."""
    if shard_file == "hdf5":
        name, _, attributes = readers.read_h5py(path)
        return name, float(attributes["pixel_size"])
    with tifffile.TiffFile(path) as file:
        pixels, units = file.pages.first.tags["XResolution"].value
        return "", units / pixels


@pytest.mark.parametrize("shard_file", FORMATS)
def test_files_of_arrays_with_the_same_shards_describe_their_own_array(tmp_path: Path, shard_file: Any) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    # The indexes of their shards are the same, and what is around the inner chunks is remembered by the index.
    for name, size, width in (("a", 0.5, 64), ("b", 0.5, 64), ("c", 0.25, 64), ("d", 0.5, 40), ("a2", 0.5, 64)):
        layout = LAYOUT | {"shape": (64, width), "compressors": None, "attributes": {"pixel_size": size}}
        ps.create_array(store, name, shard_file=shard_file, **layout)[...] = values()[:, :width]
        for row, column in np.ndindex(2, 2):
            path = tmp_path / name / "c" / str(row) / str(column)
            expected = values()[32 * row : 32 * row + 32, 32 * column : min(32 * column + 32, width)]
            images = readers.read_file(path)
            np.testing.assert_array_equal(images, expected)
            assert described(path, shard_file) == (name if shard_file == "hdf5" else "", size)
