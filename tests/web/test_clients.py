"""Programs of others read the served arrays with equal values."""

from collections.abc import Iterator
from pathlib import Path

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from tests.web.clients import CLIENTS
from tests.web.served import NAMES, expected, served, write_arrays


def write_repository(folder: Path) -> str:
    """Write a repository whose tag and another branch have older values than `main`; return their snapshot."""
    repository = ps.open_repository(folder)
    session = repository.writable_session("main")
    write_arrays(ps.PartsStore.from_session(session))
    old = session.commit("the values")
    repository.create_tag("v1", snapshot_id=old)
    repository.create_branch("old", snapshot_id=old)
    session = repository.writable_session("main")
    for name in NAMES:
        zarr.open_array(ps.PartsStore.from_session(session), path=name)[...] = 1
    session.commit("other values")
    return old


@pytest.fixture(scope="module", params=["disk", "branch", "tag", "snapshot"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    icechunk.set_logs_filter("error")
    if request.param == "disk":
        write_arrays(ps.PartsStore.from_url(folder))
        options: list[str] = []
    else:
        names = {"snapshot": write_repository(folder), "branch": "old", "tag": "v1"}
        options = [f"--{request.param}", names[request.param]]
    with served(folder, *options) as page:
        yield page


@pytest.mark.parametrize(
    "client", [pytest.param(each, marks=[pytest.mark.slow] * (each == "zarrita")) for each in CLIENTS]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_client_reads_equal_values(url: str, client: str, name: str) -> None:
    assert np.array_equal(CLIENTS[client](url, name), expected(name))


def test_xarray_opens_the_hierarchy_with_its_consolidated_metadata(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    data = xr.Dataset({"t": (("y", "x"), np.arange(12.0).reshape(3, 4))}, {"y": [1, 2, 3]}, {"units": "K"})
    data.to_zarr(store, group="a/b", consolidated=False, zarr_format=3)
    with served(tmp_path) as url:
        opened = xr.open_zarr(f"{url}zarr/a/b", consolidated=True)
        xr.testing.assert_identical(opened.load(), data)
