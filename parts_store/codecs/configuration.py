"""Checks of codec configurations: every member is known, has the right type, and is in its range.

Knows no codec in particular. `schemas/` contains the same rules as JSON Schemas, as far as JSON Schema can express
them; a test compares the two.
"""

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from importlib import resources
from typing import Any

from parts_store.errors import CodecConfigError, describe
from parts_store.format.parts import parse_integer

# The largest file offset on all supported systems.
MAX_NBYTES = 2**63 - 1


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a codec or of the storage transformer.

    Parameters
    ----------
    name
        `"pad"`, `"offset"`, `"packbits"` or `"concat-parts"`.

    Returns
    -------
    dict
        The schema.

    Raises
    ------
    ValueError
        If there is no schema with this name.

    Examples
    --------
    >>> ps.codecs.schema("pad")["type"]
    'object'
    """
    folder = resources.files("parts_store.codecs") / "schemas"
    known = sorted(file.name.removesuffix(".json") for file in folder.iterdir())
    if name not in known:
        raise ValueError(f"schema: expected one of {', '.join(known)}, found {name!r}")
    loaded: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def read_configuration(
    data: object, codec: str, *, required: Collection[str] = (), optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return the members of a codec's configuration; raise `CodecConfigError` if one is unknown or missing.

    A codec without required members may be given without a configuration.
    """
    if not isinstance(data, Mapping):
        raise CodecConfigError(codec, "codec", "an object", describe(data))
    if data.get("name") != codec:
        raise CodecConfigError(codec, "name", repr(codec), describe(data.get("name")))
    # Zarr v3: an extension object has these three members and no others.
    _require_known(codec, "codec", data, ("name", "configuration", "must_understand"))
    if not isinstance(data.get("must_understand", True), bool):
        raise CodecConfigError(codec, "must_understand", "true or false", describe(data["must_understand"]))
    if "configuration" not in data and required:
        raise CodecConfigError(codec, "configuration", f"an object with {_listed(required)}", "none")
    configuration = data.get("configuration", {})
    if not isinstance(configuration, Mapping):
        raise CodecConfigError(codec, "configuration", "an object", describe(configuration))
    _require_known(codec, "configuration", configuration, (*required, *optional))
    for member in required:
        if member not in configuration:
            raise CodecConfigError(codec, member, "a value, because it is required", "none")
    return dict(configuration)


def _require_known(codec: str, where: str, members: Mapping[object, object], known: Collection[str]) -> None:
    for member in members:
        if member not in known:
            raise CodecConfigError(codec, where, f"only {_listed(known)}", f"the member {describe(member)}")


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "no members"


def require_integer(codec: str, member: str, value: object, *, minimum: int = 0, maximum: int = MAX_NBYTES) -> int:
    """Return `value` as an integer; raise `CodecConfigError` unless it is one in `minimum <= value <= maximum`.

    NumPy integers are accepted, booleans and floats are not.
    """
    expected = f"an integer from {minimum} to {maximum}"
    number = parse_integer(value, minimum, maximum)
    if number is None:
        raise CodecConfigError(codec, member, expected, describe(value))
    return number


def require_choice[T: str](codec: str, member: str, value: object, choices: tuple[T, ...]) -> T:
    """Return `value`; raise `CodecConfigError` unless it is one of `choices`."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise CodecConfigError(codec, member, f"one of {_listed(choices)}", describe(value))


def require_bytes(codec: str, member: str, value: object, *, nbytes: int, counted_by: str) -> bytes:
    """Return bytes, or the bytes of a base64 text; raise `CodecConfigError` unless there are `nbytes` of them.

    `counted_by` is the member that gives the number.
    """
    if isinstance(value, str):
        literal = _decode_base64(codec, member, value)
    else:
        try:
            literal = bytes_of(value)
        except (TypeError, ValueError, BufferError) as error:
            raise CodecConfigError(codec, member, "bytes, or base64 text of them", describe(value)) from error
    if len(literal) != nbytes:
        raise CodecConfigError(
            codec, member, f"{nbytes} bytes, as {counted_by!r} says", f"{len(literal)} bytes after decoding"
        )
    return literal


def _decode_base64(codec: str, member: str, text: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecConfigError(codec, member, "base64 text", f"{describe(text)} ({error})") from error
    # RFC 4648: unused bits are zero. Otherwise the same bytes would have several texts.
    if base64.b64encode(decoded).decode("ascii") != text:
        raise CodecConfigError(codec, member, "base64 text", f"{describe(text)} (its unused bits are not zero)")
    return decoded


def bytes_of(value: object) -> bytes:
    """Return the bytes of an object with the buffer interface; raise `TypeError` for any other, such as a number."""
    # `memoryview` raises `TypeError` for other objects.
    return memoryview(value).tobytes()  # type: ignore[arg-type]
