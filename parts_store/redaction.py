"""Remove passwords, keys and signatures from text that is raised, logged or shown.

Every module that shows a URL, an option or a message of another library uses these functions. No IO.
"""

import html
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, override
from urllib.parse import quote, quote_plus, unquote

HIDDEN: Final = "***"

# URLs of these schemes may have the name of a container before an '@'.
_WITH_CONTAINERS: Final = ("abfs", "abfss", "wasb", "wasbs")
_OF_OBJECTS: Final = (*_WITH_CONTAINERS, "s3", "s3a", "gs", "gcs", "az", "azure", "adl", "file", "memory", "vcc")
_PLAIN_NAME: Final = re.compile("[a-z][a-z0-9_]{0,60}|[A-Z][A-Z0-9_]{0,60}")
# Shorter secrets are not searched for, because they would be found inside ordinary words.
_MIN_SECRET: Final = 6
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# The end of a URL in a text, and punctuation after it that belongs to the text.
_END_OF_URL: Final = re.compile(r"[\s\"<>]")
_PUNCTUATION: Final = re.compile(r"[)'\]},.;:]*$")
_PORT: Final = re.compile(r"[^:@]*:[0-9]{0,5}|\[[0-9A-Fa-f:.]*\](?::[0-9]{0,5})?")
_NAME: Final = (
    r"[\w.-]*(?:secret|passw(?:or)?d|token|signature|credential|authorization|api[_-]?key|access[_-]?key"
    r"|account[_-]?key|sas[_-]?key|master[_-]?key|encryption[_-]?key|customer[_-]?key|private[_-]?key"
    r"|service[_-]?account[_-]?key|proxy_url)[\w.-]*|sig|sas"
)
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
# Credentials contain digits or signs, unlike the words in "basic types" and "/data/basic run".
_AUTHORIZATION: Final = re.compile(
    r"(?<![\w/])(bearer|basic|aws4-hmac-sha256|sharedkey)\s+(?=[^\s\"',]*[0-9=+/:.~-])[^\s\"',]+[^\n\"]*", re.IGNORECASE
)
_NAMED_VALUE: Final = re.compile(
    rf"(?<![\w.-])([\"']?(?:{_NAME})[\"']?\s*[=:]\s*)(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;&)}}\]]+)",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether an option with this name contains a secret."""
    return _SECRET_NAME.fullmatch(name) is not None


def is_url(text: str) -> bool:
    """Return whether the text starts like a URL."""
    return _SCHEME.match(text) is not None


def hide_name(name: str) -> str:
    """Return the name of an option; hide it if it may be a secret that was given as a name by mistake."""
    return name if _PLAIN_NAME.fullmatch(name) else HIDDEN


def hide_in_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; return a path unchanged."""
    found = _SCHEME.match(url)
    if found is None:
        return url
    start, rest = found.group(), url[found.end() :]
    scheme = start.removesuffix("://").lower()
    if "@" in rest and _may_hold_user(scheme, rest.rpartition("@")[0]):
        user, _, rest = rest.rpartition("@")
        # An '@' in a query cannot be distinguished from one in a password. So everything is hidden.
        if any(each in user for each in "?#"):
            return f"{start}{HIDDEN}"
        start = f"{start}{HIDDEN}@"
    # The key of an object may contain a '#'.
    ends = "?#" if scheme in ("http", "https") else "?"
    first = min((at for each in ends if (at := rest.find(each)) >= 0), default=None)
    return f"{start}{rest}" if first is None else f"{start}{rest[: first + 1]}{HIDDEN}"


def may_hold_secret(url: str) -> bool:
    """Return whether a URL may contain a password or a signature, so that it must not be stored.

    On a web server every query counts, because it may be a signature with any name. The key of an object may contain a
    '?', so that only a query with the name of a secret counts there.
    """
    found = _SCHEME.match(url)
    if found is None or hide_in_url(url) == url:
        return False
    scheme, rest = found.group().removesuffix("://").lower(), url[found.end() :]
    if scheme not in _OF_OBJECTS or ("@" in rest and _may_hold_user(scheme, rest.rpartition("@")[0])):
        return True
    query = rest.partition("?")[2]
    return any(is_secret_name(each.partition("=")[0]) for each in re.split("[&;?]", query) if "=" in each)


def _may_hold_user(scheme: str, before: str) -> bool:
    """Return whether the text before the last '@' of a URL may be a user and a password, which may contain '/'."""
    authority, slash, _ = before.partition("/")
    if scheme not in _OF_OBJECTS:
        return not slash or ":" in before or "@" in authority
    # The key of an object may contain ':' and '@'. The name of a bucket does not.
    if scheme in _WITH_CONTAINERS and ":" not in authority:
        return False
    return not slash or ":" in authority or "@" in authority


def hide_in_text(text: str) -> str:
    """Return the text with user, password, query and fragment hidden in every URL."""
    pieces, at = [], 0
    while (found := _SCHEME.search(text, at)) is not None:
        pieces.append(text[at : found.start()])
        stop = _end_of_url(text, found)
        url = text[found.start() : stop]
        tail = _PUNCTUATION.search(url)
        bare = url if tail is None or tail.start() < len(found.group()) else url[: tail.start()]
        pieces += [hide_in_url(bare), url[len(bare) :]]
        at = stop
    return "".join([*pieces, text[at:]])


def _end_of_url(text: str, scheme: re.Match[str]) -> int:
    """Return the end of the URL that starts with this match: a space or a quote that is not in a password."""
    found = _END_OF_URL.search(text, scheme.end())
    stop = len(text) if found is None else found.start()
    authority = text[scheme.end() : stop].partition("/")[0]
    last = text.rfind("@")
    if last < stop or ":" not in authority or _PORT.fullmatch(authority):
        return stop
    # A password that contains spaces.
    found = _END_OF_URL.search(text, last)
    return len(text) if found is None else found.start()


def hide_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return a message of another library without the `known` secrets and without text that looks like a secret."""
    for secret in sorted({spelling for each in known for spelling in _spellings(each)}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = hide_in_text(text)
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", text)
    return _NAMED_VALUE.sub(rf"\1{HIDDEN}", text)


def _spellings(secret: str) -> Iterator[str]:
    for plain in (secret, unquote(secret)):
        spellings = (plain, quote(plain), quote(plain, safe=""), quote_plus(plain), html.escape(plain))
        for each in (*spellings, repr(plain)[1:-1], json.dumps(plain)[1:-1]):
            if len(each) >= _MIN_SECRET:
                yield each


def secrets_in(options: Mapping[str, Any]) -> list[str]:
    """Return the values of options that are secrets or URLs with a user, also in nested options."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            headers = str(name) == "default_headers"
            found += [_text(each) for each in value.values()] if headers else secrets_in(value)
        elif isinstance(value, str | bytes):
            text = _text(value)
            if is_secret_name(str(name)) or hide_in_url(text) != text:
                found.append(text)
    return found


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def secrets_of_url(url: str) -> list[str]:
    """Return the secret pieces of a URL, which have to be hidden in messages of other libraries."""
    found = _SCHEME.match(url)
    if found is None or hide_in_url(url) == url:
        return []
    rest = url[found.end() :]
    user, at, after = rest.rpartition("@")
    query = (after if at else rest).partition("?")[2]
    password = user.partition(":")[2]
    values = [value for each in query.split("&") for value in (each, each.partition("=")[2])]
    return [each for each in (user, password, query, *values) if each]


class Shown(reprlib.Repr):
    """A `reprlib.Repr` that removes secrets before it shortens the text."""

    @override
    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(hide_in_url(x), level)

    @override
    def repr_int(self, x: int, level: int) -> str:
        # Raise `ValueError` for too many digits; Python 3.14 would return a text with a memory address.
        repr(x)
        return super().repr_int(x, level)

    @override
    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        named = {name: HIDDEN if isinstance(name, str) and is_secret_name(name) else value for name, value in x.items()}
        return super().repr_dict(named, level)

    @override
    def repr_instance(self, x: Any, level: int) -> str:
        text = hide_secrets(repr(x))
        cut = max(0, (self.maxother - 3) // 2)
        return text if len(text) <= self.maxother else f"{text[:cut]}...{text[len(text) - cut :]}"


SHOWN: Final = Shown(maxstring=80, maxother=80)
