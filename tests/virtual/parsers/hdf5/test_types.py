"""Texts, compound types and other types of HDF5 become types of Zarr, with the values that h5py reads."""

import bz2
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts_store.virtual.parsers.hdf5 import values as loading
from tests.effort import examples
from tests.virtual.adopting import adopted, array, flat
from tests.virtual.parsers.hdf5.files import reasons

pytestmark = pytest.mark.slow

WORDS = ["", "a", "grün", "日本", "two words", " blanks ", "x" * 300]


def padded(length: int, padding: int, charset: int = h5py.h5t.CSET_ASCII) -> h5py.h5t.TypeID:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(length)
    kind.set_strpad(padding)
    kind.set_cset(charset)
    return kind


def create(file: h5py.File, name: str, kind: h5py.h5t.TypeID, data: Any, chunks: tuple[int, ...] | None = None) -> None:
    """Write bytes as they are into a dataset of a type that h5py has no name for."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        plist.set_chunk(chunks)
    made = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(data.shape), plist)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=kind)


def as_text(values: Any) -> Any:
    return [each.decode(errors="surrogateescape") for each in np.asarray(values).ravel().tolist()]


@pytest.mark.parametrize("chunks", [None, (2,)])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_texts_of_a_variable_length(tmp_path: Path, chunks: tuple[int] | None, compression: str | None) -> None:
    path = tmp_path / "a.h5"
    options: dict[str, Any] = {"chunks": chunks, "compression": compression if chunks else None}
    with h5py.File(path, "w") as file:
        for charset in ("utf-8", "ascii"):
            words = WORDS if charset == "utf-8" else ["plain", "", "text"]
            file.create_dataset(charset, data=words, dtype=h5py.string_dtype(charset), **options)
        file["one"] = "grün"
        file.create_dataset("table", data=np.array([["a", "bc"], ["", "ü"]], object), dtype=h5py.string_dtype())
        file.create_dataset("never written", (3, 2), h5py.string_dtype())
        file.create_dataset("none", (0,), h5py.string_dtype(), maxshape=(None,))
    report, store = adopted(path, strict=True)
    with h5py.File(path) as file:
        for name, dataset in file.items():
            found = array(store, name)
            assert (found.shape, found.dtype) == (dataset.shape, np.dtypes.StringDType())
            assert np.asarray(found[...]).ravel().tolist() == as_text(dataset[()]), name
    assert {each.path for each in report.loaded} == {"utf-8", "ascii", "one", "table", "never written"}
    assert {each.loaded for each in report.loaded} == {"texts of a variable length"}


def test_texts_that_are_not_utf8_are_stored_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.array([b"\xb0C", b"m", b""], object), dtype=h5py.string_dtype("ascii"))
    _, store = adopted(path, strict=True)
    assert array(store, "a")[:].tolist() == [b"\xb0C", b"m", b""]


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_texts_of_a_fixed_length_are_what_h5py_reads(tmp_path: Path, chunks: tuple[int] | None) -> None:
    path = tmp_path / "a.h5"
    # Behind a zero byte that ends a text, anything may follow.
    data = np.array([b"abc", b"a\0c", b"a  ", b"   ", b"\0\0\0", "ü".encode(), b"\xb0"], "S3")
    kinds = {"nullpad": h5py.h5t.STR_NULLPAD, "nullterm": h5py.h5t.STR_NULLTERM, "spacepad": h5py.h5t.STR_SPACEPAD}
    with h5py.File(path, "w") as file:
        for charset in (h5py.h5t.CSET_ASCII, h5py.h5t.CSET_UTF8):
            for name, kind in kinds.items():
                create(file, f"{name} {charset}", padded(3, kind, charset), data, chunks)
                create(file, f"{name} {charset} S1", padded(1, kind, charset), data.view("S1"), chunks)
    report, store = adopted(path, strict=True)
    with h5py.File(path) as file:
        assert len(file) == 12
        for name, dataset in file.items():
            found = array(store, name)
            assert found.dtype == dataset.dtype
            assert found[:].tolist() == dataset[:].tolist(), name
    # One character, or zeros behind it: the bytes are those of NumPy.
    referred = {each.path for each in report.arrays} - {each.path for each in report.loaded}
    assert referred == {f"nullpad {charset}{end}" for charset in (0, 1) for end in ("", " S1")} | {
        f"nullterm {charset} S1" for charset in (0, 1)
    }


FIELDS: list[Any] = ["i1", "<i4", ">i4", "<f8", ">f2", "?", "S3", "<c8", "<u8"]


@settings(max_examples=examples(30))
@given(
    fields=st.lists(st.sampled_from(FIELDS), min_size=1, max_size=5),
    inner=st.booleans(),
    chunked=st.booleans(),
    aligned=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_compound_types_are_what_h5py_reads(
    tmp_path: Path, fields: list[str], inner: bool, chunked: bool, aligned: bool, seed: int
) -> None:
    path = tmp_path / "any.h5"
    described: list[Any] = [(f"f{number}", each) for number, each in enumerate(fields)]
    if inner:
        described.append(("inner", described[:2]))
    dtype = np.dtype(described, align=aligned)
    raw = np.random.default_rng(seed).integers(0, 2, 7 * dtype.itemsize, dtype="u1").tobytes()
    values = np.frombuffer(raw, dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=values, chunks=(3,) if chunked else None, compression="gzip" if chunked else None)
        file["one"] = values[0]
    report, store = adopted(path, strict=True)
    with h5py.File(path) as file:
        for name in ("a", "one"):
            found = array(store, name)
            assert found.dtype.names == dtype.names
            assert flat(found[...]) == flat(file[name][()])
            for field in dtype.names or ():
                assert flat(np.asarray(found[...])[field]) == flat(file[name][field])
    orders = {each[0] for each in fields if each[0] in "<>"}
    if not aligned and len(orders) < 2:
        assert "a" not in {each.path for each in report.loaded}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["numbers", "compounds"])
def test_missing_chunks_of_compounds_with_arrays_have_the_fill_value(tmp_path: Path, order: str, kind: str) -> None:
    """The first element of an array in the fill value was repeated; for an array of compounds, the call failed."""
    path = tmp_path / "a.h5"
    element = f"{order}f4" if kind == "numbers" else [("u", f"{order}i2"), ("v", f"{order}f8")]
    dtype = np.dtype([("n", f"{order}i4"), ("many", element, (2, 3))])
    fill_value = np.frombuffer(bytes(range(1, 1 + dtype.itemsize)), dtype)[0]
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (4,), dtype, chunks=(2,), fillvalue=fill_value)
        file["a"][:2] = np.zeros(2, dtype)
    _, store = adopted(path, strict=True)
    found = np.asarray(array(store, "a")[:])
    assert found[:2].tobytes() == bytes(2 * dtype.itemsize)
    # The numbers of the array follow each other, in the byte order of this machine.
    expected = fill_value.astype(dtype.newbyteorder("="))
    assert found[2:].tobytes() == expected.tobytes() * 2


def test_compound_types_with_texts_arrays_and_references(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    dtype = np.dtype([("name", h5py.string_dtype()), ("to", h5py.ref_dtype), ("at", "f4", (2, 2)), ("n", "i2")])
    with h5py.File(path, "w") as file:
        file["x/y"] = [1, 2]
        values = np.zeros(2, dtype)
        values["name"], values["at"], values["n"] = ["grün", ""], np.arange(8).reshape(2, 2, 2), [3, -4]
        values["to"] = [file["x/y"].ref, h5py.Reference()]
        file["a"] = values
        file["numbers"] = np.array([((1, 2, 3), 4), ((5, 6, 7), 8)], [("v", "i2", (3,)), ("w", "i4")])
        file.create_dataset("matrices", (3,), np.dtype(("f8", (2, 4))), chunks=(2,), compression="gzip")
        file["matrices"][...] = np.arange(24.0).reshape(3, 2, 4)
    report, store = adopted(path, strict=True)
    found = np.asarray(array(store, "a")[:])
    assert found["name"].tolist() == ["grün".encode(), b""]
    assert found["to"].tolist() == [b"/x/y", b""]
    assert found["n"].tolist() == [3, -4]
    assert flat(found["at"][0]) == [0, 1, 2, 3]
    assert found["at"]["1"]["0"].tolist() == [2, 6]
    numbers = np.asarray(array(store, "numbers")[:])
    assert numbers["v"]["2"].tolist() == [3, 7]
    assert numbers["w"].tolist() == [4, 8]
    assert array(store, "matrices")[...].tolist() == np.arange(24.0).reshape(3, 2, 4).tolist()
    assert {each.path for each in report.loaded} == {"a"}


def test_references_opaque_values_and_times(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    times = np.array(["2026-01-01", "NaT", "1969-12-31"], "M8[ns]")
    with h5py.File(path, "w") as file:
        file["g/x"] = 1
        file.create_dataset("references", data=[file["g"].ref, file["g/x"].ref, h5py.Reference()], dtype=h5py.ref_dtype)
        file["opaque"] = np.array([b"\0a\0", b"\1\2\3"], "V3")
        file["times"] = times.astype(h5py.opaque_dtype(times.dtype))
        file["null"] = h5py.Empty("f4")
        file["null"].attrs["units"] = "m"
        file.create_dataset("zero", (0, 4), "i4", chunks=(2, 2), maxshape=(None, 4))
        twelve = h5py.h5t.STD_U16LE.copy()
        twelve.set_precision(12)
        create(file, "12 bits", twelve, np.arange(4, dtype="u2"))
        create(file, "bit field", h5py.h5t.STD_B8LE, np.arange(4, dtype="u1"))
    report, store = adopted(path, strict=True)
    assert array(store, "references")[:].tolist() == ["/g", "/g/x", ""]
    assert np.asarray(array(store, "opaque")[:]).tobytes() == b"\0a\0\1\2\3"
    assert np.array_equal(array(store, "times")[:], times, equal_nan=True)
    assert (array(store, "null").shape, array(store, "null").attrs["units"]) == ((0,), "m")
    assert (array(store, "zero").shape, array(store, "zero").dtype) == ((0, 4), np.dtype("i4"))
    for name in ("12 bits", "bit field"):
        assert array(store, name)[:].tolist() == [0, 1, 2, 3]
    assert {each.path for each in report.loaded} == {"references", "12 bits", "bit field"}


def test_what_is_loaded_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(5)
        file.create_dataset("long", data=["x" * 1000] * 20, dtype=h5py.string_dtype())
        file.create_dataset("many", (10**12,), h5py.string_dtype(), chunks=(10**6,))
        file.create_dataset("chunk", (3,), h5py.string_dtype(), chunks=(10**8,), maxshape=(None,))
        for number in range(4):
            file.create_dataset(f"t{number}", data=["y" * 1000] * 4, dtype=h5py.string_dtype())
    monkeypatch.setattr(loading, "MAX_LOADED", 10_000)
    monkeypatch.setattr(loading, "MAX_LOADED_IN_FILE", 16_000)
    monkeypatch.setattr(loading, "_MOST_IN_BATCH", 3)
    report, store = adopted(path)
    assert set(reasons(report)) >= {"long", "many", "chunk"}
    for name in ("long", "many", "chunk"):
        assert "are loaded of a dataset" in reasons(report)[name]
    assert "of the file were loaded before" in reasons(report)["t3"]
    assert array(store, "t0")[:].tolist() == ["y" * 1000] * 4
    assert not report.is_complete


def test_a_chunk_that_is_larger_than_it_says_is_not_read(tmp_path: Path) -> None:
    """Zlib makes a thousand bytes of each byte, and the HDF5 library reads all of them."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("bomb", "good"):
            kind = np.dtype([("x", "<i4"), ("y", ">i4")])
            made = file.create_dataset(name, (8,), kind, chunks=(4,), compression="gzip")
            made[4:] = np.ones(4, kind)
        file["bomb"].id.write_direct_chunk((0,), zlib.compress(bytes(1 << 26)))
    report, store = adopted(path)
    assert reasons(report) == {"bomb": "a chunk that is larger than 68 bytes when it is decoded: it is damaged"}
    assert np.asarray(array(store, "good")[:])["y"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["at the edge", "with another mask", "before the end of its dimension"])
