"""HDF5 files to adopt, and what is expected of the arrays that they become."""

import ctypes
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

import parts_store as ps
from tests.virtual.adopting import arrays, bits

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
    selections: list[Any] = [np.s_[...], np.s_[:1], np.s_[-1:], np.s_[1::3]]
    selections += [tuple(slice(size // 3, size // 3 + 2) for size in values.shape), tuple(np.array(values.shape) - 1)]
    for found in arrays(store, name):
        assert found.dtype.newbyteorder("<") == values.dtype.newbyteorder("<")
        for each in selections:
            assert bits(found[each], values.dtype) == bits(values[each], values.dtype), each


def reasons(report: Any) -> dict[str, str]:
    return {each.name: each.reason for each in report.skipped}


def library() -> Any:
    """The HDF5 that h5py has, for what h5py has no names for."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell where h5py's HDF5 is")
    # Other packages, such as rasterio, have an HDF5 of their own.
    folder = str(Path(h5py.__file__).parent.parent / "h5py.libs")
    lines = [line.split()[-1] for line in maps.read_text().splitlines() if "libhdf5" in line and "_hl" not in line]
    found = [line for line in lines if line.startswith(folder)] or lines
    loaded = ctypes.CDLL(found[0])
    loaded.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    loaded.H5Pset_fill_value.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return loaded
