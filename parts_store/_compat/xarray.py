"""Names of xarray that may change: how `Dataset.to_zarr` writes attributes and dask arrays, and the engine `zarr`."""

from collections.abc import Mapping
from typing import Any

import zarr
from xarray import Dataset

# The engine `zarr`, and what it makes of a group. A release of xarray may change which arguments they take.
from xarray.backends import StoreBackendEntrypoint as StoreEntrypoint
from xarray.backends import ZarrBackendEntrypoint as ZarrEntrypoint
from xarray.backends import ZarrStore as ZarrGroupStore
from xarray.backends.common import ArrayWriter
from xarray.backends.writers import _validate_dataset_names, dump_to_store

# How `to_zarr` stores attributes. VirtualiZarr imports both from here as well.
from xarray.backends.zarr import FillValueCoder, encode_zarr_attr_value

# `Variable.load` calls the method `get_duck_array` of data of this class. Of other duck arrays that are not in memory,
# xarray only loads those that have a chunk manager. But a chunk manager that is installed would change what xarray does
# for all other arrays: it would be the default one wherever dask is not installed.
from xarray.core.indexing import ImplicitToExplicitIndexingAdapter as LoadableArray
from zarr.abc.store import Store

__all__ = [
    "FillValueCoder",
    "LoadableArray",
    "StoreEntrypoint",
    "Written",
    "ZarrEntrypoint",
    "ZarrGroupStore",
    "create_arrays",
    "encode_zarr_attr_value",
]

type Written = tuple[Any, zarr.Array[Any], Any]
"""A lazy array, the Zarr array that it goes to, and the region of it, None for all of it."""


def create_arrays(
    dataset: Dataset,
    store: Store,
    group: str | None,
    mode: Any,
    encoding: Mapping[Any, Any],
    append_dim: Any,
    region: Any,
) -> list[Written]:
    """Create the arrays of a dataset, write those that are in memory, and return those that are not.

    `Dataset.to_zarr(compute=False)` would do, if it returned sources and targets and not one task graph over them.
    """
    _validate_dataset_names(dataset)
    backend = ZarrGroupStore.open_group(
        store,
        mode=mode,
        group=group,
        consolidated=False,
        consolidate_on_close=False,
        append_dim=append_dim,
        write_region=region,
        zarr_format=3,
        # The caller checks chunks against the tasks that it makes.
        safe_chunks=False,
    )
    dataset = backend._validate_and_autodetect_region(dataset)  # noqa: SLF001
    backend._validate_encoding(encoding)  # noqa: SLF001
    # Without a call of `writer.sync`, the writer keeps what it would pass to dask.
    writer = ArrayWriter()  # type: ignore[no-untyped-call]
    dump_to_store(dataset, backend, writer, encoding=encoding)  # type: ignore[no-untyped-call]
    return list(zip(writer.sources, writer.targets, writer.regions, strict=True))
