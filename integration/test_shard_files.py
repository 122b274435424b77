"""Shards that are TIFF and HDF5 files on a real S3 server: written, copied, and changed by other programs."""

import io
from collections.abc import Buffer
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from integration.conftest import Bucket
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Done, Put
from parts_store.format.layout import BufferChain
from tests.shard_files import edits, forms

READS = {"stored": edits.STORED, "part": np.s_[20:22, 30:34], "hole": edits.HOLE, "whole": edits.SHARD}
CASES = [
    pytest.param(shard_file, compression, edit, id=f"{shard_file}-{compression}-{name}")
    for shard_file, known in edits.EDITS.items()
    for compression in ("none", "zstd")
    for name, edit in known.items()
]


def create(bucket: Bucket, form: str, shard_file: Any, compression: str) -> zarr.Array[Any]:
    """Create an array whose first shard has a missing inner chunk, and read it, so that its index is in memory."""
    store = ps.PartsStore(bucket.store())
    forms.create(store, "a", form, shard_file, **edits.arguments(compression))
    array = zarr.open_array(store, path="a", mode="r+")
    array[...] = edits.values()
    for selection in READS.values():
        np.testing.assert_array_equal(array[selection], edits.values()[selection])
    return array


def put(bucket: Bucket, key: str, data: bytes, metadata: Any = None) -> None:
    bucket.client.put_object(bucket.name, key, io.BytesIO(data), len(data), metadata=metadata)


def remove_tags(bucket: Bucket, keys: list[str]) -> None:
    """Store objects again as a program does that knows nothing of their user metadata."""
    for key in keys:
        put(bucket, key, bucket.read(key))


def change(bucket: Bucket, key: str, edit: edits.Edit, folder: Path, metadata: Any = None) -> Path:
    """Change an object as other programs do: as a file, which is stored again."""
    path = folder / Path(key).name
    path.write_bytes(bucket.read(key))
    edit(path)
    put(bucket, key, path.read_bytes(), metadata)
    return path


def require_noticed(array: zarr.Array[Any], expected: np.ndarray | None, key: str) -> None:
    """Raise unless each read names the file, or finds what the program of the format finds."""
    for selection in READS.values():
        try:
            found = array[selection]
        except ps.errors.PartsStoreError as error:
            assert key in str(error), error  # noqa: PT017 - both outcomes are right
        else:
            assert expected is not None
            np.testing.assert_array_equal(found, expected[selection])


@pytest.mark.sampled(60, usual=7)
@pytest.mark.parametrize(("shard_file", "compression", "edit"), CASES)
@pytest.mark.parametrize(("form", "has_tags"), [("parts", True), ("parts", False), ("object", False)])
def test_changed_object_is_noticed_or_read_as_its_program_reads_it(
    bucket: Bucket, tmp_path: Path, form: str, shard_file: str, compression: str, edit: edits.Edit, has_tags: bool
) -> None:
    read_before = create(bucket, form, shard_file, compression)
    key = f"a/c/0/0{forms.extension(form, shard_file)}"
    keys = [key, "a/c/0/0.index"] if form == "parts" else [key]
    if not has_tags:
        remove_tags(bucket, keys)
        for selection in READS.values():
            np.testing.assert_array_equal(read_before[selection], edits.values()[selection])
    path = change(bucket, key, edit, tmp_path)
    stored = {each: bucket.read(each) for each in keys}
    opened = zarr.open_array(ps.PartsStore(bucket.store()), path="a", mode="r+")
    for array in (read_before, opened):
        require_noticed(array, edits.read(path, shard_file), key)
    if has_tags or compression != "none":
        with pytest.raises(ps.errors.PartsStoreError, match=key):
            opened[33:35, 33:35] = 1
        assert {each: bucket.read(each) for each in stored} == stored
    opened[edits.SHARD] = 5
    np.testing.assert_array_equal(read_before[edits.SHARD], np.full((64, 64), 5, "uint16"))


