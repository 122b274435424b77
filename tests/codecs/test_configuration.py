"""Configurations: what is refused, in Python and by the shipped JSON schemas alike."""

import base64
import json
import math
from importlib import resources
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from parts_store.codecs import OffsetCodec, PackBitsCodec, PadCodec, schema
from parts_store.errors import CodecConfigError
from tests.codecs.arrays import Stored

CODECS: dict[str, Any] = {"pad": PadCodec, "offset": OffsetCodec, "packbits": PackBitsCodec}


def pad(**members: object) -> dict[str, object]:
    return {"name": "pad", "configuration": {"location": "start", "nbytes": 3, **members}}


def offset(**members: object) -> dict[str, object]:
    return {"name": "offset", "configuration": {"offset": 3, **members}}


def packbits(**members: object) -> dict[str, object]:
    return {"name": "packbits", "configuration": members}


@pytest.mark.parametrize(
    ("data", "member", "message"),
    [
        (pad(location="middle"), "location", "expected one of 'start', 'end', found 'middle'"),
        (pad(location=None), "location", "found None"),
        (pad(location=["start"]), "location", r"found \['start'\]"),
        (pad(nbytes=-1), "nbytes", "expected an integer from 0 to .*, found -1"),
        (pad(nbytes=True), "nbytes", "found True"),
        (pad(nbytes=3.0), "nbytes", "found 3.0"),
        (pad(nbytes="3"), "nbytes", "found '3'"),
        (pad(nbytes=None), "nbytes", "found None"),
        (pad(nbytes=2**63), "nbytes", "found 9223372036854775808"),
        (pad(padding="QUJ"), "padding", r"expected base64 text, found 'QUJ' \(Incorrect padding\)"),
        (pad(padding="QU_D"), "padding", "expected base64 text, found 'QU_D'"),
        (pad(padding="QU JD"), "padding", "expected base64 text"),
        (pad(padding="QUJD\n"), "padding", "expected base64 text"),
        (pad(padding="QÜJD"), "padding", "expected base64 text"),
        (pad(padding="QUJDRB=="), "padding", "its unused bits are not zero"),
        (pad(nbytes=10**5000), "nbytes", "found a value of type int"),
        (pad(padding="QUI="), "padding", "expected 3 bytes, as 'nbytes' says, found 2 bytes after decoding"),
        (pad(padding=None), "padding", "expected base64 text, found None"),
        (pad(padding=[65, 66, 67]), "padding", "expected base64 text"),
        (pad(value=1), "configuration", "expected only 'location', 'nbytes', 'padding', found the member 'value'"),
        ({"name": "pad", "configuration": {"nbytes": 1}}, "location", "expected a value, because it is required"),
        ({"name": "pad", "configuration": {"location": "end"}}, "nbytes", "expected a value, because it is required"),
        ({"name": "pad"}, "configuration", "expected an object with 'location', 'nbytes', found none"),
        ({"name": "pad", "configuration": [1]}, "configuration", "expected an object"),
        ({"name": "pad", "configuration": None}, "configuration", "expected an object"),
        ({"name": "bad", "configuration": {}}, "name", "expected 'pad', found 'bad'"),
        ({"configuration": {}}, "name", "expected 'pad', found None"),
        ({**pad(), "extra": 1}, "codec", "found the member 'extra'"),
        ({**pad(), "must_understand": "no"}, "must_understand", "expected true or false"),
        ([], "codec", r"expected an object, found \[\]"),
        (offset(offset=-1), "offset", "found -1"),
        (offset(offset=False), "offset", "found False"),
        (offset(prefix="QUJDRA=="), "prefix", "expected 3 bytes, as 'offset' says, found 4 bytes"),
        (offset(prefix="?"), "prefix", "expected base64 text"),
        (offset(nbytes=3), "configuration", "found the member 'nbytes'"),
        ({"name": "offset", "configuration": {}}, "offset", "because it is required"),
        (packbits(padding_encoding="start_byte"), "padding_encoding", "'first_byte', 'last_byte', 'none'"),
        (packbits(padding_encoding=None), "padding_encoding", "found None"),
        (packbits(first_bit=-1), "first_bit", "expected an integer from 0 to 63, found -1"),
        (packbits(last_bit=64), "last_bit", "expected an integer from 0 to 63, found 64"),
        (packbits(first_bit=True), "first_bit", "found True"),
        (packbits(first_bit=5, last_bit=4), "last_bit", "expected at least 'first_bit', which is 5, found 4"),
        (packbits(start_bit=1), "configuration", "found the member 'start_bit'"),
    ],
)
def test_each_mistake_is_named_with_what_was_expected_and_found(data: Any, member: str, message: str) -> None:
    name = data["name"] if isinstance(data, dict) and data.get("name") in CODECS else "pad"
    with pytest.raises(CodecConfigError, match=message) as caught:
        CODECS[name].from_dict(data)
    assert caught.value.codec == name
    assert caught.value.member == member


