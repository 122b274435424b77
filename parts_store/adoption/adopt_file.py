"""Adopt a file: describe what is in it, and write arrays that refer to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, assert_never

import zarr
from zarr.buffer import cpu, default_buffer_prototype

from parts_store import destination
from parts_store._compat.zarr import GroupMetadata, normalize_path, sync
from parts_store.adoption import copied_file, shard_plan, source_file
from parts_store.adoption.description import Array, Chunked, Contiguous, Description, Json, Values
from parts_store.adoption.report import AdoptedArray, Adoption, Skipped
from parts_store.adoption.source_file import SourceFile
from parts_store.backends.existing_files import StoredFile, open_file
from parts_store.engine.concurrency import run_for_each
from parts_store.engine.stats import Progress
from parts_store.errors import AdoptionError, StoreConfigError
from parts_store.format.keys import DOCUMENT, NODES_FOLDER, PartPlacement, join
from parts_store.format.metadata import dump, parse, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.format.references import Reference
from parts_store.options import parse_count
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore

# The index of a shard with this number of chunks still fits in a manifest of Icechunk, where it is compressed.
DEFAULT_SHARD_CHUNKS: Final = 4095
_AT_ONCE: Final = 32
# Names that a Zarr node cannot have.
_INVALID_NAMES: Final = ("", ".", "..", NODES_FOLDER, DOCUMENT)
_PARTS: Final = ConcatParts([Part(""), Part(".index", size=SHARD_INDEX)])


def adopt(
    url: str | Path,
    *,
    into: Any,
    path: str = "",
    copy: bool = False,
    shard_chunks: int = DEFAULT_SHARD_CHUNKS,
    strict: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Adoption:
    """Make an existing HDF5 or netCDF4 file readable as Zarr, without a copy of its data.

    Parameters
    ----------
    url : str or Path
        The file: a path, or a URL such as `s3://bucket/file.h5`, `gs://`, `az://` or `https://`.
    into : icechunk.Session or PartsStore
        A writable Icechunk session, or a `PartsStore` on a session. The file has to be in a virtual chunk container of
        the repository. The caller commits the session. With `copy`, a `PartsStore` on an object store or a local disk.
    path : str
        The arrays are created at `path/<name in the file>`.
    copy : bool
        Copy the file to the store, where it becomes the main part of an array and other programs can still open it. The
        server copies it if possible, and on a local disk it is linked. Only for files with one chunked dataset.
    shard_chunks : int
        The largest number of chunks of the file in a shard. A shard has one reference, and 16 bytes of index for each
        chunk.
    strict : bool
        Whether to raise an error if something in the file cannot be adopted. By default the report lists it.
    overwrite : bool
        Whether to replace existing arrays.
    progress : callable, optional
        Called with the number of arrays that are done and the number of all arrays.
    **options
        Options of obstore for the store of the file: `endpoint`, `region`, `access_key_id`, `client_options` ...

    Returns
    -------
    Adoption
        A report of what was adopted, and what was not.

    Raises
    ------
    AdoptionError
        If the file cannot be read, or with `strict`, if a part of it cannot be adopted. Nothing was written.
    StoreConfigError
        If the path is not free, or an argument is not valid. Nothing was written.

    Examples
    --------
    >>> import h5py
    >>> with h5py.File("file.h5", "w") as file:
    ...     dataset = file.create_dataset("x", data=np.arange(6), chunks=(2,), compression="gzip")
    >>> store = ps.PartsStore.from_url("copies.zarr")
    >>> report = ps.adoption.adopt("file.h5", into=store, copy=True)
    >>> report.arrays[0].path, report.arrays[0].chunks
    ('x', 3)
    >>> zarr.open_array(store, path="x", mode="r")[2:]
    array([2, 3, 4, 5])
    """
    store = _require_store(into, copy=copy)
    parse_count("shard_chunks", shard_chunks, least=1)
    source = source_file.read_source(source_file.open_stored(str(url), lambda: open_file(url, options)))
    stored, description = source.stored, source.description
    if not copy:
        source_file.wait_for_next_second(stored)
    source_file.require_same(stored, source_file.open_stored(stored.location, lambda: open_file(url, options)))
    job = _Job(store, source, normalize_path(path), shard_chunks)
    job.skip_invalid_names(description)
    lost = tuple((each.name, each.reason) for each in description.skipped if each.has_values)
    if strict and lost:
        raise AdoptionError(stored.location, lost)
    to_copy = copied_file.find_chunked_array(source) if copy else None
    obstacles = job.find_obstacles(description)
    job.require_writable(description, obstacles, overwrite=overwrite)
    for obstacle in obstacles:
        destination.clear(store, obstacle)
    adopted, copied = job.write(description, to_copy, progress)
    return Adoption(hide_in_url(stored.location), tuple(adopted), tuple(description.skipped), copied)


def require_file(url: str | Path, **options: Any) -> None:
    """Raise `AdoptionError` unless there is an HDF5 or netCDF4 file at a URL or a path.

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


def _require_store(into: object, *, copy: bool) -> PartsStore:
    store = into if isinstance(into, PartsStore) else PartsStore.from_session(into)
    if copy and store.session is not None:
        raise StoreConfigError("copy", "False, because a session refers to the file at its location", "True")
    if not copy and store.session is None:
        expected = "an Icechunk session, in which a part can be a range of a file, or `copy=True`"
        raise StoreConfigError("into", expected, str(store))
    store.require_writable()
    return store


