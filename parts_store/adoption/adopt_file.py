"""Adopting a file: what it holds is described, and then written as arrays that refer to it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, assert_never

import zarr
from zarr.buffer import cpu, default_buffer_prototype

from parts_store._compat.zarr import GroupMetadata, normalize_path, sync
from parts_store.adoption import copied_file, shard_plan, source_file
from parts_store.adoption.description import Array, Chunked, Contiguous, Description, Json, Values
from parts_store.adoption.report import AdoptedArray, Adoption, Skipped
from parts_store.backends.existing_files import StoredFile, open_file
from parts_store.engine.stats import Progress
from parts_store.errors import AdoptionError, StoreConfigError, describe
from parts_store.format.keys import DOCUMENT, NODES_FOLDER, PartPlacement, join
from parts_store.format.metadata import dump, parse, with_parts
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.format.references import Reference
from parts_store.options import require_count
from parts_store.redaction import hide_in_url
from parts_store.store import PartsStore

# An index of so many chunks still fits in a manifest of Icechunk, where it is compressed.
DEFAULT_SHARD_CHUNKS: Final = 4095
_AT_ONCE: Final = 32
# What a node of Zarr cannot be called.
_NO_NAMES: Final = ("", ".", "..", NODES_FOLDER, DOCUMENT)
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
    url
        The file: a path, or `s3://bucket/file.h5`, `gs://`, `az://`, `https://`.
    into
        A writable Icechunk session, or a `PartsStore` on one. The file has to be in one of the repository's virtual
        chunk containers. You commit. With `copy`, a `PartsStore` on an object store or a local disk.
    path
        Where the arrays appear, at `path/<name in the file>`.
    copy
        Copy the file to where it is the main part of an array, and stays a file to others; by the store itself where it
        can, and on a local disk as a link. Only for files with one chunked dataset.
    shard_chunks
        At most so many of the file's chunks become one shard: one reference, and an index of 16 bytes for each.
    strict
        Whether it is an error if anything in the file cannot be adopted; otherwise that is named in the report.
    overwrite
        Whether arrays that are there already are replaced.
    progress
        Called with how many arrays are done, and how many there are.
    options
        For the file's store, by obstore's names: `endpoint`, `region`, `access_key_id`, `client_options` ...

    Raises
    ------
    AdoptionError
        If the file cannot be read at all, or, if `strict`, not all of it. Nothing was written.
    """
    store = _require_store(into, copy=copy)
    require_count("shard_chunks", shard_chunks, least=1)
    file = source_file.opened(str(url), lambda: open_file(url, options))
    description = source_file.describe_file(file)
    if not copy:
        source_file.wait_for_next_second(file)
    source_file.require_same(file, source_file.opened(file.location, lambda: open_file(url, options)))
    job = _Job(store, file, normalize_path(path), shard_chunks)
    job.leave_out_what_has_no_name(description)
    lost = tuple((each.name, each.reason) for each in description.skipped if each.has_values)
    if strict and lost:
        raise AdoptionError(file.location, lost)
    one = copied_file.require_one(description, file.location) if copy else None
    job.require_room(description, overwrite=overwrite)
    adopted, copied = job.write(description, one, progress)
    return Adoption(hide_in_url(file.location), tuple(adopted), tuple(description.skipped), copied)


def require_file(url: str | Path, **options: Any) -> None:
    """Raise `AdoptionError` unless there is an HDF5 or netCDF4 file at a URL or a path; the options are obstore's."""
    source_file.require_known(source_file.opened(str(url), lambda: open_file(url, options)))


def _require_store(into: object, *, copy: bool) -> PartsStore:
    store = into if isinstance(into, PartsStore) else PartsStore.from_session(into)
    if copy and store.session is not None:
        raise StoreConfigError("copy", "False, for a session refers to the file where it is", "True")
    if not copy and store.session is None:
        expected = "an Icechunk session, in which a part can be a range of a file, or `copy=True`"
        raise StoreConfigError("into", expected, str(store))
    store.require_writable()
    return store


