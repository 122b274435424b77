"""create_array: create an array whose chunks are stored in parts, or whose chunks or shards are files."""

import dataclasses
from typing import Any

import zarr
from zarr.storage import StorePath

from parts_store._compat.zarr import normalize_path
from parts_store.chunk_files import ChunkFile, plan_chunk_file
from parts_store.destination import are_apart
from parts_store.errors import PartsConfigError, StoreConfigError
from parts_store.format.files.description import FileFormat
from parts_store.format.parts import PartsLike
from parts_store.pipeline.opening import use_pipeline
from parts_store.shard_files import plan_shard_file
from parts_store.store import PartsStore


def create_array(
    store: PartsStore,
    name: str | None = None,
    *,
    parts: PartsLike | None = None,
    chunk_file: ChunkFile | None = None,
    shard_file: FileFormat | None = None,
    overwrite: bool = False,
    split: bool = False,
    must_understand: bool | None = None,
    **arguments: Any,
) -> zarr.Array[Any]:
    """Create an array whose chunks are stored in parts, or whose chunks or shards are files of another format.

    Give one of `parts`, `chunk_file` and `shard_file`.

    Parameters
    ----------
    store
        The store.
    name
        The path of the array in the store; the root if None.
    parts
        The parts of every chunk, in order: `Part` objects, the JSON objects of the specification, or key suffixes. The
        size `SHARD_INDEX` becomes the size of this array's shard index.
    chunk_file
        `"tiff"` if every chunk is a TIFF file that other programs can open, with the extension `.tif`; or a
        `ps.headers.TiffHeader`, if the shape does not say whether the last axis contains the colours. The compression
        is deflate, unless `compressors` is None, `zarr.codecs.ZstdCodec` or `zarr.codecs.numcodecs.Zlib`.
    shard_file
        `"tiff"` or `"hdf5"` if every shard is a file of this format that other programs can open, with the extension
        `.tif` or `.h5`. The inner chunks are the tiles of the image, or the chunks of the dataset. The index of the
        shard is an object beside the file, with the extension `.index`. The compression is deflate, unless
        `compressors` says another one that the format has.
        The image or dataset ends where the array ends. After the array was resized, the files at its edge keep their
        size until their shards are written again.
    overwrite
        Whether to delete first what is at that path. `data` must not be an array that is stored there.
    split
        In an Icechunk session, whether each part is stored as a chunk of its own, so that it can refer to an existing
        file. Otherwise all parts of a chunk are stored together.
    must_understand
        Whether the array tells software without concat-parts, which would misread it, to refuse it. None for the
        option of the store.
    arguments
        The arguments of `zarr.create_array`.

    Returns
    -------
    zarr.Array
        The array, which uses the codec pipeline of this package.

    Raises
    ------
    PartsConfigError
        If the parts do not fit the array.
    StoreConfigError
        If shards of this shape, data type or compression cannot be such files, or if `data` would be deleted before it
        is read.
    HeaderError
        If a chunk of this shape and data type cannot be such a file, or the header is for other chunks.
    ServerFeatureError
        If the server lacks what writing arrays with parts needs.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(store, "a", parts=["", ps.Part(".crc", size=4)], shape=(8,), chunks=(4,), dtype="uint8")
    >>> array[:] = 7
    >>> int(array[5])
    7

    Every chunk a TIFF file:

    >>> store = ps.PartsStore.from_url("images.zarr")
    >>> tiles = ps.create_array(store, "a", chunk_file="tiff", shape=(128, 128), chunks=(64, 64), dtype="uint16")
    >>> tiles[:64, :64] = 1
    >>> import tifffile
    >>> tifffile.imread("images.zarr/a/c/0/0.tif").shape
    (64, 64)

    Every shard a TIFF file with tiles:

    >>> large = ps.create_array(
    ...     store, "b", shard_file="tiff", shape=(512, 512), chunks=(64, 64), shards=(256, 256), dtype="uint16"
    ... )
    >>> large[:, :] = 1
    >>> tifffile.imread("images.zarr/b/c/1/1.tif").shape
    (256, 256)
    """
    if not isinstance(store, PartsStore):
        raise StoreConfigError("store", "a PartsStore", f"an object of type {type(store).__name__}")
    given = {"parts": parts, "chunk_file": chunk_file, "shard_file": shard_file}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        expected = "one of `parts`, `chunk_file` and `shard_file`"
        raise StoreConfigError("parts", expected, " and ".join(names) or "none of them")
    path = normalize_path(name)
    if arguments.get("zarr_format", 3) not in (3, None):
        raise PartsConfigError("zarr_format", "3, for Zarr v2 has no storage transformers", "2", path)
    if parts is None:
        layout = (
            plan_shard_file(shard_file, arguments) if chunk_file is None else plan_chunk_file(chunk_file, arguments)
        )
        parts, arguments = layout.parts, layout.arguments
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
    creating = store.with_parts({escaped: parts}, split=split, must_understand=must_understand, shard_file=shard_file)
    _require_data_apart(store, path, overwrite=overwrite, **arguments)
    # This comes before zarr creates the groups above: a server that ignores conditions would replace their documents.
    creating.require_server(path, parts)
    array = zarr.create_array(creating, name=path or None, overwrite=overwrite, **arguments)
    inner = dataclasses.replace(array.async_array, store_path=StorePath(store, path))
    created = type(array)(inner)
    use_pipeline(created)
    return created


def _require_data_apart(
    store: PartsStore, path: str, *, overwrite: bool, data: object = None, write_data: bool = True, **_: Any
) -> None:
    """Raise `StoreConfigError` if zarr would delete the data before it reads it."""
    if not (overwrite and write_data and isinstance(data, zarr.Array | zarr.AsyncArray)):
        return
    if not are_apart(data.store_path.store, data.path, store, path):
        problem = f"an array apart from {path!r}, because `overwrite=True` deletes {path!r} before `data` is read"
        # The root of a store contains all of its paths.
        other, new = ("store", f"{path}-new") if path else ("other_store", "")
        safely = (
            f"to convert it, write it to a new path, and copy it back:\n"
            f"    ps.create_array({other}, {new!r}, data=data, ...)\n"
            f"    ps.copy({other}, store, path={new!r}, to={path!r}, overwrite=True)"
        )
        raise StoreConfigError("data", problem, f"the array at {data.path!r}; {safely}")
