"""Access to the files of a repository: folders and what is below them, and the line that says how to open it."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from parts_store.backends.icechunk_storage import is_inside, opening_call, outermost
from parts_store.cli import main
from parts_store.errors import NoAccessError, SessionError, StoreConfigError
from tests.test_http import with_ranges
from tests.virtual.adopting import netcdf, settle

icechunk.set_logs_filter("error")

ROWS = np.arange(1.0, 121.0).reshape(6, 20)


def month(folder: Path, first: int) -> Path:
    """Three days, in chunks of a row, in a file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = xr.Dataset(
        {"t": (("day", "x"), ROWS[first : first + 3].repeat(50, axis=1))}, {"day": range(first, first + 3)}
    )
    return netcdf(folder / "t.nc", dataset, t={"chunksizes": (1, 1000), "zlib": True})


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A repository that refers to the folders `one` and `two/deep`, below the folder of the test."""
    place = tmp_path / "repository"
    session = ps.open_repository(place, virtual=[tmp_path / "one"]).writable_session("main")
    ps.adopt(month(tmp_path / "one", 0), into=session, concat_dim="day")
    session.commit("one")
    session = ps.open_repository(place, virtual=[tmp_path / "one", tmp_path / "two/deep"]).writable_session("main")
    report = ps.adopt(month(tmp_path / "two/deep", 3), into=session, append_dim="day")
    session.commit("two")
    assert report.folders == tuple(f"{(tmp_path / name).as_uri()}/" for name in ("one", "two/deep"))
    return place


def folders_of(place: Path) -> set[str]:
    config = icechunk.Repository.fetch_config(icechunk.local_filesystem_storage(str(place)))
    assert config is not None
    return set(config.virtual_chunk_containers or {})


def read(repository: icechunk.Repository) -> Any:
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    return xr.open_zarr(store, consolidated=False, chunks=None)["t"].values


def require_rows(values: Any) -> None:
    np.testing.assert_array_equal(values, ROWS.repeat(50, axis=1))


def test_error_says_a_call_that_reads_files_of_all_adoptions(two: Path, tmp_path: Path) -> None:
    for virtual in ((), [tmp_path / "one"]):
        with pytest.raises(NoAccessError) as caught:
            read(ps.open_repository(two, virtual=virtual, create=False))
        found = re.search(r"`(ps\.open_repository\(.*?\))`", str(caught.value))
        assert found is not None
        require_rows(read(eval(found[1], {"ps": ps})))
        for name in ("one", "two/deep"):
            assert f"{(tmp_path / name).as_uri()}/" in str(caught.value)


def test_error_of_a_session_of_plain_icechunk_leaves_the_url_to_the_caller(two: Path) -> None:
    plain = icechunk.Repository.open(icechunk.local_filesystem_storage(str(two)))
    with pytest.raises(NoAccessError) as caught:
        read(plain)
    found = re.search(r"`(ps\.open_repository\(url, .*?\))`", str(caught.value))
    assert found is not None
    require_rows(read(eval(found[1], {"ps": ps, "url": str(two)})))


def test_options_are_not_shown_and_are_named() -> None:
    call = opening_call("s3://key:Zq7x0123456789@bucket/r", ["s3://bucket/data/"], has_options=True)
    assert call == "ps.open_repository('s3://***@bucket/r', virtual=['s3://bucket/data/'], **options)"
    assert opening_call(None, ["s3://b/a/x/", "s3://b/a/"]) == "ps.open_repository(url, virtual=['s3://b/a/'])"


def test_command_line_prints_lines_that_open_files_of_all_adoptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "repository")
    assert main(["adopt", str(month(tmp_path / "one", 0)), place, "--concat-dim", "day"]) == 0
    capsys.readouterr()
    assert main(["adopt", str(month(tmp_path / "two/deep", 3)), place, "--append-dim", "day"]) == 0
    lines = capsys.readouterr().out.splitlines()
    code = "\n".join(line for line in lines if line.startswith(("repository =", "store =", "dataset =")))
    assert code.count("\n") == 2
    names: dict[str, Any] = {"ps": ps, "xr": xr}
    exec(code, names)
    require_rows(names["dataset"]["t"].values)


def test_refused_opening_says_the_call(two: Path) -> None:
    with pytest.raises(StoreConfigError, match="virtual: expected the folders") as caught:
        xr.open_dataset(two, engine="parts_store")
    found = re.search(r"(ps\.open_repository\(.*\))$", str(caught.value))
    assert found is not None
    require_rows(read(eval(found[1], {"ps": ps})))


@pytest.mark.parametrize(
    "spelling",
    [
        lambda folder: folder,
        lambda folder: f"{folder}/",
        lambda folder: folder.as_uri(),
        lambda folder: f"{folder.as_uri()}/",
        lambda folder: folder / "one/../two/..",
        os.path.relpath,
    ],
)
def test_parent_folder_allows_what_is_below_it(two: Path, tmp_path: Path, spelling: Callable[[Path], Any]) -> None:
    before = folders_of(two)
    require_rows(read(ps.open_repository(two, virtual=[spelling(tmp_path)], create=False)))
    assert folders_of(two) == before
    require_rows(xr.open_dataset(two, engine="parts_store", virtual=[spelling(tmp_path)])["t"].values)


def test_link_to_a_parent_folder_allows_what_is_below_it(two: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(tmp_path)
    require_rows(read(ps.open_repository(two, virtual=[link], create=False)))


@pytest.mark.parametrize("name", ["on", "one/t", "tw", "two/dee", "two/deep/x", "two/deeper"])
def test_folder_with_a_name_that_begins_alike_allows_nothing(two: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    with pytest.raises(NoAccessError):
        read(ps.open_repository(two, virtual=[tmp_path / name], create=False))


def test_stored_container_that_leads_out_of_a_folder_is_not_allowed_with_it(tmp_path: Path) -> None:
    """Someone who can write to the repository could store any container."""
    secret, public = tmp_path / "secret", tmp_path / "public"
    for folder in (secret, public):
        folder.mkdir()
    (secret / "x.bin").write_bytes(bytes(range(8)))
    (public / "link").symlink_to(secret)
    for prefix in (f"{public.as_uri()}/../secret/", f"{public.as_uri()}/link/", f"{public.as_uri()}/%2e%2e/secret/"):
        assert not is_inside(prefix, str(public))
        assert is_inside(prefix, str(tmp_path))


@pytest.mark.parametrize(
    ("folder", "other", "expected"),
    [
        ("s3://b/a/", "s3://b/a", True),
        ("s3://b/a/b/", "s3://b/a", True),
        ("s3://b/a/", "s3://b", True),
        ("s3://b/ab/", "s3://b/a", False),
        ("s3://b/a/", "s3://b/a/b", False),
        ("s3://bucket/a/", "s3://b", False),
        ("gs://b/a/", "s3://b", False),
        ("az://c/x/", "az://c/", True),
        ("az://c/x/", "abfs://c/", False),
        ("https://h/data/x/", "https://h/data", True),
        ("https://h/data/../secret/", "https://h/data", False),
        ("https://h/data/%2E%2e/secret/", "https://h/data", False),
        ("http://h/data/", "https://h/data", False),
        ("https://h:8443/data/", "https://h", False),
        ("https://h.example.org/data/", "https://h", False),
        ("file:///data/a/", "/data", True),
        ("file:///data/ab/", "/data/a", False),
        ("file:///data/a/", "/", True),
        ("file:///data/../etc/", "/data", False),
    ],
)
def test_folder_is_inside_another_by_whole_segments(folder: str, other: str, expected: bool) -> None:
    assert is_inside(folder, other) == expected


def test_outermost_folders() -> None:
    folders = ["s3://b/a/b/", "s3://b/a/", "s3://b/ab/", "gs://b/a/", "s3://b/a/b/c/"]
    assert outermost(folders) == ["gs://b/a/", "s3://b/a/", "s3://b/ab/"]


def test_stored_container_below_a_folder_is_read_from_the_server_of_the_caller(tmp_path: Path) -> None:
    """A container that someone has stored would send the keys of the caller to any server."""
    place = tmp_path / "repository"
    keys: dict[str, Any] = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}
    ps.open_repository(place, virtual=["s3://bucket/data/x/"], endpoint="http://127.0.0.1:1", **keys)
    opened = ps.open_repository(place, virtual=["s3://bucket/data"], create=False, endpoint="https://mine:2", **keys)
    assert opened.authorized_virtual_container_prefixes == {"s3://bucket/data/", "s3://bucket/data/x/"}
    for container in (opened.config.virtual_chunk_containers or {}).values():
        assert "https://mine:2" in str(container.store)


def test_parent_folder_is_stored_when_a_repository_is_opened_for_writing(two: Path, tmp_path: Path) -> None:
    before = folders_of(two)
    repository = ps.open_repository(two, virtual=[tmp_path])
    assert folders_of(two) == {*before, f"{tmp_path.as_uri()}/"}
    session = repository.writable_session("main")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000.0), chunks=(100,))
    ps.adopt(tmp_path / "x.h5", into=session, path="other")
    session.commit("other")
    # A reader may name less.
    virtual = [tmp_path / "one", tmp_path / "two/deep"]
    require_rows(xr.open_dataset(two, engine="parts_store", virtual=virtual)["t"].values)


def test_reader_without_permission_to_write_may_name_a_parent_folder(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: icechunk.Repository) -> None:
        raise icechunk.StorageError("AccessDenied")

    monkeypatch.setattr(icechunk.Repository, "save_config", refuse)
    require_rows(read(ps.open_repository(two, virtual=[tmp_path])))
    # A folder without stored containers can only be meant for writing.
    (tmp_path / "new").mkdir()
    with pytest.raises(SessionError, match="AccessDenied"):
        ps.open_repository(two, virtual=[tmp_path / "new"])


def test_folders_with_options_of_their_own(tmp_path: Path) -> None:
    virtual: dict[str | Path, Any] = {
        "s3://public/": {"region": "us-east-1", "skip_signature": True},
        "gs://private/": {"bearer_token": "Zq7x0123456789"},
        tmp_path: {},
    }
    opened = ps.open_repository(tmp_path / "repository", virtual=virtual)
    expected = {"s3://public/", "gs://private/", f"{tmp_path.as_uri()}/"}
    assert opened.authorized_virtual_container_prefixes == expected
    with pytest.raises(StoreConfigError, match=r"virtual: expected a mapping .*'gs://b/': {\.\.\.}") as caught:
        ps.open_repository("s3://b/r", virtual=["gs://b/"], secret_access_key="Zq7x0123456789")
    assert "Zq7x" not in str(caught.value)


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreConfigError, match=r"virtual: expected a folder, found the file '.*file'"):
        ps.open_repository(tmp_path / "repository", virtual=[tmp_path / "file"])
    with pytest.raises(StoreConfigError, match="url: expected a folder, found the file"):
        ps.open_repository(tmp_path / "file")
    with pytest.raises(StoreConfigError, match=r"virtual: expected a list of folders, such as \['.*'\]"):
        ps.open_repository(tmp_path / "repository", virtual=str(tmp_path))
    assert not (tmp_path / "repository").exists()


def test_mistyped_argument_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match="found virtul; did you mean 'virtual'"):
        ps.open_repository(tmp_path / "repository", virtul=[tmp_path])
    assert not (tmp_path / "repository").exists()


def test_file_outside_all_folders_is_refused_with_the_call_that_would_allow_it(tmp_path: Path) -> None:
    file = month(tmp_path / "new", 0)
    (tmp_path / "one").mkdir()
    session = ps.open_repository(tmp_path / "repository", virtual=[tmp_path / "one"]).writable_session("main")
    with pytest.raises(SessionError) as caught:
        ps.adopt(file, into=session)
    found = re.search(r"`(ps\.open_repository\(.*?\))`", str(caught.value))
    assert found is not None
    session = eval(found[1], {"ps": ps}).writable_session("main")
    ps.adopt(file, into=session)


def test_a_lost_file_of_any_part_is_named_with_its_chunk(two: Path, tmp_path: Path) -> None:
    repository = ps.open_repository(two, virtual=[tmp_path], create=False)
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    lost = tmp_path / "two/deep/t.nc"
    os.utime(lost, (1_800_000_000, 1_800_000_000))
    name = re.escape(lost.as_uri())
    with pytest.raises(SessionError, match=rf"'t/c/[^']*': .* the file '{name}', which was changed"):
        ps.open_array(store, "t")[:]
    lost.unlink()
    for opened in (ps.open_array(store, "t"), zarr.open_array(store, path="t", mode="r")):
        with pytest.raises(
            SessionError, match=rf"'t/c/[^']*': it refers to the file '{name}', which no longer"
        ) as caught:
            opened[:]
        assert "__parts__" not in str(caught.value)
        np.testing.assert_array_equal(opened[:3], ROWS[:3].repeat(50, axis=1))


@pytest.mark.parametrize("name", ["x.h5", "deep/er/x.h5"])
def test_files_of_a_web_server_are_adopted_and_a_later_change_is_noticed(tmp_path: Path, name: str) -> None:
    file = tmp_path / "web" / name
    file.parent.mkdir(parents=True)
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=np.arange(4000.0), chunks=(100,), compression="gzip")
    settle(file)
    with with_ranges(tmp_path / "web") as url:
        session = ps.open_repository(tmp_path / "repository", virtual=[url]).writable_session("main")
        ps.adopt(f"{url}/{name}", into=session, client_options={"allow_http": True})
        array = ps.open_array(ps.PartsStore.from_session(session), "x")
        np.testing.assert_array_equal(array[:], np.arange(4000.0))
        os.utime(file, (1_800_000_000, 1_800_000_000))
        with pytest.raises(SessionError, match=rf"the file '{url}/{name}', which was changed or deleted"):
            array[:]
