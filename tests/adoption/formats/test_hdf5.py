"""HDF5 files adopted: every number is what h5py reads, bit for bit, and what cannot be had is named with its reason."""

import ctypes
import itertools
import os
import time
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import parts_store as ps
from parts_store.adoption import adopt
from parts_store.adoption.formats.hdf5 import reader as hdf5
from parts_store.errors import AdoptionError, PartsStoreError, SessionError, StoreConfigError
from tests.adoption.adopting import adopted, array, bits, repository, require_equal, settle
from tests.conftest import PIPELINES

pytestmark = pytest.mark.slow

DTYPES = [
    *("i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8", "?"),
    *("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16"),
]
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip", "compression_opts": 4},
    "gzip 0": {"compression": "gzip", "compression_opts": 0},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "zstd": dict(hdf5plugin.Zstd(clevel=3)),
    "zstd, below 0": dict(hdf5plugin.Zstd(clevel=-5)),
    "zstd, shuffle": {**hdf5plugin.Zstd(), "shuffle": True},
    "bzip2": dict(hdf5plugin.BZip2()),
    "blosc": dict(hdf5plugin.Blosc()),
    "blosc, zlib": dict(hdf5plugin.Blosc(cname="zlib", clevel=9, shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc, zstd": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.NOSHUFFLE)),
    "blosc, blosclz": {**hdf5plugin.Blosc(cname="blosclz"), "fletcher32": True},
}
NO_CODEC: dict[str, tuple[dict[str, Any], str]] = {
    "lzf": ({"compression": "lzf"}, "lzf"),
    "lz4": (dict(hdf5plugin.LZ4()), "lz4, in a frame of HDF5's own (number 32004)"),
    "bitshuffle": (dict(hdf5plugin.Bitshuffle()), "bitshuffle"),
    "blosc2": (dict(hdf5plugin.Blosc2()), "blosc2"),
    "scaleoffset": ({"scaleoffset": 0}, "scaleoffset"),
    "zfp": (dict(hdf5plugin.Zfp(reversible=True)), "32013"),
}


def any_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Every pattern of bits may come up: NaNs with any payload, the infinities, zeros with a sign."""
    kind = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype("?")
    data = random.integers(0, 256, int(np.prod(shape)) * kind.itemsize, dtype="u1")
    # Some zeros, so that there is something to compress, and exponents of NaNs.
    data[random.random(data.size) < 0.3] = 0
    data[random.random(data.size) < 0.1] = 0x7F
    data[random.random(data.size) < 0.1] = 0xFF
    return data.view(kind).reshape(shape)


def write(path: Path, name: str = "a", **options: Any) -> Path:
    with h5py.File(path, "a") as file:
        file.create_dataset(name, **options)
    return path


def require_reads(store: ps.PartsStore, name: str, values: Any) -> None:
    """Whole, in slabs, and by single elements."""
    found = array(store, name)
    assert found.dtype.newbyteorder("<") == values.dtype.newbyteorder("<")
    selections: list[Any] = [np.s_[...], np.s_[:1], np.s_[-1:], np.s_[1::3]]
    selections += [tuple(slice(size // 3, size // 3 + 2) for size in values.shape), tuple(np.array(values.shape) - 1)]
    for each in selections:
        assert bits(found[each], values.dtype) == bits(values[each], values.dtype), each


def reasons(report: Any) -> dict[str, str]:
    return {each.name: each.reason for each in report.skipped}


# --- numbers, filters, layouts ----------------------------------------------------------------------------------------


def test_every_type_and_filter_is_read_bit_for_bit(tmp_path: Path, pipeline: str) -> None:
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
def test_a_filter_without_a_codec_is_named_and_the_rest_adopted(tmp_path: Path, label: str) -> None:
    filters, named = NO_CODEC[label]
    data = np.arange(4096, dtype="i4" if label != "zfp" else "f4") // 50
    path = write(tmp_path / "a.h5", data=data, chunks=(1024,), **filters)
    write(path, "b", data=data, chunks=(1024,))
    report, store = adopted(path)
    assert named in reasons(report)["a"]
    assert [each.path for each in report.arrays] == ["b"]
    require_reads(store, "b", data)
    with pytest.raises(AdoptionError, match="a filter that Zarr has no codec for") as caught:
        adopted(path, strict=True)
    assert [name for name, _ in caught.value.problems] == ["a"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_compact_scalar_and_never_written(tmp_path: Path, dtype: str, pipeline: str) -> None:
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
    report, store = adopted(path)
    assert require_equal(report, store, path) == 7
    assert "a fill value that zarr does not keep" in reasons(report)["half, missing"]


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
    inner = hdf5._Walk._require_chunks_in_file

    def shifted(walk: Any, dataset: Any, found: Any) -> None:
        found.offsets[...] -= np.uint64(512)
        inner(walk, dataset, found)

    monkeypatch.setattr(hdf5._Walk, "_require_chunks_in_file", shifted)
    report, _ = adopted(path)
    assert "user block" in reasons(report)["a"]


def test_chunks_that_filters_were_left_out_of(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    raw = [np.arange(each, each + 4, dtype="<i4").tobytes() for each in (0, 4)]
    with h5py.File(path, "w") as file:
        for name, masks in {"none": (1, 1), "some": (0, 1)}.items():
            made = file.create_dataset(name, (8,), "<i4", chunks=(4,), compression="gzip")
            for at, mask in enumerate(masks):
                if mask:
                    made.id.write_direct_chunk((4 * at,), raw[at], filter_mask=1)
                else:
                    made[4 * at : 4 * at + 4] = np.arange(4 * at, 4 * at + 4)
        partly = file.create_dataset("shuffled", (4,), "<i4", chunks=(4,), compression="gzip", shuffle=True)
        shuffled = np.frombuffer(raw[0], "u1").reshape(4, 4).T.tobytes()
        partly.id.write_direct_chunk((0,), shuffled, filter_mask=2)
    report, store = adopted(path)
    assert "a filter mask" in reasons(report)["some"]
    assert require_equal(report, store, path) == 2


def library() -> Any:
    """The HDF5 that h5py has, for what h5py has no names for."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell where h5py's HDF5 is")
    found = [line.split()[-1] for line in maps.read_text().splitlines() if "libhdf5" in line and "_hl" not in line]
    loaded = ctypes.CDLL(found[0])
    loaded.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    loaded.H5Pset_fill_value.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return loaded


