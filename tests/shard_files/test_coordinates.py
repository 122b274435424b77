"""HDF5 shards have the dimensions and coordinates of the array, which xarray reads with h5netcdf and with netCDF4."""

import asyncio
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore
from zarr.codecs import GzipCodec, ZstdCodec

import parts_store as ps
from parts_store.errors import StorageError
from parts_store.format.files.hdf5 import hdf5_template
from parts_store.store import catalog
from tests.interoperability import installed
from tests.interoperability.matrix import PROGRAMS
from tests.shard_files import forms
from tests.shard_files.test_backends import KINDS, new_store

WORDS = ["", "rot", "grün", "blau", "a longer text"]
# Each dimension has coordinates of one of these types, or none.
TYPES = [None, "int8", ">i4", "uint64", "float16", ">f4", "float64", "bool", "complex64", "str", "<U5"]


@dataclass(frozen=True)
class Case:
    """An array in memory, and the types of the coordinates of its dimensions."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    grid: tuple[int, ...]
    types: tuple[str | None, ...]
    # The length of the chunks of coordinates, and whether they are shards or compressed.
    step: int = 3
    storage: str = "plain"
    form: str = "object"

    @property
    def shards(self) -> tuple[int, ...]:
        return tuple(chunk * count for chunk, count in zip(self.chunks, self.grid, strict=True))

    @property
    def names(self) -> list[str]:
        return [f"d{axis}" for axis in range(len(self.shape))]

    @property
    def values(self) -> np.ndarray:
        return np.random.default_rng(0).integers(1, 100, self.shape).astype("int16")

    def coordinates(self) -> dict[str, np.ndarray]:
        """Return the coordinates by the names of their dimensions."""
        rng = np.random.default_rng(1)
        found: dict[str, np.ndarray] = {}
        for name, length, kind in zip(self.names, self.shape, self.types, strict=True):
            if kind in ("str", "<U5"):
                found[name] = np.array(rng.choice(WORDS, length), dtype=object if kind == "str" else kind)
            elif kind is not None:
                found[name] = rng.integers(0, 100, length).astype(kind)
        return found

    def write(self, store: ps.PartsStore) -> Any:
        zarr.create_group(store, path="g")
        layout: dict[str, Any] = {"shape": self.shape, "chunks": self.chunks, "shards": self.shards, "dtype": "int16"}
        array = forms.create(store, "g/cube", self.form, "hdf5", dimension_names=self.names, **layout)
        for name, values in self.coordinates().items():
            given: dict[str, Any] = {}
            match self.storage:
                case "shards":
                    given["shards"] = (2 * self.step,)
                case storage:
                    given["compressors"] = ZstdCodec() if storage == "zstd" else None
            dtype = "str" if values.dtype == object else values.dtype
            one = zarr.create_array(
                store, name=f"g/{name}", shape=values.shape, dtype=dtype, chunks=(self.step,), attributes=NOTE, **given
            )
            one[...] = values
        array[...] = self.values
        return array

    def shards_of(self) -> Iterator[tuple[str, tuple[slice, ...]]]:
        """Yield the key of each shard in its array, and the part of the array that belongs to it."""
        for at in np.ndindex(*(-(-n // shard) for n, shard in zip(self.shape, self.shards, strict=True))):
            yield (
                "/".join(["c", *map(str, at)]),
                tuple(slice(a * s, (a + 1) * s) for a, s in zip(at, self.shards, strict=True)),
            )


NOTE: dict[str, Any] = {"long_name": "a note"}


def check(dataset: xr.Dataset, case: Case, region: tuple[slice, ...]) -> None:
    """Compare what xarray finds in the file of a shard with the values and the coordinates of its part of the array."""
    np.testing.assert_array_equal(dataset["cube"], case.values[region])
    assert dataset["cube"].dims == tuple(case.names)
    coordinates = case.coordinates()
    assert set(dataset.coords) == set(coordinates)
    assert set(dataset.data_vars) == {"cube"}
    for name, part in zip(case.names, region, strict=True):
        if name in coordinates:
            np.testing.assert_array_equal(dataset[name].values.astype(coordinates[name].dtype), coordinates[name][part])
            assert dataset[name].attrs == NOTE


def opened(data: Any) -> xr.Dataset:
    """Return what xarray finds in the bytes of a shard, with the index behind the file."""
    with xr.open_dataset(io.BytesIO(bytes(data)), engine="h5netcdf") as dataset:
        return dataset.load()


def shard(store: ps.PartsStore, key: str) -> xr.Dataset:
    found = store.get_sync(key)
    assert found is not None
    return opened(found.to_bytes())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chunks = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    grid = tuple(draw(st.integers(1, 3)) for _ in chunks)
    shape = tuple(draw(st.integers(1, 2 * chunk * count + 1)) for chunk, count in zip(chunks, grid, strict=True))
    types = tuple(draw(st.sampled_from(TYPES)) for _ in chunks)
    storage = draw(st.sampled_from(["plain", "zstd", "shards"]))
    return Case(shape, chunks, grid, types, draw(st.integers(1, 9)), storage, draw(st.sampled_from(forms.FORMS)))


@given(cases())
def test_every_shard_has_its_part_of_the_coordinates(case: Case) -> None:
    store = ps.PartsStore(MemoryStore())
    array = case.write(store)
    for key, region in case.shards_of():
        check(shard(store, f"g/cube/{key}"), case, region)
    np.testing.assert_array_equal(array[...], case.values)
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(store.store), path="g/cube")[...], case.values)


NETCDF4 = """
import json, pathlib, sys
import numpy as np
sys.path.append(sys.argv[2])
import xarray
folder = pathlib.Path(sys.argv[1])
for number, (name, path) in enumerate(json.loads(sys.stdin.read())):
    with xarray.open_dataset(path, engine="netcdf4") as dataset:
        found = {key: (value.dims, value.values, value.attrs) for key, value in dataset.variables.items()}
        np.save(folder / f"{number}.npy", np.array([found, sorted(dataset.coords)], object), allow_pickle=True)
