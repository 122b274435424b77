"""URLs, options and addresses of obstore stores: open the store at a URL, and check what obstore would panic at."""

import ipaddress
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store, from_url

from parts_store.backends.failures import NO_PROXY_THERE, failure, is_foreign
from parts_store.backends.refreshed_credentials import with_provider
from parts_store.errors import StoreConfigError, describe
from parts_store.redaction import hide_in_url, hide_name, is_url, secrets_in, secrets_of_url

# Options of the HTTP client. obstore panics if one of them is given outside `client_options`.
_CLIENT_OPTIONS: Final = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"),
    *("http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_timeout"),
    *("http2_keep_alive_while_idle", "http2_max_frame_size", "pool_idle_timeout", "pool_max_idle_per_host"),
    *("proxy_url", "proxy_ca_certificate", "proxy_excludes", "randomize_addresses", "read_timeout"),
    *("root_certificate", "timeout", "user_agent"),
)
_OF_EVERY_SERVER: Final = ("client_options", "retry_config", "credential_provider", "get_credentials")
_OF_S3: Final = (
    *("access_key_id", "secret_access_key", "session_token", "region", "default_region", "bucket", "endpoint"),
    *("checksum_algorithm", "conditional_put", "copy_if_not_exists", "disable_tagging", "disable_bulk_delete"),
    *("container_credentials_relative_uri", "container_credentials_full_uri", "container_authorization_token_file"),
    *("metadata_endpoint", "request_payer", "role_arn", "role_session_name", "server_side_encryption"),
    *("skip_signature", "sse_bucket_key_enabled", "sse_kms_key_id", "sts_endpoint", "unsigned_payload"),
    *("virtual_hosted_style_request", "web_identity_token_file", "endpoint_url_s3", "imdsv1_fallback", "s3_express"),
    "sse_customer_key_base64",
)
_OF_AZURE: Final = (
    *("account_name", "account_key", "client_id", "client_secret", "credential_type", "tenant_id", "authority_host"),
    *("sas_key", "token", "use_emulator", "use_fabric_endpoint", "encryption_key", "endpoint", "msi_endpoint"),
    *("object_id", "msi_resource_id", "federated_token_file", "use_azure_cli", "skip_signature", "container_name"),
    *("disable_tagging", "fabric_token_service_url", "fabric_workload_host", "fabric_session_token"),
    "fabric_cluster_identifier",
)
_OF_GOOGLE: Final = (
    *("service_account", "service_account_key", "base_url", "bearer_token", "bucket", "application_credentials"),
    "skip_signature",
)
# The names of options by the scheme of a URL. obstore declares them for type checkers only.
_NAMES: Final = {
    **dict.fromkeys(("", "file"), ("automatic_cleanup", "mkdir")),
    **dict.fromkeys(("s3", "s3a"), (*_OF_S3, *_OF_EVERY_SERVER)),
    **dict.fromkeys(("az", "adl", "abfs", "abfss", "azure"), (*_OF_AZURE, *_OF_EVERY_SERVER)),
    "gs": (*_OF_GOOGLE, *_OF_EVERY_SERVER),
}
_PREFIX: Final = re.compile("^(?:aws|google|azure)_", re.IGNORECASE)
_ENDPOINTS: Final = ("endpoint", "endpoint_url", "endpoint_url_s3", "base_url", "google_base_url")
_S3_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# These are sent in HTTP headers, where other characters are not allowed.
_IN_HEADERS: Final = ("access_key_id", "session_token", "token", "bearer_token")
_HEADER: Final = re.compile(r"[\x20-\x7e]*")
_IN_HOST_NAMES: Final = ("region", "default_region")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]*")
# The addresses that obstore accepts. It panics for other URLs.
_ADDRESS: Final = re.compile(
    r"https?://(?:[^\s/?#\"<>\\^`{|}]*@)?(?:[^\s/?#@:\[\]\"<>\\^`{|}]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?(?:/[!-~]*)?",
    re.ASCII,
)
_MAX_PORT: Final = 65535


def require_options(options: Mapping[str, Any]) -> None:
    """Raise `StoreConfigError` if obstore would panic because of one of these options."""
    for name, value in options.items():
        plain = _PREFIX.sub("", name).lower()
        if name == "config" and isinstance(value, Mapping):
            require_options(value)
        if plain in _CLIENT_OPTIONS:
            raise StoreConfigError("options", f"client_options={{{plain!r}: ...}}", f"{name} as an option by itself")
        if plain in _ENDPOINTS and isinstance(value, str):
            require_endpoint(name, value)
        if plain in _IN_HEADERS and isinstance(value, str) and not _HEADER.fullmatch(value):
            raise StoreConfigError(
                name, "text of printable ASCII characters", "other characters (the value is not shown)"
            )
        if plain in _IN_HOST_NAMES and isinstance(value, str) and not _HOST_NAME.fullmatch(value):
            raise StoreConfigError(name, "letters, digits, '-', '.' and '_'", describe(value))
    _require_backoff(options.get("retry_config"))


def is_option(name: str) -> bool:
    """Return whether a name is that of an option of obstore for any service."""
    plain = _PREFIX.sub("", name).lower()
    return any(plain in names for names in _NAMES.values())


