"""A shard whose data was cut off is never read: its index names more bytes than there are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import PartsStoreError
from tests.conftest import PIPELINES

VALUES = np.arange(1, 257, dtype="uint16").reshape(16, 16)
PARTS = {
    "index last": [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)],
    "header first": [ps.Part(".header", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)],
}


def create(folder: Path, parts: Any, compressors: Any = None) -> Path:
    store = ps.PartsStore.from_url(folder)
    layout: Any = {"shape": (16, 16), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint16"}
    ps.create_array(store, "a", parts=parts, compressors=compressors, **layout)[:] = VALUES
    return folder / "a/c/0/0"


def block(row: int, column: int) -> tuple[slice, slice]:
    return slice(row * 4, row * 4 + 4), slice(column * 4, column * 4 + 4)


def is_there(selection: Any, index: bytes, nbytes: int) -> bool:
    """Return whether an inner chunk is among the first bytes of a shard."""
    if isinstance(selection, slice):
        return False
    start, length = np.frombuffer(index[:-4], "<u8").reshape(4, 4, 2)[selection].tolist()
    return bool(start + length <= nbytes)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", sorted(PIPELINES))
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_no_read_returns_values_of_a_shard_that_was_cut_off(tmp_path: Path, parts: Any, pipeline: str) -> None:
    file = create(tmp_path, parts)
    whole = file.read_bytes()
    index = file.with_name("0.index").read_bytes()
    header_nbytes = 8 if len(parts) == 3 else 0
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        opened = zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a")
        assert opened[15, 15] == VALUES[15, 15]
        for nbytes in (*range(0, len(whole), 31), len(whole) - 1):
            file.write_bytes(whole[:nbytes])
            # One store has the index in its cache, and the other one has not.
            for array in (opened, zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a")):
                for selection in (np.s_[:], *np.ndindex(4, 4)):
                    region = selection if isinstance(selection, slice) else block(*selection)
                    if is_there(selection, index, header_nbytes + nbytes):
                        np.testing.assert_array_equal(array[region], VALUES[region])
                    else:
                        with pytest.raises(PartsStoreError, match="a/c/0/0"):
                            array[region]
            assert ps.PartsStore.from_url(tmp_path).verify().is_damaged


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_bytes_behind_the_data_do_no_harm(tmp_path: Path, parts: Any) -> None:
    file = create(tmp_path, parts)
    whole = file.read_bytes()
    file.write_bytes(whole + b"more")
    store = ps.PartsStore.from_url(tmp_path)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:], VALUES)
    assert not store.verify().is_damaged


def test_partial_write_to_a_shard_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    file = create(tmp_path, PARTS["index last"])
    file.write_bytes(file.read_bytes()[:-40])
    before = file.read_bytes()
    array = zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a")
    with pytest.raises(PartsStoreError, match="a/c/0/0"):
        array[0, 0] = 5
    assert file.read_bytes() == before
    array[:] = VALUES
    np.testing.assert_array_equal(array[:], VALUES)
