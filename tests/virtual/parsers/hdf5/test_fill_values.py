"""Values that were not written have the fill value of the file, for every type."""

import ctypes
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.virtual.adopting import adopted, array, flat
from tests.virtual.parsers.hdf5.files import library, reasons

BLANKS = h5py.h5t.C_S1.copy()
BLANKS.set_size(4)
BLANKS.set_strpad(h5py.h5t.STR_SPACEPAD)
TERMINATED = h5py.h5t.C_S1.copy()
TERMINATED.set_size(4)
GAPS = np.dtype({"names": ["a", "b"], "formats": ["i1", ">i4"], "offsets": [0, 4], "itemsize": 8})
FIELDS = np.dtype([("a", "i1"), ("b", "<f4", (2,))])
# The type in the file, the bytes of the fill value in memory, and a value that is written.
TYPES: dict[str, tuple[Any, bytes, Any]] = {
    "number": (h5py.h5t.STD_I16BE, np.array(7, ">i2").tobytes(), 3),
    "array, equal": (h5py.h5t.py_create(np.dtype(("<i4", (3,)))), np.array([5, 5, 5], "<i4").tobytes(), [9, 8, 7]),
    "array, unequal": (h5py.h5t.py_create(np.dtype((">i4", (3,)))), np.array([1, 2, 3], ">i4").tobytes(), [9, 8, 7]),
    "matrix": (h5py.h5t.py_create(np.dtype(("<f8", (2, 2)))), np.arange(1.0, 5).tobytes(), [[9, 8], [7, 6]]),
    "padded text": (BLANKS, b"ab  ", b"xyz"),
    "terminated text": (TERMINATED, b"ab\0\0", b"xyz"),
    "gaps": (h5py.h5t.py_create(GAPS), np.array((5, 6), GAPS).tobytes(), np.array((1, 2), GAPS)),
    "fields": (h5py.h5t.py_create(FIELDS), np.array((5, (6, 7)), FIELDS).tobytes(), np.array((1, (2, 3)), FIELDS)),
}


def create(file: h5py.File, name: str, kind: Any, fill: bytes, *, chunked: bool) -> h5py.Dataset:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunked:
        plist.set_chunk((2,))
    buffer = ctypes.create_string_buffer(fill, len(fill))
    assert library().H5Pset_fill_value(plist.id, kind.id, ctypes.addressof(buffer)) == 0
    space = h5py.h5s.create_simple((5,), (h5py.h5s.UNLIMITED,) if chunked else (5,))
    h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    return file[name]


def elements(values: Any) -> list[list[Any]]:
    """The numbers and bytes of each element."""
    return [flat(values[at : at + 1]) for at in range(values.shape[0])]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TYPES)
def test_values_that_were_not_written_are_those_that_h5py_reads(tmp_path: Path, name: str) -> None:
    kind, fill, value = TYPES[name]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        create(file, "some", kind, fill, chunked=True)[0] = value
        create(file, "none", kind, fill, chunked=True)
        create(file, "contiguous", kind, fill, chunked=False)
    _, store = adopted(tmp_path / "a.h5", strict=True)
    with h5py.File(tmp_path / "a.h5") as file:
        for each in ("some", "none", "contiguous"):
            assert elements(array(store, each)) == elements(file[each])
        assert elements(file["none"])[0][0] not in (0, b"")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TYPES)
def test_dataset_shorter_than_its_dimension_ends_with_the_fill_value(tmp_path: Path, name: str) -> None:
    kind, fill, value = TYPES[name]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(9), maxshape=(None,)).make_scale("x")
        short = create(file, "short", kind, fill, chunked=True)
        short[0] = value
        short.dims[0].attach_scale(file["x"])
        expected = elements(short)
    _, store = adopted(tmp_path / "a.h5", strict=True)
    assert elements(array(store, "short")) == [*expected, *[expected[-1]] * 4]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_texts_are_read_where_the_library_cannot_fill_in(tmp_path: Path, compression: str | None) -> None:
    shape, chunks = (5, 7), (2, 3)
    kind = np.dtype([("n", "i4"), ("t", h5py.string_dtype())])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options: dict[str, Any] = {"chunks": chunks, "compression": compression, "maxshape": (None, None)}
        texts = file.create_dataset("texts", shape, h5py.string_dtype(), fillvalue="fill", **options)
        texts[4, 6], texts[0, 1] = "é", "a"
        expected = texts[...]
        texts.resize((9, 9))
        texts[8, 8] = "beyond"
        texts.resize(shape)
        file.create_dataset("pairs", shape, kind, **options)[3, 3] = (1, "pair")
    with h5py.File(tmp_path / "a.h5") as file, pytest.raises(OSError, match="no write intent"):
        file["texts"][...]
    _, store = adopted(tmp_path / "a.h5", strict=True)
    found = array(store, "texts")
    assert flat(found[...]) == flat(expected)
    assert flat(expected)[2] == b"fill"
    assert found.fill_value == "fill"
    assert array(store, "pairs")[3, 3].item() == (1, b"pair")


@pytest.mark.parametrize("maxshape", [(None, 6), (4, None), (None, None), (4, 6), (8, None)])
def test_texts_are_read_or_skipped_for_every_kind_of_index(tmp_path: Path, maxshape: tuple[int | None, ...]) -> None:
    for version in ("earliest", "latest"):
        path = tmp_path / f"{version}.h5"
        with h5py.File(path, "w", libver=version) as file:
            options: dict[str, Any] = {"chunks": (1, 2), "maxshape": maxshape, "fillvalue": "fill"}
            texts = file.create_dataset("a", (4, 6), h5py.string_dtype(), **options)
            texts[1, 4], texts[2, 0], texts[3, 5] = "a", "b", "c"
            expected = flat(texts[...])
        report, store = adopted(path)
        if report.is_complete:
            assert flat(array(store, "a")[...]) == expected
        else:
            assert maxshape[0] is not None
            assert "no write intent" in reasons(report)["a"]
