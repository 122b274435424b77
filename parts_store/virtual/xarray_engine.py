"""The engine `parts_store` of xarray: opens adopted files such that they are decoded as from the file."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import icechunk
import zarr

from parts_store._compat.xarray import StoreEntrypoint, ZarrEntrypoint, ZarrGroupStore
from parts_store.errors import StoreConfigError
from parts_store.virtual.attribute_types import added_in, types_in, with_types
from parts_store.virtual.store_access import PartsStore, Virtual, join, open_store, use_pipeline

# With fewer bytes in a chunk of dask, its tasks take longer than the values; with more, few of them fit into memory.
_SMALL_TASK: Final = 16 << 20
_LARGE_TASK: Final = 64 << 20
_TASK: Final = 32 << 20


class PartsStoreEntrypoint(ZarrEntrypoint):
    """The engine `zarr` of xarray, except that attributes have the types that they have in the adopted file.

    JSON has one type of numbers, and xarray decides by the type of `scale_factor` whether decoded values are float32 or
    float64, and `chunks={}` gives chunks of dask that are worth a task: see `preferred_chunks`.
    """

    description = "Open stores of parts_store and sessions of Icechunk, decoded as the files that were adopted"
    url = "https://github.com/parts-store/parts_store"
    # Those that xarray passes on to decode variables. It does not look at the signature then.
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        *("mask_and_scale", "decode_times", "concat_characters", "decode_coords", "drop_variables", "use_cftime"),
        "decode_timedelta",
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether this is a `PartsStore`: other stores, and all paths, are left to the engine `zarr`."""
        return isinstance(filename_or_obj, PartsStore)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        virtual: Virtual = (),
        **decoding: Any,
    ) -> Any:
        """Open a group of a store, a session, a zarr group or a URL as a dataset.

        Parameters
        ----------
        filename_or_obj
            A store, a session of Icechunk, a group of zarr, or the path or URL of a repository or a store.
        group
            The path of the group below it.
        consolidated
            Whether to read consolidated metadata. Sessions have none.
        storage_options
            For a path or a URL: the options of obstore, and a `branch`, `tag` or `snapshot`.
        virtual
            For a path or a URL: the folders that references may lead to. It may be in `storage_options` instead.
        **decoding
            The arguments of `xarray.open_dataset` that decide how variables are decoded.
        """
        source, path = _open(filename_or_obj, group, _with_folders(filename_or_obj, storage_options, virtual))
        store = _TypedStore.open_group(source, mode="r", group=path, consolidated=consolidated)
        return StoreEntrypoint().open_dataset(store, **decoding)

    def open_datatree(
        self,
        filename_or_obj: Any,
        *,
        storage_options: dict[str, Any] | None = None,
        virtual: Virtual = (),
        **options: Any,
    ) -> Any:
        """Open all groups as a tree. The arguments are those of `open_dataset`."""
        given = _with_folders(filename_or_obj, storage_options, virtual)
        return super().open_datatree(filename_or_obj, storage_options=given, **options)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        virtual: Virtual = (),
        mode: Any = "r",
        zarr_format: int | None = None,
        **decoding: Any,
    ) -> Any:
        """Open all groups as datasets. The arguments are those of `open_dataset`.

        As with the engine `zarr`, the names are absolute paths such as `/` and `/a`. If `group` is given, they are
        relative to it, such as `.` and `a`.
        """
        source, path = _open(filename_or_obj, group, _with_folders(filename_or_obj, storage_options, virtual))
        above = f"/{path or ''}"
        stores = _TypedStore.open_store(
            source, mode=mode, group=above, consolidated=consolidated, zarr_format=zarr_format
        )
        below = {str(name).removeprefix(above).strip("/"): store for name, store in stores.items()}
        return {
            (name or ".") if group else f"/{name}": StoreEntrypoint().open_dataset(store, **decoding)
            for name, store in below.items()
        }