@pytest.mark.parametrize("filters", ["shuffle", "deflate", "fletcher32", "shuffle, zeros first"])
def test_edges_that_the_filters_were_not_applied_to_are_not_misread(tmp_path: Path, filters: str) -> None:
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
    report, store = adopted(path)
    assert "at its edge" in reasons(report)["edges"]
    assert require_equal(report, store, path) == 1


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
    report, store = adopted(path)
    assert "shuffle after another" in reasons(report)["over"]
    assert require_equal(report, store, path) == 1


# --- what is no array of numbers --------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_named_each_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(5)
        file["string"] = "text"
        file["strings"] = ["a", "b"]
        file["bytes"] = np.array([b"a", b"bc"])
        file["compound"] = np.zeros(3, [("x", "i4"), ("y", "f8")])
        file.create_dataset("array type", (3,), "(2,)i4")
        file.create_dataset("vlen", (3,), h5py.vlen_dtype("i4"))
        file.create_dataset("reference", (3,), h5py.ref_dtype)
        file["opaque"] = np.zeros(3, "V5")
        file["null"] = h5py.Empty("f4")
        file.create_dataset("zero", (0, 4), "i4", chunks=(2, 2), maxshape=(None, 4))
        file.create_dataset("long double", data=np.zeros(3, "g"))
        file["type"] = np.dtype("f4")
        file["soft"] = h5py.SoftLink("/good")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["external"] = h5py.ExternalLink("other.h5", "/a")
        file.create_dataset("elsewhere", (10,), "u1", external=[("raw.bin", 0, 10)])
        layout = h5py.VirtualLayout((5,), "i8")
        layout[:] = h5py.VirtualSource(file["good"])
        file.create_virtual_dataset("virtual", layout)
        file.create_group("group")
        file["group/again"] = file["group"]
        file["group/above"] = file["/"]
        file["group/inner/x"] = 1
        file["twice"] = file["group/inner"]
        file["same"] = file["good"]
        bits12 = h5py.h5t.STD_U16LE.copy()
        bits12.set_precision(12)
        h5py.h5d.create(file.id, b"12 bits", bits12, h5py.h5s.create_simple((4,)))
        h5py.h5d.create(file.id, b"bit field", h5py.h5t.STD_B8LE, h5py.h5s.create_simple((4,)))
        for name, (real, imaginary, size) in {"swapped": (8, 0, 16), "apart": (0, 16, 24)}.items():
            kind = h5py.h5t.create(h5py.h5t.COMPOUND, size)
            kind.insert(b"r", real, h5py.h5t.IEEE_F64LE)
            kind.insert(b"i", imaginary, h5py.h5t.IEEE_F64LE)
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((4,)))
            file[name][...] = np.arange(4) + 2j
    report, store = adopted(path)
    named = reasons(report)
    for name, reason in {
        "string": "string",
        "strings": "string",
        "bytes": "string",
        "compound": "compound",
        "array type": "only numbers",
        "vlen": "only numbers",
        "reference": "only numbers",
        "opaque": "only numbers",
        "null": "null",
        "zero": "its shape is (0, 4)",
        "long double": "16 bytes",
        "type": "a named type",
        "soft": "a link to /good",
        "dangling": "a link to /nowhere",
        "external": "a link into another file: other.h5:/a",
        "elsewhere": "raw.bin",
        "virtual": "a virtual dataset",
        "group/again": "another name of the group 'group'",
        "group/above": "another name of the group '/'",
        "twice": "another name of the group 'group/inner'",
        "12 bits": "of their own",
        "bit field": "of their own",
        "swapped": "of their own",
        "apart": "of their own",
    }.items():
        assert reason in named.pop(name), name
    assert not named
    assert sorted(each.path for each in report.arrays) == ["good", "group/inner/x", "same"]
    for name in ("good", "same"):
        assert array(store, name)[:].tolist() == [0, 1, 2, 3, 4]
    settle(path)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError) as caught:
        adopt(path, into=session, strict=True)
    assert {name for name, _ in caught.value.problems} == set(reasons(report))
    assert not session.has_uncommitted_changes


