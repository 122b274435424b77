"""A copy of an archive of many files has the values of the files, and needs them no more."""

import concurrent.futures
import json
from itertools import accumulate, product
from pathlib import Path

import numpy as np
import obstore
import pytest
import xarray as xr
from obstore.store import MemoryStore

import parts_store as ps
from tests.copying.places import new_place, objects_in
from tests.virtual.adopting import repository, settle


def write_month(file: Path, first: int, days: int) -> Path:
    """Write a file of some days, whose chunks are too large to be loaded."""
    values = np.random.default_rng(first).integers(1, 30_000, (days, 32, 64)).astype("int16")
    time = np.datetime64("2026-01-01", "ns") + np.arange(first, first + days) * np.timedelta64(1, "D")
    dataset = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": time})
    dataset.to_netcdf(file, engine="h5netcdf", encoding={"t": {"chunksizes": (1, 16, 64), "zlib": True}})
    settle(file)
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "has_executor"), [("memory", False), ("disk", False), ("disk", True), ("session", False)]
)
def test_copy_of_shards_of_several_files_has_their_values(tmp_path: Path, kind: str, has_executor: bool) -> None:
    (months := tmp_path / "months").mkdir()
    lengths = (31, 28, 31, 30)
    files = [write_month(months / f"{at}.nc", sum(lengths[:at]), days) for at, days in enumerate(lengths)]
    session = repository(months).writable_session("main")
    ps.adopt(files[:3], into=session, concat_dim="time", shard_chunks=4095)
    ps.adopt(files[3], into=session, append_dim="time")
    source = ps.PartsStore.from_session(session)
    parts = source.parts_of("t")
    assert parts is not None
    assert len(parts.unsized) > 1
    expected = xr.open_mfdataset(files, engine="h5netcdf", combine="nested", concat_dim="time").load()

    place = new_place(kind, tmp_path)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        ps.copy(source, place.store, executor=threads if has_executor else None)
    for file in files:
        file.unlink()
    xr.testing.assert_identical(xr.open_zarr(place.store, consolidated=False).load(), expected)
    assert place.store.parts_of("t") == ps.ConcatParts(["", ps.Part(".index", size=parts.sizes[-1])])
    assert not place.store.verify().is_damaged
    # The copy can be written, and be copied again.
    array = ps.open_array(place.store, "t", mode="r+")
    array[5:7, 1] = 3
    again = ps.PartsStore.from_url("memory://")
    ps.copy(place.store, again)
    found = ps.open_array(again, "t", mode="r")
    assert np.array_equal(found[:], array[:])
    assert np.all(found[5:7, 1] == 3)


@pytest.mark.slow
def test_copy_of_parts_of_any_size_has_the_same_bytes() -> None:
    values = np.arange(1, 13, dtype="uint8")
    lists = [sizes for count in (2, 3, 4) for sizes in product((None, 1, 2), repeat=count) if None in sizes]
    for sizes in lists:
        named = zip((".a", "", ".b", ".c"), sizes, strict=False)
        parts = ps.ConcatParts([ps.Part(suffix, size=size) for suffix, size in named])
        source = MemoryStore()
        ps.create_array(ps.PartsStore(source), parts=[""], shape=(12,), chunks=(12,), dtype="uint8", compressors=None)
        stored = json.loads(objects_in(source)["zarr.json"]) | {"storage_transformers": [parts.to_json()]}
        obstore.put(source, "zarr.json", json.dumps(stored).encode())
        # The last part without a size has all bytes that the other parts do not need.
        lengths = [3 if size is None else size for size in sizes]
        last = max(number for number, size in enumerate(sizes) if size is None)
        lengths[last] += 12 - sum(lengths)
        for part, stop, length in zip(parts.parts, accumulate(lengths), lengths, strict=True):
            obstore.put(source, f"c/0{part.key_suffix}", values[stop - length : stop].tobytes())
        copied = ps.PartsStore.from_url("memory://")
        ps.copy(ps.PartsStore(source), copied)
        array = ps.open_array(copied, mode="r+")
        assert np.array_equal(array[:], values), sizes
        found = copied.parts_of("")
        assert found is not None
        assert len(found.unsized) == 1
        assert (found == parts) == (sizes.count(None) == 1)
        array[3] = 99
        assert np.array_equal(array[2:5], [3, 99, 5])
