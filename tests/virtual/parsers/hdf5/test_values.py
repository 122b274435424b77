"""Every type, filter, layout and chunk index is read bit for bit, or named."""

import itertools
import sys
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from parts_store.errors import AdoptionError
from parts_store.virtual.parsers.hdf5 import reader as hdf5
from parts_store.virtual.parsers.hdf5 import values as loading
from tests.conftest import PIPELINES
from tests.effort import examples
from tests.virtual.adopting import adopted, array, require_equal
from tests.virtual.parsers.hdf5.files import (
    DTYPES,
    FILTERS,
    NO_CODEC,
    any_bits,
    library,
    reasons,
    require_reads,
    write,
)

pytestmark = pytest.mark.slow


def test_every_type_and_filter_is_read_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    expected = {}
    with h5py.File(path, "w") as file:
        for number, (dtype, (label, filters)) in enumerate(itertools.product(DTYPES, FILTERS.items())):
            if number % 8 and dtype != ">f4":
                continue
            name = f"{dtype.strip('<>')} {dtype[0] == '>'}/{label}"
            # Blosc leaves out what it cannot make smaller.
            cycle = any_bits((7, 1), dtype, number) if "blosc" in label else any_bits((7, 9), dtype, number)
            expected[name] = np.broadcast_to(cycle, (7, 9)).copy()
            file.create_dataset(name, data=expected[name], chunks=(3, 4), **filters)
    report, store = adopted(path, strict=True, shard_chunks=4)
    assert len(report.arrays) == len(expected) > 50
    for name, values in expected.items():
        require_reads(store, name, values)


