"""Write virtual datasets to an Icechunk session: references in shards, and the values of loaded variables.

Everything is checked before anything is written.
"""

from collections.abc import Mapping
from typing import Any

from parts_store.adoption.change_checks import ChangeChecks
from parts_store.adoption.loading import DEFAULT_MAX_LOADED
from parts_store.adoption.report import Adoption
from parts_store.adoption.session_writer import PlannedWrite, plan_change, plan_creation
from parts_store.adoption.source_tree import Source, read_tree
from parts_store.errors import StoreConfigError
from parts_store.manifests.cutting import DEFAULT_SHARD_CHUNKS
from parts_store.manifests.to_icechunk import parse_path
from parts_store.options import parse_count
from parts_store.progress import ProgressLike, report_progress
from parts_store.store import PartsStore

type Region = Mapping[str, slice | str] | str
"""Slices by the names of dimensions, or `"auto"` for a dimension or for all of them."""


def to_icechunk(
    source: Source,
    session: Any,
    *,
    path: str = "",
    append_dim: str | None = None,
    region: Region | None = None,
    shard_chunks: int = DEFAULT_SHARD_CHUNKS,
    overwrite: bool = False,
    progress: ProgressLike = None,
) -> Adoption:
    """Write a virtual dataset to an Icechunk session. Nothing is committed.

    The chunks of the files are grouped into shards, where that saves references: each shard has one reference for each
    file that it draws on, and an index. Chunks that are inlined in a manifest are stored in the session, and so are
    variables that are loaded.

    Parameters
    ----------
    source : xarray.Dataset or xarray.DataTree or ManifestGroup or ManifestStore or PartsGroup
        What to write: a dataset or a tree whose virtual variables contain arrays of VirtualiZarr or `PartsArray`, or a
        group of such arrays.
    session : icechunk.Session or PartsStore
        A writable session, or a `PartsStore` on one. All files have to be in virtual chunk containers of its
        repository.
    path : str
        The path of the group that the source becomes. It may exist: its groups get more members and attributes.
    append_dim : str, optional
        The dimension along which the source is appended to arrays that exist. Arrays without the dimension, and all
        attributes, stay as they are; such arrays of the source must have the values that are stored. A coordinate that
        is loaded has to continue the stored one.
    region : mapping of str to slice, or "auto", optional
        The region of existing arrays that is written: a slice for each dimension, on the boundaries of chunks, or
        `"auto"` to find the loaded coordinates among those that are stored.
    shard_chunks : int
        The largest number of chunks in a shard; 1 for a reference for each chunk.
    overwrite : bool
        Whether to replace existing arrays.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of arrays that are done and of all arrays.

    Returns
    -------
    Adoption
        A report of the arrays, and of how each was cut into shards and why.

    Raises
    ------
    StoreConfigError
        If an argument is not valid, or an array exists. Nothing was written.
    SessionError
        If a file is outside the virtual chunk containers of the repository. Nothing was written.
    ManifestError
        If an array cannot be written as it is, or does not continue the stored one. Nothing was written.
    LocationError
        If an array has to be cut into shards again, and a file that it refers to was changed. Nothing was written.

    Examples
    --------
    A file of one row of numbers for each day, as a virtual dataset:

    >>> import icechunk, pathlib, xarray as xr
    >>> file = pathlib.Path("days.raw").resolve()
    >>> file.write_bytes(np.arange(200, dtype="uint8").tobytes())
    200
    >>> document = {
    ...     "shape": [100, 2],
    ...     "data_type": "uint8",
    ...     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
    ...     "chunk_key_encoding": {"name": "default"},
    ...     "codecs": [{"name": "bytes"}],
    ... }
    >>> manifest = {f"{day}.0": {"path": file.as_uri(), "offset": 2 * day, "length": 2} for day in range(100)}
    >>> days = xr.Dataset({"t": (("day", "x"), ps.manifests.PartsArray(document, [manifest]))})

    A repository that may refer to the files of the folder:

    >>> place = f"{file.parent.as_uri()}/"
    >>> config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=65535)
    >>> folder = icechunk.local_filesystem_store(str(file.parent))
    >>> config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place, store=folder))
    >>> access = {place: icechunk.credentials.LocalFileSystemAccess}
    >>> repository = icechunk.Repository.create(
    ...     icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access=access
    ... )
    >>> session = repository.writable_session("main")
    >>> ps.to_icechunk(days, session).arrays[0].plan
    '1 shard of 100 chunks, in one file'
    >>> store = ps.PartsStore.from_session(session)
    >>> xr.open_zarr(store, consolidated=False)["t"][3].values
    array([6, 7], dtype=uint8)
    """
    with report_progress(progress, "write", "arrays") as report:
        planned = plan_write(
            source,
            session,
            path=path,
            append_dim=append_dim,
            region=region,
            shard_chunks=shard_chunks,
            overwrite=overwrite,
        )
        planned.write(report)
    return planned.report


def plan_write(
    source: Source,
    session: Any,
    *,
    path: str = "",
    append_dim: str | None = None,
    region: Region | None = None,
    shard_chunks: int = DEFAULT_SHARD_CHUNKS,
    overwrite: bool = False,
    max_loaded: int = DEFAULT_MAX_LOADED,
    is_complete: bool = False,
) -> PlannedWrite:
    """Return what `to_icechunk` would write, after everything was checked, and the report of it. Change nothing.

    Arrays of more than `max_loaded` bytes that are stored, and do not change, are not compared. With `is_complete`, all
    stored arrays must be in the source, also those that do not change.
    """
    store = session if isinstance(session, PartsStore) else PartsStore.from_session(session)
    if store.session is None:
        raise StoreConfigError("session", "an Icechunk session", str(store))
    # Raises if the session is read-only, or was committed.
    store = store.with_read_only(False)
    parse_count("shard_chunks", shard_chunks, least=1)
    if append_dim is None and region is None:
        return plan_creation(store, parse_path(path), read_tree(source), shard_chunks, overwrite=overwrite)
    if append_dim is not None and region is not None:
        raise StoreConfigError("region", "None, because `append_dim` is given", repr(region))
    if overwrite:
        raise StoreConfigError("overwrite", "False, because stored arrays are changed", "True")
    checks = ChangeChecks(max_loaded, is_complete=is_complete)
    return plan_change(store, parse_path(path), read_tree(source), shard_chunks, checks, append_dim, region)
