"""A repository in memory, a session and a store on it, for every test."""

from pathlib import Path

import icechunk
import pytest

import parts_store as ps
from tests.backends.icechunk_session.stores import new_repository


@pytest.fixture
def repository() -> icechunk.Repository:
    return new_repository()


@pytest.fixture
def session(repository: icechunk.Repository) -> icechunk.Session:
    return repository.writable_session("main")


@pytest.fixture
def store(session: icechunk.Session) -> ps.PartsStore:
    return ps.PartsStore.from_session(session)


@pytest.fixture
def on_disk(tmp_path: Path) -> icechunk.Repository:
    # Everything in objects, whatever its size.
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")), config=config)
