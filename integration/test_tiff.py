"""TIFF files on a real S3 server: how many requests it takes to adopt one, and to read a tile of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from integration.test_adoption import repository, upload
from parts_store.virtual.adopt import adopt
from tests.virtual.parsers.tiff.test_several_files import NAMES, VALUES, write_all

FILE = "files/a.tif"
# More than 64 tiles become shards, others are references. Strips, the last of which is short, are never in shards.
LAYOUTS: dict[str, dict[str, Any]] = {
    "shards": {"tile": (64, 64), "compression": "zlib"},
    "lzw in shards": {"tile": (64, 64), "compression": "lzw", "predictor": True},
    "references": {"tile": (256, 256), "compression": "zstd"},
    "strips": {"rowsperstrip": 30, "compression": "zlib"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_random_tile_takes_one_request_once_the_index_is_known(bucket: Bucket, tmp_path: Path, layout: str) -> None:
    values = np.random.default_rng(3).integers(0, 1000, (1000, 1000)).astype("u2")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values, **LAYOUTS[layout])
    with CountingProxy(bucket.server.endpoint) as proxy:
        behind = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
        repo = repository(Bucket(bucket.name, behind, bucket.client))
        session = repo.writable_session("main")
        upload(bucket, path, FILE)
        proxy.requests.clear()
        shards: Any = {"shard_chunks": 4095} if "shards" in layout else {}
        report = adopt(f"s3://{bucket.name}/{FILE}", into=session, strict=True, **shards, **behind.options)
        # The size of the file before and after, and blocks of it.
        asked = [each for each in proxy.requests if each.key == FILE]
        assert len(asked) <= 2 + path.stat().st_size // (1 << 20) + 1
        session.commit("adopted")
        assert ("shards" in layout) == (report.references < report.arrays[0].chunks // 8)
        store = ps.PartsStore.from_session(repo.readonly_session("main"))
        array: Any = zarr.open_array(store, path="data", mode="r")
        assert array[500, 500] == values[500, 500]
        for y, x in np.random.default_rng(4).integers(0, 960, (20, 2)).tolist():
            proxy.requests.clear()
            assert array[y, x] == values[y, x]
            assert [each.key for each in proxy.requests] == [FILE], (y, x)


def test_an_ome_tiff_image_in_several_files_is_one_array(bucket: Bucket, tmp_path: Path) -> None:
    for file in write_all(tmp_path, {"tile": (16, 16), "compression": "zlib"}):
        upload(bucket, file, f"files/{file.name}")
    repo = repository(bucket)
    session = repo.writable_session("main")
    report = adopt(f"s3://{bucket.name}/files/{NAMES[1]}", into=session, strict=True, **bucket.server.options)
    session.commit("adopted")
    assert [array.path for array in report.arrays] == ["data"]
    store = ps.PartsStore.from_session(repo.readonly_session("main"))
    found: Any = zarr.open_array(store, path="data", mode="r")
    np.testing.assert_array_equal(found[...], VALUES)
