"""Adopt a file as a copy in a store of objects: the file becomes the main part of a shard, with an index as the other.

In an object store a part cannot be a range of another file. The part is the whole file, so the file has one array.
"""

import os
import shutil
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import obstore
import zarr
from obstore.store import LocalStore, S3Store
from zarr.buffer import cpu

from parts_store._compat.zarr import normalize_path
from parts_store.errors import AdoptionError
from parts_store.redaction import hide_in_url
from parts_store.virtual.description import MISSING, Array, ArrayValues, Chunked, Contiguous, Description, Json
from parts_store.virtual.existing_files import (
    FileReader,
    OtherFiles,
    SourceFormat,
    StoredFile,
    describe_file,
    find_file,
    missing_file,
    open_stored,
    read_from,
    refused_file,
)
from parts_store.virtual.manifests.shards import sharding_codec
from parts_store.virtual.parsed_file import HDF5, TIFF, changed
from parts_store.virtual.parsers import hdf5, tiff
from parts_store.virtual.report import AdoptedArray, Adoption
from parts_store.virtual.store_access import (
    DOCUMENT,
    SHARD_INDEX,
    ConcatParts,
    Part,
    PartsStore,
    Progress,
    Put,
    Steps,
    address_of,
    destination,
    dump,
    encode_table,
    join,
    local_path,
    open_url,
    secrets_of,
    translated,
    with_parts,
)
from parts_store.virtual.stored_arrays import place

# The formats whose files can be copied, and the suffixes of copies; the first one is for files with another suffix.
_FORMATS: Final[tuple[tuple[SourceFormat, tuple[str, ...]], ...]] = (
    (tiff, (".tif", ".tiff", ".btf", ".tf8", ".lsm", ".stk", ".svs")),
    (hdf5, (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".cdf")),
)
# A file that is copied through this process is read in blocks of this size.
_BLOCK: Final = 1 << 24


def adopt_copy(
    url: str | Path, store: PartsStore, path: str, *, strict: bool, overwrite: bool, progress: Progress, **options: Any
) -> Adoption:
    """Copy a file to a store as an array with an index, and return the report. The store is not a session."""
    stored = _open(url, options)
    reader = FileReader(stored)
    found, suffixes = _find_format(reader)
    others = OtherFiles(stored.location, why_none="its values are in another file: {}".format)
    description = describe_file(found, reader, others)
    if _open(url, options).state != stored.state:
        raise changed(stored.location)
    lost = tuple((each.name, each.reason) for each in description.skipped if each.has_values)
    if strict and lost:
        raise AdoptionError(stored.location, lost)
    copied = _find_chunked_array(description, stored.location)
    root = normalize_path(path)
    arrays = {join(root, array.header.name): array for array in description.arrays}
    groups = {place(root, name): attributes for name, attributes in description.groups.items()}
    for obstacle in _find_obstacles(store, root, groups, arrays, overwrite=overwrite):
        destination.clear(store, obstacle)
    for where, attributes in groups.items():
        group = zarr.open_group(store, path=where, mode="a", zarr_format=3)
        if attributes:
            group.update_attributes(dict(attributes))
    adopted, nbytes_copied = [], 0
    for number, (where, array) in enumerate(arrays.items()):
        progress(number, len(arrays))
        if array is copied:
            report, nbytes_copied = _write_shard(store, where, copied, stored, suffixes)
        else:
            report = _write_values(store, where, array)
        adopted.append(report)
    progress(len(arrays), len(arrays))
    return Adoption(hide_in_url(stored.location), tuple(adopted), tuple(description.skipped), nbytes_copied)


def require_file(url: str | Path, **options: Any) -> None:
    """Raise `AdoptionError` unless there is an HDF5, netCDF4 or TIFF file at a URL or a path.

    Parameters
    ----------
    url : str or Path
        The file: a path, or a URL.
    **options
        Options of obstore for the store of the file.

    Examples
    --------
    >>> import h5py
    >>> h5py.File("file.h5", "w").close()
    >>> from parts_store.virtual.adopt_copy import require_file
    >>> require_file("file.h5")
    """
    _find_format(FileReader(_open(url, options)))


def _open(url: str | Path, options: dict[str, Any]) -> StoredFile:
    return open_stored(str(url), lambda: _open_file(url, options))


def _find_format(reader: FileReader) -> tuple[SourceFormat, tuple[str, ...]]:
    """Return the format of a file, and the suffixes of its copies; raise `AdoptionError` if it cannot be copied."""
    for found, suffixes in _FORMATS:
        if read_from(reader, found.recognise):
            return found, suffixes
    found_instead = "another format" if reader.nbytes else "an empty file"
    problem = f"expected {TIFF.name} or {HDF5.name}, found {found_instead}"
    raise refused_file(reader.location, problem)


def _find_chunked_array(description: Description, location: str) -> Chunked:
    """Return the only array whose bytes are in the file; raise `AdoptionError` unless it is one and chunked."""
    arrays = [array for array in description.arrays if array.header.nbytes]
    placed = [array for array in arrays if isinstance(array, Chunked | Contiguous)]
    if len(placed) == 1 and isinstance(placed[0], Chunked) and not placed[0].encoded:
        return placed[0]
    names = ", ".join(repr(array.header.name) for array in placed) or "none"
    problem = f"expected one chunked dataset (a copy is one shard), found {names}; adopt it into an Icechunk session"
    raise refused_file(location, problem)


