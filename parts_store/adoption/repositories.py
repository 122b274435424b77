"""An Icechunk repository for adopted files: opened, or made, so that it may refer to the folder that a file is in."""

from pathlib import Path
from typing import Any, Final

import icechunk

from parts_store.adoption.adopting import INLINE_NBYTES
from parts_store.errors import SessionError, StoreConfigError, describe

# How obstore's options are called by Icechunk.
_NAMES: Final = {
    "endpoint": "endpoint_url",
    "region": "region",
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "session_token": "session_token",
}


def writable_session(url: str, file: str, branch: str, options: dict[str, Any]) -> icechunk.Session:
    """A session on a branch of the repository at a URL or a path, which is made if there is none.

    The folder of the file becomes one of its virtual chunk containers, if it is not.
    """
    try:
        prefix, store, access = _container(file, options)
        storage = _storage(url, options)
        config = icechunk.RepositoryConfig.default()
        if icechunk.Repository.exists(storage):
            config = icechunk.Repository.fetch_config(storage) or config
        else:
            # Indexes of shards are small, and compressed in a manifest.
            config.inline_chunk_threshold_bytes = INLINE_NBYTES
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store=store))
        repository = icechunk.Repository.open_or_create(
            storage, config=config, authorize_virtual_chunk_access=icechunk.containers_credentials({prefix: access})
        )
        repository.save_config()
        return repository.writable_session(branch)
    except icechunk.IcechunkError as error:
        raise SessionError(url, str(error).strip().partition("\n")[0]) from error


def _storage(url: str, options: dict[str, Any]) -> icechunk.Storage:
    scheme, _, rest = url.rpartition("://")
    if scheme in ("", "file"):
        return icechunk.local_filesystem_storage(str(Path(rest).expanduser().absolute()))
    if scheme != "s3":
        raise StoreConfigError("into", "a path, or s3://, for an Icechunk repository", describe(url))
    bucket, _, prefix = rest.partition("/")
    known = {_NAMES[name]: value for name, value in options.items() if name in _NAMES}
    is_plain = str(options.get("endpoint", "")).startswith("http://")
    return icechunk.s3_storage(
        bucket=bucket, prefix=prefix or None, allow_http=is_plain, force_path_style="endpoint" in options, **known
    )


def _container(file: str, options: dict[str, Any]) -> tuple[str, Any, Any]:
    """The folder of a file as a container: its prefix, its store, and the way to be let in."""
    scheme, _, rest = file.rpartition("://")
    if scheme in ("", "file"):
        folder = Path(rest).expanduser().resolve().parent
        store = icechunk.local_filesystem_store(str(folder))
        return f"{folder.as_uri()}/", store, icechunk.credentials.LocalFileSystemAccess
    if scheme != "s3":
        raise StoreConfigError("file", "a path, or s3://, for an Icechunk repository", describe(file))
    s3 = icechunk.s3_store(
        region=options.get("region"),
        endpoint_url=options.get("endpoint"),
        allow_http=str(options.get("endpoint", "")).startswith("http://"),
        s3_compatible="endpoint" in options,
        force_path_style="endpoint" in options,
    )
    keys = ("access_key_id", "secret_access_key", "session_token")
    given = {name: options[name] for name in keys if name in options}
    access = icechunk.s3_credentials(**given) if given else icechunk.s3_credentials(from_env=True)
    return f"s3://{rest.rpartition('/')[0]}/", s3, access
