"""A dask cluster in this process for every module, and a repository for every test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from icechunk import Repository, local_filesystem_storage


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Any]:
    """Make a client of two threads of this process the current one."""
    arguments = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**arguments) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(str(tmp_path / "repository")))