def test_groups_in_many_groups_are_met_once(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(40):
            below = group.create_group("one")
            group["two"] = below
            group = below
        group["x"] = 1
    report, _ = adopted(path)
    assert len(report.arrays) == 1
    assert len(report.skipped) == 40


def test_enumerations_booleans_and_complex_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for order in "<>":
            kind = h5py.enum_dtype({"ONE": 1, "TWO": 300}, f"{order}i2")
            file.create_dataset(f"enum {order}", data=np.array([1, 300, 1, 2], kind), dtype=kind, chunks=(3,))
        file.create_dataset("bool", data=np.array([True, False, True]), chunks=(2,), fillvalue=True, maxshape=(9,))
        file["bool"].resize((7,))
        for name, kind in {"native": h5py.h5t.COMPLEX_IEEE_F32BE, "double": h5py.h5t.COMPLEX_IEEE_F64LE}.items():
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((4,)))
            part = np.dtype(">f4" if name == "native" else "<f8")
            file[name].id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(8).astype(part), mtype=kind)
    _, store = adopted(path, strict=True)
    for name in ("native", "double"):
        assert array(store, name)[:].tolist() == [0 + 1j, 2 + 3j, 4 + 5j, 6 + 7j]
    assert array(store, "enum >")[:].tolist() == [1, 300, 1, 2]
    assert array(store, "bool")[:].tolist() == [True, False, True, True, True, True, True]


