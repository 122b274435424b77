"""Adopt an N5 container in place: write a `zarr.json` beside each `attributes.json`, and copy nothing."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zarr.buffer import cpu

from parts_store._compat.zarr import normalize_path
from parts_store.errors import AdoptionError, StoreConfigError
from parts_store.progress import ProgressLike, report_progress, require_progress
from parts_store.redaction import hide_in_url
from parts_store.virtual.description import Json
from parts_store.virtual.existing_files import FolderReader, open_stored
from parts_store.virtual.parsers.n5.container import Container, walk
from parts_store.virtual.report import AdoptedArray, Adoption
from parts_store.virtual.store_access import DOCUMENT, PartsStore, destination, dump, join, parse, why_not_opened


def adopt_in_place(
    container: PartsStore | str | Path,
    path: str = "",
    *,
    strict: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: ProgressLike = None,
    **options: Any,
) -> Adoption:
    """Make an N5 container readable as Zarr where it is: a `zarr.json` is written beside each `attributes.json`.

    No block is read or changed, except for the header of one block of each dataset, and N5 programs read and write the
    container as before. The axes of an array are in N5's order, as in the keys of the blocks: z5py shows the transposed
    array.

    Parameters
    ----------
    container : PartsStore or str or Path
        The store of the container, its URL, or its path.
    path : str
        A group or a dataset in the container; by default all of it.
    strict : bool
        Whether to raise an error if a dataset cannot be adopted. By default the report lists it.
    overwrite : bool
        Whether to replace a `zarr.json` with other contents.
    dry_run : bool
        Return the report, and write nothing.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of documents that are written and of all
        documents to write.
    **options
        Options of obstore for a URL: `endpoint`, `region`, `access_key_id`, `client_options` ...

    Returns
    -------
    Adoption
        A report of what was adopted, and what was not.

    Raises
    ------
    AdoptionError
        If there is no N5 dataset or group at the path, or with `strict`, if a dataset cannot be adopted. Nothing was
        written.
    StoreConfigError
        If the store is an Icechunk session, or there is a `zarr.json` with other contents. Nothing was written.

    Examples
    --------
    >>> import z5py
    >>> _ = z5py.File("places.n5", "a").create_dataset("x", data=np.arange(6).reshape(2, 3), chunks=(2, 2))
    >>> report = ps.adopt_in_place("places.n5")
    >>> store = ps.PartsStore.from_url("places.n5", read_only=True)
    >>> zarr.open_array(store, path="x", mode="r")[:]
    array([[0, 3],
           [1, 4],
           [2, 5]])
    """
    require_progress(progress)
    if not isinstance(container, PartsStore):
        # A read-only store does not create its folder.
        store = PartsStore.from_url(container, read_only=True, **options).with_read_only(False)
    elif options:
        raise StoreConfigError("options", "none, because a store is given", ", ".join(sorted(options)))
    else:
        store = container
    if store.session is not None:
        expected = "a store of objects or files; `ps.adopt` adopts a container into a session"
        raise StoreConfigError("container", expected, str(store))
    store.require_writable()
    root = normalize_path(path)
    location = hide_in_url(str(container))
    found = open_stored(location, lambda: walk(FolderReader(store.store, root)))
    documents = dict(_documents(found, root))
    if not documents and not found.skipped:
        raise AdoptionError(location, ((root or "the container", "there is no group and no dataset of N5"),))
    if strict and found.skipped:
        raise AdoptionError(location, tuple((each.name, each.reason) for each in found.skipped))
    new = _find_new(store, documents, overwrite=overwrite)
    if not dry_run:
        with report_progress(progress, "adopt", "documents") as update:
            for number, place in enumerate(new, start=1):
                store.set_sync(join(place, DOCUMENT), cpu.Buffer.from_bytes(dump(documents[place])))
                update(number, len(new))
    arrays = [_adopted(join(root, place).strip("/"), documents) for place in found.datasets]
    return Adoption(location, tuple(arrays), tuple(found.skipped))


def _documents(container: Container, root: str) -> Iterator[tuple[str, Json]]:
    """Yield the documents of all nodes by their paths: arrays first, and each group after everything in it."""
    for path, dataset in container.datasets.items():
        document = dataset.document()
        if (reason := why_not_opened(document)) is not None:
            raise TypeError(f"{path}: {reason}")
        yield join(root, path).strip("/"), document
    for path in sorted(container.groups, key=lambda each: each.count("/") + bool(each), reverse=True):
        yield (
            join(root, path).strip("/"),
            {"zarr_format": 3, "node_type": "group", "attributes": dict(container.groups[path])},
        )


def _find_new(store: PartsStore, documents: Mapping[str, Json], *, overwrite: bool) -> list[str]:
    """Return the paths whose documents have to be written; raise `StoreConfigError` if another document is there."""
    stored = destination.read_nodes(store, list(documents))
    new = []
    for path, document in documents.items():
        there = stored[path].get(DOCUMENT)
        if there is not None and parse(there) == document:
            continue
        if stored[path] and not overwrite:
            raise destination.not_empty("path", join(path, next(iter(stored[path]))))
        new.append(path)
    return new


def _adopted(path: str, documents: Mapping[str, Json]) -> AdoptedArray:
    document = documents[path]
    shape, chunk_shape = document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"]
    chunks = math.prod(-(-size // chunk) for size, chunk in zip(shape, chunk_shape, strict=True))
    written = len(dump(document))
    return AdoptedArray(path, tuple(shape), document["data_type"], chunks, 0, 0, written, "N5 blocks, in place")
