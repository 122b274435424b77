"""Where Icechunk stores a repository, and the files it refers to, from a URL and options of obstore."""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, assert_never
from urllib.parse import unquote

import icechunk

from parts_store.backends.addresses import local_path, open_url
from parts_store.backends.refreshed_credentials import OPTION, CredentialProvider, function_in
from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import hide_in_url, may_hold_secret

type Service = Literal["file", "s3", "google", "azure", "web"]

# The services that Icechunk has, by the schemes of URLs that obstore takes.
_SERVICES: Final[dict[str, Service]] = {
    **dict.fromkeys(("", "file"), "file"),
    **dict.fromkeys(("s3", "s3a"), "s3"),
    "gs": "google",
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("http", "https"), "web"),
}
_REPOSITORIES: Final = "a path, or file://, s3://, gs://, az://, http:// or https://, for an Icechunk repository"
# The schemes of files that Icechunk reads.
_FOR_FILES: Final = ("", "file", "s3", "gs", "az", "azure", "abfs", "http", "https")
_FILES: Final = (
    "a path, s3://bucket/, gs://bucket/, az://container/, http:// or https://, for files that chunks refer to"
)
# The names of the options of obstore that are arguments of Icechunk with the same names.
_OF_S3: Final = ("access_key_id", "secret_access_key", "session_token")
# The arguments of Icechunk by the options of obstore.
_OF_GOOGLE: Final = {
    "service_account": "service_account_file",
    **{name: name for name in ("service_account_key", "application_credentials", "bearer_token")},
}
_OF_AZURE: Final = {"account_key": "access_key", "sas_key": "sas_token", "token": "bearer_token"}
# Options that Icechunk stores in the configuration of a repository, by the options of obstore.
_GOOGLE_SERVER: Final = {"base_url": "google_base_url"}
_AZURE_SERVER: Final = {"endpoint": "azure_storage_endpoint", "use_emulator": "azure_storage_use_emulator"}
# The environment variables that obstore reads for an endpoint, the first one that is set wins.
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# The account of every emulator of Azure.
_EMULATED_ACCOUNT: Final = "devstoreaccount1"
_AZURE_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"


def scheme_of(url: str) -> str:
    """Return the scheme of a URL; an empty text for a path."""
    return url.partition("://")[0] if "://" in url else ""


def service_of(url: str) -> Service | None:
    """Return the service of Icechunk for a path or a URL with this scheme; None if it has none.

    Icechunk only reads from a web server.
    """
    return _SERVICES.get(scheme_of(url))


def folder_at(url: str) -> Path:
    """Return the absolute path of a local folder from a path or a `file://` URL."""
    return local_path(url) if "://" in url else Path(url).expanduser().absolute()


def folder_url(folder: str) -> str:
    """Return the URL of a folder that files are in, with '/' at its end, given a path or a URL."""
    url = folder_at(folder).resolve().as_uri() if scheme_of(folder) in ("", "file") else folder
    return url if url.endswith("/") else f"{url}/"


def is_inside(folder: str, other: str) -> bool:
    """Return whether a folder is another one, or is below it; both are paths or URLs.

    Local folders are compared where their links lead. A URL that a server could take for another folder is below none.
    """
    above, below = folder_url(other), folder_url(folder)
    if below == above:
        return True
    segments = unquote(below).split("/")
    return below.startswith(above) and not any(segment in (".", "..") for segment in segments)


def outermost(folders: Iterable[str]) -> list[str]:
    """Return the URLs of folders without those that are below others, in order."""
    known = sorted(set(folders))
    return [each for each in known if not any(is_inside(each, other) for other in known if other != each)]


def opening_call(url: str | None, folders: Collection[str], *, has_options: bool = False) -> str:
    """Return a line of Python that opens a repository with access to the files in folders.

    It contains no options, which may be secrets. If the URL is not known, it is a variable.
    """
    shown = "url" if url is None else repr(hide_in_url(url))
    virtual = [hide_in_url(folder) for folder in outermost(folders)]
    return f"ps.open_repository({shown}, virtual={virtual!r}{', **options' if has_options else ''})"


# --- repositories -----------------------------------------------------------------------------------------------------


@cache
def _warn_of_local_disk() -> None:
    """Say once per process what two warnings of Icechunk mean that it prints for every repository on a local disk.

    The first is about commits. The second, about lost responses of a server, does not concern a disk.
    """
    if "ICECHUNK_LOG" not in os.environ:
        icechunk.set_logs_filter("warn,icechunk_arrow_object_store=error,icechunk_storage::readback=error")
    logging.getLogger("parts_store.repositories").warning(
        "a repository on a local disk loses commits if several processes commit at the same time; one at a time is safe"
    )


