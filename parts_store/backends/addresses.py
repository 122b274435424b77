"""URLs and obstore stores: open the store at a URL, and return the URL or the address of a store."""

import re
import urllib.request
from pathlib import Path
from typing import Any, Final

from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store, from_url

from parts_store.backends.failures import failure, is_foreign
from parts_store.backends.obstore_options import (
    client_options_for,
    require_options,
    similar_options,
    without_redirects,
)
from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import hide_in_url, hide_name, secrets_in, secrets_of_url

# The place of all local folders.
THIS_MACHINE: Final = "this machine"
# The options that identify a bucket, without credentials.
_IDENTIFYING: Final = ("bucket", "container_name", "account_name", "endpoint")
_REMOTE_SCHEMES: Final = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss", "azure", "http", "https")
_SCHEMES: Final = (*_REMOTE_SCHEMES, "file", "memory")
# A URL without '://' would be taken for a path.
_MISTYPED: Final = re.compile(rf"(?:{'|'.join(_REMOTE_SCHEMES)}|memory):", re.IGNORECASE)


def secrets_of(store: Any) -> list[str]:
    """Return the secrets that an obstore store was opened with."""
    if isinstance(store, HTTPStore):
        return [*secrets_of_url(str(store.url)), *secrets_in(store.client_options or {})]
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return []
    options: dict[str, Any] = {"client_options": store.client_options or {}, **store.config}
    return secrets_in(options)


def is_local(store: object) -> bool:
    """Return whether the store is a folder of this machine."""
    return isinstance(store, LocalStore)


def is_in_memory(store: object) -> bool:
    """Return whether the store is in the memory of this process."""
    return isinstance(store, MemoryStore)


def address_of(store: Any) -> tuple[object, str]:
    """Return where the objects of a store are: the bucket or machine, and the folder in it."""
    match store:
        case LocalStore():
            return THIS_MACHINE, (store.prefix or Path("/")).resolve().as_posix().strip("/")
        case S3Store() | GCSStore() | AzureStore():
            known = {name: str(value).rstrip("/") for name, value in store.config.items() if name in _IDENTIFYING}
            return (type(store).__name__, tuple(sorted(known.items()))), (store.prefix or "").strip("/")
        case _:
            # A store in memory, or a session, shares its objects with no other store.
            return store, ""


def url_of(store: Any) -> str | None:
    """Return the URL of the folder of a store; None if it has no URL, such as a store in memory."""
    folder = str(getattr(store, "prefix", None) or "").strip("/")
    match store:
        case LocalStore():
            return (store.prefix or Path("/")).absolute().as_uri().rstrip("/")
        case S3Store():
            scheme, name = "s3", store.config.get("bucket")
        case GCSStore():
            scheme, name = "gs", store.config.get("bucket")
        case AzureStore():
            scheme, name = "az", store.config.get("container_name")
        case HTTPStore():
            return str(store.url).rstrip("/")
        case _:
            return None
    if not name:
        found = f"a {type(store).__name__} without one"
        raise StoreConfigError("store", "a store with the name of a bucket in its configuration", found)
    return f"{scheme}://{name}/{folder}".rstrip("/")


def shown_address(store: Any) -> str:
    """Return the address of a store for error messages, without secrets."""
    url = hide_in_url(url_of(store) or type(store).__name__)
    endpoint = getattr(store, "config", {}).get("endpoint")
    return f"{url!r}" if endpoint is None else f"{url!r} at {hide_in_url(str(endpoint))}"


def open_url(url: str | Path, options: dict[str, Any], *, create: bool) -> Any:
    """Open the obstore store at a URL or a path; with `create`, make the folder if it does not exist."""
    text = str(url)
    scheme = text.partition("://")[0] if "://" in text else ""
    if not scheme and _MISTYPED.match(text):
        # The rest is not shown, because it may contain a password.
        raise StoreConfigError("url", "a path, or a URL with '://' behind its scheme", f"{text.partition(':')[0]}:***")
    require_options(options)
    try:
        return _open(text, scheme, options, create=create)
    except StoreConfigError:
        raise
    # Without the cause, because the message of obstore may repeat an option, and the option may be a secret.
    except (UnknownConfigurationKeyError, TypeError):
        names = ", ".join(sorted(map(hide_name, options))) or "none"
        similar = " and ".join(similar_options(scheme, options))
        found = f"{names}; did you mean {similar}?" if similar else names
        wrong = StoreConfigError("options", f"obstore's options for {scheme or 'file'}://", found)
    except BaseException as error:
        if not is_foreign(error) and not isinstance(error, ValueError | ArithmeticError):
            raise
        wrong = _refused_url(text, scheme, error)
    raise wrong


def _refused_url(text: str, scheme: str, error: BaseException) -> StoreConfigError:
    """Return the error for a URL that obstore refuses."""
    shown = describe(text)
    if not scheme or scheme == "file":
        reason = failure("open", text, error).args[-1]
        return StoreConfigError("url", "a folder that can be opened", f"{shown} ({reason})")
    if scheme in _SCHEMES:
        return StoreConfigError("url", f"an address and options that obstore takes for {scheme}://", shown)
    return StoreConfigError("url", f"a path, or one of {', '.join(_SCHEMES)}", shown)


def _open(text: str, scheme: str, options: dict[str, Any], *, create: bool) -> Any:
    if not scheme or scheme == "file":
        folder = local_path(text) if scheme else Path(text).expanduser().absolute()
        # Without `automatic_cleanup`, empty folders would stay and would be listed.
        return LocalStore(folder, **{"mkdir": create, "automatic_cleanup": True, **options})
    if scheme == "memory":
        return MemoryStore(**options)
    allowed = _allowing_http(options)
    return without_redirects(from_url(text, **(client_options_for(allowed) if scheme in ("s3", "s3a") else allowed)))


def local_path(url: str) -> Path:
    """Return the path that a URL with the scheme `file` names on this machine."""
    # Without `urlsplit`, whose errors for some hosts repeat the URL.
    host, slash, path = url.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise StoreConfigError("url", "file:///path, on this machine", describe(url))
    return Path(urllib.request.url2pathname(f"{slash}{path}".partition("?")[0].partition("#")[0]))


def _allowing_http(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with plain HTTP allowed if the endpoint that the caller gave uses it."""
    endpoint = options.get("endpoint") or options.get("aws_endpoint") or ""
    if not str(endpoint).startswith("http://"):
        return options
    return {**options, "client_options": {"allow_http": True, **(options.get("client_options") or {})}}
