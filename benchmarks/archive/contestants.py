"""The contestants: how each opens a repository, parses files, and writes references to a session."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk
import virtualizarr
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.parsers import HDFParser
from zarr.abc.store import Store

import parts_store as ps
from benchmarks.places import BUCKET, Bucket, Place
from parts_store.backends.icechunk_storage import open_storage, virtual_container

# Files are joined in the order of their names. Nothing is compared.
NESTED: dict[str, Any] = {"combine": "nested", "coords": "minimal", "data_vars": "minimal", "compat": "override"}
DIM = "time"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to make files readable from a session."""

    name: str
    # Open the repository at a place, which may refer to the files of a folder.
    open: Callable[[Place, Path], icechunk.Repository]
    # Return what files contain, joined along the time.
    parse: Callable[[Sequence[Path]], Any]
    # Write it to a session: to the group at a path, or appended to the root group.
    write: Callable[[Any, icechunk.Session, str, str | None], object]
    # Return a store that zarr reads.
    view: Callable[[icechunk.Session], Store]

    @property
    def folder(self) -> str:
        """The name without spaces."""
        return self.name.replace(",", "").replace(" ", "-")


def plain_repository(place: Place, folder: Path | str) -> icechunk.Repository:
    """Open a repository with the settings that Icechunk has by default."""
    url, options = address(place)
    config = icechunk.RepositoryConfig.default()
    container, access = virtual_container(str(folder), options)
    config.set_virtual_chunk_container(container)
    return icechunk.Repository.open_or_create(
        open_storage(url, options),
        config=config,
        authorize_virtual_chunk_access=icechunk.containers_credentials({container.url_prefix: access}),
    )


def our_repository(place: Place, folder: Path | str) -> icechunk.Repository:
    """Open a repository with the settings of `ps.open_repository`."""
    url, options = address(place)
    return ps.open_repository(url, virtual=[folder], **options)


def address(place: Place) -> tuple[str, dict[str, Any]]:
    """Return the URL of a place, and the options of its store."""
    if not isinstance(place, Bucket):
        return str(place.folder), {}
    server = place.server
    options = {
        "endpoint": server.endpoint,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "region": "us-east-1",
        "client_options": {"allow_http": True},
    }
    return f"s3://{BUCKET}/{place.prefix}", options


def parse_with_virtualizarr(paths: Sequence[Path]) -> xr.Dataset:
    """Parse files with VirtualiZarr, one after the other."""
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    names = [path.as_uri() for path in paths]
    if len(names) == 1:
        return virtualizarr.open_virtual_dataset(names[0], registry, HDFParser())
    return virtualizarr.open_virtual_mfdataset(
        names, registry, HDFParser(), concat_dim=DIM, join="override", combine_attrs="override", **NESTED
    )


def parse_with_parts_store(paths: Sequence[Path]) -> xr.Dataset:
    """Parse files with this package, one after the other."""
    if len(paths) == 1:
        return ps.open_virtual_dataset(paths[0])
    return ps.open_virtual_mfdataset(paths, concat_dim=DIM, **NESTED)


def write_with_virtualizarr(source: Any, session: icechunk.Session, path: str, append_dim: str | None) -> None:
    """Write one reference for each chunk."""
    source.vz.to_icechunk(session.store, group=path or None, append_dim=append_dim)


def write_with_parts_store(source: Any, session: icechunk.Session, path: str, append_dim: str | None) -> None:
    """Write references in shards."""
    ps.to_icechunk(source, session, path=path, append_dim=append_dim, shard_chunks=4095)


def adopt(source: Any, session: icechunk.Session, path: str, append_dim: str | None) -> None:
    """Parse and write with one call."""
    concat_dim = DIM if len(source) > 1 else None
    ps.adopt(source, into=session, path=path, concat_dim=concat_dim, append_dim=append_dim, shard_chunks=4095)


def _plain_view(session: icechunk.Session) -> Store:
    return session.store


VIRTUALIZARR = Contestant(
    "VirtualiZarr", plain_repository, parse_with_virtualizarr, write_with_virtualizarr, _plain_view
)
IN_OUR_REPOSITORY = Contestant(
    "VirtualiZarr, open_repository", our_repository, parse_with_virtualizarr, write_with_virtualizarr, _plain_view
)
SAME_DATASET = Contestant(
    "VirtualiZarr's dataset, ps.to_icechunk",
    our_repository,
    parse_with_virtualizarr,
    write_with_parts_store,
    ps.PartsStore.from_session,
)
PARTS_STORE = Contestant(
    "ps.open_virtual_mfdataset, ps.to_icechunk",
    our_repository,
    parse_with_parts_store,
    write_with_parts_store,
    ps.PartsStore.from_session,
)
ADOPT = Contestant("ps.adopt", our_repository, list, adopt, ps.PartsStore.from_session)
CONTESTANTS = {each.name: each for each in (VIRTUALIZARR, IN_OUR_REPOSITORY, SAME_DATASET, PARTS_STORE, ADOPT)}
