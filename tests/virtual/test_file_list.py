"""Which files a path, a URL, a pattern or a list names, and in which order."""

import glob
from pathlib import Path

import pytest
from obstore.store import LocalStore

from parts_store.errors import StoreConfigError
from parts_store.virtual.existing_files import FolderReader, list_files, match, natural_order

TREE = ["1.nc", "2.nc", "10.nc", "a.txt", "2001/1.nc", "2001/x/9.nc", "2002/1.nc", "s.zarr/zarr.json", "b[1].nc"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path.resolve()


def names(folder: Path, files: object) -> list[str]:
    return [each.removeprefix(f"{folder.as_uri()}/") for each in list_files(files, {})]  # type: ignore[arg-type]


def test_files_of_a_pattern_are_in_natural_order(folder: Path) -> None:
    assert names(folder, folder / "[0-9]*.nc") == ["1.nc", "2.nc", "10.nc"]
    assert names(folder, f"{folder.as_uri()}/2*/1.nc") == ["2001/1.nc", "2002/1.nc"]
    assert sorted(["t9b", "t10a", "t010a", "s", "t9a", "t"], key=natural_order) == [
        *("s", "t", "t9a", "t9b", "t010a", "t10a")
    ]


def test_files_of_a_list_keep_their_order(folder: Path) -> None:
    given = [folder / "10.nc", str(folder / "200?/1.nc"), f"{(folder / '1.nc').as_uri()}"]
    assert names(folder, given) == ["10.nc", "2001/1.nc", "2002/1.nc", "1.nc"]
    assert list_files("s3://bucket/a b.nc", {}) == ["s3://bucket/a b.nc"]
    assert list_files("https://host/file.nc", {}) == ["https://host/file.nc"]
    assert list_files("s3://bucket/a@b.nc", {}) == ["s3://bucket/a@b.nc"]


def test_relative_paths_and_names_with_brackets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert names(folder, "2.nc") == ["2.nc"]
    assert names(folder, "b[1].nc") == ["b%5B1%5D.nc"]
    assert names(folder, "*/1.nc") == ["2001/1.nc", "2002/1.nc"]


@pytest.mark.parametrize(
    "pattern", ["*.nc", "200?/*.nc", "**/*.nc", "2001/**/*.nc", "[12]*.nc", "*/x/9.nc", "*.zarr", "*", "*/*", "no*"]
)
def test_a_pattern_matches_in_a_listing_what_it_matches_on_a_disk(folder: Path, pattern: str) -> None:
    found = match(FolderReader(LocalStore(folder), ""), "", pattern.split("/"))
    expected = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - of Python, not of pathlib
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([], "an empty list"),
        ("nowhere/*.nc", r"no file that matches 'nowhere/\*.nc'"),
        ([b"1.nc"], "an object of type bytes"),
        (["1.nc", "1.nc"], "1.nc' twice"),
        ("s3://bucket*/1.nc", "behind the name of the bucket"),
        ("https://host/*.nc", "web servers list no files"),
        ("https://host/1.nc?X-Amz-Signature=abc", r"URLs without a query.*found 'https://host/1.nc\?\*\*\*'"),
        ("s3://bucket/1.nc?X-Amz-Signature=abc", "URLs without a query"),
        ("https://user:p/w@host/1.nc", "URLs without passwords.*found https:// with '@'"),
        ("s3://key:se/cret@bucket/*.nc", "URLs without passwords"),
    ],
)
def test_a_list_that_names_no_files_is_refused(
    folder: Path, files: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(StoreConfigError, match=problem):
        list_files(files, {})  # type: ignore[arg-type]