"""


def read_netcdf4(folder: Path, paths: list[Path]) -> list[xr.Dataset]:
    """Return what xarray finds in files with netCDF4, which has an HDF5 library of its own: in another process."""
    try:
        program = installed.python("netcdf4", PROGRAMS["netcdf4"].requirement)
    except installed.MissingError as missing:
        pytest.skip(str(missing))
    folder.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", NETCDF4, str(folder), program[-1]]
    asked = json.dumps([(path.name, str(path)) for path in paths])
    subprocess.run(command, input=asked, text=True, check=True, env=installed.environment())
    found = []
    for number in range(len(paths)):
        variables, coordinates = np.load(folder / f"{number}.npy", allow_pickle=True)
        dataset = xr.Dataset({name: (dims, values, attrs) for name, (dims, values, attrs) in variables.items()})
        found.append(dataset.set_coords(coordinates))
    return found


# netCDF has neither booleans nor complex numbers: netCDF4 shows the former as integers, and the latter as structures.
NETCDF_TYPES = [each for each in TYPES if each != "complex64"]


@pytest.mark.slow
@pytest.mark.parametrize("form", forms.FORMS)
def test_netcdf4_reads_every_shard_with_its_coordinates(tmp_path: Path, form: str) -> None:
    asked: list[tuple[Case, tuple[slice, ...], Path]] = []
    for number in range(12):
        types = tuple(NETCDF_TYPES[(number + 3 * axis) % len(NETCDF_TYPES)] for axis in range(3))
        case = Case((5, 7, 9), (1, 2, 2), (2, 2, 3), types, form=form)
        folder = tmp_path / str(number)
        case.write(ps.PartsStore.from_url(str(folder)))
        extension = forms.extension(form, "hdf5")
        asked += [(case, region, folder / "g/cube" / f"{key}{extension}") for key, region in case.shards_of()]
    found = read_netcdf4(tmp_path / "found", [path for _, _, path in asked])
    for (case, region, path), dataset in zip(asked, found, strict=True):
        check(dataset, case, region)
        with xr.open_dataset(path, engine="h5netcdf") as same:
            check(same, case, region)


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_shards_on_every_backend_have_their_coordinates(tmp_path: Path, kind: str, form: str) -> None:
    case = Case((9, 11), (2, 2), (2, 3), ("str", "float64"), form=form)
    store = new_store(kind, tmp_path)
    case.write(store)
    for key, region in case.shards_of():
        check(shard(store, f"g/cube/{key}"), case, region)
    copied = ps.PartsStore(MemoryStore())
    ps.copy(store, copied)
    for key, region in case.shards_of():
        check(shard(copied, f"g/cube/{key}"), case, region)
    np.testing.assert_array_equal(zarr.open_array(copied, path="g/cube")[...], case.values)


@pytest.mark.slow
def test_encoded_coordinates_are_decoded_by_xarray(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    cube = ps.create_array(
        store,
        "cube",
        shard_file="hdf5",
        shape=(4, 6),
        chunks=(1, 3),
        shards=(2, 3),
        dtype="int16",
        dimension_names=["time", "x"],
        attributes={"scale_factor": 0.5, "add_offset": 10, "_FillValue": -1, "units": "K"},
    )
    days: dict[str, Any] = {"units": "days since 2000-01-01", "calendar": "noleap", "_FillValue": -9}
    time = zarr.create_array(store, name="time", shape=(4,), dtype="int32", attributes=days)
    time[:] = [0, 31, 58, 59]
    # The missing value is that of xarray in Zarr: the bytes of a double.
    metres: dict[str, Any] = {"scale_factor": 10.0, "_FillValue": "AAAAAAAA8D8=", "units": "m"}
    zarr.create_array(store, name="x", data=np.array([0, 1, 2, 3, 4, 5.0]), attributes=metres)
    cube[...] = np.arange(-1, 23).reshape(4, 6)
    first, last = tmp_path / "cube/c/0/0", tmp_path / "cube/c/1/1"
    with xr.open_dataset(first, engine="h5netcdf") as one, xr.open_dataset(last, engine="h5netcdf") as two:
        for dataset, number in zip(read_netcdf4(tmp_path / "found", [first, last]), (one, two), strict=True):
            xr.testing.assert_equal(dataset, number.load())
        # 2000-02-29 is not in this calendar.
        assert [str(each) for each in two["time"].values] == ["2000-02-28 00:00:00", "2000-03-01 00:00:00"]
        assert two["x"].values.tolist() == [30, 40, 50]
        np.testing.assert_array_equal(one["x"], [0, np.nan, 20])
        np.testing.assert_array_equal(one["cube"], [[np.nan, 10, 10.5], [12.5, 13, 13.5]])
        assert two["cube"].attrs == {"units": "K"}


def test_files_follow_coordinates_and_shape_when_shards_are_written_again(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    layout: dict[str, Any] = {"shape": (6,), "chunks": (2,), "shards": (4,), "dtype": "int16"}
    cube: Any = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["x"], **layout)
    x: Any = zarr.create_array(store, name="x", shape=(6,), chunks=(2,), dtype="int32")
    x[:] = np.arange(6)
    cube[:] = 1

    def found(number: int) -> list[int]:
        return list(shard(store, f"cube/c/{number}")["x"].values)

    assert (found(0), found(1)) == ([0, 1, 2, 3], [4, 5])
    x[:] = np.arange(10, 16)
    x.attrs["units"] = "m"
    assert found(0) == [0, 1, 2, 3]
    cube[0] = 2
    assert (found(0), found(1)) == ([10, 11, 12, 13], [4, 5])
    assert shard(store, "cube/c/0")["x"].attrs == {"units": "m"}
    # Only the array has the new shape.
    cube.resize((11,))
    cube[5:] = 3
    for number, length in ((1, 4), (2, 3)):
        dataset = shard(store, f"cube/c/{number}")
        assert (dict(dataset.sizes), list(dataset.coords)) == ({"x": length}, [])
    x.resize((11,))
    x[6:] = np.arange(16, 21)
    cube[4:] = 4
    assert (found(0), found(1), found(2)) == ([10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20])
    del zarr.open_group(store)["x"]
    cube[0] = 5
    assert list(shard(store, "cube/c/0").coords) == []
    assert found(1) == [14, 15, 16, 17]
    np.testing.assert_array_equal(cube[:], [5, 1, 1, 1, *[4] * 7])


@pytest.mark.slow
def test_arrays_that_are_their_own_dimension_are_coordinates(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    layout: dict[str, Any] = {"shape": (20,), "chunks": (5,), "shards": (10,), "dtype": "int16"}
    array = ps.create_array(store, "x", shard_file="hdf5", dimension_names=["x"], **layout)
    array[:] = np.arange(20)
    paths = [tmp_path / "x/c/0", tmp_path / "x/c/1"]
    for dataset in (opened(paths[1].read_bytes()), read_netcdf4(tmp_path / "found", paths)[1]):
        assert list(dataset.coords) == ["x"]
        assert dataset["x"].values.tolist() == [*range(10, 20)]


def test_repair_makes_files_with_coordinates(tmp_path: Path) -> None:
    case = Case((9, 11), (2, 2), (2, 3), ("str", "float64"))
    store = ps.PartsStore.from_url(str(tmp_path))
    case.write(store)
    plain: Any = zarr.open_array(str(tmp_path), path="g/cube", mode="r+")
    plain[...] = case.values
    assert not h5py.is_hdf5(tmp_path / "g/cube/c/0/0")
    ps.PartsStore.from_url(str(tmp_path)).repair()
    for key, region in case.shards_of():
        check(shard(store, f"g/cube/{key}"), case, region)


# --- what is left out -----------------------------------------------------------------------------------------------

LAYOUT: dict[str, Any] = {"shape": (6, 8), "chunks": (1, 2), "shards": (3, 4), "dtype": "int16"}


EIGHT = np.arange(8)


def create_x(store: ps.PartsStore, **arguments: Any) -> Any:
    """Write an array at the path of the coordinates of `x`, of which there are 8, and which are not compressed."""
    given = {"data": EIGHT, "compressors": None, **arguments}
    return zarr.create_array(store, name="x", **given)


def create_texts(store: ps.PartsStore) -> None:
    create_x(store, data=None, shape=(8,), dtype="str")[:] = np.array(["a\0b"] * 8, dtype=object)


def damage(store: ps.PartsStore, **arguments: Any) -> None:
    create_x(store, **arguments)
    store.store.put("x/c/0", b"damaged")


def change(store: ps.PartsStore, member: dict[str, Any]) -> None:
    create_x(store)
    document = json.loads(bytes(store.store.get("x/zarr.json").bytes()))
    store.store.put("x/zarr.json", json.dumps(document | member).encode())


PROBLEMS: dict[str, Callable[[ps.PartsStore], object]] = {
    "another length": lambda store: create_x(store, data=EIGHT[1:]),
    "two dimensions": lambda store: create_x(store, data=np.zeros((8, 1))),
    "a group": lambda store: zarr.create_group(store, path="x"),
    "Zarr v2": lambda store: create_x(store, zarr_format=2),
    "parts": lambda store: ps.create_array(
        store, "x", parts=[".data", ps.Part(".end", size=4)], data=EIGHT, compressors=None
    ),
    "dates": lambda store: create_x(store, data=EIGHT.astype("datetime64[s]")),
    "texts with zero bytes": create_texts,
    "damaged chunk": lambda store: damage(store, compressors=GzipCodec()),
    "short chunk": damage,
    "unknown codec": lambda store: change(store, {"codecs": [{"name": "unknown"}]}),
    "unknown type": lambda store: change(store, {"data_type": "unknown"}),
    **{
        f"document {text!r}": lambda store, text=text: store.store.put("x/zarr.json", text.encode())  # type: ignore[misc]
        for text in ("", "[]", "no json", "{}", '{"zarr_format": 3, "node_type": "array"}')
    },
}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_cannot_be_coordinates_is_left_out(problem: str) -> None:
    store = ps.PartsStore(MemoryStore())
    PROBLEMS[problem](store)
    # Another store wrote it.
    store = ps.PartsStore(store.store)
    zarr.create_array(store, name="y", data=np.arange(6) * 2)
    array = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["y", "x"], **LAYOUT)
    array[...] = np.arange(48).reshape(6, 8)
    for row, column in np.ndindex(2, 2):
        dataset = shard(store, f"cube/c/{row}/{column}")
        assert list(dataset.coords) == ["y"]
        assert dict(dataset.sizes) == {"y": 3, "x": 4}
        assert dataset["y"].values.tolist() == [[0, 2, 4], [6, 8, 10]][row]
        part = np.arange(48).reshape(6, 8)[3 * row :, 4 * column :]
        np.testing.assert_array_equal(dataset["cube"], part[:3, :4])


@pytest.mark.parametrize(
    ("length", "step", "dtype", "is_small"),
    [
        (100, 1, "int8", True),
        (101, 1, "int8", False),
        (2**17, 2**17, "float64", True),
        (2**17 + 1, 2**16, "float64", False),
        # The chunk is as large as a coordinate array may be, or larger.
        (8, 2**17, "float64", True),
        (8, 2**17 + 1, "float64", False),
    ],
)
def test_large_coordinates_are_left_out(length: int, step: int, dtype: str, is_small: bool) -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="x", data=np.arange(length).astype(dtype), chunks=(step,))
    layout: dict[str, Any] = {"shape": (length,), "chunks": (4,), "shards": (-(-length // 4) * 4,), "dtype": "int8"}
    array = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["x"], **layout)
    array[:5] = 1
    assert ("x" in shard(store, "cube/c/0").coords) == is_small


# Names of two dimensions, and those of them that a node of a group, and a dataset of a file, can have.
NAMES: list[tuple[list[str | None], set[str]]] = [
    (["", "a/b"], set()),
    ([".", ".."], set()),
    (["cube", None], set()),
    (["z\0\n", "\ud800"], set()),
    (["é" * 200, "zarr.json"], {"zarr.json"}),
    (["c", "__x__"], {"c", "__x__"}),
    (["a b", "ö"], {"a b", "ö"}),
]


@pytest.mark.parametrize(("names", "expected"), NAMES)
def test_unusual_names_of_dimensions_never_prevent_a_write(
    tmp_path: Path, names: list[str | None], expected: set[str]
) -> None:
    for store in (ps.PartsStore(MemoryStore()), ps.PartsStore.from_url(str(tmp_path))):
        array = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=names, **LAYOUT)
        array[...] = 7
        found = store.get_sync("cube/c/0/0")
        assert found is not None
        with h5py.File(io.BytesIO(found.to_bytes())) as file:
            assert set(file) == {"cube", *expected}
            np.testing.assert_array_equal(file["cube"][...], np.full((3, 4), 7))


def test_a_dimension_that_an_array_has_twice_has_no_coordinates() -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="x", data=np.arange(6))
    array = ps.create_array(
        store,
        "cube",
        shard_file="hdf5",
        shape=(6, 6),
        chunks=(1, 1),
        shards=(3, 2),
        dtype="i1",
        dimension_names=["x"] * 2,
    )
    array[...] = 1
    found = store.get_sync("cube/c/0/1")
    assert found is not None
    with h5py.File(io.BytesIO(found.to_bytes())) as file:
        assert file["x"].attrs["NAME"].startswith(b"This is a netCDF dimension but not a netCDF variable")
        assert [list(each.values()) for each in file["cube"].dims] == [[file["x"]], []]


RESERVED: dict[str, Any] = {"CLASS": "a", "NAME": 1, "DIMENSION_LIST": [1], "REFERENCE_LIST": "b", "_Netcdf4Dimid": "c"}


def test_attributes_by_which_hdf5_knows_dimensions_are_left_out() -> None:
    store = ps.PartsStore(MemoryStore())
    note = {**RESERVED, **NOTE}
    array = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["y", "x"], attributes=note, **LAYOUT)
    zarr.create_array(store, name="x", data=np.arange(8), attributes=note)
    array[...] = 1
    dataset = shard(store, "cube/c/0/1")
    assert dataset["x"].values.tolist() == [4, 5, 6, 7]
    assert dataset["x"].attrs == dataset["cube"].attrs == NOTE


def test_attributes_of_arrays_without_named_dimensions_stay() -> None:
    store = ps.PartsStore(MemoryStore())
    array = ps.create_array(store, "cube", shard_file="hdf5", attributes={"NAME": 1, "DIMENSION_LIST": [1]}, **LAYOUT)
    array[...] = 1
    found = store.get_sync("cube/c/0/0")
    assert found is not None
    with h5py.File(io.BytesIO(found.to_bytes())) as file:
        assert set(file["cube"].attrs) == {"NAME", "DIMENSION_LIST"}


# --- requests -------------------------------------------------------------------------------------------------------


def calls(store: ps.PartsStore) -> dict[str, int]:
    """Return the requests since this function was called before."""
    found = {str(kind): count for kind, count in store.stats.calls.items() if count}
    store.stats.reset()
    return found


LARGE: dict[str, Any] = {"shape": (64, 64), "chunks": (8, 8), "shards": (16, 16), "dtype": "int16"}


def test_coordinates_are_read_once_for_all_shards_of_an_array() -> None:
    store = ps.PartsStore(MemoryStore())
    cube: Any = ps.create_array(store, "g/cube", shard_file="hdf5", dimension_names=["y", "x"], **LARGE)
    calls(store)
    cube[...] = 1
    # The documents of `y` and `x`, which do not exist.
    assert calls(store) == {"get": 2, "put": 16}
    cube[...] = 2
    assert calls(store) == {"put": 16}
    x: Any = zarr.create_array(store, name="g/x", data=np.arange(64), chunks=(20,))
    calls(store)
    cube[...] = 3
    # The document and the four chunks of `x`.
    assert calls(store) == {"get": 5, "put": 16}
    cube[:16, :16] = 4
    assert calls(store) == {"put": 1}
    x[3] = 7
    calls(store)
    cube[:32, :16] = 5
    assert calls(store) == {"get": 5, "put": 2}
    other: Any = ps.create_array(store, "g/other", shard_file="hdf5", dimension_names=["x", "y"], **LARGE)
    calls(store)
    other[...] = 1
    assert calls(store) == {"put": 16}, "arrays of a group share what was read"
    assert shard(store, "g/other/c/0/1")["x"].values.tolist() == [0, 1, 2, 7, *range(4, 16)]


def test_coordinates_are_read_before_shards_are_written_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="g/x", data=np.arange(64))
    cube: Any = ps.create_array(store, "g/cube", shard_file="hdf5", dimension_names=["y", "x"], **LARGE)
    backend: Any = type(store._backend)
    perform, perform_sync = backend.perform, backend.perform_sync
    # What the event loop carries out, and everything: in memory, the former calls the latter.
    of_loop: list[str] = []
    seen: list[str] = []

    async def watched(self: Any, request: Any) -> Any:
        of_loop.append(type(request).__name__)
        return await perform(self, request)

    def watched_sync(self: Any, request: Any) -> Any:
        seen.append(type(request).__name__)
        return perform_sync(self, request)

    monkeypatch.setattr(backend, "perform", watched)
    monkeypatch.setattr(backend, "perform_sync", watched_sync)
    cube[...] = 1
    assert seen == ["Get"] * 3 + ["Put"] * 16
    assert of_loop == ["Get"] * 3, "the threads that write shards read nothing"


def test_the_coordinates_of_few_groups_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_MAX_NODES", 2)
    store, arrays = ps.PartsStore(MemoryStore()), list[Any]()
    for number in range(4):
        zarr.create_array(store, name=f"{number}/x", data=np.arange(64) * number)
        array = ps.create_array(store, f"{number}/cube", shard_file="hdf5", dimension_names=["y", "x"], **LARGE)
        array[...] = 1
        assert shard(store, f"{number}/cube/c/0/0")["x"].values.tolist() == [number * at for at in range(16)]
        arrays.append(array)
    for number, gets in ((3, {}), (0, {"get": 3})):
        calls(store)
        arrays[number][...] = 3
        assert calls(store) == {**gets, "put": 16}


def test_readers_do_not_read_coordinates() -> None:
    counts = []
    for names in (None, ["y", "x"]):
        store = ps.PartsStore(MemoryStore())
        zarr.create_array(store, name="g/x", data=np.arange(64))
        ps.create_array(store, "g/cube", shard_file="hdf5", dimension_names=names, **LARGE)[...] = 1
        for mode in ("r", "r+"):
            reader = ps.PartsStore(store.store)
            array: Any = zarr.open_array(reader, path="g/cube", mode=mode)
            array[:20, :20], array[...]
            counts.append(calls(reader))
    assert counts[:2] == counts[2:]


def test_partial_writes_read_coordinates_once() -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="g/x", data=np.arange(64))
    ps.create_array(store, "g/cube", shard_file="hdf5", dimension_names=["y", "x"], **LARGE)[...] = 1
    opened: Any = zarr.open_group(ps.PartsStore(store.store))["g/cube"]
    calls(opened.store)
    opened[0, 0] = 5
    assert calls(opened.store) == {"get": 4, "put": 1}
    opened[0, 20] = 5
    assert calls(opened.store) == {"get": 1, "put": 1}


def test_a_copy_of_a_store_in_another_process_reads_coordinates_again(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(str(tmp_path))
    zarr.create_array(store, name="x", data=np.arange(64))
    array: Any = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["y", "x"], **LARGE)
    copied: Any = pickle.loads(pickle.dumps(array))
    copied[...] = 1
    assert shard(store, "cube/c/3/3")["x"].values.tolist() == [*range(48, 64)]


def test_numbers_of_coordinates_need_no_other_template() -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="x", data=np.arange(64.0))
    array: Any = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["y", "x"], **LARGE)
    array[:16, :16] = 1
    before = hdf5_template.cache_info().misses
    array[...] = 2
    assert hdf5_template.cache_info().misses == before


@pytest.mark.parametrize("key", ["x/zarr.json", "x/c/0"])
def test_a_failure_of_the_server_is_an_error(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    store = ps.PartsStore(MemoryStore())
    zarr.create_array(store, name="x", data=np.arange(8))
    array: Any = ps.create_array(store, "cube", shard_file="hdf5", dimension_names=["y", "x"], **LAYOUT)
    store = ps.PartsStore(store.store)
    array = zarr.open_array(store, path="cube", mode="r+")
    backend: Any = type(store._backend)
    perform, perform_sync = backend.perform, backend.perform_sync

    def fail(request: Any) -> None:
        if getattr(request, "key", None) == key:
            raise StorageError(key, "get", "503", "the server is not there")

    async def failing(self: Any, request: Any) -> Any:
        fail(request)
        return await perform(self, request)

    def failing_sync(self: Any, request: Any) -> Any:
        fail(request)
        return perform_sync(self, request)

    monkeypatch.setattr(backend, "perform", failing)
    monkeypatch.setattr(backend, "perform_sync", failing_sync)
    for region in (..., (0, 0)):
        with pytest.raises(StorageError, match="the server is not there"):
            array[region] = 1
    assert not [name for name in asyncio.run(_listed(store)) if name.startswith("cube/c/")]


async def _listed(store: ps.PartsStore) -> list[str]:
    return [key async for key in store.list()]
