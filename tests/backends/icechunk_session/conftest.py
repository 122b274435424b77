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
def referring(tmp_path: Path) -> tuple[icechunk.Repository, str]:
    """Create a repository that may reference the files of a folder, and return both."""
    folder = tmp_path / "files"
    folder.mkdir()
    location = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(location, icechunk.local_filesystem_store(str(folder)))
    )
    made = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config=config,
        authorize_virtual_chunk_access={location: icechunk.credentials.LocalFileSystemAccess},
    )
    return made, location


@pytest.fixture
def on_disk(tmp_path: Path) -> icechunk.Repository:
    # Everything in objects, whatever its size.
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")), config=config)
