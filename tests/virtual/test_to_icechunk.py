"""Virtual datasets in a session: the values are those of the files, and nothing is written after a refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from virtualizarr.manifests import ManifestStore
from virtualizarr.parsers import HDFParser
from zarr.core.sync import sync

import parts_store as ps
from parts_store._compat.virtualizarr import group_of
from parts_store.errors import ManifestError, PartsStoreError, SessionError, StoreConfigError
from parts_store.manifests import PartsArray
from tests.virtual import raw_files
from tests.virtual.adopting import repository, stored
from tests.virtual.monthly import REGISTRY, join, open_virtual, write_months

MONTHS = [31, 28, 31]


def read(files: list[Path]) -> xr.Dataset:
    """What xarray reads of the files themselves."""
    return join([xr.open_dataset(file, engine="h5netcdf").load() for file in files])


def open_ours(file: Path, loaded: tuple[str, ...]) -> xr.Dataset:
    return ps.open_virtual_dataset(file, loadable_variables=loaded)


@pytest.mark.slow
@pytest.mark.parametrize("open_file", [open_virtual, open_ours], ids=["virtualizarr", "parts_store"])
@pytest.mark.parametrize("loaded", [("time",), ("time", "y"), ("time", "y", "label", "depth")], ids=str)
def test_dataset_of_many_files_reads_as_the_files(
    open_file: Callable[[Path, tuple[str, ...]], xr.Dataset], loaded: tuple[str, ...], tmp_path: Path
) -> None:
    files = write_months(tmp_path, MONTHS)
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    report = ps.to_icechunk(join([open_file(file, loaded) for file in files]), session, shard_chunks=4095)
    session.commit("adopted")
    found = stored(repo.readonly_session("main"))
    xr.testing.assert_identical(found, read(files))
    by_path = {each.path: each for each in report.arrays}
    assert set(by_path) == {"t", "depth", "time", "y", "label"}
    # 90 days of 8 chunks; shards of 28 days, the first three of them in two files.
    assert (by_path["t"].chunks, by_path["t"].references) == (720, 6)
    assert by_path["t"].plan == "4 shards of about 180 chunks, each in at most 2 files"
    assert ps.PartsStore.from_session(session).verify().is_clean


@pytest.mark.slow
def test_same_dataset_as_virtualizarr_writes_with_fewer_references(tmp_path: Path) -> None:
    files = write_months(tmp_path, MONTHS)
    virtual = join([open_virtual(file) for file in files])
    repositories = [repository(tmp_path) for _ in range(2)]
    ours, theirs = (each.writable_session("main") for each in repositories)
    ps.to_icechunk(virtual, ours, shard_chunks=4095)
    virtual.vz.to_icechunk(theirs.store)
    xr.testing.assert_identical(stored(ours), xr.open_zarr(theirs.store, consolidated=False, chunks=None).load())
    mine, others = (
        [each.num_chunk_refs for each in repo.list_manifest_files(session.commit("written"))]
        for repo, session in zip(repositories, (ours, theirs), strict=True)
    )
    # 90 days of 8 chunks; or 4 shards, each with two ranges of files and an index. The other arrays are the same.
    assert sorted([*mine, 720]) == sorted([*others, 4, 4, 4])


@pytest.mark.slow
def test_groups_of_virtualizarr_and_trees(tmp_path: Path) -> None:
    (file,) = write_months(tmp_path, [31])
    parsed = HDFParser()(file.as_uri(), REGISTRY)
    assert isinstance(parsed, ManifestStore)
    group = group_of(parsed)
    tree = xr.DataTree.from_dict({"/": open_virtual(file), "/below/deeper": open_virtual(file, ())})
    expected = read([file])
    for source in (parsed, group, ps.manifests.PartsGroup.from_manifest_group(group), tree):
        session = repository(tmp_path).writable_session("main")
        ps.to_icechunk(source, session, path="a/b")
        found = stored(session, "a/b")
        xr.testing.assert_identical(found.reset_coords(), expected.reset_coords())
    below = zarr.open_group(ps.PartsStore.from_session(session), path="a/b/below", mode="r")
    assert list(below.group_keys()) == ["deeper"]
    xr.testing.assert_identical(stored(session, "a/b/below/deeper"), expected)


def entries(session: icechunk.Session) -> list[str]:
    async def keys() -> list[str]:
        return [key async for key in session.store.list()]

    return sync(keys())


def a_dataset(folder: Path) -> xr.Dataset:
    (file,) = write_months(folder, [31])
    return open_virtual(file)


REFUSED: dict[str, tuple[Callable[[xr.Dataset], Any], type[PartsStoreError], str]] = {
    "no dataset": (lambda _: {"t": 1}, StoreConfigError, "source: expected a dataset or a tree of xarray"),
    "a name with a slash": (lambda each: each.rename(t="a/t"), StoreConfigError, "a/t"),
    "a name that is no text": (lambda each: each.rename(t=1), StoreConfigError, "names that are text"),
    "attributes that are no JSON": (
        lambda each: each.assign_attrs(title=object()),
        ManifestError,
        "attributes that can be written as JSON",
    ),
    "a loaded variable that no store can hold": (
        lambda each: each.assign(wrong=("y", np.array([1, "a", None, object()], object))),
        StoreConfigError,
        "loaded variables that xarray can write to Zarr",
    ),
    "a fill value of another type": (
        lambda each: each.assign(t=each.t.assign_attrs(_FillValue=1 + 2j)),
        StoreConfigError,
        "_FillValue of 't': expected a value of the type int16",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_written_after_a_refusal(case: str, tmp_path: Path) -> None:
    change, error, text = REFUSED[case]
    session = repository(tmp_path).writable_session("main")
    source = change(a_dataset(tmp_path))
    with pytest.raises(error, match=text):
        ps.to_icechunk(source, session)
    assert entries(session) == []
    assert not session.has_uncommitted_changes


def test_file_outside_the_containers_is_refused(tmp_path: Path) -> None:
    for name in ("files", "others"):
        (tmp_path / name).mkdir()
    session = repository(tmp_path / "others").writable_session("main")
    with pytest.raises(SessionError, match="no virtual chunk container"):
        ps.to_icechunk(a_dataset(tmp_path / "files"), session)
    assert not session.has_uncommitted_changes


@pytest.mark.slow
def test_existing_arrays_are_replaced_only_if_asked(tmp_path: Path) -> None:
    virtual = a_dataset(tmp_path)
    session = repository(tmp_path).writable_session("main")
    store = ps.PartsStore.from_session(session)
    group = zarr.create_group(store, path="a", attributes={"kept": 1, "title": "old", "coordinates": "old"})
    group.create_array("other", data=np.arange(3), dimension_names=["n"])
    for name in ("t", "y"):
        group.create_array(name, data=np.arange(5))
    before = entries(session)
    with pytest.raises(StoreConfigError, match=r"path: expected a path with nothing there.*found 'a/[ty]'"):
        ps.to_icechunk(virtual, session, path="a")
    assert entries(session) == before
    ps.to_icechunk(virtual, session, path="a", overwrite=True)
    found = stored(session, "a")
    assert found.attrs == {"kept": 1, "title": "days"}
    assert found.t.shape == (31, 4, 40)
    assert found.other.values.tolist() == [0, 1, 2]
    attributes = dict(zarr.open_group(ps.PartsStore.from_session(session), path="a").attrs)
    assert str(attributes["coordinates"]).split()[0] == "old"
    with pytest.raises(StoreConfigError, match="a path that is not in an array"):
        ps.to_icechunk(virtual, session, path="a/t/below")


@pytest.mark.slow
def test_inlined_chunks_are_stored(tmp_path: Path) -> None:
    virtual = a_dataset(tmp_path)
    manifest = virtual.t.data.manifest.dict()
    data = {
        key: (tmp_path / "month-000.nc").read_bytes()[each["offset"] :][: each["length"]]
        for key, each in manifest.items()
    }
    manifest["3.0.0"] = {"path": "", "offset": 0, "length": len(data["3.0.0"]), "data": data["3.0.0"]}
    array = PartsArray(virtual.t.data.metadata, [manifest])
    session = repository(tmp_path).writable_session("main")
    report = ps.to_icechunk(virtual.assign(t=(virtual.t.dims, array, virtual.t.attrs)), session)
    (written,) = [each for each in report.arrays if each.path == "t"]
    assert (written.form, written.nbytes_copied) == ("plain", len(data["3.0.0"]))
    assert (written.references, written.nbytes_written) == (31 * 8 - 1, len(data["3.0.0"]))
    xr.testing.assert_identical(stored(session), read([tmp_path / "month-000.nc"]))


EDGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "a single value": ((), ()),
    "no values": ((0, 4), (1, 4)),
    "one chunk": ((3, 4), (3, 4)),
    "a last chunk beyond the end": ((37, 5), (2, 2)),
}


@pytest.mark.parametrize("case", EDGES)
@pytest.mark.parametrize("present", [True, False], ids=["in a file", "missing"])
def test_arrays_of_any_shape(case: str, present: bool, tmp_path: Path) -> None:
    shape, chunks = EDGES[case]
    values = np.arange(1, 1 + int(np.prod(shape)), dtype="<i4").reshape(shape)
    array = raw_files.write(tmp_path, "a.raw", values, chunks)
    if not present:
        array = PartsArray(array.metadata, [{}])
    session = repository(tmp_path).writable_session("main")
    ps.to_icechunk(ps.manifests.PartsGroup({"t": array}), session)
    found = zarr.open_array(ps.PartsStore.from_session(session), path="t", mode="r")
    assert np.array_equal(found[...], values if present else np.zeros_like(values))


def test_sessions_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    virtual = a_dataset(tmp_path)
    with pytest.raises(PartsStoreError, match="read-only"):
        ps.to_icechunk(virtual, repository(tmp_path).readonly_session("main"))
    with pytest.raises(StoreConfigError, match="session: expected an Icechunk session"):
        ps.to_icechunk(virtual, ps.PartsStore.from_url("memory://"))


def objects(folder: Path) -> dict[str, int]:
    """Return how many files there are in each folder of a repository."""
    found = [file.relative_to(folder).parts[0] for file in folder.rglob("*") if file.is_file()]
    return {name: found.count(name) for name in ("manifests", "chunks", "snapshots")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chunks", [5, 63, 200], ids=lambda count: f"{count} chunks")
def test_small_arrays_need_no_more_objects_than_with_virtualizarr(chunks: int, tmp_path: Path) -> None:
    values = np.arange(2 * chunks).reshape(chunks, 2)
    names = [f"v{number}" for number in range(4)]
    arrays = {name: raw_files.write(tmp_path, f"{name}.raw", values, (1, 2)).to_manifest_array() for name in names}
    virtual = xr.Dataset({name: (("time", "x"), array) for name, array in arrays.items()}, {"x": [1, 2]})
    found = []
    for writer in ("ours", "theirs"):
        # With Icechunk's own settings: a chunk of more than 512 bytes is an object.
        repo = repository(tmp_path, icechunk.local_filesystem_storage(str(tmp_path / writer)), inline=512)
        session = repo.writable_session("main")
        if writer == "ours":
            ps.to_icechunk(virtual, session, shard_chunks=4095)
        else:
            virtual.vz.to_icechunk(session.store)
        session.commit("written")
        found.append(objects(tmp_path / writer))
    assert found[0] == found[1]


@pytest.mark.slow
def test_removed_array_leaves_no_obstacle(tmp_path: Path) -> None:
    virtual = a_dataset(tmp_path)
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    ps.to_icechunk(virtual, session)
    session.commit("written")
    session = repo.writable_session("main")
    # Icechunk itself leaves the nodes of parts behind.
    del zarr.open_group(session.store)["t"]
    for name in ("depth", "time", "y", "label"):
        del zarr.open_group(session.store)[name]
    ps.to_icechunk(virtual, session)
    xr.testing.assert_identical(stored(session), read([tmp_path / "month-000.nc"]))
