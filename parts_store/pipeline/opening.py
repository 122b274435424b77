"""Arrays and groups that use the codec pipeline of this package: by a setting of zarr's, or without one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Final, Literal

import zarr
from zarr.storage import StorePath

from parts_store._compat.zarr import async_group_of, replace_async_array
from parts_store.errors import StoreConfigError, describe
from parts_store.format.parts import parse_integer
from parts_store.pipeline.codec_pipeline import PartsCodecPipeline
from parts_store.store.store import PartsStore

_PATH: Final = f"{PartsCodecPipeline.__module__}.{PartsCodecPipeline.__name__}"
# How many requests zarr makes at the same time where no pipeline is used, such as for metadata documents.
_REQUESTS: Final = 64


type OpenMode = Literal["r", "r+", "a", "w", "w-"]
"""How an array or a group is opened, as in `zarr.open`."""


def fast(*, max_workers: int | None = None) -> AbstractContextManager[object]:
    """Set zarr's configuration to what is fastest for a `PartsStore`, until it is changed again.

    Arrays that are opened afterwards use the codec pipeline of this package, also those that xarray opens. The result
    is a context manager, which restores the configuration at its end.

    Parameters
    ----------
    max_workers
        The largest number of threads that read and write the chunks of a selection. By default 32, and 128 for chunks
        of up to 256 KiB that are not on a local disk or in memory.

    Returns
    -------
    context manager
        Restores zarr's configuration at the end of a `with` block.

    Raises
    ------
    StoreConfigError
        If the number of threads is neither a positive integer nor None.

    Examples
    --------
    >>> import zarr
    >>> store = ps.PartsStore.from_url("memory://")
    >>> with ps.fast():
    ...     array = zarr.create_array(store, shape=4, chunks=2, dtype="i4")
    >>> type(array.async_array.codec_pipeline).__name__
    'PartsCodecPipeline'
    """
    settings: dict[str, object] = {"codec_pipeline.path": _PATH, "async.concurrency": _REQUESTS}
    if max_workers is not None:
        if (count := parse_integer(max_workers, 1)) is None:
            raise StoreConfigError("max_workers", "an integer from 1", describe(max_workers))
        settings |= {"codec_pipeline.max_workers": count, "async.concurrency": 2 * count}
    restored: AbstractContextManager[object] = zarr.config.set(settings)
    return restored


def open_array(store: PartsStore, path: str = "", *, mode: OpenMode = "r", **arguments: Any) -> zarr.Array[Any]:
    """Open an array that uses the codec pipeline of this package.

    Parameters
    ----------
    store
        The store that holds the array.
    path
        The path of the array in the store.
    mode
        As in `zarr.open_array`; an array is opened for reading by default.
    arguments
        Further arguments of `zarr.open_array`.

    Returns
    -------
    zarr.Array
        The array.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> _ = ps.create_array(store, "a", parts=["", ps.Part(".tail", size=1)], shape=4, chunks=2, dtype="i4")
    >>> ps.open_array(store, "a").shape
    (4,)
    """
    array = zarr.open_array(store, path=path, mode=mode, **arguments)
    use_pipeline(array)
    return array


def open_group(store: PartsStore, path: str = "", *, mode: OpenMode = "r", **arguments: Any) -> zarr.Group:
    """Open a group whose arrays use the codec pipeline of this package.

    Parameters
    ----------
    store
        The store that holds the group.
    path
        The path of the group in the store.
    mode
        As in `zarr.open_group`; a group is opened for reading by default.
    arguments
        Further arguments of `zarr.open_group`.

    Returns
    -------
    zarr.Group
        The group.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> _ = ps.create_array(store, "g/a", parts=["", ps.Part(".tail", size=1)], shape=4, chunks=2, dtype="i4")
    >>> ps.open_group(store, "g")["a"].shape
    (4,)
    """
    return _Group(async_group_of(zarr.open_group(store, path=path, mode=mode, **arguments)))


def use_pipeline(array: zarr.Array[Any]) -> None:
    """Let an array on a `PartsStore` use the codec pipeline of this package from now on."""
    replace_async_array(array, _AsyncArray.like(array.async_array))


class _AsyncArray(zarr.AsyncArray[Any]):
    """An array that uses the codec pipeline of this package, and whose copies do, too."""

    def __init__(self, metadata: Any, store_path: StorePath, config: Any = None) -> None:
        # `with_config` makes a copy in this way.
        super().__init__(metadata, store_path, config)
        self._use_pipeline()

    @classmethod
    def like(cls, array: zarr.AsyncArray[Any]) -> "_AsyncArray":
        """Return an array that has everything but the pipeline from another one."""
        copied = object.__new__(cls)
        vars(copied).update(vars(array))
        copied._use_pipeline()
        return copied

    def _use_pipeline(self) -> None:
        # zarr's own configuration decides which pipeline an array gets, and changing it for a moment is not
        # thread-safe. zarr allows no attribute of an array to be set otherwise.
        if not isinstance(self.codec_pipeline, PartsCodecPipeline):
            object.__setattr__(self, "codec_pipeline", PartsCodecPipeline.replacing(self.codec_pipeline))


def _adapt(found: Any) -> Any:
    """Return what a method of a group returns, with our pipeline in every array."""
    match found:
        case zarr.Group():
            return _Group(async_group_of(found))
        case zarr.Array():
            use_pipeline(found)
            return found
        case tuple():
            return tuple(map(_adapt, found))
        case Iterator():
            return map(_adapt, found)
        case _:
            return found


class _Group(zarr.Group):
    """A group whose members use the codec pipeline of this package."""


def _adapting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def adapted(self: _Group, *args: Any, **kwargs: Any) -> Any:
        return _adapt(method(self, *args, **kwargs))

    return adapted


# All methods of a group that return arrays or groups.
for _name in (
    *("__getitem__", "get", "get_array", "get_group", "members", "arrays", "groups", "create_hierarchy"),
    *("create_group", "require_group", "require_groups", "create", "create_array", "require_array"),
    *("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like", "update_attributes"),
):
    setattr(_Group, _name, _adapting(getattr(zarr.Group, _name)))
