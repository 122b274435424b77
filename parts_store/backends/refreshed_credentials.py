"""Credentials that a function returns again before they expire: as Icechunk takes them, and from them as obstore does.

The option `get_credentials` of a store is such a function. Icechunk and workers of a cluster get it pickled.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from icechunk import AzureRefreshableCredential, GcsBearerCredential, S3StaticCredentials

from parts_store.errors import StoreConfigError, describe

OPTION: Final = "get_credentials"
_S3: Final = ("s3", "s3a")
_GOOGLE: Final = ("gs",)
_AZURE: Final = ("az", "azure", "adl", "abfs", "abfss")
# What a function returns for a URL with a scheme.
_RETURNED: Final[dict[str, type[Any]]] = {
    **dict.fromkeys(_S3, S3StaticCredentials),
    **dict.fromkeys(_GOOGLE, GcsBearerCredential),
    **dict.fromkeys(_AZURE, AzureRefreshableCredential),
}
# Options that are credentials, of which a store has one kind.
_STATIC: Final = (
    *("access_key_id", "secret_access_key", "session_token", "skip_signature", "account_key", "sas_key", "token"),
    *("bearer_token", "service_account", "service_account_key", "application_credentials", "credential_provider"),
)


@dataclass(frozen=True, slots=True, repr=False)
class CredentialProvider:
    """A function that returns credentials as obstore takes them, given one that returns those of Icechunk."""

    scheme: str
    get_credentials: Callable[[], Any]

    def __call__(self) -> dict[str, Any]:
        """Return new credentials, and when they expire."""
        found = self.get_credentials()
        match found:
            case S3StaticCredentials() if self.scheme in _S3:
                names = {
                    "access_key_id": found.access_key_id,
                    "secret_access_key": found.secret_access_key,
                    "token": found.session_token,
                }
            case GcsBearerCredential() if self.scheme in _GOOGLE:
                names = {"token": found.bearer}
            case AzureRefreshableCredential.AccessKey() if self.scheme in _AZURE:
                names = {"access_key": found.key}  # type: ignore[attr-defined] # not in the stubs
            case AzureRefreshableCredential.SasToken() if self.scheme in _AZURE:
                names = {"sas_token": found.token}  # type: ignore[attr-defined] # not in the stubs
            case AzureRefreshableCredential.BearerToken() if self.scheme in _AZURE:
                names = {"token": found.bearer}  # type: ignore[attr-defined] # not in the stubs
            case _:
                expected = f"a function that returns icechunk.{_RETURNED[self.scheme].__name__} for {self.scheme}://"
                raise StoreConfigError(OPTION, expected, f"one that returned an object of type {type(found).__name__}")
        return {**names, "expires_at": found.expires_after}


def function_in(scheme: str, options: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return the function that returns credentials among the options for a URL with a scheme; None if there is none.

    Raises `StoreConfigError` unless it can be pickled, and is the only credentials.
    """
    found = options.get(OPTION)
    if found is None:
        return None
    if scheme not in _RETURNED:
        raise StoreConfigError(OPTION, "none, unless the URL begins with s3://, gs:// or az://", "a function")
    if not callable(found):
        raise StoreConfigError(OPTION, "a function", f"an object of type {type(found).__name__}")
    if others := [name for name in options if name.lower().removeprefix("aws_") in _STATIC]:
        raise StoreConfigError(OPTION, "no other credentials beside it", describe(", ".join(sorted(others))))
    try:
        pickle.dumps(found)
    # Objects raise any error when they are pickled.
    except Exception as error:
        expected = "a function that can be pickled, such as one of a module, because workers get a copy of it"
        # Without the message, which may show the object.
        raise StoreConfigError(OPTION, expected, f"one that raises {type(error).__name__}") from None
    provided: Callable[[], Any] = found
    return provided


def with_provider(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as obstore takes them: `get_credentials` becomes its `credential_provider`."""
    found = function_in(scheme, options)
    others = {name: value for name, value in options.items() if name != OPTION}
    return others if found is None else {**others, "credential_provider": CredentialProvider(scheme, found)}
