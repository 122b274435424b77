"""Two years of monthly files on a real S3 server: found by a pattern, adopted in one call, and continued by another."""

import json
from pathlib import Path

import icechunk
import pytest
import xarray as xr

import parts_store as ps
from integration.conftest import Bucket
from parts_store.cli import main
from parts_store.errors import AdoptionError, StoreConfigError
from tests.virtual.months import Layout, read, write_months


def upload(bucket: Bucket, paths: list[Path]) -> list[str]:
    for path in paths:
        bucket.client.fput_object(bucket.name, f"data/{path.name}", str(path))
    return [f"s3://{bucket.name}/data/{path.name}" for path in paths]


def opened(repository: icechunk.Repository) -> xr.Dataset:
    store = ps.PartsStore.from_session(repository.readonly_session("main"))
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return dataset.load()


@pytest.mark.parametrize("layout", [pytest.param("day", marks=pytest.mark.nightly), "month", "contiguous"])
def test_two_years_of_months_are_one_dataset_and_the_next_month_is_appended(
    bucket: Bucket, tmp_path: Path, layout: Layout
) -> None:
    files = write_months(tmp_path, layout, "2003-01", 25)
    urls = upload(bucket, files)
    known = bucket.server.options
    place = f"s3://{bucket.name}"
    repository = ps.open_repository(f"{place}/repository", virtual=[f"{place}/data"], **known)
    session = repository.writable_session("main")
    report = ps.adopt(f"{place}/data/200[34]-*.nc", into=session, concat_dim="time", **known)
    assert report.is_complete
    assert report.folders == (f"{place}/data/",)
    session.commit("two years")
    xr.testing.assert_identical(opened(repository), read(files[:24]))
    session = repository.writable_session("main")
    ps.adopt(urls[24], into=session, append_dim="time", **known)
    session.commit("another month")
    xr.testing.assert_identical(opened(repository), read(files))


def test_patterns_match_objects_and_folders(bucket: Bucket, tmp_path: Path) -> None:
    files = write_months(tmp_path, "day", "2003-01", 2)
    upload(bucket, files)
    known, place = bucket.server.options, f"s3://{bucket.name}"
    joined = ps.open_virtual_mfdataset(f"{place}/d*/*.nc", **known)
    xr.testing.assert_identical(xr.decode_cf(joined.load()), read(files))
    with pytest.raises(StoreConfigError, match="no file that matches"):
        ps.open_virtual_mfdataset(f"{place}/data/*.grib", **known)
    with pytest.raises(AdoptionError, match="found a folder"):
        ps.open_virtual_dataset(f"{place}/data", **known)
    with pytest.raises(StoreConfigError, match="expected a file that exists"):
        ps.open_virtual_dataset(f"{place}/data/none.nc", **known)


def test_an_object_that_was_replaced_after_its_adoption_is_not_read(bucket: Bucket, tmp_path: Path) -> None:
    files = write_months(tmp_path, "day", "2003-01", 3)
    upload(bucket, files)
    known, place = bucket.server.options, f"s3://{bucket.name}"
    repository = ps.open_repository(f"{place}/repository", virtual=[f"{place}/data"], **known)
    session = repository.writable_session("main")
    ps.adopt(f"{place}/data/*.nc", into=session, concat_dim="time", **known)
    session.commit("adopted")
    bucket.client.fput_object(bucket.name, f"data/{files[1].name}", str(files[2]))
    with pytest.raises(ps.PartsStoreError):
        opened(repository)


def test_command_adopts_a_pattern_of_a_bucket(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_months(tmp_path, "contiguous", "2003-01", 3)
    urls = upload(bucket, files)
    known, place = bucket.server.options, f"s3://{bucket.name}"
    given = [each for name, value in known.items() for each in ("-o", f"{name}={value}")]
    into = f"{place}/repository"
    assert main(["adopt", *urls[:2], into, "--concat-dim", "time", "--jobs", "2", *given]) == 0
    capsys.readouterr()
    assert main(["adopt", urls[2], into, "--append-dim", "time", "--json", *given]) == 0
    assert json.loads(capsys.readouterr().out)["folders"] == [f"{place}/data/"]
    repository = ps.open_repository(into, virtual=[f"{place}/data"], **known)
    xr.testing.assert_identical(opened(repository), read(files))
    # Nothing is created for files that cannot be adopted.
    before = bucket.list_keys()
    assert main(["adopt", f"{place}/data/none-*.nc", f"{place}/other", *given]) == 2
    assert bucket.list_keys() == before