def _find_obstacles(
    store: PartsStore, root: str, groups: Collection[str], arrays: Collection[str], *, overwrite: bool
) -> list[str]:
    """Return the paths of nodes in the store that the groups and arrays of the file replace; raise if they may not.

    A group of the file is merged with a group of the store, so that only an array is an obstacle.
    """
    destination.require_outside_arrays(destination.read_ancestors(store, root), root, "path")
    stored = destination.read_nodes(store, groups)
    obstacles = [where for where, documents in stored.items() if destination.is_array(documents)]
    obstacles += [where for where in arrays if destination.find_key(store, where) is not None]
    # The root cannot be deleted, because it contains the path.
    if obstacles and (not overwrite or not obstacles[0]):
        raise destination.not_empty("path", obstacles[0])
    return obstacles


def _write_values(store: PartsStore, path: str, array: Array) -> AdoptedArray:
    """Write an array whose values are known, or which has none."""
    header = array.header
    if not isinstance(array, ArrayValues):
        chunk_shape = array.chunk_shape if isinstance(array, Chunked) else header.shape
        codecs = array.all_codecs if isinstance(array, Chunked) else [header.bytes_codec]
        _write_document(store, path, header.to_json(chunk_shape, codecs))
        return AdoptedArray(path, header.shape, str(header.dtype), 0, 0, 0, 0)
    _write_document(store, path, header.to_json(header.shape, [header.bytes_codec]))
    # Not with zarr, which does not write a chunk that equals the fill value; it treats all NaNs as equal.
    data = header.encode(array.values)
    store.set_sync(_first_key(path, array), cpu.Buffer.from_bytes(data))
    return AdoptedArray(path, header.shape, header.type_name, 1, 0, 0, len(data), loaded=array.note)


def _write_shard(
    store: PartsStore, path: str, array: Chunked, stored: StoredFile, suffixes: tuple[str, ...]
) -> tuple[AdoptedArray, int]:
    """Copy the file and write its index; return the number of copied bytes, too, 0 if the file is linked."""
    header, is_there = array.header, array.offsets != MISSING
    suffix = PurePosixPath(stored.location).suffix
    parts = ConcatParts([Part(suffix if suffix in suffixes else suffixes[0]), Part(".index", size=SHARD_INDEX)])
    nbytes_copied, index = 0, b""
    # Without chunks there is no shard, and the file is not copied.
    if bool(is_there.any()):
        main_key, index_key = (_first_key(path, array) + part.key_suffix for part in parts.parts)
        # Offsets in the index are those in the file, which is the beginning of the shard.
        table = np.stack([array.offsets, array.lengths], axis=-1).astype("<u8")
        index = encode_table(table, has_checksum=True)
        # The anchor is written last. Without it the chunk does not exist.
        store.carry_out(_put(index_key, index))
        nbytes_copied = _copy_file(stored, store.store, main_key)
    shard_shape = tuple(size * count for size, count in zip(array.chunk_shape, array.offsets.shape, strict=True))
    document = header.to_json(shard_shape, [sharding_codec(array.chunk_shape, array.all_codecs)])
    # The document is written last, so that the array appears with its chunk.
    _write_document(store, path, with_parts(document, parts, header.name, must_understand=store.must_understand))
    nbytes = int(array.lengths[is_there].sum())
    report = AdoptedArray(
        path, header.shape, str(header.dtype), array.offsets.size, 0, nbytes, len(index), "a copy of the file"
    )
    return report, nbytes_copied


def _write_document(store: PartsStore, path: str, document: Json) -> None:
    store.set_sync(join(path, DOCUMENT), cpu.Buffer.from_bytes(dump(document)))


def _first_key(path: str, array: Array) -> str:
    """Return the key of the only chunk of an array."""
    return join(path, "/".join(["c", *("0" for _ in array.header.shape)]))


def _put(key: str, data: bytes) -> Steps[None]:
    yield (Put(key, data, None, None, "index of an adopted file"),)


# --- the file ---------------------------------------------------------------------------------------------------------


def _open_file(url: str | Path, options: dict[str, Any]) -> StoredFile:
    """Open the file at a URL or a path."""
    text = str(url)
    is_local = "://" not in text or text.startswith("file://")
    if is_local:
        path = (local_path(text) if text.startswith("file://") else Path(text).expanduser()).resolve()
        if not path.is_file():
            raise missing_file(path.as_uri())
        folder, key, location = str(path.parent), path.name, path.as_uri()
    else:
        # The query may contain a '/'.
        address, mark, query = text.partition("?")
        folder, _, name = address.rpartition("/")
        key, location = f"{name}{mark}{query}", text
    found = find_file(open_url(folder, options, create=False), key, location)
    if found is None:
        raise missing_file(text)
    return found


def _copy_file(file: StoredFile, store: Any, key: str) -> int:
    """Copy a file into a store, on the server if possible, and return the number of copied bytes.

    On one local disk, the file is linked instead of copied.
    """
    with translated("copy", key, lambda: [*secrets_of(file.store), *secrets_of(store)]):
        if isinstance(file.store, LocalStore) and isinstance(store, LocalStore):
            source, target = Path(file.store.prefix or "/", file.key), Path(store.prefix or "/", key)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)
                return file.nbytes
            return 0
        (one, above), (other, above_other) = address_of(file.store), address_of(store)
        if one == other and isinstance(store, S3Store):
            # A store of the whole bucket, which contains both keys.
            container = S3Store(config={**store.config}, client_options=store.client_options)
            source_key, target_key = (
                f"{folder}/{name}".strip("/") for folder, name in ((above, file.key), (above_other, key))
            )
            obstore.copy(container, source_key, target_key)
        else:
            with obstore.open_writer(store, key) as writer:
                for start in range(0, file.nbytes, _BLOCK):
                    writer.write(file.read(start, start + _BLOCK))
        return file.nbytes
