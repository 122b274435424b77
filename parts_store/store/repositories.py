"""Open a URL: an Icechunk repository, a version of it, or a store of objects."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final, override

import icechunk
from zarr.abc.store import RangeByteRequest

from parts_store.backends.icechunk_session import remember_url
from parts_store.backends.icechunk_storage import (
    folder_at,
    is_inside,
    open_storage,
    opening_call,
    outermost,
    scheme_of,
    service_of,
    virtual_container,
)
from parts_store.engine.steps import Found, Get, Steps
from parts_store.errors import SessionError, StorageError, StoreConfigError, describe, raise_translated
from parts_store.format.keys import NODES_FOLDER
from parts_store.redaction import hide_in_url, hide_name, hide_secrets, secrets_in, secrets_of_url
from parts_store.store.options import Concurrency
from parts_store.store.store import PartsStore
from parts_store.text import did_you_mean

# The largest chunk that Icechunk stores in a manifest. Shard indexes are that small, and are compressed there.
INLINE_NBYTES: Final = 65535
# How many shards of an array have their indexes in one manifest, along the first axis and along the others. A reader
# gets the whole manifest for one index, and a commit that adds an index writes all of them again.
_INDEXES_IN_MANIFEST: Final = (64, 16)
# How many manifests a commit writes at the same time. By default, Icechunk writes one after the other.
_MANIFESTS_AT_ONCE: Final = 16
# An object that every repository of Icechunk 2 has, and one that every repository of Icechunk 1 has.
_SIGNS: Final = ("repo", "refs/branch.main/ref.json")
_DENIED: Final = ("AccessDenied", "403")


type Virtual = Sequence[str | Path] | Mapping[str | Path, Mapping[str, Any]]
"""Folders with files that chunks may refer to; or the options of obstore for each of them."""


def open_repository(
    url: str | Path, *, virtual: Virtual = (), create: bool = True, **options: Any
) -> icechunk.Repository:
    """Open the Icechunk repository at a URL, or create one.

    Parameters
    ----------
    url
        A path, or a URL with `file://`, `s3://`, `gs://`, `az://`, `http://` or `https://`. Over HTTP a repository can
        only be read.
    virtual
        Folders with files that chunks may refer to, and everything below them: paths, or URLs with `s3://`, `gs://`,
        `az://`, `http://` or `https://`. Icechunk follows no other references. A mapping from folders to options of
        obstore gives each folder its own options, in place of `**options`.
    create
        Whether to create a repository if none exists. Folders in `virtual` that the configuration of an existing
        repository does not have yet are then also stored there.
    **options
        Options of obstore for the repository and for the folders: `endpoint`, `region`, `access_key_id` ... For
        credentials that expire, `get_credentials` is a function as Icechunk takes it: it returns
        `icechunk.S3StaticCredentials`, `icechunk.GcsBearerCredential` or `icechunk.AzureRefreshableCredential`, and can
        be pickled.

    Returns
    -------
    icechunk.Repository
        The repository. It may follow references to files below `virtual`.

    Raises
    ------
    StoreConfigError
        If there is no repository and `create` is False, or if Icechunk does not support the URL or an option.
    SessionError
        If Icechunk cannot open it.

    Examples
    --------
    >>> repository = ps.open_repository("repository")
    >>> repository.list_branches()
    {'main'}
    """
    folders = _parse_folders(str(url), virtual, options)
    for name, each in [("url", str(url)), *(("virtual", folder) for folder in folders)]:
        if service_of(each) == "file" and folder_at(each).is_file():
            raise StoreConfigError(name, "a folder", f"the file {describe(each)}")
    with _translated(str(url), options, folders):
        storage = open_storage(str(url), options)
        # Icechunk would retry for half a minute if no server answers.
        exists = is_repository(url, **options)
        if not exists and (not create or service_of(str(url)) == "web"):
            expected = "an Icechunk repository" + (", which cannot be created over HTTP" if create else "")
            raise StoreConfigError("url", expected, f"none at {describe(str(url))}")
        config = icechunk.Repository.fetch_config(storage) if exists else None
        if config is None:
            config = icechunk.RepositoryConfig.default()
        if not exists:
            _configure_new(config)
        known = dict(config.virtual_chunk_containers or {})
        named, authorized = _add_containers(config, folders)
        if create and exists and service_of(str(url)) != "web":
            _store_containers(storage, known, named)
        opened = _LocatedRepository.open_or_create if create and not exists else _LocatedRepository.open
        repository = opened(storage, config=config, authorize_virtual_chunk_access=authorized)
        repository.location = (str(url), bool(options))
        if not exists:
            repository.save_config()
        return repository


_ARGUMENTS: Final = tuple(signature(open_repository).parameters)


class _LocatedRepository(icechunk.Repository):
    """A repository whose sessions know its URL, so that an error can say how to open it."""

    # The URL, and whether the repository was opened with options.
    location: tuple[str, bool] | None = None

    @override
    def readonly_session(self, *args: Any, **kwargs: Any) -> icechunk.Session:
        return remember_url(super().readonly_session(*args, **kwargs), self.location)

    @override
    def writable_session(self, *args: Any, **kwargs: Any) -> icechunk.Session:
        return remember_url(super().writable_session(*args, **kwargs), self.location)


def _configure_new(config: icechunk.RepositoryConfig) -> None:
    """Configure a new repository: manifests contain the indexes of shards, and a commit writes many at once."""
    config.inline_chunk_threshold_bytes = INLINE_NBYTES
    config.manifest = _manifest_config()


def _parse_folders(url: str, virtual: Virtual, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options for each folder; raise `StoreConfigError` if it is not clear which folders they are for."""
    if isinstance(virtual, str | Path):
        raise StoreConfigError("virtual", f"a list of folders, such as [{str(virtual)!r}]", describe(str(virtual)))
    if isinstance(virtual, Mapping):
        return {str(folder): dict(own) for folder, own in virtual.items()}
    services_of = {each: service_of(each) for each in (url, *map(str, virtual))}
    if options and set(services_of.values()) == {"file"}:
        expected = "no options of obstore, because all folders are on this machine"
        names = sorted(map(hide_name, options))
        raise StoreConfigError("arguments", expected, f"{', '.join(names)}{did_you_mean(names[0], _ARGUMENTS)}")
    services = {each for each in services_of.values() if each not in ("file", "web")}
    if options and len(services) > 1:
        example = ", ".join(f"{hide_in_url(str(folder))!r}: {{...}}" for folder in virtual)
        expected = f"a mapping with the options of each folder, {{{example}}}, because they are on different services"
        raise StoreConfigError("virtual", expected, "a list of folders")
    # Files on web servers need none of the options for buckets.
    return {each: dict(options) if services_of[each] in services else {} for each in map(str, virtual)}