def open_storage(url: str, options: Mapping[str, Any]) -> icechunk.Storage:
    """Return the Icechunk storage for a path or a URL."""
    service = service_of(url)
    if service is None:
        raise StoreConfigError("url", _REPOSITORIES, describe(url))
    if service == "file":
        _warn_of_local_disk()
        return icechunk.local_filesystem_storage(str(folder_at(url)))
    if service == "web":
        return icechunk.http_storage(url.rstrip("/"), _http(url), _headers(options))
    store, known, refreshed = _opened(url, options)
    prefix = store.prefix or ""
    match service:
        case "s3":
            return icechunk.s3_storage(
                bucket=known["bucket"],
                prefix=prefix or None,
                anonymous=True if known.get("skip_signature") == "true" else None,
                get_credentials=refreshed,
                **_s3_server(known),
                **_given(known, dict(zip(_OF_S3, _OF_S3, strict=True))),
            )
        case "google":
            # `icechunk.gcs_storage` ignores a function that returns credentials.
            return icechunk.Storage.new_gcs(
                known["bucket"], prefix or None, _google_access(known, refreshed), config=_google_server(known)
            )
        case "azure":
            # `icechunk.azure_storage` takes no function that returns credentials.
            return icechunk.Storage.new_azure_blob(
                _azure_account(known),
                known["container_name"],
                prefix,
                _azure_access(known, refreshed),
                config=_azure_server(known),
            )
        case never:
            assert_never(never)


# --- files that chunks refer to ---------------------------------------------------------------------------------------


def virtual_container(folder: str, options: Mapping[str, Any]) -> tuple[icechunk.VirtualChunkContainer, Any]:
    """Return the virtual chunk container for a folder, and the credentials for it."""
    if may_hold_secret(folder):
        expected = (
            "URLs without a password, a query and a signature, which would be stored; pass credentials as options"
        )
        raise StoreConfigError("virtual", expected, describe(folder))
    scheme = scheme_of(folder)
    # Icechunk takes no names of accounts in URLs.
    if scheme not in _FOR_FILES or (scheme == "abfs" and "@" in folder):
        raise StoreConfigError("virtual", _FILES, describe(folder))
    place, service = folder_url(folder), _SERVICES[scheme]
    if service == "file":
        if "%" in place:
            expected = (
                "a folder whose path has no characters that URLs encode, such as spaces, because Icechunk finds no "
                "files below it: name a folder above it"
            )
            raise StoreConfigError("virtual", expected, describe(folder))
        local = icechunk.local_filesystem_store(str(folder_at(folder).resolve()))
        return icechunk.VirtualChunkContainer(place, store=local), icechunk.credentials.LocalFileSystemAccess
    if service == "web":
        if _headers(options):
            expected = "no headers, because Icechunk would store them in the repository"
            raise StoreConfigError("virtual", expected, f"default_headers for {describe(folder)}")
        web = icechunk.http_store(_http(folder))
        return icechunk.VirtualChunkContainer(place, store=web), icechunk.credentials.HttpAccess
    _, known, refreshed = _opened(folder, options)
    store: Any
    match service:
        case "s3":
            server = _s3_server(known)
            store = icechunk.s3_store(s3_compatible=server["endpoint_url"] is not None, **server)
            return icechunk.VirtualChunkContainer(place, store=store), _s3_access(known, refreshed)
        case "google":
            store = icechunk.gcs_store(_google_server(known))
            return icechunk.VirtualChunkContainer(place, store=store), _google_access(known, refreshed)
        case "azure":
            store = icechunk.ObjectStoreConfig.Azure({"account": _azure_account(known), **_azure_server(known)})
            return icechunk.VirtualChunkContainer(place, store=store), _azure_access(known, refreshed)
        case never:
            assert_never(never)


# --- options ----------------------------------------------------------------------------------------------------------


def _opened(url: str, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any], Callable[[], Any] | None]:
    """Return the store of obstore at a URL, its options, and the function that returns credentials for it.

    obstore has given every option its own name for it, whatever spelling the caller used.
    """
    if "credential_provider" in options:
        expected = f"{OPTION}=, a function that returns credentials of Icechunk, which has no other functions"
        raise StoreConfigError("credential_provider", expected, "a function for obstore")
    refreshed = function_in(scheme_of(url), options)
    if refreshed is not None:
        # Icechunk would report a function that returns something else at the first request, and would retry.
        CredentialProvider(scheme_of(url), refreshed)()
    if service_of(url) == "azure" and "@" not in url:
        _require_account(options)
    store = open_url(url, dict(options), create=False)
    return store, store.config, refreshed