def test_a_referred_chunk_that_is_larger_than_it_says_is_not_read(tmp_path: Path, kind: str) -> None:
    """Some chunks of arrays that are referred to are read, too, and took a thousand times their size."""
    path, bomb = tmp_path / "a.h5", zlib.compress(bytes(1 << 26))
    chunk = len(bomb)
    length = 3 * chunk if kind == "with another mask" else chunk - 1
    with h5py.File(path, "w") as file:
        made = file.create_dataset("bomb", (length,), "u1", chunks=(chunk,), maxshape=(None,), compression="gzip")
        made.id.write_direct_chunk((0,), bomb)
        if kind == "with another mask":
            for at in (1, 2):
                made.id.write_direct_chunk((at * chunk,), bytes(chunk), filter_mask=1)
        if kind == "before the end of its dimension":
            scale = file.create_dataset("time", (chunk,), "u1", chunks=(chunk,), maxshape=(None,))
            scale.make_scale("time")
            made.dims[0].attach_scale(scale)
    report, _ = adopted(path)
    reason = f"a chunk that is larger than {2 * chunk + 4} bytes when it is decoded: it is damaged"
    assert reasons(report) == {"bomb": reason}


def test_a_bzip2_chunk_without_an_end_is_not_read(tmp_path: Path) -> None:
    """The HDF5 library waits forever for its end."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("texts", (8,), h5py.string_dtype(), chunks=(8,), **hdf5plugin.BZip2())
        made.id.write_direct_chunk((0,), bz2.compress(bytes(128))[:-9])
    report, _ = adopted(path)
    assert reasons(report) == {"texts": "a chunk that ends too early when it is decoded: it is damaged"}


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("most", [1, 2, 4, 5, 12, 1000])
def test_blocks_cover_every_element_once(shape: tuple[int, ...], most: int) -> None:
    seen = np.zeros(shape, int)
    for block in loading._blocks(shape, most):
        assert seen[block].size <= most
        seen[block] += 1
    assert (seen == 1).all()


def test_texts_are_in_the_groups_of_their_file(tmp_path: Path) -> None:
    """All types in one file, as the files of AnnData have them."""
    path = tmp_path / "a.h5"
    categories: Iterable[str] = ("B cell", "T cell", "μ")
    with h5py.File(path, "w") as file:
        file.create_dataset("obs/cell_type/categories", data=list(categories), dtype=h5py.string_dtype())
        file["obs/cell_type/codes"] = np.array([0, 2, 1], "i1")
        file["obs/cell_type"].attrs["ordered"] = False
        file["obs/cell_type/codes"].attrs["categories"] = file["obs/cell_type/categories"].ref
    _, store = adopted(path, strict=True)
    assert array(store, "obs/cell_type/categories")[:].tolist() == list(categories)
    assert array(store, "obs/cell_type/codes").attrs["categories"] == "/obs/cell_type/categories"
