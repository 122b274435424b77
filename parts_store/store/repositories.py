"""Open a URL: an Icechunk repository, a version of it, or a store of objects."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import icechunk
from zarr.abc.store import RangeByteRequest

from parts_store.backends.icechunk_storage import folder_at, open_storage, scheme_of, virtual_container
from parts_store.engine.steps import Found, Get, Steps
from parts_store.errors import SessionError, StorageError, StoreConfigError, describe, raise_translated
from parts_store.format.keys import NODES_FOLDER
from parts_store.redaction import hide_secrets, secrets_in, secrets_of_url
from parts_store.store.options import Concurrency
from parts_store.store.store import PartsStore

# The largest chunk that Icechunk stores in a manifest. Shard indexes are that small, and are compressed there.
INLINE_NBYTES: Final = 65535
# How many shards of an array have their indexes in one manifest, along the first axis and along the others. A reader
# gets the whole manifest for one index, and a commit that adds an index writes all of them again.
_INDEXES_IN_MANIFEST: Final = (64, 16)
# How many manifests a commit writes at the same time. By default, Icechunk writes one after the other.
_MANIFESTS_AT_ONCE: Final = 16
# An object that every repository of Icechunk 2 has, and one that every repository of Icechunk 1 has.
_SIGNS: Final = ("repo", "refs/branch.main/ref.json")


def open_repository(
    url: str | Path, *, virtual: Sequence[str | Path] = (), create: bool = True, **options: Any
) -> icechunk.Repository:
    """Open the Icechunk repository at a URL, or create one.

    Parameters
    ----------
    url
        A path, `file://` or `s3://`.
    virtual
        Folders with files that chunks may refer to: paths, or URLs with `s3://`, `http://` or `https://`. Icechunk
        follows no other references.
    create
        Whether to create a repository if none exists. Folders in `virtual` that the configuration of an existing
        repository does not have yet are then also stored there.
    **options
        Options of obstore for the repository and for the folders: `endpoint`, `region`, `access_key_id` ...

    Returns
    -------
    icechunk.Repository
        The repository. It may follow references to files below `virtual`.

    Raises
    ------
    StoreConfigError
        If there is no repository and `create` is False, or if Icechunk does not support the URL.
    SessionError
        If Icechunk cannot open it.

    Examples
    --------
    >>> repository = ps.open_repository("repository")
    >>> repository.list_branches()
    {'main'}
    """
    with _translated(str(url), options):
        storage = open_storage(str(url), options)
        # Icechunk would retry for half a minute if no server answers.
        exists = is_repository(url, **options)
        if not exists and not create:
            raise StoreConfigError("url", "an Icechunk repository", f"none at {describe(str(url))}")
        config = icechunk.Repository.fetch_config(storage) if exists else None
        if config is None:
            config = icechunk.RepositoryConfig.default()
        if not exists:
            _configure_new(config)
        known = dict(config.virtual_chunk_containers or {})
        authorized = _add_containers(config, virtual, options)
        if not create:
            return icechunk.Repository.open(storage, config=config, authorize_virtual_chunk_access=authorized)
        repository = icechunk.Repository.open_or_create(
            storage, config=config, authorize_virtual_chunk_access=authorized
        )
        # A reader may lack the permission to write.
        if not exists or config.virtual_chunk_containers != known:
            repository.save_config()
        return repository


def _configure_new(config: icechunk.RepositoryConfig) -> None:
    """Configure a new repository: manifests contain the indexes of shards, and a commit writes many at once."""
    config.inline_chunk_threshold_bytes = INLINE_NBYTES
    config.manifest = _manifest_config()


def _add_containers(config: icechunk.RepositoryConfig, virtual: Sequence[str | Path], options: dict[str, Any]) -> Any:
    """Add folders to a configuration as virtual chunk containers, and return the credentials for them."""
    access = {}
    for folder in virtual:
        container, access[container.url_prefix] = virtual_container(str(folder), options)
        config.set_virtual_chunk_container(container)
    return icechunk.containers_credentials(access)


def _manifest_config() -> icechunk.ManifestConfig:
    """Return how a new repository writes manifests: indexes of shards in several ones, and many at the same time."""
    axis = icechunk.ManifestSplitDimCondition
    first, others = _INDEXES_IN_MANIFEST
    indexes = icechunk.ManifestSplitCondition.path_matches(rf"/{NODES_FOLDER}/\.index$")
    return icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict({indexes: {axis.Axis(0): first, axis.Any(): others}}),
        max_concurrent_manifest_fetches_during_commit=_MANIFESTS_AT_ONCE,
    )


def open_memory(*, virtual: Sequence[str | Path] = (), **options: Any) -> PartsStore:
    """Return a store on a session of a new repository in memory, which may refer to files in these folders.

    The arguments are those of `open_repository`.
    """
    config = icechunk.RepositoryConfig.default()
    _configure_new(config)
    with _translated("memory", options):
        authorized = _add_containers(config, virtual, options)
        repository = icechunk.Repository.create(
            icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access=authorized
        )
        return PartsStore.from_session(repository.writable_session("main"))


def is_repository(url: str | Path, **options: Any) -> bool:
    """Return whether there is an Icechunk repository at a URL or a path."""
    if scheme_of(str(url)) not in ("", "file", "s3", "s3a") or _is_missing(str(url)):
        return False
    store = PartsStore.from_url(url, read_only=True, **options)
    try:
        return store.carry_out(_has_any(_SIGNS))
    except StorageError as error:
        # Without permission to list a bucket, the response for a missing object is that access is denied.
        if error.code != "AccessDenied":
            raise
        return False


def _has_any(keys: Sequence[str]) -> Steps[bool]:
    for key in keys:
        # A GET request, since the response to a HEAD request does not say why it was refused.
        (outcome,) = yield (Get(key, RangeByteRequest(0, 1), "whether there is an Icechunk repository"),)
        if isinstance(outcome, Found):
            return True
    return False


def _is_missing(url: str) -> bool:
    return scheme_of(url) in ("", "file") and not folder_at(url).is_dir()


def _require_folder(url: str) -> None:
    """Raise unless a local path is a folder."""
    if _is_missing(url):
        found = "a file" if folder_at(url).exists() else "nothing"
        raise StoreConfigError("url", "a folder that exists", f"{found} at {describe(url)}")


def open_store(
    url: str | Path,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    virtual: Sequence[str | Path] = (),
    reads_chunks: bool = False,
    **options: Any,
) -> PartsStore:
    """Open a URL for reading: a version of an Icechunk repository if there is one, or else a store of objects.

    Parameters
    ----------
    url
        A path, or a URL that `PartsStore.from_url` takes.
    branch, tag, snapshot
        The version of the repository, by at most one of them; the branch `main` if all are None.
    virtual
        Folders with files that chunks of the repository may refer to.
    reads_chunks
        Whether chunks will be read, and not only metadata.
    **options
        Options of obstore.

    Raises
    ------
    StoreConfigError
        If there is no such version, or if a version is asked for where there is no repository; with `reads_chunks`,
        if chunks may refer to files in a folder that is not in `virtual`.
    """
    given = {"branch": branch, "tag": tag, "snapshot": snapshot}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise StoreConfigError("version", "at most one of branch, tag and snapshot", " and ".join(chosen))
    _require_folder(str(url))
    if not chosen and not is_repository(url, **options):
        return PartsStore.from_url(url, read_only=True, **options)
    repository = open_repository(url, virtual=virtual, create=False, **options)
    with _translated(str(url), options):
        _require_version(repository, chosen or {"branch": "main"})
        if reads_chunks:
            _require_authorized(repository)
        session = repository.readonly_session(
            branch=branch or (None if chosen else "main"), tag=tag, snapshot_id=snapshot
        )
    return PartsStore.from_session(session)


def open_branch(
    url: str | Path,
    *,
    branch: str = "main",
    virtual: Sequence[str | Path] = (),
    create: bool = False,
    durable: bool = False,
    **options: Any,
) -> PartsStore:
    """Open a branch of the Icechunk repository at a URL for writing; the caller commits `store.session`.

    The arguments are those of `open_repository`. With `durable`, a repository on a local disk is refused.
    """
    if durable and scheme_of(str(url)) in ("", "file"):
        expected = "False, since Icechunk does not synchronise the files of a repository on a local disk"
        raise StoreConfigError("durable", expected, "True")
    repository = open_repository(url, virtual=virtual, create=create, **options)
    with _translated(str(url), options):
        _require_version(repository, {"branch": branch})
        return PartsStore.from_session(repository.writable_session(branch))


def open_writable(
    url: str | Path,
    *,
    branch: str | None = None,
    create: bool = False,
    concurrency: Concurrency = "writers",
    durable: bool = False,
    **options: Any,
) -> PartsStore:
    """Open a URL for writing: a branch of an Icechunk repository if there is one, or else a store of objects.

    Parameters
    ----------
    url
        A path, or a URL that `PartsStore.from_url` takes.
    branch
        The branch of the repository; `main` if None. The caller commits `store.session`.
    create
        Whether to create a local folder that does not exist.
    concurrency
        The level of the writers of a store of objects.
    durable
        Whether a write that has returned survives a power failure. An Icechunk repository on a local disk refuses it.
    **options
        Options of obstore.
    """
    if not create:
        _require_folder(str(url))
    if branch is not None or is_repository(url, **options):
        return open_branch(url, branch=branch or "main", durable=durable, **options)
    store = PartsStore.from_url(url, concurrency=concurrency, durable=durable, **options)
    if store.read_only:
        raise StoreConfigError("url", "a store that can be written", "a store that is read-only")
    return store


def options_for(url: str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of obstore for a URL: none for a local folder."""
    return {} if scheme_of(str(url)) in ("", "file", "memory") else dict(options)