@pytest.mark.parametrize("label", NO_CODEC)
def test_values_with_a_filter_that_zarr_has_no_codec_for_are_loaded_up_to_a_limit(
    tmp_path: Path, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters, named = NO_CODEC[label]
    data = np.arange(4096, dtype="i4" if label != "zfp" else "f4") // 50
    path = write(tmp_path / "a.h5", data=data, chunks=(1024,), **filters)
    write(path, "b", data=data, chunks=(1024,))
    report, store = adopted(path, strict=True)
    assert [(each.path, named in each.loaded, each.references) for each in report.loaded] == [("a", True, 0)]
    for name in ("a", "b"):
        require_reads(store, name, data)
    monkeypatch.setattr(loading, "MAX_LOADED", 4096 * 4 - 1)
    report, store = adopted(path)
    assert named in reasons(report)["a"]
    assert "16,384 bytes, and at most 16,383 are loaded" in reasons(report)["a"]
    assert [each.path for each in report.arrays] == ["b"]
    require_reads(store, "b", data)
    with pytest.raises(AdoptionError, match="a filter that Zarr has no codec for") as caught:
        adopted(path, strict=True)
    assert [name for name, _ in caught.value.problems] == ["a"]


@pytest.mark.parametrize("dtype", ["i1", "<i2", ">i4", "<f8", "<u2"])
@pytest.mark.parametrize("label", ["lz4", "szip", "szip, shuffle"])
def test_filters_that_imagecodecs_reads_are_referred_to(tmp_path: Path, label: str, dtype: str) -> None:
    filters: dict[str, Any] = dict(hdf5plugin.LZ4()) if label == "lz4" else {"compression": "szip"}
    values = (np.arange(60 * 40) // 7).astype(dtype).reshape(60, 40)
    path = write(tmp_path / "a.h5", data=values, chunks=(16, 40), shuffle="shuffle" in label, **filters)
    report, store = adopted(path, strict=True)
    assert not report.loaded
    assert (report.references, report.needs) == (4, ("imagecodecs-zarr",))
    assert "to read it: pip install imagecodecs-zarr" in str(report)
    require_reads(store, "a", values)


def test_without_imagecodecs_its_filters_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(4096) // 50
    path = write(tmp_path / "a.h5", data=values, chunks=(1024,), **hdf5plugin.LZ4())
    monkeypatch.setitem(sys.modules, "imagecodecs.zarr", None)
    report, store = adopted(path, strict=True)
    assert "pip install imagecodecs-zarr" in report.loaded[0].loaded
    assert report.needs == ()
    require_reads(store, "a", values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_compact_scalar_and_never_written(tmp_path: Path, dtype: str) -> None:
    path, values = tmp_path / "a.h5", any_bits((6, 5), dtype)
    with h5py.File(path, "w") as file:
        file["contiguous"] = values
        file["scalar"] = values[1, 1]
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
        h5py.h5d.create(file.id, b"compact", kind, h5py.h5s.create_simple((6, 5)), compact)
        file["compact"][...] = values
        # A NaN that is not the usual one is another test's.
        fill = values[~np.isnan(values)][0]
        file.create_dataset("never", (6, 5), dtype, fillvalue=fill)
        file.create_dataset("never, chunked", (6, 5), dtype, chunks=(2, 2), fillvalue=fill)
        file.create_dataset("never, scalar", (), dtype)
        file.create_dataset("zeros, compact", data=np.zeros((), dtype))
    report, store = adopted(path, strict=True)
    assert require_equal(report, store, path) == 7
    for name in ("contiguous", "compact"):
        require_reads(store, name, values)


def test_negative_zero_and_nan_are_not_taken_for_the_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["zero"] = np.float64(-0.0)
        odd = np.array([0x7FF8000000000123], "u8").view("f8")[0]
        file.create_dataset("nan", data=odd, fillvalue=np.nan)
        file.create_dataset("filled", (4,), "f8", fillvalue=odd)
        file.create_dataset("signed", (4,), "f4", chunks=(2,), fillvalue=-0.0)
        for name, dtype in {"half": "u2", "single": "u4"}.items():
            nan = np.array([0x7C01 if name == "half" else 0x7FC00123], dtype).view(dtype.replace("u", "f"))[0]
            file.create_dataset(f"{name}, missing", (4,), nan.dtype, chunks=(2,), fillvalue=nan)
            file.create_dataset(f"{name}, all there", data=np.arange(4, dtype=nan.dtype), chunks=(2,), fillvalue=nan)
    report, store = adopted(path, strict=True)
    assert require_equal(report, store, path) == 8
    (loaded,) = report.loaded
    assert loaded.path == "half, missing"
    assert "a fill value that zarr does not keep" in loaded.loaded


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_every_chunk_index_is_read(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "a.h5"
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_chunk((3, 4))
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    values = any_bits((10, 9), "f4")
    with h5py.File(path, "w", libver=libver) as file:
        for filters in ("none", "gzip"):
            options = FILTERS[filters]
            file.create_dataset(f"single {filters}", data=values, chunks=(10, 9), **options)
            file.create_dataset(f"fixed array {filters}", data=values, chunks=(3, 4), **options)
            unlimited: dict[str, Any] = {"maxshape": (None, 9), "chunks": (3, 4), **options}
            file.create_dataset(f"extensible array {filters}", data=values, **unlimited)
            unlimited["maxshape"] = (None, None)
            file.create_dataset(f"tree {filters}", data=values, **unlimited)
            # More than one block of the index, which is partly empty.
            many = file.create_dataset(f"many {filters}", (3000,), "i2", chunks=(1,), maxshape=(None,), **options)
            many[5:2900:7] = np.arange(5, 2900, 7)
        h5py.h5d.create(file.id, b"implicit", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((10, 9)), early)
        file["implicit"][2:5] = values[2:5]
    report, store = adopted(path, strict=True, shard_chunks=100)
    assert require_equal(report, store, path) == 11


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_are_found_whichever_axis_is_unlimited(tmp_path: Path, libver: str) -> None:
    """HDF5 lists chunks at wrong places where one axis is unlimited and not the first, and the index is the new one."""
    path = tmp_path / "a.h5"
    shapes = [(1, 4), (4, 1), (3, 4), (2, 2, 3)]
    count = 0
    with h5py.File(path, "w", libver=libver) as file:
        for shape in shapes:
            for limits in itertools.product((0, 3, None), repeat=len(shape)):
                most = tuple(None if each is None else size + each for each, size in zip(limits, shape, strict=True))
                if limits.count(None) > 1 or (len(shape) == 3 and limits[0] == 3):
                    continue
                values = np.arange(1, np.prod(shape) + 1).reshape(shape)
                options: dict[str, Any] = {
                    "chunks": (1,) * len(shape),
                    "maxshape": most,
                    "fletcher32": libver == "latest",
                }
                file.create_dataset(f"all {shape} {most}", data=values, **options)
                some = file.create_dataset(f"some {shape} {most}", shape, "i8", **options)
                some[values % 3 == 2] = values[values % 3 == 2]
                # All of the same bytes: it does not matter which is which.
                file.create_dataset(f"same {shape} {most}", data=np.ones(shape), **options)
                shrunk = file.create_dataset(f"shrunk {shape} {most}", data=values, **options)
                shrunk.resize(tuple(max(1, size - 1) for size in shape))
                count += 4
    report, store = adopted(path, strict=True)
    assert require_equal(report, store, path) == count


@pytest.mark.parametrize("nbytes", [512, 1024, 2048, 4096, 65536])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_offsets_count_from_the_file_also_after_a_user_block(tmp_path: Path, nbytes: int, libver: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=nbytes, libver=libver) as file:
        file.create_dataset("chunked", data=np.arange(100), chunks=(7,), compression="gzip")
        file.create_dataset("plain", data=np.arange(100), chunks=(7,), maxshape=(None,))
        file.create_dataset("contiguous", data=np.arange(100))
        file.create_dataset("never", (2,), "u1", fillvalue=4)
    with path.open("r+b") as raw:
        raw.write(b"the user's block" * (nbytes // 16))
    report, store = adopted(path, strict=True)
    assert require_equal(report, store, path) == 4


def test_an_offset_that_does_not_count_the_user_block_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("a", data=np.arange(100), chunks=(7,))
    inner = hdf5._GroupWalk._require_chunks_in_file

    def shifted(walk: Any, dataset: Any, found: Any) -> None:
        found.offsets[...] -= np.uint64(512)
        inner(walk, dataset, found)

    monkeypatch.setattr(hdf5._GroupWalk, "_require_chunks_in_file", shifted)
    report, store = adopted(path, strict=True)
    assert "user block" in report.loaded[0].loaded
    assert array(store, "a")[:].tolist() == list(range(100))


def test_chunks_that_filters_were_left_out_of(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    raw = [np.arange(each, each + 4, dtype="<i4").tobytes() for each in (0, 4, 8)]
    with h5py.File(path, "w") as file:
        # HDF5 leaves out a filter where it does not make a chunk smaller, which can be most chunks.
        for name, masks in {"none": (1, 1), "some": (0, 1), "most": (1, 0, 1)}.items():
            made = file.create_dataset(name, (4 * len(masks),), "<i4", chunks=(4,), compression="gzip")
            for at, mask in enumerate(masks):
                if mask:
                    made.id.write_direct_chunk((4 * at,), raw[at], filter_mask=1)
                else:
                    made[4 * at : 4 * at + 4] = np.arange(4 * at, 4 * at + 4)
        partly = file.create_dataset("shuffled", (4,), "<i4", chunks=(4,), compression="gzip", shuffle=True)
        shuffled = np.frombuffer(raw[0], "u1").reshape(4, 4).T.tobytes()
        partly.id.write_direct_chunk((0,), shuffled, filter_mask=2)
    report, store = adopted(path, strict=True)
    # The chunks of the other arrays are all alike.
    assert {each.path: each.loaded[:8] for each in report.loaded} == {"some": "1 chunks", "most": "1 chunks"}
    assert {each.path: each.references for each in report.arrays} == {"none": 2, "some": 1, "most": 2, "shuffled": 1}
    assert require_equal(report, store, path) == 4


@pytest.mark.parametrize("filters", ["shuffle", "deflate", "fletcher32", "shuffle, zeros first"])
def test_edges_that_the_filters_were_not_applied_to_are_encoded_again(tmp_path: Path, filters: str) -> None:
    path, hdf5_library = tmp_path / "a.h5", library()
    values = np.arange(9 * 10, dtype="i4").reshape(9, 10) * 1000
    if "zeros" in filters:
        values[8, :4] = 0
    with h5py.File(path, "w", libver="latest") as file:
        for name, option in {"edges": 2, "filtered": 0}.items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((4, 4))
            assert hdf5_library.H5Pset_chunk_opts(plist.id, option) == 0
            getattr(plist, f"set_{filters.split(',', maxsplit=1)[0]}")()
            space = h5py.h5s.create_simple(values.shape)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_INT32, space, plist)
            file[name][...] = values
    report, store = adopted(path, strict=True)
    # Two of nine chunks in the last row, and two in the last column, and their corner.
    assert {each.path: each.loaded[:8] for each in report.loaded} == {"edges": "5 chunks"}
    assert {each.path: each.references for each in report.arrays} == {"edges": 4, "filtered": 9}
    assert require_equal(report, store, path) == 2


def test_what_is_not_filled_is_what_h5py_says(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    hdf5_library = library()
    times = (h5py.h5d.FILL_TIME_NEVER, h5py.h5d.FILL_TIME_IFSET, h5py.h5d.FILL_TIME_ALLOC)
    with h5py.File(path, "w") as file:
        for when, fill, chunks in itertools.product(times, ("default", "seven", "undefined"), (None, (4,))):
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_fill_time(when)
            if chunks:
                plist.set_chunk(chunks)
            if fill == "seven":
                plist.set_fill_value(np.array(7, "i4"))
            if fill == "undefined":
                if when == h5py.h5d.FILL_TIME_ALLOC:
                    continue
                hdf5_library.H5Pset_fill_value(plist.id, h5py.h5t.NATIVE_INT32.id, None)
            name = f"{when} {fill} {chunks}".encode()
            h5py.h5d.create(file.id, name, h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((10,)), plist)
            if chunks:
                file[name][5] = 1
    report, store = adopted(path)
    assert require_equal(report, store, path) == 14
    # What h5py cannot read either.
    assert set(reasons(report).values()) == {"it was never written, and has no fill value"}


def test_shuffle_after_another_filter_is_read_if_it_leaves_no_bytes_over(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, kind in {"over": h5py.h5t.NATIVE_INT64, "even": h5py.h5t.NATIVE_INT32}.items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((5,))
            plist.set_fletcher32()
            plist.set_shuffle()
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((10,)), plist)
            file[name][...] = np.arange(10)
    report, store = adopted(path, strict=True)
    assert ["shuffle after another" in each.loaded for each in report.loaded] == [True]
    assert require_equal(report, store, path) == 2


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)))
    chunks = tuple(draw(st.integers(1, 5)) for _ in shape)
    made = draw(st.sampled_from(["chunked", "chunked", "chunked", "unlimited", "unlimited", "contiguous"]))
    maxshape: tuple[int | None, ...] | None = None
    if made == "unlimited":
        maxshape = tuple(None if draw(st.booleans()) else size + 9 for size in shape)
    elif made == "chunked":
        chunks = tuple(map(min, chunks, shape))
    # Blosc leaves out what it cannot make smaller, which random bits mostly are.
    labels = [each for each in sorted(FILTERS) if "blosc" not in each]
    label = draw(st.sampled_from(labels)) if made != "contiguous" else "none"
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "options": {**FILTERS[label], "chunks": chunks if made != "contiguous" else None, "maxshape": maxshape},
        "written": draw(st.lists(st.tuples(*(st.integers(0, size - 1) for size in shape)), max_size=4)),
        "all": draw(st.booleans()),
        "resized": tuple(draw(st.integers(1, 9)) for _ in shape) if made == "unlimited" else None,
        "fill": draw(st.booleans()),
        "fill_time": draw(st.sampled_from(["never", "alloc", "ifset"])),
        "seed": draw(st.integers(0, 2**16)),
    }


@settings(max_examples=examples(20))
@given(
    described=st.lists(layouts(), min_size=1, max_size=3),
    libver=st.sampled_from(["earliest", "v110", "latest"]),
    user_block=st.sampled_from([0, 512, 8192]),
    track_order=st.booleans(),
    shard_chunks=st.sampled_from([1, 2, 5, 4095]),
    pipeline=st.sampled_from(sorted(PIPELINES)),
)
def test_any_file_is_read_as_h5py_reads_it(
    tmp_path: Path,
    described: list[dict[str, Any]],
    libver: str,
    user_block: int,
    track_order: bool,
    shard_chunks: int,
    pipeline: str,
) -> None:
    path = tmp_path / "any.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=user_block, track_order=track_order) as file:
        for number, each in enumerate(described):
            values = any_bits(each["shape"], each["dtype"], each["seed"])
            usual = values[~np.isnan(values)]
            fill = usual[0] if each["fill"] and usual.size else None
            group = file.require_group("g" * (number + 1))
            # With fill time "never", the content of chunks that were not written is undefined.
            when = each["fill_time"] if each["all"] else "ifset"
            options = {**each["options"], "fillvalue": fill, "fill_time": when if each["options"]["chunks"] else None}
            made = group.create_dataset("a", each["shape"], each["dtype"], **options)
            if each["all"]:
                made[...] = values
            for place in each["written"]:
                made[place] = values[place]
            if each["resized"] is not None:
                limits = [9**9 if most is None else most for most in made.maxshape]
                made.resize(tuple(map(min, each["resized"], limits)))
            file[f"again {number}"] = made
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        report, store = adopted(path, strict=True, shard_chunks=shard_chunks)
        assert require_equal(report, store, path) == 2 * len(described)
        with h5py.File(path) as file:
            for number in range(len(described)):
                require_reads(store, f"again {number}", file[f"again {number}"][...])