@pytest.mark.parametrize("name", edits.TIFF)
@pytest.mark.parametrize("compression", ["none", "deflate", "zstd"])
def test_change_that_keeps_the_tag_is_noticed_where_the_shard_is_read_whole(
    bucket: Bucket, tmp_path: Path, name: str, compression: str
) -> None:
    array = create(bucket, "parts", "tiff", compression)
    tags = bucket.client.stat_object(bucket.name, "a/c/0/0.tif").metadata or {}
    kept = {key: value for key, value in tags.items() if key.lower().startswith("x-amz-meta-")}
    assert kept
    path = change(bucket, "a/c/0/0.tif", edits.TIFF[name], tmp_path, kept)
    expected = edits.read(path, "tiff")
    try:
        found = np.asarray(array[...])
    except ps.errors.PartsStoreError as error:
        assert "a/c/0/0" in str(error)  # noqa: PT017 - both outcomes are right
        with pytest.raises(ps.errors.PartsStoreError, match="a/c/0/0"):
            array[33:35, 33:35] = 1
    else:
        assert expected is not None
        np.testing.assert_array_equal(found[edits.SHARD], expected)


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("shard_file", forms.EXTENSIONS)
def test_files_are_written_by_many_clients_and_published_by_copies(
    bucket: Bucket, tmp_path: Path, form: str, shard_file: Any, pipeline: str
) -> None:
    store = ps.PartsStore(bucket.store("one"))
    layout: dict[str, Any] = {
        "shape": (64, 96),
        "chunks": (16, 16),
        "shards": (32, 48),
        "dtype": "int32",
        "fill_value": -3,
    }
    forms.create(store, "a", form, shard_file, **layout)
    extension = forms.extension(form, shard_file)
    regions = [np.s_[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] for row, column in np.ndindex(4, 6)]
    expected = np.full((64, 96), -3, "int32")

    def write(number: int) -> None:
        client = ps.PartsStore(bucket.store("one"))
        zarr.open_array(client, path="a", mode="r+")[regions[number]] = number

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(len(regions))))
    for number, region in enumerate(regions):
        expected[region] = number
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], expected)
    ps.copy(store, ps.PartsStore.from_url(str(tmp_path)))
    ps.copy(ps.PartsStore.from_url(str(tmp_path)), ps.PartsStore(bucket.store("two")))
    for row, column in np.ndindex(2, 2):
        for suffix in (extension, ".index") if form == "parts" else ("",):
            name = f"a/c/{row}/{column}{suffix}"
            data = (tmp_path / name).read_bytes()
            assert data == bucket.read(f"one/{name}") == bucket.read(f"two/{name}")
        part = expected[row * 32 : row * 32 + 32, column * 48 : column * 48 + 48]
        path = tmp_path / "a" / "c" / str(row) / f"{column}{extension}"
        np.testing.assert_array_equal(edits.read(path, shard_file), part)
    assert store.verify().is_clean


@pytest.mark.parametrize("nbytes", [0, 5 << 20, (5 << 20) + 1, 11 << 20])
def test_an_object_in_several_buffers_is_the_same_as_in_one(bucket: Bucket, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).bytes(nbytes)
    backend = ObjectBackend(bucket.store())
    view = memoryview(data)
    chain = BufferChain((view[:16], view[16 : 9 << 20], view[9 << 20 :]))
    both: dict[str, Buffer] = {"one": data, "several": chain}
    for key, value in both.items():
        assert backend.perform_sync(Put(key, value, None, None, "test")) == Done()
        assert bucket.read(key) == data
    # The ETag of an object that was uploaded in parts has their number.
    etags = {str(bucket.client.stat_object(bucket.name, key).etag) for key in ("one", "several")}
    assert len(etags) == 1
    parts = -(-nbytes // (5 << 20))
    assert etags.pop().endswith(f"-{parts}") == (parts > 1)