@dataclass(frozen=True, slots=True)
class _Job:
    """The adoption of one file."""

    store: PartsStore
    file: StoredFile
    path: str
    shard_chunks: int

    def leave_out_what_has_no_name(self, description: Description) -> None:
        """Note the groups and arrays that cannot have their names in Zarr, and leave them out."""
        for name in [name for name in description.groups if name and self._has_no_name(name, description)]:
            del description.groups[name]
        arrays = [array for array in description.arrays if not self._has_no_name(array.header.name, description)]
        description.arrays[:] = arrays

    def _has_no_name(self, name: str, description: Description) -> bool:
        wrong = [each for each in name.split("/") if each in _NO_NAMES or "\\" in each]
        if wrong:
            description.skipped.append(Skipped(name, f"no node of Zarr can be called {wrong[0]!r}"))
        return bool(wrong)

    def require_room(self, description: Description, *, overwrite: bool) -> None:
        """Raise, before anything is written, if the file cannot be referred to, or something is in the way."""
        if self.store.session is not None and any(not isinstance(array, Values) for array in description.arrays):
            self.store.require_location(Reference(self.file.location, 0, 1))
        above = ["/".join(self.path.split("/")[:depth]) for depth in range(self.path.count("/") + 1)]
        if wrong := [each for each in above if self._is_array(each)]:
            raise StoreConfigError("path", "a path in groups", f"the array {describe(wrong[0])}")
        names = [name for name in description.groups if self._is_array(self._place(name))]
        names += [array.header.name for array in description.arrays if self._is_there(self._place(array.header.name))]
        if names and (not overwrite or not self._place(names[0])):
            expected = "a path with nothing there, or `overwrite=True`"
            raise StoreConfigError("path", expected, describe(self._place(names[0])))
        for name in names:
            sync(self.store.delete_dir(self._place(name)))

    def _place(self, name: str) -> str:
        return "/".join(each for each in (self.path, name) if each)

    def _is_there(self, path: str) -> bool:
        return sync(self.store.exists(join(path, DOCUMENT)))

    def _document(self, path: str) -> Json | None:
        data = sync(self.store.get(join(path, DOCUMENT), default_buffer_prototype()))
        return None if data is None else parse(data.to_bytes())

    def _is_array(self, path: str) -> bool:
        document = self._document(path)
        return document is not None and document.get("node_type") == "array"

    def write(
        self, description: Description, to_copy: Chunked | None, progress: Progress | None
    ) -> tuple[list[AdoptedArray], int]:
        """The groups and arrays, each with its references; and how many bytes were copied, if one is `to_copy`."""
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
        document = copied_file.document_of(array, self.file.location, must_understand=self.store.must_understand)
        path = join(self.path, array.header.name)
        result = copied_file.write(self.store, self.file, array, document, path)
        # Last: the array is there when its chunk is.
        self._write_document(array, document)
        return result

    def _write_groups(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        # With the groups above it. zarr would create these again for each group below, whose parents come before it.
        zarr.open_group(self.store, path=self.path, mode="a", zarr_format=3)
        for name, attributes in groups.items():
            self._write_group(self._place(name), attributes)

    def _write_group(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Create a group, or add the attributes to those of the group that is there."""
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
        # As they are: zarr would leave out what is equal to the fill value, as one NaN is to another.
        key = join(path, "/".join(["c", *("0" for _ in header.shape)]))
        sync(self.store.set(key, cpu.Buffer.from_bytes(array.values.tobytes())))
        return AdoptedArray(path, header.shape, str(header.dtype), 1, 0, 0, header.nbytes)

    def _refer(self, start: int, stop: int) -> Reference:
        return Reference(self.file.location, start, stop - start, self.file.checksum)

    def _write_parts(self, chunks: Sequence[tuple[str, Sequence[Reference | bytes]]]) -> None:
        async def write() -> None:
            waiting = iter(chunks)

            async def work() -> None:
                for key, values in waiting:
                    await self.store.set_parts_async(key, values)

            await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(chunks)))))

        sync(write())
