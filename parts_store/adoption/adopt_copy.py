"""Adopt a file as a copy in a store of objects: the file becomes the main part of an array."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zarr
from zarr.buffer import cpu, default_buffer_prototype

from parts_store import destination
from parts_store._compat.zarr import GroupMetadata, normalize_path, sync
from parts_store.adoption import copied_file, source_file
from parts_store.adoption.description import Array, Chunked, Description, Json, Values
from parts_store.adoption.report import AdoptedArray, Adoption
from parts_store.adoption.source_file import SourceFile
from parts_store.backends.existing_files import open_file
from parts_store.engine.stats import Progress
from parts_store.errors import AdoptionError
from parts_store.format.keys import DOCUMENT, join
from parts_store.format.metadata import dump, parse
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore


def adopt_copy(
    url: str | Path, store: PartsStore, path: str, *, strict: bool, overwrite: bool, progress: Progress, **options: Any
) -> Adoption:
    """Copy a file to a store as an array with an index, and return the report. The store is not a session."""
    source = source_file.read_source(source_file.open_stored(str(url), lambda: open_file(url, options)))
    stored, description = source.stored, source.description
    source_file.require_same(stored, source_file.open_stored(stored.location, lambda: open_file(url, options)))
    source_file.skip_invalid_names(description)
    lost = tuple((each.name, each.reason) for each in description.skipped if each.has_values)
    if strict and lost:
        raise AdoptionError(stored.location, lost)
    to_copy = copied_file.find_chunked_array(source)
    job = _Job(store, source, normalize_path(path))
    obstacles = job.find_obstacles(description)
    job.require_writable(obstacles, overwrite=overwrite)
    for obstacle in obstacles:
        destination.clear(store, obstacle)
    adopted, copied = job.write(description, to_copy, progress)
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
    >>> ps.adoption.require_file("file.h5")
    """
    source_file.require_known_format(source_file.open_stored(str(url), lambda: open_file(url, options)))


@dataclass(frozen=True, slots=True)
class _Job:
    """The adoption of one file as a copy."""

    store: PartsStore
    source: SourceFile
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

    def _document(self, path: str) -> Json | None:
        data = sync(self.store.get(join(path, DOCUMENT), default_buffer_prototype()))
        return None if data is None else parse(data.to_bytes())

    def write(self, description: Description, to_copy: Chunked, progress: Progress) -> tuple[list[AdoptedArray], int]:
        """Write the groups and arrays; return the arrays, and the number of bytes that were copied for `to_copy`."""
        self._write_groups(description.groups)
        adopted, copied = [], 0
        for number, array in enumerate(description.arrays):
            progress(number, len(description.arrays))
            if isinstance(array, Values):
                adopted.append(self._write_values(array))
            elif isinstance(array, Chunked) and not array.header.nbytes:
                adopted.append(self._write_empty(array))
            else:
                one, copied = self._copy(to_copy)
                adopted.append(one)
        progress(len(adopted), len(adopted))
        return adopted, copied

    def _copy(self, array: Chunked) -> tuple[AdoptedArray, int]:
        document = copied_file.document_of(array, self.source, must_understand=self.store.must_understand)
        path = join(self.path, array.header.name)
        result = copied_file.write(self.store, self.source, array, document, path)
        # The document is written last, so that the array appears with its chunk.
        self._write_document(array, document)
        return result

    def _write_groups(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        # This creates the groups above the path. For the other groups, zarr would check all groups above them again.
        zarr.open_group(self.store, path=self.path, mode="a", zarr_format=3)
        for name, attributes in groups.items():
            self._write_group(self._place(name), attributes)

    def _write_group(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Create a group, or add the attributes to those of an existing group."""
        found = self._document(path)
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

    def _write_values(self, array: Values) -> AdoptedArray:
        header = array.header
        path = self._write_document(array, header.to_json(header.shape, [header.bytes_codec]))
        # Not with zarr, which does not write a chunk that equals the fill value; it treats all NaNs as equal.
        key = join(path, "/".join(["c", *("0" for _ in header.shape)]))
        data = header.encode(array.values)
        sync(self.store.set(key, cpu.Buffer.from_bytes(data)))
        return AdoptedArray(path, header.shape, header.type_name, 1, 0, 0, len(data), loaded=array.note)
