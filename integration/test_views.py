"""Views in a bucket: GDAL reads a whole array from S3 through one VRT, and a folder of files can be downloaded."""

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import zarr
from rasterio.errors import NotGeoreferencedWarning

import parts_store as ps
from integration.conftest import Bucket

VALUES = np.random.default_rng(1).integers(1, 60000, (3, 40, 50)).astype("uint16")


@pytest.mark.parametrize("prefix", ["", "some folder/"])
def test_gdal_reads_a_whole_array_from_s3(prefix: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ps.PartsStore(bucket.store(prefix.rstrip("/") or None))
    array = ps.create_array(
        store,
        "group/a",
        shard_file="tiff",
        shape=VALUES.shape,
        chunks=(1, 16, 16),
        shards=(2, 32, 32),
        dtype="uint16",
    )
    array[...] = VALUES
    assert ps.write_view(store, "group/a", format="vrt") == "group/a.vrt"
    server = bucket.server
    options = {
        "AWS_S3_ENDPOINT": server.endpoint.partition("://")[2].rstrip("/"),
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
    }
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(f"/vsis3/{bucket.name}/{prefix}group/a.vrt") as file:
            np.testing.assert_array_equal(file.read(), VALUES)
    del zarr.open_group(store, path="group")["a"]
    assert bucket.list_keys() == {f"{prefix}zarr.json", f"{prefix}group/zarr.json"}


def test_a_virtual_dataset_is_read_after_a_download(bucket: Bucket, tmp_path: Path) -> None:
    store = ps.PartsStore(bucket.store())
    array = ps.create_array(
        store, "a", shard_file="hdf5", shape=VALUES.shape, chunks=(1, 16, 16), shards=(2, 32, 32), dtype="uint16"
    )
    array[...] = VALUES
    ps.write_view(store, "a", format="hdf5")
    for key in bucket.list_keys():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(bucket.read(key))
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["a"][...], VALUES)