def _given(known: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that are set, by the names that Icechunk has for them."""
    return {name: known[option] for option, name in names.items() if option in known}


def _require_known(known: Mapping[str, Any], names: Collection[str], variables: str) -> None:
    """Raise `StoreConfigError` for options that Icechunk would not use."""
    if others := sorted(set(known) - {*names, "skip_signature"}):
        expected = (
            f"options that Icechunk takes: {', '.join(sorted(names))}, skip_signature or {OPTION}, or {variables}"
        )
        raise StoreConfigError("options", expected, ", ".join(others))


def _is_anonymous(known: Mapping[str, Any]) -> bool:
    return bool(known.get("skip_signature") == "true")


def _s3_access(known: Mapping[str, Any], refreshed: Callable[[], Any] | None) -> Any:
    if refreshed is not None:
        return icechunk.s3_refreshable_credentials(refreshed)
    if _is_anonymous(known):
        return icechunk.s3_credentials(anonymous=True)
    given = _given(known, dict(zip(_OF_S3, _OF_S3, strict=True)))
    return icechunk.s3_credentials(**given) if given else icechunk.s3_credentials(from_env=True)


def _s3_server(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of Icechunk that say which S3 server to use."""
    from_environment = (os.environ[name] for name in _ENDPOINTS if os.environ.get(name))
    endpoint: str | None = known.get("endpoint") or next(from_environment, None)
    return {
        "region": known.get("region"),
        "endpoint_url": endpoint,
        "allow_http": (endpoint or "").startswith("http://"),
        "force_path_style": endpoint is not None,
    }


def _google_access(known: Mapping[str, Any], refreshed: Callable[[], Any] | None) -> Any:
    variables = "the environment variable GOOGLE_APPLICATION_CREDENTIALS"
    _require_known(known, ("bucket", *_OF_GOOGLE, *_GOOGLE_SERVER), variables)
    if refreshed is not None:
        return icechunk.gcs_refreshable_credentials(refreshed)
    if _is_anonymous(known):
        return icechunk.gcs_credentials(anonymous=True)
    given = _given(known, _OF_GOOGLE)
    return icechunk.gcs_credentials(**given) if given else icechunk.gcs_credentials(from_env=True)


def _google_server(known: Mapping[str, Any]) -> dict[str, str]:
    server = _given(known, _GOOGLE_SERVER)
    return {**server, **_http(str(known.get("base_url")))}


def _azure_access(known: Mapping[str, Any], refreshed: Callable[[], Any] | None) -> Any:
    names = ("account_name", "container_name", *_OF_AZURE, *_AZURE_SERVER)
    _require_known(known, names, "environment variables such as AZURE_STORAGE_CLIENT_ID")
    if refreshed is not None:
        return icechunk.azure_refreshable_credentials(refreshed)
    if _is_anonymous(known):
        return icechunk.azure_credentials(anonymous=True)
    given = _given(known, _OF_AZURE)
    return icechunk.azure_credentials(**given) if given else icechunk.azure_credentials(from_env=True)


def _azure_server(known: Mapping[str, Any]) -> dict[str, str]:
    server = _given(known, _AZURE_SERVER)
    return {**server, **_http(str(known.get("endpoint")))}


def _require_account(options: Mapping[str, Any]) -> None:
    """Raise `StoreConfigError` if neither an option nor the environment names the storage account of Azure."""
    is_given = any("account_name" in name.lower() or "use_emulator" in name.lower() for name in options)
    if not is_given and not os.environ.get(_AZURE_ACCOUNT):
        expected = f"the storage account of Azure, as this option or in the environment variable {_AZURE_ACCOUNT}"
        raise StoreConfigError("account_name", expected, "none")


def _azure_account(known: Mapping[str, Any]) -> str:
    return str(known.get("account_name") or os.environ.get(_AZURE_ACCOUNT) or _EMULATED_ACCOUNT)


def _http(url: str) -> dict[str, str]:
    """Return the option that allows requests without TLS, if a URL or an endpoint needs it."""
    return {"allow_http": "true"} if url.startswith("http://") else {}


def _headers(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the headers of each request that the caller gave."""
    client = options.get("client_options")
    found = client.get("default_headers") if isinstance(client, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    return {
        str(name): value.decode("latin-1") if isinstance(value, bytes) else str(value) for name, value in found.items()
    }
