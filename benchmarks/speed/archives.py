"""Adopted archives: months in netCDF4 files, and a tiled TIFF, read as Zarr and by the libraries of the formats."""

import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import dask.array as da
import h5py
import numpy as np
import obstore
import tifffile
import virtualizarr
import xarray as xr
import zarr
from numpy.typing import NDArray
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.parsers import HDFParser

import parts_store as ps
from benchmarks.archive.contestants import NESTED, address, our_repository, plain_repository
from benchmarks.places import BUCKET, Disk, Place, objects
from benchmarks.speed.handles import Handle, ZarrHandle
from benchmarks.speed.layouts import Archive, Layout
from benchmarks.speed.peers import PEERS, SPECIAL_PEERS, Peer, filesystem

# The name of the variable in netCDF files; TIFF images are adopted as `data`.
VARIABLE: Final = "t"
SHARD_CHUNKS: Final = 64


@lru_cache(maxsize=2)
def files_of(archive: Archive) -> Mapping[str, bytes]:
    """Return the files by their names."""
    values = archive.values()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if archive.kind == "TIFF":
            tile = (archive.chunk, archive.chunk)
            tifffile.imwrite(folder / "image.tif", values, tile=tile, compression="zlib", predictor=True)
        else:
            write_months(folder, values)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_months(folder: Path, values: NDArray[Any]) -> None:
    """Write daily values from January 2023 on, a file for each month."""
    first = np.datetime64("2023-01-01")
    days = np.arange(first, first + np.timedelta64(len(values), "D")).astype("M8[ns]")
    dataset = xr.Dataset({VARIABLE: (("time", "y", "x"), values)}, {"time": days})
    encoding = {VARIABLE: {"chunksizes": (1, *values.shape[1:]), "zlib": True, "complevel": 1}}
    for month, of_month in dataset.groupby(dataset.time.astype("M8[M]")):
        path = folder / f"{np.datetime_as_string(month, unit='M')}.nc"
        of_month.to_netcdf(path, engine="h5netcdf", encoding=encoding)


def _url(place: Place) -> str:
    return f"{place.folder}/files" if isinstance(place, Disk) else f"s3://{BUCKET}/{place.prefix}/files"


def _sources(place: Place, archive: Archive) -> list[Any]:
    """Return what h5py, h5netcdf and tifffile read: paths, or files of s3fs."""
    names = [f"{_url(place)}/{name}" for name in files_of(archive)]
    return names if isinstance(place, Disk) else [filesystem(place, asynchronous=False).open(name) for name in names]


# --- adopting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArchiveHandle(ZarrHandle):
    """An archive that is written as files, and adopted."""

    adopt: Callable[[], object]

    def write(self, values: NDArray[Any]) -> None:
        """Adopt the files."""
        del values
        self.adopt()


def _with_parts_store(place: Place, archive: Archive, shard_chunks: int) -> None:
    session = our_repository(place.below("repository"), _url(place)).writable_session("main")
    names = [f"{_url(place)}/{name}" for name in files_of(archive)]
    concat_dim = "time" if len(names) > 1 else None
    ps.adopt(names, into=session, concat_dim=concat_dim, shard_chunks=shard_chunks, **address(place)[1])
    session.commit("adopted")


def _with_virtualizarr(place: Place, archive: Archive) -> None:
    """Write one reference for each chunk with VirtualiZarr; those of a TIFF, which it has no parser for, with ours."""
    session = plain_repository(place.below("repository"), _url(place)).writable_session("main")
    if archive.kind == "TIFF":
        ps.adopt(f"{_url(place)}/image.tif", into=session, shard_chunks=1, **address(place)[1])
    else:
        stores: Any = {"file://": LocalStore()}
        if not isinstance(place, Disk):
            stores = {f"s3://{BUCKET}": objects(place.server, "")}
        scheme = "file://" if isinstance(place, Disk) else ""
        names = [f"{scheme}{_url(place)}/{name}" for name in files_of(archive)]
        virtual = virtualizarr.open_virtual_mfdataset(
            names, ObjectStoreRegistry(stores), HDFParser(), loadable_variables=["time"], concat_dim="time", **NESTED
        )
        virtual.vz.to_icechunk(session.store)
    session.commit("adopted")


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Months:
    """The variable of netCDF4 files, one after the other along the time, read by h5py."""

    variables: Sequence[h5py.Dataset]

    def __getitem__(self, selection: Any) -> NDArray[Any]:
        if selection is ...:
            selection = (slice(None),)
        days, *others = selection
        first, found = 0, []
        for variable in self.variables:
            start, stop = max(days.start or 0, first), min(days.stop or np.inf, first + len(variable))
            if start < stop:
                found.append(variable[(slice(start - first, int(stop) - first), *others)])
            first += len(variable)
        return np.concatenate(found)


