"""What the matrix of interoperability reads: arrays with the same values, in each form that this package writes.

Every row is a folder with a Zarr group of one array, or with an Icechunk repository of such a group. Its values are
computed here, without the code under test.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import tifffile
import z5py
import zarr
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import Shuffle, Zlib
from zarr.storage import LocalStore

import parts_store as ps

SHAPE: Final = (120, 100)
CHUNK: Final = (16, 16)
SHARD: Final = (64, 64)
# As wide as the array, and as high as a divisor of its height: the strips of a TIFF file.
STRIP: Final = (20, 100)
STRIPS: Final = (60, 100)
NAMES: Final = ("y", "x")


def values() -> np.ndarray:
    """Return values of 16 bits in which no two rows and columns are equal, with a chunk that is not stored."""
    found = np.random.default_rng(29).integers(1, 60_000, SHAPE).astype("<u2")
    found[16:32, 32:48] = 0
    return found


VALUES: Final = values()
COMPRESSORS: Final[dict[str, Any]] = {
    "none": None,
    "zstd": ZstdCodec(level=3),
    "deflate": Zlib(level=5),
    "gzip": GzipCodec(level=5),
    "shuffle + zstd": [Shuffle(elementsize=2), ZstdCodec(level=3)],
    "shuffle + deflate": [Shuffle(elementsize=2), Zlib(level=5)],
}


@dataclass(frozen=True, slots=True)
class Row:
    """A form of an array, with a compression; `files` says which objects other programs open, and with what values."""

    form: str
    compression: str
    write: Callable[[Path, str], None]
    files: tuple[str, tuple[int, int]] | None = None
    is_repository: bool = False
    array: str = "image"

    @property
    def name(self) -> str:
        return f"{self.form}, {self.compression}"

    def expected_files(self, folder: Path) -> dict[Path, np.ndarray]:
        """Return the files that were written, with the values of each."""
        if self.files is None:
            return {}
        suffix, shape = self.files
        # A chunk is whole at the edge; the file of a shard ends where the array ends.
        is_chunk = shape == CHUNK
        padded = np.pad(VALUES, [(0, -n % step) for n, step in zip(SHAPE, shape, strict=True)])
        found = {}
        for at in np.ndindex(*[-(-n // step) for n, step in zip(SHAPE, shape, strict=True)]):
            where = tuple(slice(a * step, (a + 1) * step) for a, step in zip(at, shape, strict=True))
            path = folder / f"image/c/{at[0]}/{at[1]}{suffix}"
            block = padded[where] if is_chunk else VALUES[where]
            assert path.exists() == bool(block.any())
            if block.any():
                found[path] = block
        return found


def _create(folder: Path, compression: str, **arguments: Any) -> None:
    arguments = {"chunks": CHUNK, "shape": SHAPE, "dtype": "uint16", "dimension_names": NAMES, **arguments}
    store = ps.PartsStore.from_url(folder)
    is_plain = not arguments.keys() & {"parts", "chunk_file", "shard_file"}
    create: Callable[..., Any] = zarr.create_array if is_plain else ps.create_array
    create(store, name="image", compressors=COMPRESSORS[compression], **arguments)[...] = VALUES


def _written(**arguments: Any) -> Callable[[Path, str], None]:
    return lambda folder, compression: _create(folder, compression, **arguments)


def _padded(folder: Path, compression: Any) -> None:
    header = ps.headers.TiffHeader(CHUNK, dtype="uint16", compression=compression)
    codec = COMPRESSORS[compression]
    pad = ps.codecs.pad_codec(nbytes=header.nbytes, padding_func=header)
    array = zarr.create_array(
        LocalStore(folder),
        name="image",
        shape=SHAPE,
        chunks=CHUNK,
        dtype="uint16",
        dimension_names=NAMES,
        compressors=[pad] if codec is None else [codec, pad],
    )
    array[...] = VALUES


def _adopted(file: Path, shard_chunks: int | None) -> None:
    repository = ps.open_repository(file.parent / "repository", virtual=[file.parent])
    session = repository.writable_session("main")
    arguments: dict[str, Any] = {} if shard_chunks is None else {"shard_chunks": shard_chunks}
    report = ps.adopt(file, into=session, **arguments)
    assert report.is_complete
    assert report.nbytes_copied == 0
    (array,) = report.arrays
    assert array.form == ("plain" if shard_chunks is None else "shards")
    session.commit("adopted")


def _adopted_hdf5(shard_chunks: int | None = None) -> Callable[[Path, str], None]:
    def write(folder: Path, compression: str) -> None:
        folder.mkdir()
        filters: Any = {"none": {}, "deflate": {"compression": "gzip"}}[compression]
        with h5py.File(folder / "image.h5", "w") as file:
            file.create_dataset("image", data=VALUES, chunks=CHUNK, **filters)
        _adopted(folder / "image.h5", shard_chunks)

    return write


def _adopted_tiff(shard_chunks: int | None = None) -> Callable[[Path, str], None]:
    def write(folder: Path, compression: str) -> None:
        folder.mkdir()
        kind = None if compression == "none" else compression
        tifffile.imwrite(folder / "image.tif", VALUES, tile=CHUNK, compression=kind, metadata=None)
        _adopted(folder / "image.tif", shard_chunks)

    return write


def _rectilinear(folder: Path, compression: str) -> None:
    """Adopt two files with one compressed chunk each, of 70 and of 50 rows."""
    folder.mkdir()
    for number, rows in enumerate((slice(0, 70), slice(70, None))):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            part = VALUES[rows]
            image = file.create_dataset("image", data=part, chunks=part.shape, compression="gzip")
            for axis, (name, length) in enumerate(zip(NAMES, part.shape, strict=True)):
                file.create_dataset(name, data=np.arange(length) + (rows.start if name == "y" else 0)).make_scale(name)
                image.dims[axis].attach_scale(file[name])
    repository = ps.open_repository(folder / "repository", virtual=[folder])
    session = repository.writable_session("main")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        report = ps.adopt(folder / "*.h5", into=session, concat_dim="y", uneven="rectilinear")
    assert {array.path: (array.form, array.references) for array in report.arrays}["image"] == ("rectilinear", 2)
    session.commit("adopted")


def _adopted_n5(folder: Path, compression: str) -> None:
    folder.mkdir()
    container = z5py.File(str(folder / "image.n5"), "a", use_zarr_format=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        container.create_dataset("image", data=VALUES, chunks=CHUNK, compression=compression)
    _adopted(folder / "image.n5", None)


def _n5(folder: Path, compression: str) -> None:
    container = z5py.File(str(folder), "a", use_zarr_format=False)
    # The axes of N5 are those of z5py, reversed.
    kind = {"none": "raw", "gzip": "gzip"}[compression]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        container.create_dataset("image", data=VALUES.T.copy(), chunks=CHUNK, compression=kind)
    container["image"].attrs["axes"] = list(NAMES)
    ps.adopt_in_place(folder)


INDEX: Final = ps.Part(".index", size=ps.SHARD_INDEX)
TIFF_PARTS: Final = [ps.Part(".tif"), INDEX]
HDF5_PARTS: Final = [ps.Part(".h5"), INDEX]
TIFF: Final = ("none", "zstd", "deflate")
HDF5: Final = (*TIFF, "shuffle + deflate", "shuffle + zstd")


def _rows(form: str, compressions: tuple[str, ...], write: Callable[[Path, str], None], **more: Any) -> list[Row]:
    return [Row(form, compression, write, **more) for compression in compressions]


ROWS: Final = (
    *_rows("plain array", (*TIFF, "gzip"), _written()),
    *_rows("plain array with shards", (*TIFF, "gzip"), _written(shards=SHARD)),
    *_rows("shards, index as a part", TIFF, _written(shards=SHARD, parts=[ps.Part(""), INDEX])),
    *_rows("TIFF chunks, `.tif`", TIFF, _written(chunk_file="tiff"), files=(".tif", CHUNK)),
    *_rows("TIFF chunks, `pad`", TIFF, _padded, files=("", CHUNK)),
    *_rows("TIFF shards", TIFF, _written(shards=SHARD, shard_file="tiff"), files=("", SHARD)),
    *_rows(
        "TIFF shards of strips",
        TIFF,
        _written(chunks=STRIP, shards=STRIPS, shard_file="tiff"),
        files=("", STRIPS),
    ),
    *_rows(
        "TIFF shards, `.tif` and index",
        TIFF,
        _written(shards=SHARD, shard_file="tiff", parts=TIFF_PARTS),
        files=(".tif", SHARD),
    ),
    *_rows("HDF5 shards", HDF5, _written(shards=SHARD, shard_file="hdf5"), files=("", SHARD)),
    *_rows(
        "HDF5 shards, `.h5` and index",
        HDF5,
        _written(shards=SHARD, shard_file="hdf5", parts=HDF5_PARTS),
        files=(".h5", SHARD),
    ),
    *_rows("adopted HDF5 file", ("none", "deflate"), _adopted_hdf5(), is_repository=True),
    *_rows("adopted HDF5 file, in shards", ("none", "deflate"), _adopted_hdf5(shard_chunks=14), is_repository=True),
    *_rows("adopted TIFF file", TIFF, _adopted_tiff(), is_repository=True, array="data"),
    *_rows("adopted TIFF file, in shards", TIFF, _adopted_tiff(shard_chunks=14), is_repository=True, array="data"),
    *_rows("adopted HDF5 files, rectilinear grid", ("deflate",), _rectilinear, is_repository=True),
    *_rows("adopted N5 container", ("gzip",), _adopted_n5, is_repository=True),
    *_rows("N5 in place", ("none", "gzip"), _n5),
)