def test_millions_of_millions_of_chunks_are_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("huge", (2**50,), "i4", chunks=(1,))
        file.create_dataset("sparse", (2**40,), "i4", chunks=(2**18,), fillvalue=3)[2**39] = 4
        file.create_dataset("nothing", (2**50, 2), "i4", fillvalue=3)
    report, store = adopted(path, shard_chunks=1)
    assert set(reasons(report)) == {"huge"}
    assert array(store, "nothing").shape == (2**50, 2)


# --- names and attributes ---------------------------------------------------------------------------------------------

NAMES = [
    "a b",
    "ü",
    "日本",
    "a.b",
    "a%20b",
    "%",
    "c",
    "c0",
    ".hidden",
    "a:b?#*[x]",
    "x" * 200,
    "__x",
    "-",
    "0",
    "a.index",
]
NO_NAMES = ["zarr.json", "__parts__", "..", "back\\slash"]


def test_names_of_every_kind_are_kept_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", track_order=True) as file:
        for number, name in enumerate([*NAMES, *NO_NAMES]):
            file.create_dataset(name, data=np.full(4, number), chunks=(2,))
            file[f"groups/{name}/inner"] = number
            file[f"groups/{name}"].attrs["a"] = number
        bad = h5py.h5s.create_simple((3,))
        h5py.h5d.create(file.id, b"not \xff text", h5py.h5t.NATIVE_INT32, bad)
    report, store = adopted(path, path="deep/down")
    for number, name in enumerate(NAMES):
        assert array(store, f"deep/down/{name}")[:].tolist() == [number] * 4
        group: Any = zarr.open_group(store, path=f"deep/down/groups/{name}", mode="r")
        assert group.attrs["a"] == number
        assert group["inner"][()] == number
    named = reasons(report)
    for name in NO_NAMES:
        for each in (name, f"groups/{name}", f"groups/{name}/inner"):
            assert "no node of Zarr can be called" in named.pop(each)
    assert named == {"not \\udcff text": "a text that is not UTF-8"}
    below = zarr.open_group(store, path="deep/down", mode="r")
    assert sorted(name for name, _ in below.arrays()) == sorted(NAMES)
    str(report).encode()


def test_attributes_are_kept_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
        for owner in (file, file["a"], file.create_group("only attributes")):
            attributes = owner.attrs
            attributes["int"] = np.int16(-3)
            attributes["large"] = np.uint64(2**64 - 1)
            attributes["float"] = np.float32(0.1)
            attributes["numbers"] = np.arange(3)
            attributes["one"] = np.array([5])
            attributes["nested"] = np.arange(6).reshape(2, 3)
            attributes["empty array"] = np.zeros((0,))
            attributes["text"] = "grün"
            attributes["texts"] = ["a", "ü"]
            attributes["fixed"] = np.bytes_("fixed")
            attributes["fixeds"] = np.array([b"a", b"bc"])
            attributes["nan"] = np.nan
            attributes["infinities"] = np.array([np.inf, -np.inf, 1])
            attributes["bool"] = True
            attributes["bools"] = np.array([True, False])
            attributes.create("enum", 2, dtype=h5py.enum_dtype({"A": 2}, "i1"))
            attributes["none"] = h5py.Empty("S1")
            attributes["nothing"] = h5py.Empty("f4")
            attributes["not text"] = np.bytes_(b"\xb0C")
            attributes["reference"] = file.ref
            attributes["complex"] = 1j
            attributes["compound"] = np.zeros((), [("x", "i4")])
            attributes["long double"] = np.longdouble(1)
            attributes["CLASS"] = "kept by HDF5 for itself"
    report, store = adopted(path)
    expected = {
        "int": -3,
        "large": 2**64 - 1,
        "float": float(np.float32(0.1)),
        "numbers": [0, 1, 2],
        "one": 5,
        "nested": [[0, 1, 2], [3, 4, 5]],
        "empty array": [],
        "text": "grün",
        "texts": ["a", "ü"],
        "fixed": "fixed",
        "fixeds": ["a", "bc"],
        "nan": "NaN",
        "infinities": ["Infinity", "-Infinity", 1.0],
        "bool": True,
        "bools": [True, False],
        "enum": 2,
        "none": "",
        "nothing": [],
    }
    for found in (zarr.open_group(store, mode="r"), array(store, "a"), zarr.open_group(store, path="only attributes")):
        assert found.attrs.asdict() == expected
    lost = ("not text", "reference", "complex", "compound", "long double")
    owners = ("/", "a", "only attributes")
    assert set(reasons(report)) == {f"{owner}@{name}" for owner in owners for name in lost}
    assert "UTF-8" in reasons(report)["a@not text"]