def similar_options(scheme: str, names: Iterable[str]) -> list[str]:
    """Return the options of obstore that are spelled almost like some of these names, which are none."""
    known = _NAMES.get(scheme, ())
    is_server = "client_options" in known
    candidates = [*known, *(_CLIENT_OPTIONS if is_server else ())]
    plain = [_PREFIX.sub("", name).lower() for name in names]
    closest = [each for name in plain if name not in candidates for each in get_close_matches(name, candidates, 1)]
    return [each if each in known else f"client_options={{{each!r}: ...}}" for each in closest]


def require_endpoint(name: str, endpoint: str) -> None:
    """Raise `StoreConfigError` unless `endpoint` is the address of a server, with the scheme that obstore needs."""
    if _is_address(endpoint):
        return
    meant = f"http://{endpoint.rpartition('//')[2]}"
    example = meant if _is_address(meant) and "@" not in meant else "http://127.0.0.1:9000"
    shown = hide_in_url(endpoint) if is_url(endpoint) else hide_in_url(f"http://{endpoint}").removeprefix("http://")
    raise StoreConfigError(name, f"http:// or https:// and a host, such as {example!r}", repr(shown))


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found[1] or 0) <= _MAX_PORT


def _require_backoff(retries: object) -> None:
    backoff = retries.get("backoff") if isinstance(retries, Mapping) else None
    base = backoff.get("base", 2) if isinstance(backoff, Mapping) else 2
    if isinstance(base, int | float) and not base >= 1:
        raise StoreConfigError("retry_config", "a backoff with a base of at least 1", describe(base))


def require_store(store: Any) -> None:
    """Raise `StoreConfigError` if obstore would panic at the first request to this store."""
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return
    options: dict[str, Any] = {str(name): value for name, value in store.config.items()}
    require_options({**options, "retry_config": store.retry_config})
    if isinstance(store, S3Store) and not any(name in options for name in _ENDPOINTS):
        for name in _S3_ENDPOINT_VARIABLES:
            if name in os.environ:
                require_endpoint(name, os.environ[name])


def client_options_of_environment(store: Any) -> dict[str, str]:
    """Return the options of the HTTP client that obstore takes from the environment if it gets none otherwise."""
    prefix = {S3Store: "AWS", GCSStore: "GOOGLE", AzureStore: "AZURE"}
    names = [f"{prefix[each]}_" for each in prefix if isinstance(store, each)]
    found = {option: os.environ.get(f"{name}{option}".upper()) for name in names for option in _CLIENT_OPTIONS}
    # Headers are not text.
    return {option: value for option, value in found.items() if value is not None and option != "default_headers"}


# --- redirects --------------------------------------------------------------------------------------------------------


def client_options_for(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a store on S3, with redirects to other hosts prevented where this is possible.

    This needs an endpoint and keys in the options: otherwise obstore may have to ask other hosts for credentials.
    """
    plain = {_PREFIX.sub("", name).lower(): value for name, value in options.items()}
    endpoint = next((plain[name] for name in _ENDPOINTS if isinstance(plain.get(name), str)), None)
    has_credentials = "access_key_id" in plain or "credential_provider" in plain or plain.get("skip_signature")
    if endpoint is None or not has_credentials:
        return dict(options)
    client = options.get("client_options")
    return {**options, "client_options": _without_other_hosts(endpoint, client if isinstance(client, Mapping) else {})}


def without_redirects(store: Any) -> Any:
    """Return a store over HTTP with redirects to other hosts prevented; return any other store unchanged."""
    if not isinstance(store, HTTPStore):
        return store
    given: Mapping[str, Any] = store.client_options or {}
    client: Any = _without_other_hosts(str(store.url), given)
    return (
        store if client == given else HTTPStore(str(store.url), client_options=client, retry_config=store.retry_config)
    )


def _without_other_hosts(url: str, client: Mapping[str, Any]) -> dict[str, Any]:
    """Return client options with which obstore, which always follows redirects, reaches only the host of `url`.

    Requests to other hosts go to a proxy that does not exist, except to the hosts in `proxy_excludes`. With this proxy,
    obstore ignores the proxies of the environment. If the host of `url` itself is reached through a proxy, the options
    stay as they are, and that proxy decides.
    """
    address = urllib.parse.urlsplit(url)
    host = address.hostname
    if host is None or "proxy_url" in client or _has_proxy(address.scheme, host):
        return dict(client)
    allowed = ",".join(filter(None, [host, str(client.get("proxy_excludes") or "")]))
    return {**client, "proxy_url": f"http://{NO_PROXY_THERE}", "proxy_excludes": allowed}


def _has_proxy(scheme: str, host: str) -> bool:
    """Return whether obstore reaches a host through a proxy of the environment, which `NO_PROXY` may prevent."""
    proxies = urllib.request.getproxies()
    if scheme not in proxies and "all" not in proxies:
        return False
    return not urllib.request.proxy_bypass(host) and not _is_in_networks(host, proxies.get("no", ""))


def _is_in_networks(host: str, no_proxy: str) -> bool:
    """Return whether a host is an address in a network of `NO_PROXY`, such as 10.0.0.0/8, which `urllib` ignores."""
    for each in no_proxy.split(","):
        with suppress(ValueError):
            if "/" in each and ipaddress.ip_address(host) in ipaddress.ip_network(each.strip(), strict=False):
                return True
    return False


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
    options = with_provider(scheme, options)
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
    endpoint = options.get("endpoint") or options.get("aws_endpoint") or options.get("base_url") or ""
    if not str(endpoint).startswith("http://"):
        return options
    return {**options, "client_options": {"allow_http": True, **(options.get("client_options") or {})}}