def _open_files(place: Place, archive: Archive) -> Any:
    sources = _sources(place, archive)
    if archive.kind == "netCDF":
        # HDF5 would keep decoded chunks, as no other peer does.
        return _Months([h5py.File(source, rdcc_nbytes=0)[VARIABLE] for source in sources])
    view: Any = tifffile.imread(sources[0], aszarr=True)
    array = zarr.open_array(view, mode="r")
    weakref.finalize(array, view.close)
    return array


def _open_files_with_dask(place: Place, archive: Archive) -> Any:
    if archive.kind == "TIFF":
        return da.from_zarr(_open_files(place, archive))
    joined: dict[str, Any] = {"engine": "h5netcdf", "combine": "nested", "concat_dim": "time"}
    return xr.open_mfdataset(_sources(place, archive), chunks={"time": -1}, **joined)[VARIABLE]


def _open_session(place: Place, archive: Archive, *, is_ours: bool, with_dask: bool) -> Any:
    name = "data" if archive.kind == "TIFF" else VARIABLE
    opened = our_repository if is_ours else plain_repository
    session: Any = opened(place.below("repository"), _url(place)).readonly_session("main")
    match is_ours, with_dask:
        case True, True:
            return xr.open_dataset(session, engine="parts_store", chunks={})[name]
        case False, True:
            return xr.open_zarr(session.store, consolidated=False, zarr_format=3, chunks={})[name]
    return zarr.open_array(ps.PartsStore.from_session(session) if is_ours else session.store, path=name, mode="r")


def _peer(
    name: str,
    about: str,
    adopt: Callable[[Place, Archive], object],
    read: Callable[[Place, Archive], Any],
) -> Peer:
    def create(place: Place, layout: Layout) -> Handle:
        assert isinstance(layout, Archive)
        for file, content in files_of(layout).items():
            obstore.put(place.below("files").objects(), file, content)
        return ArchiveHandle(None, partial(adopt, place, layout))

    def reopen(place: Place, layout: Layout, is_writable: bool) -> Handle:
        assert isinstance(layout, Archive)
        del is_writable
        return ZarrHandle(read(place, layout))

    return Peer(name, about, create, reopen)


_PEERS = (
    *(
        _peer(
            name,
            "one reference for each chunk in a session, read with zarr's default pipeline",
            _with_virtualizarr,
            partial(_open_session, is_ours=False, with_dask=with_dask),
        )
        for name, with_dask in (("icechunk", False), ("icechunk, dask", True))
    ),
    *(
        _peer(
            f"ours, {form}{', dask' if with_dask else ''}",
            f"`ps.adopt(..., shard_chunks={count})`",
            partial(_with_parts_store, shard_chunks=count),
            partial(_open_session, is_ours=True, with_dask=with_dask),
        )
        for form, count in (("references", 1), ("shards", SHARD_CHUNKS))
        for with_dask in (False, True)
    ),
    _peer("files", "h5py or tifffile", lambda *_: None, _open_files),
    _peer("files, dask", "`xr.open_mfdataset`, or dask on tifffile", lambda *_: None, _open_files_with_dask),
)
ARCHIVE_PEERS: Final = {peer.name: peer for peer in _PEERS}


def peer_of(name: str, layout: Layout) -> Peer:
    """Return the peer of this name; those of archives are others."""
    return (ARCHIVE_PEERS if isinstance(layout, Archive) else PEERS | SPECIAL_PEERS)[name]