def test_a_file_with_attributes_alone_is_a_group(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "nothing else"
    report, store = adopted(path, strict=True)
    assert report.arrays == ()
    assert zarr.open_group(store, mode="r").attrs["title"] == "nothing else"


def test_dimensions_have_the_names_of_their_scales(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, size in {"x": 3, "y": 4, "other": 3}.items():
            file[name] = np.arange(size)
            file[name].make_scale()
        file["both"] = np.zeros((3, 4))
        for axis, names in enumerate((("other", "x"), ("y",))):
            for name in names:
                file["both"].dims[axis].attach_scale(file[name])
        file["same sizes"] = np.zeros((3, 3, 4, 3))
        file["others"] = np.zeros((4, 3))
        file["mixed"] = np.zeros((3, 5))
        file["mixed"].dims[0].attach_scale(file["x"])
        # A scale with another name, of a dataset that is called so in no group any more.
        file["gone"] = np.arange(2)
        file["gone"].make_scale()
        file["unnamed"] = np.zeros(2)
        file["unnamed"].dims[0].attach_scale(file["gone"])
        del file["gone"]
    _, store = adopted(path)
    found: dict[str, Any] = {
        name: each.metadata.to_dict()["dimension_names"] for name, each in zarr.open_group(store, mode="r").arrays()
    }
    assert found["x"] == ("x",)
    assert found["both"] == ("x", "y")
    one, two, four, three = found["same sizes"]
    assert len({one, two, three, four}) == 4
    assert found["others"] == (four, one)
    assert found["mixed"][0] == "x"
    assert found["unnamed"][0].startswith("phony_dim_")


# --- anything at all --------------------------------------------------------------------------------------------------


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


@settings(max_examples=20)
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
            # Nobody knows what is in chunks that are filled never, where they are not written.
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


# --- changed files, and where they go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["chunked", "contiguous"])
def test_a_file_that_was_changed_is_never_misread(tmp_path: Path, layout: str, pipeline: str) -> None:
    path = tmp_path / "a.h5"
    write(path, data=np.arange(100), chunks=(10,) if layout == "chunked" else None)
    session = repository(tmp_path).writable_session("main")
    # Not an old one: it was changed in this very second.
    adopt(path, into=session)
    store = ps.PartsStore.from_session(session)
    assert array(store, "a")[:].tolist() == list(range(100))
    with h5py.File(path, "r+") as file:
        file["a"][...] = 0
    for selection in (np.s_[:], np.s_[3], np.s_[95:]):
        with pytest.raises(SessionError, match="has changed"):
            array(store, "a")[selection]
    path.unlink()
    with pytest.raises(SessionError):
        array(store, "a")[:]


def test_a_file_that_changes_while_it_is_looked_at_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100))
    settle(path)
    inner = hdf5.describe

    def describe_and_touch(file: Any, nbytes: int) -> Any:
        found = inner(file, nbytes)
        os.utime(path)
        return found

    monkeypatch.setattr(hdf5, "describe", describe_and_touch)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError, match="while it was looked at"):
        adopt(path, into=session)
    assert not session.has_uncommitted_changes