@dataclass(frozen=True, slots=True)
class _Job:
    """The adoption of one file."""

    store: PartsStore
    source: SourceFile
    path: str
    shard_chunks: int

    @property
    def stored(self) -> StoredFile:
        """The file itself."""
        return self.source.stored

    def skip_invalid_names(self, description: Description) -> None:
        """Move groups and arrays whose names are not valid in Zarr to those that are skipped."""
        for name in [name for name in description.groups if name and self._skip_if_invalid(name, description)]:
            del description.groups[name]
        arrays = [array for array in description.arrays if not self._skip_if_invalid(array.header.name, description)]
        description.arrays[:] = arrays

    def _skip_if_invalid(self, name: str, description: Description) -> bool:
        wrong = [each for each in name.split("/") if each in _INVALID_NAMES or "\\" in each]
        if wrong:
            description.skipped.append(Skipped(name, f"no node of Zarr can be called {wrong[0]!r}"))
        return bool(wrong)

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

    def require_writable(self, description: Description, obstacles: Sequence[str], *, overwrite: bool) -> None:
        """Raise, before anything is written, if the file cannot be referred to, or the path is not free."""
        if self.store.session is not None and any(not isinstance(array, Values) for array in description.arrays):
            self.store.require_location(Reference(self.stored.location, 0, 1))
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

    def write(
        self, description: Description, to_copy: Chunked | None, progress: Progress | None
    ) -> tuple[list[AdoptedArray], int]:
        """Write the groups and arrays; return the arrays, and the number of bytes that were copied for `to_copy`."""
        self._write_groups(description.groups)
        adopted, copied = [], 0
        for number, array in enumerate(description.arrays):
            if progress is not None:
                progress(number, len(description.arrays))
            if array is to_copy:
                one, copied = self._copy(array)
                adopted.append(one)
            else:
                adopted.append(self._write(array))
        if progress is not None:
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

    def _write(self, array: Array) -> AdoptedArray:
        match array:
            case Chunked():
                return self._write_chunked(array)
            case Contiguous():
                return self._write_contiguous(array)
            case Values():
                return self._write_values(array)
            case never:
                assert_never(never)

    def _write_document(self, array: Array, document: Json) -> str:
        path = join(self.path, array.header.name)
        sync(self.store.set(join(path, DOCUMENT), cpu.Buffer.from_bytes(dump(document))))
        return path

    def _write_chunked(self, array: Chunked) -> AdoptedArray:
        counts = shard_plan.chunks_of_shard(array.offsets.shape, self.shard_chunks)
        document = shard_plan.sharded_document(array, counts)
        stored = with_parts(
            document,
            _PARTS,
            array.header.name,
            placement=PartPlacement.SPLIT,
            must_understand=self.store.must_understand,
        )
        path = self._write_document(array, stored)
        shards = list(shard_plan.shards_of(array, counts))
        self._write_parts(
            [(join(path, shard.relative), [self._refer(shard.start, shard.stop), shard.index]) for shard in shards]
        )
        return AdoptedArray(
            path,
            array.header.shape,
            str(array.header.dtype),
            array.offsets.size,
            len(shards),
            sum(shard.nbytes for shard in shards),
            sum(len(shard.index) for shard in shards),
        )

    def _write_contiguous(self, array: Contiguous) -> AdoptedArray:
        header, rows = array.header, shard_plan.rows_of_chunk(array)
        chunk_shape = (rows, *header.shape[1:])
        path = self._write_document(array, header.to_json(chunk_shape, [header.bytes_codec]))
        count = header.shape[0] // rows
        nbytes = header.nbytes // count
        places = product(range(count), *(range(1) for _ in header.shape[1:]))
        self._write_parts(
            [
                (
                    join(path, "/".join(["c", *map(str, place)])),
                    [self._refer(array.offset + place[0] * nbytes, array.offset + (place[0] + 1) * nbytes)],
                )
                for place in places
            ]
        )
        return AdoptedArray(path, header.shape, str(header.dtype), count, count, header.nbytes, 0)

    def _write_values(self, array: Values) -> AdoptedArray:
        header = array.header
        path = self._write_document(array, header.to_json(header.shape, [header.bytes_codec]))
        # Not with zarr, which does not write a chunk that equals the fill value; it treats all NaNs as equal.
        key = join(path, "/".join(["c", *("0" for _ in header.shape)]))
        sync(self.store.set(key, cpu.Buffer.from_bytes(array.values.tobytes())))
        return AdoptedArray(path, header.shape, str(header.dtype), 1, 0, 0, header.nbytes)

    def _refer(self, start: int, stop: int) -> Reference:
        return Reference(self.stored.location, start, stop - start, self.stored.checksum)

    def _write_parts(self, chunks: Sequence[tuple[str, Sequence[Reference | bytes]]]) -> None:
        async def write(chunk: tuple[str, Sequence[Reference | bytes]]) -> None:
            await self.store.set_parts_async(*chunk)

        sync(run_for_each(chunks, write, _AT_ONCE))
