"""Write a view: read what says how the array is stored, and put one object that other programs open as the array."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, assert_never

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

from parts_store._compat.zarr import normalize_path
from parts_store.backends.addresses import url_of
from parts_store.engine.steps import Found, Get, List, Listed, Missing, Put, Steps, get_all
from parts_store.errors import ConcurrentWriteError, StorageError, StoreConfigError, describe
from parts_store.format import georeference, metadata
from parts_store.format.coordinates import Coordinates, is_node_name
from parts_store.format.files.description import describe_shards, recorded_format
from parts_store.format.files.tiff import usual_directories_nbytes
from parts_store.format.keys import DOCUMENT, ChunkKeyEncoding, join, split
from parts_store.format.metadata import ROOT_NAME, ArrayRecord
from parts_store.format.shard_index import Table
from parts_store.format.view_keys import SHOWN_FORMAT, VIEW_FORMATS, ViewFormat, is_marked, view_key
from parts_store.store.catalog import CatalogEntry, stored_document
from parts_store.store.store import PartsStore
from parts_store.store.stored_views import read_starts
from parts_store.views.ome import ome_of
from parts_store.views.sources import (
    Excerpt,
    FileContent,
    NotReadError,
    ShardSource,
    ViewedArray,
    needs_index,
    place_source,
    read_tiff,
)
from parts_store.views.vrt import vrt_of
from parts_store.views.xml import is_xml_text

# How much is read of the start of each TIFF and HDF5 file.
_HEADER_NBYTES = 512
_START_NBYTES = 1 << 14
# TIFF files of this package have all directories in one place. Those of other programs are not read as a whole.
_MAX_DIRECTORIES_NBYTES = 1 << 27


def write_view(store: PartsStore, path: str = "", *, format: ViewFormat) -> str:  # noqa: A002 - as zarr and xarray
    """Write a file that other programs open as the whole array, whose shards are TIFF or HDF5 files.

    The view is beside the array, and refers to the files of the shards that exist now: write it again when shards,
    attributes or the shape have changed. The names of files in it are relative, so that the folder can be moved. A
    `PartsStore` does not list it, and deletes it with the array.

    Parameters
    ----------
    store
        The store, in a folder or a bucket.
    path
        The path of an array that was created with `shard_file`. For the root, the view is inside the array.
    format
        `"vrt"`: `<path>.vrt`, over TIFF files, for GDAL and QGIS. Each position along the axes before the height is a
        band. `"ome"`: `<path>.companion.ome`, over TIFF files that are whole planes, for Bio-Formats. `"hdf5"`:
        `<path>.h5`, over HDF5 files, for HDF5 and netCDF programs.

    Returns
    -------
    str
        The key of the view.

    Raises
    ------
    StoreConfigError
        If the view cannot show this array, if other programs cannot reach the store, or if there is a file or a folder
        at the key that is not a view.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("views.zarr")
    >>> image = ps.create_array(
    ...     store, "a", shard_file="tiff", shape=(512, 512), chunks=(64, 64), shards=(256, 256), dtype="uint16"
    ... )
    >>> image.attrs["spatial:transform"] = [10, 0, 500000, 0, -10, 5000000]
    >>> image[:, :] = 1
    >>> ps.write_view(store, "a", format="vrt")
    'a.vrt'
    >>> import rasterio
    >>> with rasterio.open("views.zarr/a.vrt") as file:
    ...     file.shape
    (512, 512)
    """
    _require_store(store, format)
    path = normalize_path(path)
    key = view_key(path, format)
    (start,) = store.carry_out(read_starts([key]))
    if start is not None and not is_marked(start):
        expected = f"a view or nothing at {key!r}"
        raise StoreConfigError("write_view", expected, "a file that is not a view; move it, or delete it")
    if not is_xml_text(path):
        raise StoreConfigError("path", "a path without control characters", describe(path))
    entry = store.carry_out(store.catalog.read_again(path))
    document = stored_document(entry) or {}
    array = _viewed(path, document, format)
    sources = store.carry_out(_read_sources(array, entry, document))
    data = _build(store, array, sources, format)
    try:
        store.carry_out(_put(key, data))
    except StorageError as error:
        if error.code != IsADirectoryError.__name__:
            raise
        found = "a folder, or a Zarr node with this name; rename it, or delete it"
        raise StoreConfigError("write_view", f"a view or nothing at {key!r}", found) from error
    return key


def _require_store(store: object, view_format: object) -> None:
    """Raise `StoreConfigError` unless views of this format can be written to the store."""
    if not isinstance(store, PartsStore):
        raise StoreConfigError("store", "a PartsStore", f"an object of type {type(store).__name__}")
    if view_format not in VIEW_FORMATS:
        raise StoreConfigError("format", f"one of {', '.join(map(repr, VIEW_FORMATS))}", describe(view_format))
    if view_format == "hdf5" and find_spec("h5py") is None:
        raise StoreConfigError("format", "h5py, which `pip install 'parts_store[hdf5]'` installs", "no h5py")
    if store.session is not None or url_of(store.store) is None:
        found = "an Icechunk session" if store.session is not None else str(store)
        advice = "copy the array to one with `ps.copy`"
        raise StoreConfigError("store", "a folder or a bucket, which other programs can read", f"{found}; {advice}")
    store.require_writable()
    store.require_listable()


def _viewed(path: str, document: Mapping[str, Any], view_format: ViewFormat) -> ViewedArray:
    """Return what a document says about the array; raise `StoreConfigError` if there can be no such view of it."""
    found, shown = recorded_format(document), SHOWN_FORMAT[view_format]
    if found != shown:
        formats = [repr(each) for each in VIEW_FORMATS if SHOWN_FORMAT[each] == found]
        if formats:
            problem = f"shards that are {found} files at {path!r}; use {' or '.join(formats)}"
        elif document:
            advice = f"copy it to one that `ps.create_array(..., shard_file={shown!r})` creates"
            problem = f"an array whose shards are no such files at {path!r}; {advice}"
        else:
            problem = f"no array of Zarr v3 at {path!r}"
        raise StoreConfigError("path", f"an array whose shards are {shown} files, for {view_format!r}", problem)
    shape = tuple(document["shape"])
    names = document.get("dimension_names") or (None,) * len(shape)
    file = describe_shards(shown, metadata.complete(dict(document)))
    name = split(path)[1] or ROOT_NAME
    return ViewedArray(path, name, shape, file, tuple(names), document.get("attributes") or {})


# --- the files of shards ------------------------------------------------------------------------------------------


def _read_sources(
    array: ViewedArray, entry: CatalogEntry, document: Mapping[str, Any]
) -> Steps[tuple[ShardSource, ...]]:
    """Find the shards that exist and are in the array, and read the starts of their files."""
    (outcome,) = yield (List(array.path, "which shards exist"),)
    stored = {each.key: each.nbytes for each in outcome.entries} if isinstance(outcome, Listed) else {}
    encoding = ChunkKeyEncoding.from_json(document.get("chunk_key_encoding", "default"), len(array.shape))
    suffixes = tuple(part.key_suffix for part in entry.parts.parts) if isinstance(entry, ArrayRecord) else ("",)
    prefix, extension = join(array.path, ""), suffixes[0]
    found: dict[str, tuple[int, ...]] = {}
    for key in stored:
        relative = key.removeprefix(prefix).removesuffix(extension)
        # An extension that the key does not have is one part too few.
        if not encoding.is_chunk_key(relative) or any(prefix + relative + each not in stored for each in suffixes):
            continue
        coordinates = encoding.coordinates(relative)
        starts = (at * shard for at, shard in zip(coordinates, array.file.shard_shape, strict=True))
        if all(start < length for start, length in zip(starts, array.shape, strict=True)):
            found[prefix + relative + extension] = coordinates
    contents = yield from _read_contents(array, {key: stored[key] for key in found})
    # The index is the end of the shard: of the same object, or an object of its own.
    ends = {key: key.removesuffix(extension) + suffixes[-1] for key in contents if needs_index(array, contents[key])}
    tables = yield from _read_tables(array, ends)
    sources = [place_source(array, key, found[key], content, tables.get(key)) for key, content in contents.items()]
    return tuple(sorted(sources, key=lambda source: source.origin))


def _read_tables(array: ViewedArray, keys: Mapping[str, str]) -> Steps[dict[str, Table]]:
    """Return the decoded indexes of shards, given the keys of the objects that end with them."""
    if not keys:
        return {}
    index = array.file.index
    wanted = SuffixByteRequest(index.nbytes)
    outcomes = yield tuple(Get(key, wanted, "which images are in the file") for key in keys.values())
    tables = {}
    for key, outcome in zip(keys, outcomes, strict=True):
        table = index.decode(bytes(memoryview(outcome.data))) if isinstance(outcome, Found) else None
        if table is None:
            raise _foreign(array, key, "no valid index")
        tables[key] = table
    return tables


def _read_contents(array: ViewedArray, stored: Mapping[str, int]) -> Steps[dict[str, FileContent]]:
    """Return what is in each file, given the sizes of the files.

    Of a TIFF file, the start is read, and its directories, which are behind the tiles. Of an HDF5 file, as much of the
    start as that takes.
    """
    is_tiff = array.file.format == "tiff"
    nbytes = _HEADER_NBYTES if is_tiff else _START_NBYTES
    contents: dict[str, FileContent] = {}
    starts: dict[str, Found] = {}
    sizes = {**stored}
    remaining = dict.fromkeys(stored, 0)
    while remaining:
        wanted = {key: RangeByteRequest(at, max(at, min(at + nbytes, sizes[key]))) for key, at in remaining.items()}
        outcomes = yield tuple(Get(key, each, "what is in the file") for key, each in wanted.items())
        remaining = {}
        for (key, span), outcome in zip(wanted.items(), outcomes, strict=True):
            if isinstance(outcome, Missing):
                # Another client has deleted it since.
                continue
            if not isinstance(outcome, Found) and span.start == 0:
                raise _foreign(array, key, "an empty file")
            if isinstance(outcome, Found) and span.start == 0:
                starts[key], sizes[key] = outcome, outcome.nbytes
            start = starts[key]
            if not isinstance(outcome, Found) or start.unchanged != outcome.unchanged:
                # Another client has written it since. The next request has all that was read of it before.
                if nbytes > _MAX_DIRECTORIES_NBYTES:
                    raise ConcurrentWriteError(key, "it was written again while a view of its array was made")
                remaining[key] = 0
                continue
            file = Excerpt(bytes(memoryview(start.data)), bytes(memoryview(outcome.data)), span.start)
            try:
                contents[key] = _content_of(array, key, file, outcome.nbytes)
            except NotReadError as error:
                is_all_read = error.at >= outcome.nbytes or (error.at >= span.start and span.end >= outcome.nbytes)
                if is_all_read or (is_tiff and nbytes > _MAX_DIRECTORIES_NBYTES):
                    problem = "a file that ends too early" if is_all_read else "directories far from each other"
                    raise _foreign(array, key, problem) from None
                remaining[key] = error.at if is_tiff else 0
        nbytes = max(nbytes * 8, usual_directories_nbytes(array.file) if is_tiff else 0)
    return contents


def _content_of(array: ViewedArray, key: str, file: Excerpt, nbytes: int) -> FileContent:
    """Return what is in a file of this size; raise `NotReadError` if that takes other bytes."""
    try:
        if array.file.format == "tiff":
            several = sum(length > 1 for length in array.file.shard_shape[: array.height_axis])
            return read_tiff(file, has_pages=several > 0, has_tiles=several > 1)
        # h5py is an extra, and takes a while to import.
        from parts_store.views.hdf5 import read_hdf5  # noqa: PLC0415

        content = read_hdf5(file.start, nbytes)
    except ValueError as error:
        raise _foreign(array, key, str(error)) from error
    if content is None:
        raise NotReadError(len(file.start))
    return content


def _foreign(array: ViewedArray, key: str, problem: str) -> StoreConfigError:
    found = f"{problem} at {key!r}; another program has written the shard: call `repair`, or write it again"
    return array.refuse(f"a {array.file.format} file in every shard", found)


# --- the view -----------------------------------------------------------------------------------------------------


def _build(store: PartsStore, array: ViewedArray, sources: Sequence[ShardSource], view_format: ViewFormat) -> bytes:
    """Return the bytes of the view, with what the group of the array says about it."""
    documents = store.carry_out(_read_group(array, view_format))
    attributes = {name: metadata.attributes_of(document) for name, document in documents.items()}
    match view_format:
        case "vrt":
            axes = array.dimension_names[array.height_axis : array.height_axis + 2]
            variable = attributes.get(str(array.attributes.get(georeference.GRID_MAPPING)), {})
            place = georeference.find_georeference(array.attributes, attributes.get("", {}), variable, axes)
            return vrt_of(array, sources, place)
        case "ome":
            return ome_of(array, sources, attributes.get("", {}))
        case "hdf5":
            from parts_store.views.hdf5 import hdf5_of  # noqa: PLC0415

            coordinates = {}
            for name, length in zip(array.dimension_names, array.shape, strict=True):
                if name and documents.get(name, {}).get("shape") == [length]:
                    opened = zarr.open_array(store, path=array.folder + name, mode="r")
                    if (found := Coordinates.of(np.asarray(opened[...]), attributes[name])) is not None:
                        coordinates[name] = found
            return hdf5_of(array, sources, coordinates)
    assert_never(view_format)


def _read_group(array: ViewedArray, view_format: ViewFormat) -> Steps[dict[str, Mapping[str, Any]]]:
    """Return the documents of the group of an array, at "", and of the arrays in it that belong to the view."""
    if not array.path:
        return {}
    mapping = array.attributes.get(georeference.GRID_MAPPING)
    wanted = {"vrt": (mapping,), "hdf5": array.dimension_names, "ome": ()}[view_format]
    names = {each for each in wanted if is_node_name(each) and each != array.name}
    keys = {name: array.folder + join(name, DOCUMENT) for name in ("", *sorted(names))}
    found = yield from get_all(tuple(keys.values()), "what belongs to the array")
    return {name: metadata.parse(data) or {} for name, key in keys.items() if (data := found[key]) is not None}


def _put(key: str, data: bytes) -> Steps[None]:
    yield (Put(key, data, None, None, "view"),)