@pytest.mark.parametrize(
    ("call", "member"),
    [
        (lambda: PadCodec("start", nbytes=np.True_), "nbytes"),  # type: ignore[arg-type]
        (lambda: PadCodec("start", nbytes=1, padding=b"ab"), "padding"),
        (lambda: PadCodec("start", nbytes=1, padding=[1]), "padding"),  # type: ignore[arg-type]
        (lambda: PadCodec("start", nbytes=1, padding=b"a", padding_func=bytes), "padding"),
        (lambda: PadCodec("start", nbytes=1, padding_func=1), "padding_func"),  # type: ignore[arg-type]
        (lambda: PadCodec("start", nbytes=0, padding_func=bytes), "nbytes"),
        (lambda: PadCodec("start", nbytes=1, padding_func=bytes), "nbytes"),
        (lambda: PadCodec("start", nbytes=2**62, padding_func=bytes), "nbytes"),
        (lambda: PadCodec("start", nbytes=3, padding=np.uint8(3)), "padding"),
        (lambda: PadCodec("start", nbytes=3, padding=np.uint64(2**63)), "padding"),
        (lambda: PadCodec("start", nbytes=8, padding=np.zeros(1, "M8[s]")), "padding"),
        (lambda: OffsetCodec(1, prefix=b"ab"), "prefix"),
        (lambda: OffsetCodec(1, prefix_func="header"), "prefix_func"),  # type: ignore[arg-type]
        (lambda: OffsetCodec(1, prefix=b"a", prefix_func=bytes), "prefix"),
        (lambda: PackBitsCodec(first_bit=1.5), "first_bit"),  # type: ignore[arg-type]
    ],
)
def test_arguments_in_python_are_checked_like_configurations(call: Any, member: str) -> None:
    with pytest.raises(CodecConfigError) as caught:
        call()
    assert caught.value.member == member


def test_numpys_integers_are_integers() -> None:
    assert PadCodec("start", nbytes=np.int64(3)) == PadCodec("start", nbytes=3)  # type: ignore[arg-type]
    assert type(PadCodec("start", nbytes=np.uint8(3)).nbytes) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["pad", "offset", "packbits", "n5_default", "parts_store.n5_lz4", "parts_store.szip", "concat-parts"]
)
def test_the_schemas_ship_with_the_package_and_are_schemas(name: str) -> None:
    assert (resources.files("parts_store.codecs") / "schemas" / f"{name}.json").is_file()
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["properties"]["name"] == {"const": name}


# Values that a hostile or careless document might hold, the right ones among them.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, 10**30])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["start", "end", "none", "first_byte", "last_byte", "", "QQ==", "QUI=", "QUJD", "QQ=", "=", "A"])
    | st.binary(max_size=4).map(lambda raw: base64.b64encode(raw).decode())
)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
MEMBERS = ["location", "nbytes", "padding", "offset", "prefix", "padding_encoding", "first_bit", "last_bit", "other"]
configurations = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=4) | values
near_misses = st.one_of(
    st.fixed_dictionaries(
        {"location": st.sampled_from(["start", "end"]), "nbytes": st.integers(0, 4)}, optional={"padding": scalars}
    ),
    st.fixed_dictionaries({"offset": st.integers(0, 4)}, optional={"prefix": scalars}),
    st.fixed_dictionaries({}, optional={"padding_encoding": scalars, "first_bit": scalars, "last_bit": scalars}),
)
documents = values | st.fixed_dictionaries(
    {"name": st.sampled_from([*CODECS, "zip"]) | values},
    optional={"configuration": configurations | near_misses, "must_understand": scalars, "other": scalars},
)


def holds_whole_float(value: object) -> bool:
    """Whether a number like 3.0 is in it: an integer to JSON Schema, none to us."""
    match value:
        case float():
            return math.isfinite(value) and value == int(value)
        case dict():
            return any(holds_whole_float(each) for each in value.values())
        case list():
            return any(holds_whole_float(each) for each in value)
        case _:
            return False


@given(name=st.sampled_from(sorted(CODECS)), data=documents)
@example("pad", pad(padding="QUJD"))
@example("offset", offset(prefix="QUJD"))
@example("packbits", packbits(first_bit=None, last_bit=3))
@example("packbits", {"name": "packbits"})
def test_fuzzed_configurations_round_trip_or_raise_our_error(name: str, data: Any) -> None:
    accepted_by_schema = Draft202012Validator(schema(name)).is_valid(data)
    try:
        codec = CODECS[name].from_dict(data)
    except CodecConfigError as error:
        said = str(error)
        assert "expected" in said
        assert "found" in said
        # Two rules join two members, which JSON Schema cannot say, and Python's `$` lets a final newline pass.
        beyond_schema = "after decoding" in said or "which is" in said or "\\n'" in said or "unused bits" in said
        assert not accepted_by_schema or beyond_schema or holds_whole_float(data)
    else:
        assert accepted_by_schema
        written = json.loads(json.dumps(codec.to_dict()))
        Draft202012Validator(schema(name)).validate(written)
        assert CODECS[name].from_dict(written) == codec
        assert (
            written["configuration"].items()
            >= {member: value for member, value in data.get("configuration", {}).items() if value is not None}.items()
        )


def named(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    members = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=4) | near_misses
    return st.fixed_dictionaries({"name": st.sampled_from(names), "configuration": members})


@given(
    serializer=st.just({"name": "bytes"}) | named("packbits"),
    around=st.lists(named("pad", "offset"), max_size=2),
)
def test_fuzzed_codecs_are_refused_by_name_or_round_trip(
    serializer: dict[str, Any], around: list[dict[str, Any]]
) -> None:
    array = Stored((2, 3), "uint8", (2, 3), [serializer, *around])
    try:
        opened = array.open()
    except CodecConfigError:
        return
    bits = serializer.get("configuration", {})
    last = 7 if bits.get("last_bit") is None else bits["last_bit"]
    kept = sum(1 << bit for bit in range(bits.get("first_bit") or 0, last + 1))
    counts = [codec["configuration"].get(key, 0) for codec in around for key in ("nbytes", "offset")]
    # Padding of gigabytes is valid, and not to be made here.
    assume(sum(counts) < 1000)
    expected = np.arange(100, 106, dtype=np.uint8).reshape(2, 3)
    opened[...] = expected
    np.testing.assert_array_equal(array.read(), expected & kept)