def _require_version(repository: icechunk.Repository, chosen: dict[str, str]) -> None:
    for name, known in (("branch", repository.list_branches), ("tag", repository.list_tags)):
        if name in chosen and chosen[name] not in (names := known()):
            existing = ", ".join(map(repr, sorted(names))) or "nothing: there are none"
            raise StoreConfigError(name, f"one of {existing}", describe(chosen[name]))
    if "snapshot" in chosen:
        try:
            repository.lookup_snapshot(chosen["snapshot"])
        except (icechunk.NotFoundError, icechunk.SnapshotNotFoundError, icechunk.InvalidInputError) as error:
            found = describe(chosen["snapshot"])
            raise StoreConfigError("snapshot", "the id of a snapshot of the repository", found) from error


def _require_authorized(repository: icechunk.Repository) -> None:
    """Raise if chunks may refer to files that the repository was not opened for."""
    known = repository.config.virtual_chunk_containers or {}
    if missing := sorted(set(known) - set(repository.authorized_virtual_container_prefixes)):
        expected = f"the folders of the files that chunks refer to: {', '.join(map(repr, missing))}"
        raise StoreConfigError("virtual", expected, "none of them" if len(missing) == len(known) else "not all of them")


@contextmanager
def _translated(url: str, options: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except icechunk.IcechunkError as error:
        known = [*secrets_in(options), *secrets_of_url(url)]
        raise_translated(SessionError(url, hide_secrets(str(error).strip().partition("\n")[0], known)))
