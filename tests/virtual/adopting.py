"""Adopt files into a repository in memory, and compare them with what h5py reads."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import xarray as xr
import zarr

import parts_store as ps
from parts_store.virtual.adopt import adopt
from parts_store.virtual.report import Adoption


def repository(folder: Path, storage: icechunk.Storage | None = None, *, inline: int = 65535) -> icechunk.Repository:
    """A repository that may refer to the files of a folder."""
    prefix = f"{folder.resolve().as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = inline
    files = icechunk.local_filesystem_store(str(folder.resolve()))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store=files))
    return icechunk.Repository.create(
        icechunk.in_memory_storage() if storage is None else storage,
        config=config,
        authorize_virtual_chunk_access={prefix: icechunk.credentials.LocalFileSystemAccess},
    )


def settle(path: Path) -> None:
    """Make the file an old one: of one that was just written, `adopt` waits for the next second."""
    os.utime(path, (1_700_000_000, 1_700_000_000))


def netcdf(path: Path, dataset: xr.Dataset | xr.DataTree, **encoding: Any) -> Path:
    """Write an old file."""
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    settle(path)
    return path


def stored(session: icechunk.Session, path: str = "") -> xr.Dataset:
    """What a reader finds in a session."""
    store = ps.PartsStore.from_session(session)
    dataset: xr.Dataset = xr.open_zarr(store, group=path or None, consolidated=False, chunks=None)
    return dataset.load()


def adopted(file: Path, **options: Any) -> tuple[Adoption, ps.PartsStore]:
    """What became of a file, in a new repository."""
    settle(file)
    session = repository(file.parent).writable_session("main")
    report = adopt(file, into=session, **options)
    return report, ps.PartsStore.from_session(session)


def combined(files: Sequence[Path], **options: Any) -> xr.Dataset:
    """What a reader finds after files were adopted into a new repository."""
    session = repository(files[0].parent).writable_session("main")
    adopt(files, into=session, **options)
    return stored(session)


def joined(files: Sequence[Path], dim: str, *, at_once: int | None = None, **options: Any) -> icechunk.Session:
    """Adopt files along a dimension into a new repository: the first ones at once, and the others one by one."""
    session = repository(files[0].parent).writable_session("main")
    first = len(files) if at_once is None else at_once
    adopt(files[:first], into=session, concat_dim=dim, **options)
    for file in files[first:]:
        adopt(file, into=session, append_dim=dim, **options)
    return session


def adopted_samples(
    paths: Iterable[Path], can_be_read: Callable[[Path], bool], counts: Counter[str]
) -> Iterator[tuple[Path, Adoption, ps.PartsStore]]:
    """Adopt files of other packages, and yield those that are not refused; only what cannot be read may be refused."""
    for path in sorted(paths):
        counts["files"] += 1
        settle(path)
        session = repository(path.parent).writable_session("main")
        try:
            report = adopt(path, into=session)
        except ps.PartsStoreError:
            counts["files refused"] += 1
            assert not can_be_read(path), path
            continue
        yield path, report, ps.PartsStore.from_session(session)


def array(store: ps.PartsStore, name: str) -> Any:
    return ps.open_array(store, name)


def arrays(store: ps.PartsStore, name: str) -> tuple[Any, Any]:
    """Open an array with our codec pipeline, and with the one of zarr's configuration."""
    return array(store, name), zarr.open_array(store, path=name, mode="r")


def bits(values: Any, dtype: np.dtype[Any]) -> bytes:
    """The values as the file would have them: two NaNs are the same only if their bits are."""
    return np.asarray(values).astype(dtype.newbyteorder("<")).tobytes()


def flat(values: Any, file: h5py.File | None = None) -> list[Any]:
    """The numbers and bytes of any array, in order, for types that are made differently; references as paths."""
    found = np.asarray(values)
    if found.dtype.names is not None:
        return [each for name in found.dtype.names for each in flat(found[name], file)]
    if found.dtype.kind not in "OT":
        return list(found.ravel().tolist())
    return [_flat_object(each, file) for each in found.ravel().tolist()]


def _flat_object(each: Any, file: h5py.File | None) -> bytes:
    if isinstance(each, h5py.Reference):
        return file[each].name.encode() if each and file is not None else b""
    return each.encode() if isinstance(each, str) else bytes(each)


def datasets(group: h5py.Group) -> Iterator[h5py.Dataset]:
    """All datasets below a group, each once for every hard link."""
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            each = group[name]
            if isinstance(each, h5py.Group):
                yield from datasets(each)
            elif isinstance(each, h5py.Dataset):
                yield each


def require_equal(report: Adoption, store: ps.PartsStore, path: Path) -> int:
    """Every numeric dataset is adopted, and equal bit for bit, or skipped with a reason; returns how many are equal."""
    skipped = {each.name: each.reason for each in report.skipped}
    assert all(skipped.values())
    adopted = {each.path for each in report.arrays}
    with h5py.File(path) as file:
        for dataset in datasets(file):
            name = dataset.name.strip("/")
            assert (name in adopted) != (name in skipped), name
            if name in adopted:
                found = array(store, name)
                assert found.shape == dataset.shape
                assert bits(found[...], dataset.dtype) == bits(dataset[()], dataset.dtype), name
    return len(adopted)
