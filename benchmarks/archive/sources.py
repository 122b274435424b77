"""What is adopted: HDF5 files of many small chunks, and manifests of files that do not exist, except for one."""

import zlib
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import xarray as xr
from numpy.typing import NDArray
from virtualizarr.manifests import ChunkManifest, ManifestArray
from zarr.codecs import numcodecs

from parts_store._compat.zarr import ArrayV3Metadata

# Chunks of 16 x 16 numbers. With fewer numbers a reference would take as much space as the values.
SIDE = 16
CHUNK_SHAPE = (1, SIDE, SIDE)
VARIABLE = "v0"
# So many encoded chunks are different.
POOL = 1024

type Selection = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class Archive:
    """Many files, each of some time steps of some variables."""

    kind: Literal["files", "stream", "groups"]
    files: int
    variables: int
    steps: int
    # The number of chunks of a time step along each axis.
    rows: int
    columns: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """The number of chunks of a variable in a file, along each axis."""
        return self.steps, self.rows, self.columns

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a variable in a file."""
        return self.steps, self.rows * SIDE, self.columns * SIDE

    @property
    def chunks(self) -> int:
        """The number of all chunks."""
        return self.files * self.variables * self.steps * self.rows * self.columns

    @property
    def file_to_read(self) -> int:
        """The number of the file that is read, in the middle of the archive."""
        return self.files // 2

    def selections(self) -> dict[str, Selection]:
        """Return what is read of a file: a chunk, and a slab of up to four time steps."""
        first = min(3, self.steps - 1)
        everything, corner = slice(None), slice((self.rows - 1) * SIDE, self.rows * SIDE)
        return {
            "chunk": (slice(first, first + 1), corner, corner),
            "slab": (slice(first, min(first + 4, self.steps)), everything, everything),
        }


# --- HDF5 files -------------------------------------------------------------------------------------------------------


def path_of(folder: Path, number: int) -> Path:
    """Return the path of a file."""
    return folder / f"{number:05}.h5"


def write_files(archive: Archive, folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True)
    for number in range(archive.files):
        _write_file(archive, path_of(folder, number), number)


def _write_file(archive: Archive, path: Path, number: int) -> None:
    chance = np.random.default_rng(number)
    form: dict[str, Any] = {"dtype": "<f4", "chunks": CHUNK_SHAPE, "compression": "gzip", "compression_opts": 1}
    # Where the chunks of a variable begin.
    starts = [(step, row * SIDE, column * SIDE) for step, row, column in product(*map(range, archive.grid))]
    pool = encoded_chunks()
    with h5py.File(path, "w", libver="latest") as file:
        scales = [
            file.create_dataset(name, data=np.arange(length))
            for name, length in zip(("time", "y", "x"), archive.shape, strict=True)
        ]
        scales[0][:] += number * archive.steps
        scales[0].attrs["units"] = "days since 2000-01-01"
        for scale in scales:
            scale.make_scale(scale.name.strip("/"))
        for variable in range(archive.variables):
            dataset = file.create_dataset(f"v{variable}", archive.shape, **form)
            for axis, scale in enumerate(scales):
                dataset.dims[axis].attach_scale(scale)
            write = dataset.id.write_direct_chunk
            for start, chosen in zip(starts, chance.integers(0, POOL, len(starts)).tolist(), strict=True):
                write(start, pool[chosen])


def read_file(folder: Path, number: int, selection: Selection) -> NDArray[Any]:
    """Return values of a variable as h5py reads them."""
    with h5py.File(path_of(folder, number)) as file:
        values: NDArray[Any] = file[VARIABLE][selection]
        return values


@cache
def encoded_chunks() -> list[bytes]:
    """Return smooth fields with more or less noise, as the filter gzip of HDF5 leaves them."""
    chance = np.random.default_rng(1)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    found = []
    for _ in range(POOL):
        smooth = 280 + 20 * np.sin(rows * chance.uniform(0, 6) + columns * chance.uniform(0, 6))
        values = np.round(smooth + chance.normal(0, chance.uniform(0.01, 1), (SIDE, SIDE))).astype("<f4")
        found.append(zlib.compress(values.tobytes(), 1))
    return found


# --- manifests --------------------------------------------------------------------------------------------------------


def manifest_of(archive: Archive, folder: Path, number: int) -> xr.Dataset:
    """Return a file as a virtual dataset of VirtualiZarr. Only the file that is read needs to exist."""
    lengths = _lengths()[_chosen(archive, number)]
    ends = np.cumsum(lengths, dtype=np.uint64)
    manifest = ChunkManifest.from_arrays(
        paths=np.full(archive.grid, _raw_path(folder, number).as_uri(), np.dtypes.StringDType()),
        offsets=(ends - lengths).reshape(archive.grid),
        lengths=lengths.reshape(archive.grid),
        validate_paths=False,
    )
    metadata = ArrayV3Metadata.from_dict(_document(archive))
    array = ManifestArray(metadata=metadata, chunkmanifest=manifest)
    time = np.arange(number * archive.steps, (number + 1) * archive.steps)
    return xr.Dataset({VARIABLE: (("time", "y", "x"), array)}, {"time": time})


def write_file_to_read(archive: Archive, folder: Path) -> None:
    """Write the one file whose chunks are read."""
    folder.mkdir(parents=True)
    number = archive.file_to_read
    pool = encoded_chunks()
    _raw_path(folder, number).write_bytes(b"".join(pool[each] for each in _chosen(archive, number).tolist()))


def values_of(archive: Archive, number: int, selection: Selection) -> NDArray[Any]:
    """Return values of a file that only has a manifest."""
    pool = np.stack([np.frombuffer(zlib.decompress(each), "<f4").reshape(SIDE, SIDE) for each in encoded_chunks()])
    chunks = _chosen(archive, number).reshape(archive.grid)[selection[0]]
    values = pool[chunks].transpose(0, 1, 3, 2, 4).reshape(len(chunks), *archive.shape[1:])
    return values[(slice(None), *selection[1:])]


def _raw_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.raw"


def _chosen(archive: Archive, number: int) -> NDArray[np.int64]:
    """Return which of the encoded chunks a file consists of."""
    return np.random.default_rng(number).integers(0, POOL, archive.steps * archive.rows * archive.columns)


@cache
def _lengths() -> NDArray[np.uint64]:
    return np.array([len(each) for each in encoded_chunks()], np.uint64)


def _document(archive: Archive) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": archive.shape,
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNK_SHAPE}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, numcodecs.Zlib(level=1).to_dict()],
        "fill_value": 0.0,
        "attributes": {},
        "dimension_names": ["time", "y", "x"],
    }
