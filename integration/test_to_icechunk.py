"""Virtual datasets of files on a real S3 server: written in shards of several files, appended, and read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from integration.test_adoption import repository
from parts_store.errors import LocationError, SessionError
from tests.virtual import raw_files

MONTHS = [31, 28, 31, 30]
VALUES = np.arange(sum(MONTHS) * 8, dtype="<i4").reshape(-1, 8)


def month(bucket: Bucket, folder: Path, number: int) -> xr.Dataset:
    """Upload a month of values; return references to the object, with its ETag."""
    first = sum(MONTHS[:number])
    name = f"{number}.raw"
    array = raw_files.write(folder, name, VALUES[first : first + MONTHS[number]], (1, 2))
    location = f"s3://{bucket.name}/files/{name}"
    uploaded = bucket.client.fput_object(bucket.name, f"files/{name}", str(folder / name))
    moved = {str(key): {**entry, "path": location} for key, entry in array.manifests[0].dict().items()}
    on_s3 = ps.manifests.PartsArray(array.metadata, [moved], checksums={location: f'"{uploaded.etag}"'})
    return raw_files.dataset(on_s3, first=first)


def write_months(bucket: Bucket, folder: Path) -> None:
    """Write three months at once, and append the fourth one in another commit."""
    months = [month(bucket, folder, number) for number in range(len(MONTHS))]
    joined = xr.concat(months[:3], "time", coords="minimal", compat="override", join="override")
    for source, append_dim in ((joined, None), (months[3], "time")):
        session = repository(bucket).writable_session("main")
        report = ps.to_icechunk(source, session, append_dim=append_dim, shard_chunks=4095)
        session.commit("written")
    assert report.arrays[-1].plan == "appended: 2 shards new, 1 shard continued"


def test_reads_of_shards_of_several_files_take_one_request_for_each_file(bucket: Bucket, tmp_path: Path) -> None:
    write_months(bucket, tmp_path)
    # The indexes are in manifests, and the fourth shard is in the third and the fourth file.
    assert not [key for key in bucket.list_keys() if key.startswith("repo/chunks/")]
    with CountingProxy(bucket.server.endpoint) as proxy:
        behind = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
        store = ps.PartsStore.from_session(
            repository(Bucket(bucket.name, behind, bucket.client)).readonly_session("main")
        )
        array: Any = zarr.open_array(store, path="t", mode="r")
        for selection, files in (
            (np.s_[70:71, :2], ["files/2.raw"]),
            (np.s_[90:91, :2], ["files/3.raw"]),
            (np.s_[89:91], ["files/2.raw", "files/3.raw"]),
            (np.s_[69:92], ["files/2.raw", "files/3.raw"]),
            (np.s_[:], ["files/0.raw"] * 2 + ["files/1.raw"] * 2 + ["files/2.raw"] * 2 + ["files/3.raw"] * 3),
        ):
            proxy.requests.clear()
            assert np.array_equal(array[selection], VALUES[selection])
            assert sorted(each.key for each in proxy.requests if each.key.startswith("files/")) == files, selection


def test_changed_file_is_never_misread_or_cut_again(bucket: Bucket, tmp_path: Path) -> None:
    write_months(bucket, tmp_path)
    changed = bytearray((tmp_path / "2.raw").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "2.raw").write_bytes(changed)
    bucket.client.fput_object(bucket.name, "files/2.raw", str(tmp_path / "2.raw"))
    session = repository(bucket).writable_session("main")
    array: Any = zarr.open_array(ps.PartsStore.from_session(session), path="t", mode="r")
    assert np.array_equal(array[:30], VALUES[:30])
    with pytest.raises(SessionError):
        array[60:62]
    new = month(bucket, tmp_path, 0)
    with pytest.raises(LocationError, match="unchanged"):
        ps.to_icechunk(new, session, region={"time": slice(0, 31)})
    assert not session.has_uncommitted_changes