def test_a_failed_read_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parts_store.backends.existing_files import StoredFile

    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(5):
            file.create_dataset(f"{number}", data=np.full(2**18, number), chunks=(2**14,))
            file[f"strings {number}"] = ["x" * 1000] * 1000
    settle(path)
    inner, calls = StoredFile.read, itertools.count()

    for allowed in (0, 1, 2, 3):
        calls = itertools.count()

        def read(stored: StoredFile, start: int, stop: int, calls: Any = calls, allowed: int = allowed) -> bytes:
            if next(calls) >= allowed:
                raise RuntimeError("the network is gone")
            return inner(stored, start, stop)

        monkeypatch.setattr(StoredFile, "read", read)
        session = repository(tmp_path).writable_session("main")
        with pytest.raises(AdoptionError, match="the network is gone"):
            adopt(path, into=session)
        assert not session.has_uncommitted_changes


def test_files_of_any_name_are_found_again(tmp_path: Path) -> None:
    for name in ("a b.h5", "ü.h5", "a%20b.h5", "a#b.h5", "a?b.h5", "[x].h5", "noextension"):
        path = write(tmp_path / name, data=np.arange(9), chunks=(2,))
        report, store = adopted(path)
        assert require_equal(report, store, path) == 1


def test_what_is_there_already_is_kept_or_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", "g/a", data=np.arange(9), chunks=(2,))
    write(path, "s", data=1)
    settle(path)
    session = repository(tmp_path).writable_session("main")
    store = ps.PartsStore.from_session(session)
    adopt(path, into=store)
    with pytest.raises(StoreConfigError, match="overwrite"):
        adopt(path, into=store)
    with h5py.File(path, "r+") as file:
        file["g/a"][:] = 7
    settle(path)
    adopt(path, into=store, overwrite=True)
    assert array(store, "g/a")[:].tolist() == [7] * 9
    # An array where a group has to be, and above it.
    zarr.create_array(store, name="in/g", shape=(3,), dtype="i4")
    with pytest.raises(StoreConfigError, match="in/g"):
        adopt(path, into=store, path="in")
    assert zarr.open_array(store, path="in/g").shape == (3,)
    with pytest.raises(StoreConfigError, match="a path in groups"):
        adopt(path, into=store, path="in/g/below")
    adopt(path, into=store, path="in", overwrite=True)
    assert array(store, "in/g/a")[:].tolist() == [7] * 9
    session.commit("adopted")


