"""Chunks on S3 that other programs open: written by zarr on MinIO, fetched by MinIO's own client."""

import io
from typing import Any

import dask.array
import numpy as np
import pytest
import tifffile
import zarr
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from obstore.exceptions import PermissionDeniedError
from PIL import Image
from zarr.codecs import ZstdCodec
from zarr.storage import ObjectStore

from integration.conftest import Bucket
from integration.server import Server
from parts_store.codecs import bind_padding, offset_codec, pad_codec
from parts_store.errors import UnboundPaddingError
from parts_store.headers import TiffHeader, tiff

VALUES: NDArray[Any] = np.arange(512 * 512, dtype=np.uint32).astype(np.uint16).reshape(512, 512)
HEADER = TiffHeader((256, 256), dtype="uint16", compression="zstd")


def tile(key: str) -> NDArray[Any]:
    row, column = (int(number) for number in key.split("/")[-2:])
    return VALUES[256 * row : 256 * row + 256, 256 * column : 256 * column + 256]


def create(store: ObjectStore[Any], *codecs: Any) -> zarr.Array[Any]:
    return zarr.create_array(store, shape=(512, 512), chunks=(256, 256), dtype="uint16", compressors=codecs)


def test_every_object_of_an_array_on_s3_is_a_tiff_file(bucket: Bucket) -> None:
    header = tiff((256, 256), dtype="uint16")
    store = ObjectStore(bucket.store("image.zarr"))
    create(store, pad_codec(len(header), padding=header))[...] = VALUES
    assert bucket.list_keys() == {
        "image.zarr/zarr.json",
        *(f"image.zarr/c/{i}/{j}" for i in range(2) for j in range(2)),
    }
    for key in bucket.list_keys() - {"image.zarr/zarr.json"}:
        file = bucket.read(key)
        np.testing.assert_array_equal(tifffile.imread(io.BytesIO(file)), tile(key))
        with Image.open(io.BytesIO(file)) as image:
            np.testing.assert_array_equal(np.asarray(image), tile(key))
    np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES)


def test_dask_workers_write_compressed_tiff_files_to_s3(bucket: Bucket) -> None:
    store = ObjectStore(bucket.store())
    create(store, ZstdCodec(level=1), offset_codec(HEADER.nbytes, prefix_func=HEADER))
    array = bind_padding(zarr.open_array(store), HEADER)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        dask.array.store(dask.array.from_array(VALUES, chunks=(256, 256)), array, lock=False)
    for key in bucket.list_keys() - {"zarr.json"}:
        np.testing.assert_array_equal(tifffile.imread(io.BytesIO(bucket.read(key))), tile(key))
    np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES)


def test_a_refused_write_leaves_every_object_as_it_was(bucket: Bucket, reader: Server) -> None:
    store = ObjectStore(bucket.store())
    # A function that `zarr.json` does not name, as it names a `TiffHeader`.
    create(store, ZstdCodec(level=1), pad_codec(HEADER.nbytes, padding_func=HEADER.__call__))[...] = VALUES
    before = {key: bucket.read(key) for key in bucket.list_keys()}

    with pytest.raises(UnboundPaddingError):
        zarr.open_array(store)[0, 0] = 1

    as_reader = zarr.open_array(ObjectStore(bucket.store(user=reader)))
    np.testing.assert_array_equal(as_reader[...], VALUES)
    with pytest.raises(PermissionDeniedError):
        bind_padding(as_reader, HEADER)[0, 0] = 1

    assert {key: bucket.read(key) for key in bucket.list_keys()} == before
