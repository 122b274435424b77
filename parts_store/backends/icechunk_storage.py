"""Where Icechunk stores a repository, and the files it refers to, from a URL and options of obstore."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import icechunk

from parts_store.backends.addresses import local_path, open_url
from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import may_hold_secret

# The names of the options of obstore that are arguments of Icechunk with the same names.
_CREDENTIALS: Final = ("access_key_id", "secret_access_key", "session_token")
# The environment variables that obstore reads for an endpoint, the first one that is set wins.
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def scheme_of(url: str) -> str:
    """Return the scheme of a URL; an empty text for a path."""
    return url.partition("://")[0] if "://" in url else ""


def folder_at(url: str) -> Path:
    """Return the absolute path of a local folder from a path or a `file://` URL."""
    return local_path(url) if "://" in url else Path(url).expanduser().absolute()


def folder_url(folder: str) -> str:
    """Return the URL of a folder that files are in, with '/' at its end, given a path or a URL."""
    if scheme_of(folder) in ("", "file"):
        return f"{folder_at(folder).resolve().as_uri()}/"
    return f"{folder.rstrip('/')}/"


def open_storage(url: str, options: dict[str, Any]) -> icechunk.Storage:
    """Return the Icechunk storage for a path, or for a URL with `file://` or `s3://`."""
    scheme = scheme_of(url)
    if scheme in ("", "file"):
        return icechunk.local_filesystem_storage(str(folder_at(url)))
    if scheme not in ("s3", "s3a"):
        raise StoreConfigError("url", "a path, or s3://, for an Icechunk repository", describe(url))
    store = open_url(url, options, create=False)
    # obstore has given every option its own name for it, whatever spelling the caller used.
    known = store.config
    return icechunk.s3_storage(
        bucket=known["bucket"],
        prefix=store.prefix or None,
        anonymous=True if known.get("skip_signature") == "true" else None,
        **_server(known),
        **_credentials(known),
    )


def virtual_container(folder: str, options: dict[str, Any]) -> tuple[icechunk.VirtualChunkContainer, Any]:
    """Return the virtual chunk container for a folder, and the credentials for it."""
    if may_hold_secret(folder):
        expected = (
            "URLs without a password, a query and a signature, which would be stored; pass credentials as options"
        )
        raise StoreConfigError("virtual", expected, describe(folder))
    scheme = scheme_of(folder)
    if scheme in ("", "file"):
        if "%" in folder_url(folder):
            expected = (
                "a folder whose path has no characters that URLs encode, such as spaces, because Icechunk finds no "
                "files below it: name a folder above it"
            )
            raise StoreConfigError("virtual", expected, describe(folder))
        store = icechunk.local_filesystem_store(str(folder_at(folder).resolve()))
        container = icechunk.VirtualChunkContainer(folder_url(folder), store=store)
        return container, icechunk.credentials.LocalFileSystemAccess
    if scheme in ("http", "https"):
        web = icechunk.http_store({"allow_http": "true"} if scheme == "http" else {})
        return icechunk.VirtualChunkContainer(folder_url(folder), store=web), icechunk.credentials.HttpAccess
    if scheme != "s3":
        expected = "a path, s3://, http:// or https://, for files that chunks refer to"
        raise StoreConfigError("virtual", expected, describe(folder))
    known = open_url(folder, options, create=False).config
    server = _server(known)
    s3 = icechunk.s3_store(s3_compatible=server["endpoint_url"] is not None, **server)
    return icechunk.VirtualChunkContainer(folder_url(folder), store=s3), _access(known)


def _access(known: Mapping[str, Any]) -> Any:
    """Return the credentials of Icechunk for files that chunks refer to."""
    if known.get("skip_signature") == "true":
        return icechunk.s3_credentials(anonymous=True)
    given = _credentials(known)
    return icechunk.s3_credentials(**given) if given else icechunk.s3_credentials(from_env=True)


def _server(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of Icechunk that say which S3 server to use."""
    from_environment = (os.environ[name] for name in _ENDPOINTS if os.environ.get(name))
    endpoint: str | None = known.get("endpoint") or next(from_environment, None)
    return {
        "region": known.get("region"),
        "endpoint_url": endpoint,
        "allow_http": (endpoint or "").startswith("http://"),
        "force_path_style": endpoint is not None,
    }


def _credentials(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in _CREDENTIALS if name in known}
