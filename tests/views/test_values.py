"""A view shows the whole array: the values of zarr where shards exist, and the fill value elsewhere."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import parts_store as ps
from parts_store.views.sources import Excerpt, FileContent, read_tiff
from tests.shard_files.test_files import Case, hdf5_cases, tiff_cases
from tests.views import readers


def samples_of(array: zarr.Array[Any]) -> int:
    is_rgb = array.ndim > 2 and array.shape[-1] in (3, 4) and array.chunks[-1] == array.shape[-1]
    return array.shape[-1] if is_rgb else 1


def images_of(array: zarr.Array[Any], values: np.ndarray) -> np.ndarray:
    """Return the values as one image after the other."""
    axes = 2 if samples_of(array) == 1 else 3
    return values.reshape(-1, *values.shape[values.ndim - axes :])


@contextmanager
def written(case: Case, view: Literal["vrt", "hdf5"]) -> Iterator[tuple[zarr.Array[Any], np.ndarray, Path]]:
    """Write an array and its view, move the folder, and yield the array, its values and the path of the view."""
    with tempfile.TemporaryDirectory() as name:
        store = ps.PartsStore.from_url(Path(name) / "before")
        array = case.create(store)
        expected = case.carry_out(array)
        assert ps.write_view(store, "group/picture", format=view) == f"group/picture.{view.replace('hdf5', 'h5')}"
        moved = (Path(name) / "before").rename(Path(name) / "after, moved")
        yield array, expected, moved / "group" / f"picture.{view.replace('hdf5', 'h5')}"


@given(tiff_cases())
def test_gdal_reads_the_whole_array_from_a_vrt(case: Case) -> None:
    with written(case, "vrt") as (array, expected, path):
        found = readers.read_gdal(path, samples_of(array))
        np.testing.assert_array_equal(found, images_of(array, expected))


@given(hdf5_cases())
def test_h5py_reads_the_whole_array_from_a_virtual_dataset(case: Case) -> None:
    with written(case, "hdf5") as (_, expected, path):
        found = readers.read_h5py(path, "picture")
        np.testing.assert_array_equal(found, expected)
        assert found.dtype.kind == expected.dtype.kind
        with xr.open_dataset(path, engine="h5netcdf", phony_dims="sort", decode_cf=False) as dataset:
            np.testing.assert_array_equal(dataset["picture"].values, expected)
            assert dataset["picture"].attrs == {"units": "K", "scale": 0.5}


@given(
    st.lists(
        st.tuples(st.sampled_from("tcz"), st.integers(1, 3), st.integers(1, 3)),
        max_size=3,
        unique_by=lambda axis: axis[0],
    ),
    st.sampled_from([(), (3,)]),
    st.sets(st.integers(0, 26)),
)
def test_tifffile_reads_the_whole_array_from_ome_xml(
    leading: list[tuple[str, int, int]], colours: tuple[int, ...], missing: set[int]
) -> None:
    names = [name for name, _, _ in leading]
    if "c" in names:
        colours = ()
    shape = (*(length for _, length, _ in leading), 40, 50, *colours)
    shards = (*(shard for _, _, shard in leading), 48, 64, *colours)
    with tempfile.TemporaryDirectory() as name:
        store = ps.PartsStore.from_url(name)
        array = ps.create_array(
            store,
            "group/picture",
            shard_file="tiff",
            shape=shape,
            chunks=(*(1 for _ in leading), 16, 16, *colours),
            shards=shards,
            dtype="uint16",
            dimension_names=[*names, "y", "x", *("s" for _ in colours)],
        )
        expected = np.random.default_rng(1).integers(1, 1000, shape).astype("uint16")
        grid = [range(-(-length // shard)) for _, length, shard in leading]
        for number, at in enumerate(itertools.product(*grid)):
            if number and number in missing:
                expected[tuple(slice(i * n, i * n + n) for i, n in zip(at, shards, strict=False))] = 0
        array[...] = expected
        assert ps.write_view(store, "group/picture", format="ome") == "group/picture.companion.ome"
        (first, *_) = sorted(each for each in (Path(name) / "group/picture/c").rglob("*") if each.is_file())
        found = readers.read_tifffile(Path(name) / "group/picture.companion.ome", first)
        np.testing.assert_array_equal(found.reshape(shape), expected)


LAYOUTS: dict[str, dict[str, Any]] = {
    "tiff": {"shape": (2, 40, 50), "chunks": (1, 16, 16), "shards": (2, 32, 32), "dtype": "int16"},
    "hdf5": {"shape": (2, 40, 50), "chunks": (1, 16, 16), "shards": (2, 32, 32), "dtype": "int16"},
}
NAMES = ["a b", "ü", "a&b<c>", 'a"b', "a'b", "a#b", "a+b", "a,b", "c", "0", "a.b", "a=b", " a", "a ", "a%b", "%s"]


def read(folder: Path, shard_file: str, name: str) -> np.ndarray:
    if shard_file == "tiff":
        return readers.read_gdal(folder / f"{name}.vrt")
    return readers.read_h5py(folder / f"{name}.h5", name.rpartition("/")[2])


def write(store: ps.PartsStore, shard_file: str, name: str) -> str:
    return ps.write_view(store, name, format="vrt" if shard_file == "tiff" else "hdf5")


@pytest.mark.parametrize("shard_file", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_names_with_special_characters_are_found(
    shard_file: Literal["tiff", "hdf5"], name: str, tmp_path: Path
) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    path = f"group/{name}"
    array = ps.create_array(store, path, shard_file=shard_file, **LAYOUTS[shard_file])
    values = np.arange(1, 4001, dtype="int16").reshape(2, 40, 50)
    array[...] = values
    write(store, shard_file, path)
    np.testing.assert_array_equal(read(tmp_path, shard_file, path), values)


@pytest.mark.parametrize("shard_file", LAYOUTS)
@pytest.mark.parametrize("encoding", [("default", "."), ("v2", "."), ("v2", "/")])
def test_shards_are_found_with_every_chunk_key_encoding(
    shard_file: Literal["tiff", "hdf5"], encoding: tuple[Any, Any], tmp_path: Path
) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    key_encoding: Any = {"name": encoding[0], "separator": encoding[1]}
    array = ps.create_array(store, "a", shard_file=shard_file, chunk_key_encoding=key_encoding, **LAYOUTS[shard_file])
    values = np.arange(1, 4001, dtype="int16").reshape(2, 40, 50)
    array[...] = values
    write(store, shard_file, "a")
    np.testing.assert_array_equal(read(tmp_path, shard_file, "a"), values)


@pytest.mark.parametrize("shard_file", LAYOUTS)
def test_an_array_without_any_shard_is_all_fill_value(shard_file: Literal["tiff", "hdf5"], tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "a", shard_file=shard_file, fill_value=-5, **LAYOUTS[shard_file])
    write(store, shard_file, "a")
    np.testing.assert_array_equal(read(tmp_path, shard_file, "a"), np.full((2, 40, 50), -5))


@pytest.mark.parametrize("shard_file", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 33, 34), (2, 70, 90), (1, 40, 50), (5, 40, 50)])
def test_a_view_of_a_resized_array_shows_what_the_files_have(
    shard_file: Literal["tiff", "hdf5"], shape: tuple[int, ...], tmp_path: Path
) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", shard_file=shard_file, fill_value=9, **LAYOUTS[shard_file])
    array[...] = np.arange(1, 4001, dtype="int16").reshape(2, 40, 50)
    array.resize(shape)
    write(store, shard_file, "a")
    np.testing.assert_array_equal(read(tmp_path, shard_file, "a"), array[...])
    # With the shards written again, the files have the new shape.
    array[...] = np.arange(1, 1 + array.size, dtype="int16").reshape(shape)
    write(store, shard_file, "a")
    np.testing.assert_array_equal(read(tmp_path, shard_file, "a"), array[...])


@pytest.mark.parametrize("form", [{}, {"parts": [ps.Part(".tif"), ps.Part(".index", size=ps.SHARD_INDEX)]}])
@pytest.mark.parametrize("shape", [(4, 3, 16, 16), (3, 2, 16, 16), (1, 3, 16, 16), (4, 4, 16, 16)])
@pytest.mark.parametrize("chunks", [(1, 1, 16, 16), (1, 1, 4, 16)])
def test_images_along_two_axes_are_found_after_a_resize(
    chunks: tuple[int, ...], shape: tuple[int, ...], form: dict[str, Any], tmp_path: Path
) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(
        store, "a", shard_file="tiff", shape=(2, 3, 16, 16), chunks=chunks, shards=(4, 4, 16, 16), dtype="uint8", **form
    )
    # One image is not stored.
    values = np.repeat(np.arange(6, dtype="uint8"), 256).reshape(2, 3, 16, 16)
    array[...] = values
    # The file has 6 images, which could also be those of an array with 3 times 2 images.
    array.resize(shape)
    expected = np.zeros(shape, "uint8")
    rows, columns = min(2, shape[0]), min(3, shape[1])
    expected[:rows, :columns] = values[:rows, :columns]
    np.testing.assert_array_equal(array[...], expected)
    ps.write_view(store, "a", format="vrt")
    np.testing.assert_array_equal(readers.read_gdal(tmp_path / "a.vrt"), expected.reshape(-1, 16, 16))


@pytest.mark.parametrize("shape", [(2048, 2048), (3, 1024, 1024)])
def test_the_pixels_of_files_are_not_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    lengths = (1,) * (len(shape) - 2)
    array = ps.create_array(
        store,
        "a",
        shard_file="tiff",
        shape=shape,
        chunks=(*lengths, 64, 64),
        shards=(*shape[:-2], 1024, 1024),
        dtype="u1",
    )
    array[...] = np.random.default_rng(1).integers(0, 255, shape)
    shards = len([path for path in (tmp_path / "a/c").rglob("*") if path.is_file()])
    before = store.stats.get, store.stats.bytes_read
    ps.write_view(store, "a", format="vrt")
    # The array, its group and an older view; of each file, its start and its directories.
    assert store.stats.get - before[0] <= 3 + 2 * shards
    assert store.stats.bytes_read - before[1] < array.nbytes / 50


def test_a_file_that_is_written_again_between_two_requests_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    layout: Any = {"shape": (250, 256), "chunks": (16, 16), "shards": (256, 256), "dtype": "uint8"}
    array = ps.create_array(store, "a", shard_file="tiff", **layout)
    array[...] = np.random.default_rng(1).integers(0, 255, (250, 256))
    path, starts = tmp_path / "a/c/0/0", list[bytes]()

    def read(file: Excerpt, **arguments: bool) -> FileContent:
        starts.append(file.start)
        if len(starts) == 1:
            # The directory is elsewhere in the new file.
            writer = zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a", mode="r+")
            writer.resize((256, 256))
            writer[...] = np.random.default_rng(1).integers(0, 65, (256, 256))
        return read_tiff(file, **arguments)

    before = path.read_bytes()
    monkeypatch.setattr("parts_store.views.write.read_tiff", read)
    ps.write_view(store, "a", format="vrt")
    assert before.startswith(starts[0])
    assert path.read_bytes().startswith(starts[-1])
    # The file has more rows than the array that the view was asked for.
    assert 'RasterYSize="256"' in (tmp_path / "a.vrt").read_text()


def test_a_view_is_written_from_the_current_state(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", shard_file="tiff", **LAYOUTS["tiff"])
    array[0, :32, :32] = 1
    ps.write_view(store, "a", format="vrt")
    array[...] = 2
    assert readers.read_gdal(tmp_path / "a.vrt").max() == 2
    assert readers.read_gdal(tmp_path / "a.vrt").min() == 0, "a shard that was not there is not shown"
    # Another process changes the attributes.
    zarr.open_array(ps.PartsStore.from_url(tmp_path), path="a").attrs["units"] = "K"
    ps.write_view(store, "a", format="vrt")
    assert readers.read_gdal(tmp_path / "a.vrt").min() == 2
    assert "<UnitType>K</UnitType>" in (tmp_path / "a.vrt").read_text()


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        *(("float32", fill) for fill in (float("nan"), float("inf"), float("-inf"), -1.5, 1e-30, 0.1)),
        *(("int64", fill) for fill in (-(2**63), 2**63 - 1)),
        *(("uint64", 2**64 - 1), ("int8", -128), ("bool", True), ("complex64", 2.5), ("float16", 0.1)),
    ],
)
def test_the_fill_value_is_exact(dtype: str, fill: Any, tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    for shard_file in ("tiff", "hdf5"):
        array = ps.create_array(
            store,
            shard_file,
            shard_file=shard_file,
            shape=(40, 50),
            chunks=(16, 16),
            shards=(32, 32),
            dtype=dtype,
            fill_value=fill,
        )
        array[:32, :32] = 0
        write(store, shard_file, shard_file)
        np.testing.assert_array_equal(read(tmp_path, shard_file, shard_file).reshape(40, 50), array[...])


@pytest.mark.parametrize("shard_file", LAYOUTS)
def test_shards_whose_index_is_a_part_are_shown(shard_file: Literal["tiff", "hdf5"], tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    extension = {"tiff": ".tif", "hdf5": ".h5"}[shard_file]
    parts = [ps.Part(extension), ps.Part(".index", size=ps.SHARD_INDEX)]
    array = ps.create_array(store, "a", shard_file=shard_file, parts=parts, **LAYOUTS[shard_file], fill_value=3)
    values = np.arange(1, 4001, dtype="int16").reshape(2, 40, 50)
    values[:, :32, 32:] = 3
    array[...] = values
    # What a writer leaves that is killed between the parts is no shard.
    (tmp_path / f"a/c/0/1/1{extension}").rename(tmp_path / f"a/c/0/0/1{extension}")
    (tmp_path / "a/c/0/1/1.index").unlink()
    values[:, 32:, 32:] = 3
    key = write(store, shard_file, "a")
    np.testing.assert_array_equal(read(tmp_path, shard_file, "a"), values)
    new = ps.PartsStore.from_url(tmp_path)
    assert [name for name, _ in zarr.open_group(new).members()] == ["a"]
    del zarr.open_group(new)["a"]
    assert not (tmp_path / key).exists()
