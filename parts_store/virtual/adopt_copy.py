"""Adopt a file as a copy in a store of objects: the file becomes the main part of a shard, with an index as the other.

In an object store a part cannot be a range of another file. The part is the whole file, so the file has one array.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import zarr
from zarr.buffer import cpu, default_buffer_prototype

from parts_store._compat.zarr import GroupMetadata, normalize_path, sync
from parts_store.errors import AdoptionError
from parts_store.redaction import hide_in_url
from parts_store.virtual.description import MISSING, Array, ArrayValues, Chunked, Contiguous, Description, Json
from parts_store.virtual.existing_files import (
    FileReader,
    OtherFiles,
    SourceFormat,
    StoredFile,
    copy_file,
    describe_file,
    open_file,
    open_stored,
    read_from,
)
from parts_store.virtual.manifests.shards import sharding_codec
from parts_store.virtual.parsed_file import HDF5, TIFF, changed
from parts_store.virtual.parsers import hdf5, tiff
from parts_store.virtual.report import AdoptedArray, Adoption
from parts_store.virtual.store_access import (
    DOCUMENT,
    SHARD_INDEX,
    ConcatParts,
    Document,
    Part,
    PartsStore,
    Progress,
    Put,
    Steps,
    destination,
    dump,
    encode_table,
    join,
    parse,
    with_parts,
)

# The formats whose files can be copied, and the suffixes of copies; the first one is for files with another suffix.
_FORMATS: Final[tuple[tuple[SourceFormat, tuple[str, ...]], ...]] = (
    (tiff, (".tif", ".tiff", ".btf", ".tf8", ".lsm", ".stk", ".svs")),
    (hdf5, (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".cdf")),
)


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
    job = _Job(store, stored, suffixes, _find_chunked_array(description, stored.location), normalize_path(path))
    obstacles = job.find_obstacles(description)
    job.require_writable(obstacles, overwrite=overwrite)
    for obstacle in obstacles:
        destination.clear(store, obstacle)
    adopted, copied = job.write(description, progress)
    return Adoption(hide_in_url(stored.location), tuple(adopted), tuple(description.skipped), copied)


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
    return open_stored(str(url), lambda: open_file(url, options))


def _find_format(reader: FileReader) -> tuple[SourceFormat, tuple[str, ...]]:
    """Return the format of a file, and the suffixes of its copies; raise `AdoptionError` if it cannot be copied."""
    for found, suffixes in _FORMATS:
        if read_from(reader, found.recognise):
            return found, suffixes
    problem = f"expected {TIFF.name} or {HDF5.name}, found another format"
    raise AdoptionError(reader.location, (("the file", problem),))


def _find_chunked_array(description: Description, location: str) -> Chunked:
    """Return the only array whose bytes are in the file; raise `AdoptionError` unless it is one and chunked."""
    arrays = [array for array in description.arrays if array.header.nbytes]
    placed = [array for array in arrays if isinstance(array, Chunked | Contiguous)]
    if len(placed) == 1 and isinstance(placed[0], Chunked) and not placed[0].encoded:
        return placed[0]
    names = ", ".join(repr(array.header.name) for array in placed) or "none"
    problem = f"expected one chunked dataset (a copy is one shard), found {names}; adopt it into an Icechunk session"
    raise AdoptionError(location, (("the file", problem),))


@dataclass(frozen=True, slots=True)
class _Job:
    """The adoption of one file as a copy."""

    store: PartsStore
    stored: StoredFile
    suffixes: tuple[str, ...]
    # The array that becomes a shard.
    copied: Chunked
    path: str

    def find_obstacles(self, description: Description) -> list[str]:
        """Return the paths of nodes in the store that the groups and arrays of the file would replace.

        A group of the file is merged with a group of the store, so that only an array is an obstacle.
        """
        groups = destination.read_nodes(self.store, [self._place(name) for name in description.groups])
        arrays = [self._place(array.header.name) for array in description.arrays]
        return [
            *(path for path, documents in groups.items() if destination.is_array(documents)),
            *(path for path in arrays if destination.find_key(self.store, path) is not None),
        ]

    def require_writable(self, obstacles: Sequence[str], *, overwrite: bool) -> None:
        """Raise, before anything is written, if the path is not free."""
        ancestors = destination.read_ancestors(self.store, self.path)
        destination.require_outside_arrays(ancestors, self.path, "path")
        # The root cannot be deleted, because it contains the path.
        if obstacles and (not overwrite or not obstacles[0]):
            raise destination.not_empty("path", obstacles[0])

    def _place(self, name: str) -> str:
        return "/".join(each for each in (self.path, name) if each)

    def write(self, description: Description, progress: Progress) -> tuple[list[AdoptedArray], int]:
        """Write the groups and arrays; return the arrays, and the number of bytes that were copied of the file."""
        # This creates the groups above the path. For the other groups, zarr would check all groups above them again.
        zarr.open_group(self.store, path=self.path, mode="a", zarr_format=3)
        for name, attributes in description.groups.items():
            self._write_group(self._place(name), attributes)
        adopted, nbytes_copied = [], 0
        for number, array in enumerate(description.arrays):
            progress(number, len(description.arrays))
            if isinstance(array, ArrayValues):
                adopted.append(self._write_values(array))
            elif isinstance(array, Chunked) and not array.header.nbytes:
                adopted.append(self._write_empty(array))
            else:
                one, nbytes_copied = self._copy(self.copied)
                adopted.append(one)
        progress(len(adopted), len(adopted))
        return adopted, nbytes_copied

    def _write_group(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Create a group, or add the attributes to those of an existing group."""
        data = sync(self.store.get(join(path, DOCUMENT), default_buffer_prototype()))
        found = None if data is None else parse(data.to_bytes())
        if found is not None and not attributes:
            return
        metadata = GroupMetadata() if found is None else GroupMetadata.from_dict(found)
        metadata = replace(metadata, attributes={**metadata.attributes, **attributes})
        document = metadata.to_buffer_dict(default_buffer_prototype())[DOCUMENT]
        sync(self.store.set(join(path, DOCUMENT), document))

    def _write_document(self, array: Array, document: Json) -> str:
        path = join(self.path, array.header.name)
        sync(self.store.set(join(path, DOCUMENT), cpu.Buffer.from_bytes(dump(document))))
        return path

    def _write_empty(self, array: Chunked) -> AdoptedArray:
        header = array.header
        document = header.to_json(array.chunk_shape, [header.bytes_codec, *array.codecs])
        return AdoptedArray(self._write_document(array, document), header.shape, str(header.dtype), 0, 0, 0, 0)

    def _write_values(self, array: ArrayValues) -> AdoptedArray:
        header = array.header
        path = self._write_document(array, header.to_json(header.shape, [header.bytes_codec]))
        # Not with zarr, which does not write a chunk that equals the fill value; it treats all NaNs as equal.
        data = header.encode(array.values)
        sync(self.store.set(_first_key(path, array), cpu.Buffer.from_bytes(data)))
        return AdoptedArray(path, header.shape, header.type_name, 1, 0, 0, len(data), loaded=array.note)

    def _copy(self, array: Chunked) -> tuple[AdoptedArray, int]:
        """Copy the file and write its index; return the number of copied bytes, 0 if the file is linked."""
        document, header = self._document(array), array.header
        path = join(self.path, header.name)
        nbytes_copied, index = 0, b""
        is_there = array.offsets != MISSING
        # Without chunks there is no shard, and the file is not copied.
        if bool(is_there.any()):
            main_part, index_part = document["storage_transformers"][0]["configuration"]["parts"]
            key = _first_key(path, array)
            # Offsets in the index are those in the file, which is the beginning of the shard.
            table = np.stack([array.offsets, array.lengths], axis=-1).astype("<u8")
            index = encode_table(table, has_checksum=True)
            # The anchor is written last. Without it the chunk does not exist.
            self.store.carry_out(_put(key + index_part["key_suffix"], index))
            nbytes_copied = copy_file(self.stored, self.store.store, key + main_part["key_suffix"])
        # The document is written last, so that the array appears with its chunk.
        self._write_document(array, document)
        nbytes, dtype = int(array.lengths[is_there].sum()), str(header.dtype)
        adopted = AdoptedArray(
            path, header.shape, dtype, array.offsets.size, 0, nbytes, len(index), "a copy of the file"
        )
        return adopted, nbytes_copied

    def _document(self, array: Chunked) -> Document:
        """Return the metadata document of an array that is one shard, whose main part is the file."""
        suffix = PurePosixPath(self.stored.location).suffix
        main = Part(suffix if suffix in self.suffixes else self.suffixes[0])
        parts = ConcatParts([main, Part(".index", size=SHARD_INDEX)])
        grid = array.offsets.shape
        shard_shape = tuple(size * count for size, count in zip(array.chunk_shape, grid, strict=True))
        document = array.header.to_json(shard_shape, [sharding_codec(array.chunk_shape, array.all_codecs)])
        return with_parts(document, parts, array.header.name, must_understand=self.store.must_understand)


def _first_key(path: str, array: Array) -> str:
    """Return the key of the only chunk of an array."""
    return join(path, "/".join(["c", *("0" for _ in array.header.shape)]))


def _put(key: str, data: bytes) -> Steps[None]:
    yield (Put(key, data, None, None, "index of an adopted file"),)