def test_a_wrong_call_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(9))
    settle(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    session = repository(elsewhere).writable_session("main")
    with pytest.raises(SessionError, match="container"):
        adopt(path, into=session)
    with pytest.raises(StoreConfigError, match="session"):
        adopt(path, into=ps.PartsStore.from_url("memory://"))
    with pytest.raises(StoreConfigError, match="url"):
        adopt(tmp_path / "nothing.h5", into=session)
    with pytest.raises(ValueError, match="read-only"):
        adopt(path, into=repository(tmp_path).readonly_session("main"))
    wrong: Any
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(StoreConfigError, match="shard_chunks"):
            adopt(path, into=session, shard_chunks=wrong)
    for data in (b"", b"CDF\x01" + bytes(2000), b"x" * 5000):
        path.write_bytes(data)
        with pytest.raises(AdoptionError, match="another format"):
            adopt(path, into=session)
    assert not session.has_uncommitted_changes


def test_the_report_and_progress_tell_what_was_done(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100, dtype="i4"), chunks=(10,))
    write(path, "b", data=np.arange(5, dtype=">f8"))
    write(path, "s", data=np.int16(4))
    write(path, "t", data="text")
    seen: list[tuple[int, int]] = []
    report, _ = adopted(path, shard_chunks=4, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    # Ten chunks in three shards, of four slots of 16 bytes each and a checksum.
    (chunked, contiguous, scalar) = report.arrays
    assert (chunked.chunks, chunked.references, chunked.nbytes_referenced) == (10, 3, 400)
    assert chunked.nbytes_written == 3 * (4 * 16 + 4)
    assert (contiguous.references, contiguous.nbytes_referenced, contiguous.nbytes_written) == (1, 40, 0)
    assert (scalar.references, scalar.nbytes_written) == (0, 2)
    assert report.references == 4
    assert report.nbytes_copied == 0
    assert report.to_json()["skipped"] == [{"name": "t", "reason": "values of type string: only numbers are read"}]
    assert "3 arrays adopted, 1 skipped" in str(report)


# --- what a read costs ------------------------------------------------------------------------------------------------


def interleaved(path: Path, variables: int, chunks: int, nbytes: int) -> Path:
    """A file whose variables take turns, chunk by chunk."""
    with h5py.File(path, "w", libver="latest") as file:
        made = [
            file.create_dataset(f"v{each}", (chunks * nbytes,), "u1", chunks=(nbytes,), maxshape=(None,))
            for each in range(variables)
        ]
        for at in range(chunks):
            for number, each in enumerate(made):
                each[at * nbytes : (at + 1) * nbytes] = (at * variables + number) % 251
            file.flush()
    return path


def test_a_whole_shard_is_read_without_the_other_variables_in_between(tmp_path: Path, pipeline: str) -> None:
    nbytes, chunks = 40_000, 12
    path = interleaved(tmp_path / "a.h5", 3, chunks, nbytes)
    report, _ = adopted(path)
    session = repository(tmp_path).writable_session("main")
    adopt(path, into=session)
    session.commit("adopted")
    for shard_chunks in (4095,):
        assert report.references == 3, shard_chunks
    store = ps.PartsStore.from_session(session)
    index = chunks * 16 + 4
    with h5py.File(path) as file:
        for name in ("v0", "v2"):
            opened = array(store, name)
            store.stats.reset()
            assert np.array_equal(opened[:], file[name][:])
            assert store.stats.bytes_read == chunks * nbytes + index, name
            assert store.stats.get == chunks + 1
            store.stats.reset()
            assert np.array_equal(opened[nbytes * 5 + 1 : nbytes * 6], file[name][nbytes * 5 + 1 : nbytes * 6])
            assert store.stats.bytes_read <= nbytes + index


def test_chunks_side_by_side_are_read_together(tmp_path: Path, pipeline: str) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(10_000, dtype="i4"), chunks=(100,))
    write(path, "b", data=np.arange(10_000, dtype="i4"), chunks=(100,))
    _, store = adopted(path)
    opened = array(store, "a")
    store.stats.reset()
    assert opened[:].tolist() == list(range(10_000))
    assert store.stats.get <= 4
    assert store.stats.bytes_read < 40_000 + 100 * 16 + 4 + 2 * 2**14