def _add_containers(
    config: icechunk.RepositoryConfig, folders: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], Any]:
    """Add folders to a configuration as virtual chunk containers; return these, and the credentials for access.

    The access includes the containers of the configuration below the folders, with the servers and the credentials that
    the caller gave for the folders: a container that someone has stored could send the credentials anywhere.
    """
    stored = list(config.virtual_chunk_containers or {})
    named, access = {}, {}
    # Of two folders, the one below the other comes later.
    for folder, options in sorted(folders.items(), key=lambda each: len(each[0])):
        container, credentials = virtual_container(folder, options)
        named[container.url_prefix] = container
        for prefix in (each for each in stored if is_inside(each, container.url_prefix)):
            below, access[prefix] = virtual_container(prefix, options)
            config.set_virtual_chunk_container(below)
        config.set_virtual_chunk_container(container)
        access[container.url_prefix] = credentials
    return named, icechunk.containers_credentials(access)


def _store_containers(storage: icechunk.Storage, known: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Store containers in the configuration of a repository that has not all of them.

    A client may lack the permission to write. It can read nevertheless what is below stored containers.
    """
    if all(known.get(prefix) == container for prefix, container in named.items()):
        return
    config = icechunk.Repository.fetch_config(storage) or icechunk.RepositoryConfig.default()
    for container in named.values():
        config.set_virtual_chunk_container(container)
    try:
        icechunk.Repository.open(storage, config=config).save_config()
    except icechunk.StorageError:
        if not all(any(is_inside(each, prefix) for each in known) for prefix in named):
            raise


def _manifest_config() -> icechunk.ManifestConfig:
    """Return how a new repository writes manifests: indexes of shards in several ones, and many at the same time."""
    axis = icechunk.ManifestSplitDimCondition
    first, others = _INDEXES_IN_MANIFEST
    indexes = icechunk.ManifestSplitCondition.path_matches(rf"/{NODES_FOLDER}/\.index$")
    return icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict({indexes: {axis.Axis(0): first, axis.Any(): others}}),
        max_concurrent_manifest_fetches_during_commit=_MANIFESTS_AT_ONCE,
    )


def open_memory(*, virtual: Virtual = (), **options: Any) -> PartsStore:
    """Return a store on a session of a new repository in memory, which may refer to files in these folders.

    The arguments are those of `open_repository`.
    """
    config = icechunk.RepositoryConfig.default()
    _configure_new(config)
    folders = _parse_folders("", virtual, options)
    with _translated("memory", options, folders):
        _, authorized = _add_containers(config, folders)
        repository = icechunk.Repository.create(
            icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access=authorized
        )
        return PartsStore.from_session(repository.writable_session("main"))


def is_repository(url: str | Path, **options: Any) -> bool:
    """Return whether there is an Icechunk repository at a URL or a path."""
    if service_of(str(url)) is None or _is_missing(str(url)):
        return False
    given = options_for(url, options)
    if scheme_of(str(url)) == "http":
        given["client_options"] = {"allow_http": True, **(given.get("client_options") or {})}
    store = PartsStore.from_url(url, read_only=True, **given)
    try:
        return store.carry_out(_has_any(_SIGNS))
    except StorageError as error:
        # Without permission to list a bucket, the response for a missing object is that access is denied.
        if error.code not in _DENIED:
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
    virtual: Virtual = (),
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
            _require_authorized(repository, str(url), has_options=bool(options))
        session = repository.readonly_session(
            branch=branch or (None if chosen else "main"), tag=tag, snapshot_id=snapshot
        )
    return PartsStore.from_session(session)


def open_branch(
    url: str | Path,
    *,
    branch: str = "main",
    virtual: Virtual = (),
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
    # Icechunk writes nothing to a web server.
    if branch is not None or (service_of(str(url)) != "web" and is_repository(url, **options)):
        return open_branch(url, branch=branch or "main", durable=durable, **options)
    store = PartsStore.from_url(url, concurrency=concurrency, durable=durable, **options)
    if store.read_only:
        raise StoreConfigError("url", "a store that can be written", "a store that is read-only")
    return store


@contextmanager
def discard_changes_on_failure(session: Any) -> Iterator[None]:
    """Discard the changes that the block made to a session if it raises; if there were others before, say so."""
    had_changes = session.has_uncommitted_changes
    try:
        yield
    except BaseException as error:
        # Icechunk can only discard all changes, and the earlier ones belong to the caller.
        if had_changes:
            error.add_note("the session contains a part of what was being written: do not commit it")
        elif session.has_uncommitted_changes:
            session.discard_changes()
        raise


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


def _require_authorized(repository: icechunk.Repository, url: str, *, has_options: bool) -> None:
    """Raise if chunks may refer to files that the repository was not opened for."""
    known = repository.config.virtual_chunk_containers or {}
    allowed = repository.authorized_virtual_container_prefixes
    # A folder below one that chunks may refer to can be all that a reader needs.
    missing = [each for each in known if not any(is_inside(other, each) for other in allowed)]
    if missing:
        expected = f"the folders of the files that chunks refer to: {', '.join(map(repr, outermost(missing)))}"
        found = "none of them" if len(missing) == len(known) else "not all of them"
        how = f"{found}; in Python, {opening_call(url, known, has_options=has_options)}"
        raise StoreConfigError("virtual", expected, how)


@contextmanager
def _translated(
    url: str, options: Mapping[str, Any], folders: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[None]:
    try:
        yield
    except icechunk.IcechunkError as error:
        secrets = [secret for own in (folders or {}).values() for secret in secrets_in(own)]
        known = [*secrets, *secrets_in(options), *secrets_of_url(url)]
        raise_translated(SessionError(hide_in_url(url), hide_secrets(str(error).strip().partition("\n")[0], known)))
