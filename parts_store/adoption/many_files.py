"""Adopt files: parse them over an executor, join them, and write arrays that refer to them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parts_store._compat.zarr import normalize_path
from parts_store.adoption.adopt_copy import adopt_copy
from parts_store.adoption.change_checks import stored_chunk_lengths
from parts_store.adoption.file_list import Files
from parts_store.adoption.file_parsing import OnError
from parts_store.adoption.loading import DEFAULT_MAX_LOADED
from parts_store.adoption.parsers import Parser
from parts_store.adoption.preparation import AdoptionRequest, Combine
from parts_store.adoption.report import Adoption
from parts_store.adoption.unchanged_arrays import containers_of
from parts_store.errors import StoreConfigError, describe
from parts_store.executors import ExecutorLike
from parts_store.manifests.cutting import DEFAULT_SHARD_CHUNKS
from parts_store.options import parse_count
from parts_store.progress import ProgressLike, report_progress
from parts_store.store import PartsStore


def adopt(
    files: Files,
    *,
    into: Any,
    path: str = "",
    parser: Parser | None = None,
    concat_dim: str | None = None,
    append_dim: str | None = None,
    combine: Combine | None = None,
    variables: Iterable[str] | None = None,
    loadable_variables: Iterable[str] | None = None,
    executor: ExecutorLike = None,
    on_error: OnError = "raise",
    copy: bool = False,
    shard_chunks: int = DEFAULT_SHARD_CHUNKS,
    max_loaded_nbytes: int = DEFAULT_MAX_LOADED,
    strict: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: ProgressLike = None,
    **options: Any,
) -> Adoption:
    """Make existing files readable as Zarr, without a copy of their data. Nothing is committed.

    Parameters
    ----------
    files : str or Path or list of them
        A path; a URL such as `s3://bucket/file.h5`, `gs://`, `az://` or `https://`; a pattern such as `data/*.nc`; or a
        list of them. The files of a pattern are in natural order.
    into : icechunk.Session or PartsStore
        A writable Icechunk session, or a `PartsStore` on a session. The files have to be in virtual chunk containers of
        the repository. The caller commits the session. With `copy`, a `PartsStore` on an object store or a local disk.
    path : str
        The arrays are created at `path/<name in the file>`.
    parser : callable, optional
        A parser of VirtualiZarr, or one of `ps.parsers`. By default the format is recognised by the content of a file.
    concat_dim : str, optional
        The dimension along which files are joined, in the order of the list. If no file has it, each file is one step.
    append_dim : str, optional
        The dimension along which the files are appended to arrays at `path`.
    combine : str, optional
        `"nested"` for the order of the list, `"by_coords"` for the order and the dimensions that the coordinates of the
        files say. By default `"by_coords"` for several files without `concat_dim`.
    variables : list of str, optional
        The variables to adopt, by their paths in the file, with their coordinates; by default all.
    loadable_variables : list of str, optional
        Variables whose values are stored, in addition to coordinates. Others refer to the files.
    executor : concurrent.futures.Executor or distributed.Client or str, optional
        Where files are parsed: an executor, a client of dask, `"dask"` for the current client, or `"lithops"` for what
        Lithops is configured for. By default threads.
    on_error : str
        `"raise"`, or `"skip"` to go on without files that cannot be parsed, or whose coordinates cannot be read or
        decoded; the report lists them.
    copy : bool
        Copy the file to the store, where it becomes the main part of an array and other programs can still open it. The
        server copies it if possible, and on a local disk it is linked. Only for HDF5
        files with one chunked dataset and TIFF files with one tiled image.
    shard_chunks : int
        The largest number of chunks of the files in a shard. A shard has one reference for each file that it draws on,
        and 16 bytes of index for each chunk.
    max_loaded_nbytes : int
        Variables whose chunks cannot be joined are loaded and stored, if they have at most this number of bytes.
    strict : bool
        Whether to raise an error if something in a file cannot be adopted. By default the report lists it.
    overwrite : bool
        Whether to replace existing arrays.
    dry_run : bool
        Return the report, and write nothing.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of files or arrays that are done and the
        number of all of them.
    **options
        Options of obstore for the stores of the files: `endpoint`, `region`, `access_key_id`, `client_options` ...

    Returns
    -------
    Adoption
        A report of what was adopted, and what was not.

    Raises
    ------
    AdoptionError
        If a file cannot be read or does not belong to the others, or with `strict`, if a part of it cannot be adopted.
        Nothing was written.
    StoreConfigError
        If the path is not free, no file is found, or an argument is not valid. Nothing was written.
    ImportError
        If the format of a file needs a package that is not installed.

    Examples
    --------
    >>> import h5py
    >>> with h5py.File("file.h5", "w") as file:
    ...     dataset = file.create_dataset("x", data=np.arange(6), chunks=(2,), compression="gzip")
    >>> store = ps.PartsStore.from_url("copies.zarr")
    >>> report = ps.adopt("file.h5", into=store, copy=True)
    >>> report.arrays[0].path, report.arrays[0].chunks
    ('x', 3)
    >>> zarr.open_array(store, path="x", mode="r")[2:]
    array([2, 3, 4, 5])

    Two days in two files, and a third one:

    >>> import xarray as xr
    >>> for day in range(3):
    ...     xr.Dataset({"t": (("day", "x"), np.full((1, 500), day))}, {"day": [day]}).to_netcdf(f"{day}.nc")
    >>> session = ps.open_repository("days", virtual=["."]).writable_session("main")
    >>> report = ps.adopt(["0.nc", "1.nc"], into=session, concat_dim="day")
    >>> report = ps.adopt("2.nc", into=session, append_dim="day")
    >>> xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False)["t"][:, 0].values
    array([0, 1, 2])
    """
    store = require_store(into, copy=copy)
    parse_count("shard_chunks", shard_chunks, least=1)
    if copy:
        with report_progress(progress, "adopt", "arrays") as update:
            return adopt_copy(_one(files), store, path, strict=strict, overwrite=overwrite, progress=update, **options)
    request = AdoptionRequest(
        parser=parser,
        concat_dim=concat_dim,
        append_dim=append_dim,
        combine=combine,
        variables=_names("variables", variables),
        loadable_variables=_names("loadable_variables", loadable_variables),
        executor=executor,
        on_error=on_error,
        max_loaded_nbytes=max_loaded_nbytes,
        strict=strict,
        progress=progress,
    )
    lengths = {} if append_dim is None else stored_chunk_lengths(store, normalize_path(path), append_dim)
    prepared = request.prepare(files, options, virtual=containers_of(store), stored_lengths=lengths)
    return prepared.write(
        store,
        path,
        append_dim=append_dim,
        shard_chunks=shard_chunks,
        overwrite=overwrite,
        dry_run=dry_run,
        progress=progress,
    )


def require_store(into: object, *, copy: bool) -> PartsStore:
    """Return the store that files are adopted into; raise `StoreConfigError` unless it can be written."""
    store = into if isinstance(into, PartsStore) else PartsStore.from_session(into)
    if copy and store.session is not None:
        raise StoreConfigError("copy", "False, because a session refers to the file at its location", "True")
    if not copy and store.session is None:
        expected = "an Icechunk session, in which a part can be a range of a file, or `copy=True`"
        raise StoreConfigError("into", expected, str(store))
    store.require_writable()
    return store


def _names(argument: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise StoreConfigError(argument, "names of variables", describe(names))
    return found


def _one(files: Files) -> str | Path:
    if isinstance(files, str | Path):
        return files
    found = list(files)
    if len(found) != 1:
        raise StoreConfigError("files", "one file, because a copy of it becomes an array", f"{len(found)} files")
    return found[0]