def _with_folders(source: Any, options: dict[str, Any] | None, virtual: Virtual) -> dict[str, Any]:
    """Return the options for a source with the folders that references may lead to."""
    given = options or {}
    if not virtual:
        return given
    if "virtual" in given:
        raise StoreConfigError("virtual", "folders in one place", "`virtual`, and `virtual` in `storage_options`")
    if not isinstance(source, str | Path):
        expected = "none, because the repository was opened before: give its folders to `ps.open_repository`"
        raise StoreConfigError("virtual", expected, "folders")
    return {**given, "virtual": virtual}


def _open(source: Any, group: str | None, options: dict[str, Any]) -> tuple[Any, str | None]:
    """Return the store of a source, and the path of the group in it."""
    path = (group or "").strip("/")
    match source:
        case str() | Path():
            store: Any = open_store(source, reads_chunks=True, **options)
        case icechunk.Session():
            store = PartsStore.from_session(source)
        case zarr.Group():
            store, path = source.store, join(source.path, path).strip("/")
        case _:
            store = source
    return store, path or None


class _TypedStore(ZarrGroupStore):
    """A group as xarray reads it; its arrays have the attributes of the adopted file, with their types."""

    __slots__ = ()

    def open_store_variable(self, name: Any) -> Any:
        """Return a variable."""
        array = self.members[name]
        if isinstance(array, zarr.Array) and isinstance(array.store, PartsStore):
            use_pipeline(array)
        variable = super().open_store_variable(name)  # type: ignore[no-untyped-call]
        recorded = getattr(array.metadata, "extra_fields", {})
        added = added_in(recorded)
        attributes = {key: value for key, value in variable.attrs.items() if key not in added}
        variable.attrs = with_types(attributes, types_in(recorded))
        chunks = variable.encoding["chunks"]
        # The chunks of a rectilinear grid are files, or records of them: several lengths along an axis.
        if all(isinstance(length, int) for length in chunks):
            unit = variable.encoding["shards"] or chunks
            preferred = preferred_chunks(variable.shape, chunks, unit, variable.dtype.itemsize)
            variable.encoding["preferred_chunks"] = dict(zip(variable.dims, preferred, strict=True))
        return variable

    def get_attrs(self) -> dict[str, Any]:
        """Return the attributes of the group. xarray would hide all that begin with `_nc`, in any case."""
        attributes: dict[str, Any] = self.zarr_group.attrs.asdict()
        return {key: value for key, value in attributes.items() if not _is_of_netcdf(key)}


def preferred_chunks(
    shape: Sequence[int], chunks: Sequence[int], shards: Sequence[int], itemsize: int
) -> tuple[int, ...]:
    """Return the chunks that dask should have: of a shard, of a part of a large shard, or of several small chunks.

    A part of a shard divides it, so that no chunk of dask is in two shards. Chunks are taken together along the last
    axes first, because these follow each other in a file.
    """
    nbytes = math.prod(shards) * itemsize
    if _SMALL_TASK <= nbytes <= _LARGE_TASK:
        return tuple(shards)
    is_part = nbytes > _LARGE_TASK
    unit = chunks if is_part else shards
    left = max(1, _TASK // (math.prod(unit) * itemsize)) if math.prod(unit) else 1
    preferred = list(unit)
    for axis in reversed(range(len(unit))):
        available = shards[axis] // unit[axis] if is_part else max(1, -(-shape[axis] // unit[axis]))
        taken = min(left, available)
        if is_part:
            taken = next(count for count in range(taken, 0, -1) if available % count == 0)
        else:
            # Chunks of about the same length.
            taken = -(-available // -(-available // taken))
        preferred[axis] *= taken
        left //= taken
        if taken < available:
            break
    return tuple(preferred)


def _is_of_netcdf(key: str) -> bool:
    return key == "_NCProperties" or key.lower().startswith("_nczarr")