def test_a_shard_with_holes_is_read_whole(tmp_path: Path, pipeline: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", (100,), "i4", chunks=(10,), fillvalue=-1, maxshape=(None,))
        for start in (90, 20, 50):
            made[start : start + 10] = start
    report, store = adopted(path)
    assert require_equal(report, store, path) == 1


@pytest.mark.parametrize("wrong", ["past the file", "past the span", "far away", "half a hole", "empty", "checksum"])
def test_an_index_that_points_elsewhere_is_an_error_and_never_values(tmp_path: Path, wrong: str, pipeline: str) -> None:
    import google_crc32c

    path = write(tmp_path / "a.h5", data=np.arange(1000, dtype="i4"), chunks=(100,), compression="gzip")
    _, store = adopted(path)
    table = np.zeros((10, 2), "<u8")
    with h5py.File(path) as file:
        chunks: list[Any] = []
        file["a"].id.chunk_iter(chunks.append)
    first, stop = min(each.byte_offset for each in chunks), max(each.byte_offset + each.size for each in chunks)
    table[:, 0] = [each.byte_offset - first for each in chunks]
    table[:, 1] = [each.size for each in chunks]
    rows = {
        "past the file": (path.stat().st_size, 50),
        "past the span": (stop - first - 3, 50),
        "far away": (2**63, 50),
        "half a hole": (2**64 - 1, 50),
        "empty": (5, 0),
        "checksum": (0, 10),
    }
    table[4] = rows[wrong]
    data = table.tobytes()
    index = data + (0 if wrong == "checksum" else google_crc32c.value(data)).to_bytes(4, "little")
    length = stop - first
    reference = ps.Reference(path.resolve().as_uri(), first, length)
    store.set_parts("a/c/0", [reference, index])
    opened = array(store, "a")
    for selection in (np.s_[:], np.s_[400:450], 420):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            opened[selection]
        assert not isinstance(caught.value, AssertionError)
    if wrong != "checksum":
        assert opened[0:50].tolist() == list(range(50))


# --- damaged files ----------------------------------------------------------------------------------------------------


def small_file(path: Path, libver: str = "earliest") -> Path:
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("checked", data=np.arange(200, dtype="i4"), chunks=(50,), fletcher32=True)
        file.create_dataset("packed", data=np.arange(200, dtype=">f8"), chunks=(64,), compression="gzip", shuffle=True)
        file.create_dataset("g/plain", data=np.arange(50, dtype="u2"))
        file.create_dataset("grown", (30, 5), "i2", chunks=(7, 3), maxshape=(None, None), fillvalue=9)[3:9] = 4
        file["scalar"] = 2.5
        file["scale"] = np.arange(30)
        file["scale"].make_scale()
        file["grown"].dims[0].attach_scale(file["scale"])
        file.attrs["title"] = "small"
        file["g"].attrs["numbers"] = np.arange(3)
    return path


def h5py_values(path: Path, name: str) -> Any:
    try:
        with h5py.File(path) as file:
            return file[name][()]
    except Exception:
        return None


def require_right_or_refused(path: Path, session: icechunk.Session) -> str:
    """A damaged file is refused by an error of ours, or adopted; what is then read is right, or an error."""
    settle(path)
    try:
        report = adopt(path, into=session, overwrite=True)
    except PartsStoreError:
        assert not session.has_uncommitted_changes
        return "refused"
    store = ps.PartsStore.from_session(session)
    for each in report.arrays:
        if np.prod(each.shape, dtype=float) > 2**20:
            continue
        try:
            found = array(store, each.path)[...]
        except Exception:
            continue
        expected, before = h5py_values(path, each.path), h5py_values(path.parent / "whole.h5", each.path)
        if expected is None or bits(found, expected.dtype) == bits(expected, expected.dtype):
            continue
        # HDF5 fills in for a chunk that it lists and, by a damaged bound of its index, does not find again.
        assert bits(found, expected.dtype) == bits(before, expected.dtype), each.path
    session.discard_changes()
    return "adopted"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    data = small_file(tmp_path / "whole.h5").read_bytes()
    path = tmp_path / "a.h5"
    session = repository(tmp_path).writable_session("main")
    for length in [0, 1, 7, 8, 9, 50, 95, 96, 97, *range(100, len(data), 257), len(data) - 1]:
        path.write_bytes(data[:length])
        assert require_right_or_refused(path, session) == "refused"


@pytest.mark.parametrize("copies", [20, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_flipped_bits_never_become_other_values_than_h5py_reads(tmp_path: Path, libver: str, copies: int) -> None:
    data = small_file(tmp_path / "whole.h5", libver).read_bytes()
    random = np.random.default_rng(copies)
    path = tmp_path / "a.h5"
    session = repository(tmp_path).writable_session("main")
    outcomes = []
    for _ in range(copies):
        damaged = bytearray(data)
        for at in random.integers(0, len(data), random.integers(1, 9)):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        outcomes.append(require_right_or_refused(path, session))
    assert outcomes.count("adopted") > copies // 5


def test_chunks_past_the_end_of_the_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100), chunks=(10,))
    write(path, "b", data=np.arange(100))
    inner = hdf5.describe
    monkeypatch.setattr(hdf5, "describe", lambda file, nbytes: inner(file, nbytes - 1500))
    report, _ = adopted(path)
    assert all("and the file at" in reason for reason in reasons(report).values())
    assert reasons(report)


def test_an_old_file_is_adopted_without_waiting(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", data=np.arange(100), chunks=(10,))
    settle(path)
    session = repository(tmp_path).writable_session("main")
    start = time.monotonic()
    adopt(path, into=session)
    assert time.monotonic() - start < 0.9
