"""Open files as virtual datasets of xarray: coordinates are loaded, and the other variables refer to the files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import xarray as xr

from parts_store.errors import StoreConfigError, describe
from parts_store.executors import ExecutorLike, open_workers
from parts_store.progress import ProgressLike, report_progress
from parts_store.virtual.combine import FileGroup, combine_files
from parts_store.virtual.existing_files import Files, list_files
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.options import DEFAULT_MAX_LOADED, AdoptOptions, parse_names
from parts_store.virtual.parsed_file import parse_file
from parts_store.virtual.parsers.file_parsers import Parser
from parts_store.virtual.registries import FileRegistry, folder_of, parse_registry
from parts_store.virtual.virtual_dataset import bind, dataset_of

# The arguments of `open_virtual_dataset` that `open_virtual_mfdataset` passes on. Others are options of obstore.
_OPENING: Final[tuple[str, ...]] = ("drop_variables", "loadable_variables", "decode_times", "group")
# The values of xarray's arguments that files can be joined with.
_SUPPORTED: Final = {
    "compat": ("no_conflicts", "equals", "identical", "override"),
    "data_vars": ("minimal",),
    "coords": ("minimal",),
    "join": ("exact",),
    "combine_attrs": ("override",),
}


def open_virtual_dataset(
    url: str | Path,
    registry: Any = None,
    parser: Parser | None = None,
    drop_variables: Iterable[str] | None = None,
    loadable_variables: Iterable[str] | None = None,
    decode_times: bool | None = None,
    *,
    group: str | None = None,
    **options: Any,
) -> xr.Dataset:
    """Open a file as a dataset whose variables refer to it. Arguments are named as in VirtualiZarr.

    Parameters
    ----------
    url : str or Path
        A path, or a URL such as `s3://bucket/file.nc`. A Zarr store is a folder.
    registry : ObjectStoreRegistry or mapping of str to store, optional
        The stores that may be read. By default only files in the folder of the file are read.
    parser : callable, optional
        A parser of VirtualiZarr, or one of `ps.parsers`. By default the format is recognised by the content.
    drop_variables : list of str, optional
        Variables to leave out.
    loadable_variables : list of str, optional
        Variables to load. By default dimension coordinates and their bounds, so that datasets can be combined.
    decode_times : bool, optional
        Whether times that are loaded are decoded. By default they are.
    group : str, optional
        The path of a group in the file; by default the root group.
    **options
        Options of obstore for the store of the file: `endpoint`, `region`, `access_key_id`, `client_options` ...

    Returns
    -------
    xarray.Dataset
        A dataset for `xr.concat`, `ps.to_icechunk` and, with `load`, for everything else.

    Raises
    ------
    AdoptionError
        If the file cannot be read.
    StoreConfigError
        If there is no such file, or an argument is not valid.

    Examples
    --------
    >>> import xarray as xr
    >>> xr.Dataset({"t": (("time", "x"), np.ones((3, 4)))}, {"time": [1, 2, 3]}).to_netcdf("three.nc")
    >>> virtual = ps.open_virtual_dataset("three.nc")
    >>> virtual["time"].values, type(virtual["t"].data).__name__
    (array([1, 2, 3]), 'PartsArray')
    """
    (location,) = _one(url, options)
    if registry is None:
        registry = FileRegistry.of_folders([folder_of(location)], options)
    elif options:
        raise StoreConfigError("options", "none, because a registry is given", ", ".join(sorted(options)))
    parsed = parse_file(location, registry, parser)
    node = _group_in(parsed.group, group)
    times = True if decode_times is None else decode_times
    left_out = parse_names("drop_variables", drop_variables) or ()
    kept = PartsGroup(
        {name: each for name, each in node.arrays.items() if name not in left_out}, attributes=node.attributes
    )
    loaded = parse_names("loadable_variables", loadable_variables)
    dataset = dataset_of(location, kept, loaded, decode_times=times)
    # As `xarray.open_dataset` does it.
    dataset.encoding["source"] = location
    return dataset


def _one(url: str | Path, options: dict[str, Any]) -> list[str]:
    if not isinstance(url, str | Path):
        raise StoreConfigError("url", "a path or a URL", f"an object of type {type(url).__name__}")
    found = list_files(url, options)
    if len(found) != 1:
        raise StoreConfigError("url", "one file; `open_virtual_mfdataset` opens several", f"{len(found)} files")
    return found


def _group_in(root: PartsGroup, path: str | None) -> PartsGroup:
    groups = {where: node for where, node in root.nodes() if isinstance(node, PartsGroup)}
    found = groups.get((path or "").strip("/"))
    if found is None:
        known = ", ".join(filter(None, groups))
        raise StoreConfigError("group", f"one of the groups: {known or 'none'}", describe(path))
    return found


def open_virtual_mfdataset(  # noqa: PLR0917 - in the order of VirtualiZarr
    urls: Files,
    registry: Any = None,
    parser: Parser | None = None,
    concat_dim: str | Sequence[str] | None = None,
    compat: str = "equals",
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None = None,
    data_vars: str = "minimal",
    coords: str = "minimal",
    combine: Literal["by_coords", "nested"] = "by_coords",
    parallel: ExecutorLike = False,
    join: str = "exact",
    attrs_file: str | Path | None = None,
    combine_attrs: str = "override",
    *,
    max_loaded_nbytes: int = DEFAULT_MAX_LOADED,
    progress: ProgressLike = None,
    **kwargs: Any,
) -> xr.Dataset:
    """Open several files as one virtual dataset. Arguments are named as in VirtualiZarr and xarray.

    Files are joined as `ps.adopt` joins them: variables without the dimension must be the same in all files, the
    coordinates of other dimensions must be equal, and units and packing must agree. Arrays that are not compressed are
    cut into rows, so that files of different lengths can be joined.

    Parameters
    ----------
    urls : str or Path or list of them
        Paths, URLs or patterns.
    registry, parser
        As for `open_virtual_dataset`.
    concat_dim : str, optional
        The dimension along which files are joined, with `combine="nested"`.
    compat : str
        How variables without the dimension are compared: `"override"` not at all, anything else by their values.
    preprocess : callable, optional
        A function that changes the dataset of every file before it is joined.
    data_vars, coords : str
        Only `"minimal"` is supported: variables with the dimension are joined.
    combine : str
        `"nested"` for the order of the list along `concat_dim`, `"by_coords"` for the order and the dimensions that the
        coordinates of the files say.
    parallel : concurrent.futures.Executor or distributed.Client or str or False
        Where files are opened: an executor, a client of dask, `"dask"` for the current client, `"lithops"`, or this
        thread.
    join : str
        Only `"exact"` is supported: the coordinates of other dimensions are equal.
    attrs_file : str or Path, optional
        The file whose attributes the dataset has; by default the first one.
    combine_attrs : str
        Only `"override"` is supported: attributes are those of the first file.
    max_loaded_nbytes : int
        Variables whose chunks cannot be joined are loaded, if they have at most this number of bytes.
    progress : bool or callable, optional
        True for a progress bar, or a function that is called with the number of files that are open and of all files.
    **kwargs
        Other arguments of `open_virtual_dataset`, and options of obstore.

    Returns
    -------
    xarray.Dataset
        The dataset, with references to all files.

    Raises
    ------
    AdoptionError
        If a file cannot be read, or does not belong to the others.
    StoreConfigError
        If no file is found, or an argument is not valid.

    Examples
    --------
    >>> import xarray as xr
    >>> for day in range(3):
    ...     xr.Dataset({"t": (("day", "x"), np.full((1, 500), day))}, {"day": [day]}).to_netcdf(f"{day}.nc")
    >>> virtual = ps.open_virtual_mfdataset("[0-9].nc")
    >>> virtual["t"].shape
    (3, 500)
    """
    given = {"compat": compat, "data_vars": data_vars, "coords": coords, "join": join, "combine_attrs": combine_attrs}
    for name, value in given.items():
        if value not in _SUPPORTED[name]:
            raise StoreConfigError(name, " or ".join(map(repr, _SUPPORTED[name])), describe(value))
    dim = _dimension(concat_dim, combine)
    opening = {key: kwargs.pop(key) for key in _OPENING if key in kwargs}
    locations = list_files(urls, kwargs)
    if registry is None:
        registry = FileRegistry.of_folders(map(folder_of, locations), kwargs)
    elif kwargs:
        raise StoreConfigError("options", "none, because a registry is given", ", ".join(sorted(kwargs)))
    task = partial(_open_one, parse_registry(registry), parser, opening, preprocess)
    datasets: list[xr.Dataset] = []
    with open_workers(parallel) as workers, report_progress(progress, "open", "files") as update:
        for dataset in workers.run_in_order(task, locations):
            datasets.append(bind(dataset, registry))
            update(len(datasets), len(locations))
    trees = [{"": FileGroup(where, "", dataset)} for where, dataset in zip(locations, datasets, strict=True)]
    options = AdoptOptions(concat_dim=dim, max_loaded_nbytes=max_loaded_nbytes, compares=compat != "override")
    combined = combine_files(trees, options)[""].dataset
    if attrs_file is not None:
        (wanted,) = _one(attrs_file, kwargs)
        if wanted not in locations:
            raise StoreConfigError("attrs_file", "one of the files", describe(str(attrs_file)))
        combined = combined.drop_attrs(deep=False).assign_attrs(datasets[locations.index(wanted)].attrs)
    return combined


def _dimension(concat_dim: str | Sequence[str] | None, combine: str) -> str | None:
    """Return the dimension along which files are joined; None if their coordinates decide."""
    names = [concat_dim] if isinstance(concat_dim, str) else list(concat_dim or ())
    if combine == "by_coords" and not names:
        return None
    if combine == "nested" and len(names) == 1 and isinstance(names[0], str):
        return names[0]
    if combine not in ("by_coords", "nested"):
        raise StoreConfigError("combine", "'by_coords' or 'nested'", describe(combine))
    expected = "None for 'by_coords'" if combine == "by_coords" else "the name of one dimension for 'nested'"
    raise StoreConfigError("concat_dim", expected, describe(concat_dim))


def _open_one(
    registry: Any,
    parser: Parser | None,
    opening: Mapping[str, Any],
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None,
    location: str,
) -> xr.Dataset:
    dataset = open_virtual_dataset(location, registry, parser, **opening)
    return dataset if preprocess is None else preprocess(dataset)
