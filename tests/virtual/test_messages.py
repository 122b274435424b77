"""What a user is told after a mistake in an adoption: what failed, which file, and what to do."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from parts_store.backends.addresses import is_option
from parts_store.cli import main
from parts_store.errors import PartsStoreError, ReadOnlySessionError, StoreConfigError
from parts_store.virtual.adopt import adopt
from tests.virtual.adopting import netcdf, repository, settle

icechunk.set_logs_filter("error")


def days(
    path: Path,
    first: int,
    *,
    width: int = 6,
    units: str = "K",
    dtype: str = "f4",
    name: str = "t2m",
    dims: tuple[str, str] = ("time", "x"),
    gap: float = 1,
) -> Path:
    """Four days, in a file."""
    lengths = {"time": 4, "x": width}
    values = np.arange(4 * width, dtype=dtype).reshape([lengths[dim] for dim in dims])
    dataset = xr.Dataset(
        {name: (dims, values, {"units": units})},
        {"time": ("time", np.arange(first, first + 4)), "x": np.arange(width) * gap},
    )
    return netcdf(path, dataset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    days(tmp_path / "january.nc", 0)
    days(tmp_path / "february.nc", 4)
    return tmp_path


@pytest.fixture
def session(folder: Path) -> icechunk.Session:
    """A session with the first month."""
    made = repository(folder).writable_session("main")
    adopt(folder / "january.nc", into=made)
    return made


def refusal(call: Callable[[], object]) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(PartsStoreError) as caught:
        call()
    return str(caught.value)


def test_missing_file_is_named_with_one_that_is_spelled_alike(folder: Path, session: icechunk.Session) -> None:
    wrong = (folder / "januray.nc").as_uri()
    expected = f"file '{wrong}': expected a file that exists, found none; did you mean 'january.nc'?"
    assert refusal(lambda: adopt(folder / "januray.nc", into=session, path="a")) == expected
    files = [folder / "january.nc", folder / "januray.nc"]
    assert refusal(lambda: adopt(files, into=session, path="a", concat_dim="time")) == expected
    assert refusal(lambda: ps.open_virtual_dataset(folder / "januray.nc")) == expected
    copies = ps.PartsStore.from_url("memory://")
    assert refusal(lambda: adopt(files[1], into=copies, copy=True)) == expected


def test_missing_and_empty_folders_are_named(folder: Path, session: icechunk.Session) -> None:
    said = refusal(lambda: adopt(folder / "no/january.nc", into=session, path="a"))
    assert said.endswith(f"expected a file that exists, found no folder '{folder / 'no'}'")
    (folder / "empty").mkdir()
    assert "found an empty folder" in refusal(lambda: adopt(folder / "empty", into=session, path="a"))
    assert "name its files, for example '*.nc'" in refusal(lambda: adopt(folder, into=session, path="a"))


def test_empty_unknown_and_truncated_files_are_named(folder: Path, session: icechunk.Session) -> None:
    data = (folder / "february.nc").read_bytes()
    for name, content, problem in (
        ("empty.nc", b"", "expected a format that is known, found an empty file"),
        ("page.nc", b"<html>log in</html>" * 9, "found a format that is not known; check that the file was downloaded"),
        ("cut.nc", data[:-300], f"it is truncated: expected {len(data):,} bytes, found {len(data) - 300:,}; copy or"),
    ):
        (folder / name).write_bytes(content)
        settle(folder / name)
        for files in (folder / name, [folder / "january.nc", folder / name]):
            options: dict[str, Any] = {} if isinstance(files, Path) else {"concat_dim": "time"}
            said = refusal(partial(adopt, files, into=session, path="a", **options))
            assert f"file '{(folder / name).as_uri()}' cannot be adopted" in said
            assert problem in said


def test_copy_of_an_empty_file_is_refused_as_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.nc").write_bytes(b"")
    store = ps.PartsStore.from_url(tmp_path / "store")
    assert "found an empty file" in refusal(lambda: adopt(tmp_path / "empty.nc", into=store, copy=True))


def test_mistyped_append_dim_is_named_with_the_stored_ones(folder: Path, session: icechunk.Session) -> None:
    said = refusal(lambda: adopt(folder / "february.nc", into=session, append_dim="tim"))
    expected = (
        "append_dim: expected a dimension of the arrays that are stored at '', which have 'time', 'x', found 'tim'"
    )
    assert said == f"{expected}; did you mean 'time'?"
    # Before anything is parsed.
    assert refusal(lambda: adopt(folder / "nothing.nc", into=session, append_dim="tim")) == said


def test_mistyped_append_dim_is_named_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(folder / "repository")
    assert main(["adopt", str(folder / "january.nc"), place]) == 0
    assert main(["adopt", str(folder / "february.nc"), place, "--append-dim", "tim"]) == 2
    assert "found 'tim'; did you mean 'time'?" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"append_dim": "time"}])
def test_path_that_zarr_cannot_have_is_named(
    folder: Path, session: icechunk.Session, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(lambda: adopt(folder / "january.nc", into=session, path="../a", **options))
    assert said == "path: expected a path of names in the repository, without '.' and '..', found '../a'"
    assert main(["adopt", str(folder / "january.nc"), str(folder / "repository"), "--path", "../a"]) == 2
    assert said in capsys.readouterr().err


def test_mistyped_concat_dim_is_named_with_those_of_the_files(folder: Path, session: icechunk.Session) -> None:
    files = [folder / "january.nc", folder / "february.nc"]
    said = refusal(lambda: adopt(files, into=session, path="a", concat_dim="tim"))
    assert "no file has the dimension 'tim'; did you mean 'time'? (dimensions: 'time', 'x')" in said
    assert files[1].as_uri() in said


# What is different in an appended file, and what is said about it.
UNLIKE: dict[str, tuple[dict[str, Any], str]] = {
    "units": ({"units": "degC"}, "attribute 'units': expected 'K', found 'degC'"),
    "dtype": ({"dtype": "f8"}, "expected the data type float32, found float64"),
    "order": ({"dims": ("x", "time")}, "expected the dimensions ('time', 'x'), found ('x', 'time')"),
    "name": ({"name": "precipitation"}, "array 't2m': expected values along 'time'"),
    "width": ({"width": 7}, "expected the shape {'x': 6}, as it is stored, found {'x': 7}"),
    "grid": ({"gap": 2}, "array 'x': expected the values that are stored, found others"),
    "overlap": ({"first": 3}, "expected values after 3"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_file_that_does_not_fit_is_named(folder: Path, session: icechunk.Session, case: str) -> None:
    change, problem = UNLIKE[case]
    first, march = folder / "january.nc", folder / "march.nc"
    days(march, change.get("first", 4), **{name: value for name, value in change.items() if name != "first"})
    said = refusal(lambda: adopt(march, into=session, append_dim="time"))
    assert problem in said
    assert f"references, {march.as_uri()}, " in said
    said = refusal(lambda: adopt([first, march], into=session, path="a", concat_dim="time"))
    assert said.startswith(f"file '{march.as_uri()}' cannot be adopted, nothing was written: ")
    assert first.as_uri() in said


def test_mistyped_arguments_are_named(folder: Path, session: icechunk.Session) -> None:
    file = folder / "february.nc"
    for wrong, right in (("apend_dim", "append_dim"), ("variable", "variables"), ("concat_dims", "concat_dim")):
        options: dict[str, Any] = {wrong: "time"}
        said = refusal(partial(adopt, file, into=session, **options))
        assert said.endswith(f"found {wrong}; did you mean {right!r}?")
        # Also where options of obstore are possible.
        assert refusal(partial(adopt, "s3://bucket/x.nc", into=session, **options)) == said
    assert refusal(lambda: adopt(file, into=session, path="a", variables=["t2"])).endswith("'t2'; did you mean 't2m'?")


def test_options_of_obstore_are_not_taken_for_mistyped_arguments() -> None:
    assert all(map(is_option, ("endpoint", "aws_region", "token", "account_name", "client_options", "get_credentials")))
    assert not any(map(is_option, ("apend_dim", "virtul", "path")))


def test_session_that_cannot_be_written_is_refused(folder: Path) -> None:
    made = repository(folder)
    committed = made.writable_session("main")
    adopt(folder / "january.nc", into=committed)
    committed.commit("january")
    for closed in (committed, made.readonly_session("main")):
        with pytest.raises(
            ReadOnlySessionError, match=r"open another one with `repository\.writable_session\('main'\)`"
        ):
            adopt(folder / "february.nc", into=closed, append_dim="time")


def test_what_is_no_session_is_refused_with_a_call_that_makes_one(folder: Path) -> None:
    place: Any = str(folder / "repository")
    for into in (place, ps.open_repository(place), None):
        with pytest.raises(
            StoreConfigError, match=r"into: expected a writable session, such as `ps\.open_repository\("
        ):
            adopt(folder / "january.nc", into=into)  # type: ignore[arg-type] # it is refused
    files: Any = 5
    with pytest.raises(StoreConfigError, match="files: expected paths and URLs, found an object of type int"):
        adopt(files, into=repository(folder).writable_session("main"))


def test_engine_takes_folders_as_an_argument(folder: Path) -> None:
    place = folder / "repository"
    session = ps.open_repository(place, virtual=[folder]).writable_session("main")
    adopt(folder / "january.nc", into=session)
    session.commit("january")
    expected = xr.open_dataset(folder / "january.nc", engine="h5netcdf")
    opened = xr.open_dataset(place, engine="parts_store", virtual=[folder])
    xr.testing.assert_identical(opened.load(), expected.load())
    tree = xr.open_datatree(place, engine="parts_store", virtual=[folder])
    xr.testing.assert_identical(tree.to_dataset().load(), expected)
    with pytest.raises(StoreConfigError, match="virtual: expected folders in one place"):
        xr.open_dataset(place, engine="parts_store", virtual=[folder], storage_options={"virtual": [folder]})
    store: Any = ps.PartsStore.from_session(session)
    with pytest.raises(StoreConfigError, match=r"give its folders to `ps\.open_repository`"):
        xr.open_dataset(store, engine="parts_store", virtual=[folder])


def test_nothing_is_written_after_a_mistake(folder: Path, session: icechunk.Session) -> None:
    store = ps.PartsStore.from_session(session)
    held = xr.open_zarr(store, consolidated=False, chunks=None).load()
    refusal(lambda: adopt(days(folder / "march.nc", 4, units="degC"), into=session, append_dim="time"))
    refusal(lambda: adopt(folder / "february.nc", into=session, append_dim="tim"))
    xr.testing.assert_identical(xr.open_zarr(store, consolidated=False, chunks=None).load(), held)
