"""Parts: what the specification allows is read and written back, and everything else is refused by name."""

import json
import math
import pickle
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from parts_store.codecs import schema
from parts_store.errors import PartsConfigError
from parts_store.format.parts import MAX_PARTS, SHARD_INDEX, ConcatParts, Part
from tests.effort import examples

VALIDATOR = Draft202012Validator(schema("concat-parts"))


def transformer(*parts: object) -> dict[str, Any]:
    return {"name": "concat-parts", "configuration": {"parts": list(parts)}}


FIRST_EXAMPLE = transformer({"key_suffix": ""}, {"key_suffix": ".crc32c", "size": 4})
SECOND_EXAMPLE = transformer(
    {"key_suffix": ".header", "size": 64}, {"key_suffix": ""}, {"key_suffix": ".index", "size": 1604}
)


# --- what is accepted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (FIRST_EXAMPLE, (Part(""), Part(".crc32c", 4))),
        (SECOND_EXAMPLE, (Part(".header", 64), Part(""), Part(".index", 1604))),
    ],
)
def test_the_specifications_examples_are_read_and_written_back(data: dict[str, Any], parts: tuple[Part, ...]) -> None:
    concat = ConcatParts.from_json(data)
    assert concat.parts == parts
    assert concat.to_json() == data
    assert json.loads(json.dumps(concat.to_json())) == data
    VALIDATOR.validate(concat.to_json())


def one_by_one() -> Iterator[Part]:
    yield Part(".a", 1)
    yield Part("")


@pytest.mark.parametrize(
    "form",
    [
        ConcatParts([Part(".a", 1), Part("")]),
        [Part(".a", 1), Part("")],
        (Part(".a", 1), Part("")),
        [{"key_suffix": ".a", "size": 1}, {"key_suffix": ""}],
        [{"key_suffix": ".a", "size": 1}, ""],
        [Part(".a", size=1), ""],
        one_by_one(),
    ],
)
def test_parts_are_taken_in_any_form(form: Any) -> None:
    assert ConcatParts.parse(form) == ConcatParts((Part(".a", 1), Part("")))


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**63 - 1, np.int64(3)])
def test_every_size_that_an_object_can_have_is_a_size(size: int) -> None:
    part = Part("", size)
    assert type(part.size) is int
    written = json.loads(json.dumps(ConcatParts([part]).to_json()))
    assert written == transformer({"key_suffix": "", "size": int(size)})
    assert ConcatParts.from_json(written).sizes == (size,)


ALLOWED_SUFFIXES = [
    *("", ".header", "_x", "-1", ".x1", "a", "ä", " x", ".x y", "a.b.c", "%20", "日本", "#", "#x", "#1x", "x#1.tif"),
    *(".a" * 50, "x" * 128, "ä" * 64),
]


@pytest.mark.parametrize("suffix", ALLOWED_SUFFIXES)
def test_other_suffixes_are_allowed(suffix: str) -> None:
    assert ConcatParts([Part(suffix)]).parts[0].key_suffix == suffix
    VALIDATOR.validate(transformer({"key_suffix": suffix}))


def test_sixty_four_parts_are_allowed() -> None:
    parts = [f".{number}" for number in "".join(chr(0x4E00 + each) for each in range(64))]
    assert len(ConcatParts(parts).parts) == MAX_PARTS == 64


def test_parts_are_values() -> None:
    parts = ConcatParts([".a", Part("", 3)])
    assert pickle.loads(pickle.dumps(parts)) == parts
    assert hash(ConcatParts([".a", Part("", 3)])) == hash(parts)
    assert ConcatParts([Part("", 3), ".a"]) != parts
    with pytest.raises(AttributeError):
        parts.parts = ()  # type: ignore[misc]


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "member", "message"),
    [
        (transformer(), "parts", "expected 1 to 64 parts, found 0"),
        (transformer(*({"key_suffix": f".x{i}"} for i in range(65))), "parts", "expected 1 to 64 parts, found 65"),
        (transformer({"key_suffix": ""}, {"key_suffix": ""}), "parts", "found '' twice"),
        (transformer({"key_suffix": ".a", "size": 1}, {"key_suffix": ".a", "size": 2}), "parts", "found '.a' twice"),
        (transformer({"key_suffix": "", "size": -1}), "size", "expected an integer from 0 to .*, found -1"),
        (transformer({"key_suffix": "", "size": 2**63}), "size", "found 9223372036854775808"),
        (transformer({"key_suffix": "", "size": 10**5000}), "size", "found a value of type int"),
        (transformer({"key_suffix": "", "size": 4.0}), "size", "found 4.0"),
        (transformer({"key_suffix": "", "size": None}), "size", "found null"),
        (transformer({"key_suffix": "", "size": math.nan}), "size", "found nan"),
        (transformer({"key_suffix": None}), "key_suffix", "expected text, found None"),
        (transformer({"key_suffix": "x" * 129}), "key_suffix", "at most 128 bytes, .*, found 129 bytes: 'x"),
        # The schema counts characters.
        (transformer({"key_suffix": "ä" * 65}), "key_suffix", "found 130 bytes"),
        (transformer({"size": 1}), "parts", "expected a 'key_suffix' in every part"),
        (transformer({"key_suffix": "", "offset": 1}), "parts", "found the member 'offset'"),
        (transformer(".a"), "parts", "expected objects with a 'key_suffix', found '.a'"),
        (transformer([]), "parts", r"found \[\]"),
        ({"name": "concat-parts", "configuration": {"parts": {"key_suffix": ""}}}, "parts", "expected a list"),
        ({"name": "concat-parts", "configuration": {}}, "parts", "expected a list"),
        ({"name": "concat-parts", "configuration": {"parts": [""], "x": 1}}, "configuration", "found the member 'x'"),
        ({"name": "concat-parts", "configuration": []}, "configuration", "expected an object"),
        ({"name": "concat-parts"}, "configuration", "expected an object"),
        ({**FIRST_EXAMPLE, "extra": 1}, "concat-parts", "found the member 'extra'"),
        ({**FIRST_EXAMPLE, "name": "other"}, "name", "expected 'concat-parts'"),
        ({"configuration": {"parts": []}}, "name", "expected 'concat-parts'"),
        (None, "name", "expected 'concat-parts'"),
    ],
)
def test_each_mistake_is_named_with_what_was_expected_and_found(data: Any, member: str, message: str) -> None:
    with pytest.raises(PartsConfigError, match=message) as caught:
        ConcatParts.from_json(data)
    assert caught.value.member == member


CONTROL_CHARACTERS = [*map(chr, range(0x20)), "\x7f"]
FORBIDDEN_SUFFIXES = [
    *("/", "a/b", "/a", "a/", "..", "a..", "..a", "a..b", "...", "../../secret"),
    *"0123456789",
    *("0.header", "1a", "\\", "a\\b"),
    *("#1", "#01", ".x#12", "##3", ".", " ", ".x.", ".x ", "x. .", "  "),
    *CONTROL_CHARACTERS,
    *(f".a{character}" for character in CONTROL_CHARACTERS),
    *(f"{character}a" for character in CONTROL_CHARACTERS),
    # Half of a surrogate pair is JSON, but no UTF-8, which keys are.
    "\ud800",
]


@pytest.mark.parametrize("suffix", FORBIDDEN_SUFFIXES)
def test_ambiguous_or_escaping_suffixes_are_refused(suffix: str) -> None:
    for form in ([Part], [lambda text: ConcatParts([text])], [lambda text: ConcatParts([{"key_suffix": text}])]):
        with pytest.raises(PartsConfigError, match="key_suffix") as caught:
            form[0](suffix)
        assert caught.value.member == "key_suffix"
    with pytest.raises(PartsConfigError):
        ConcatParts.from_json(transformer({"key_suffix": suffix}))
    # Python's `$` lets a final newline pass; JSON Schema's own regular expressions do not. They know no encoding.
    assert suffix.endswith(("\n", "\ud800")) or not VALIDATOR.is_valid(transformer({"key_suffix": suffix}))


@pytest.mark.parametrize(
    ("one", "other"),
    [(".a", ".A"), (".straße", ".STRASSE"), (".ﬁ", ".fi"), (".Å", ".å"), ("x²", "x2"), (".İ", ".i̇"), ("", "")],
)
def test_suffixes_that_differ_only_in_case_or_unicode_form_are_refused(one: str, other: str) -> None:
    for parts in ([Part(one), Part(other, 4)], [other, ".x", one]):
        with pytest.raises(PartsConfigError, match=r"expected .*suffix.*, found") as caught:
            ConcatParts(parts)
        assert caught.value.member == "parts"
    with pytest.raises(PartsConfigError):
        ConcatParts.from_json(transformer({"key_suffix": one}, {"key_suffix": other, "size": 1}))


@pytest.mark.parametrize("suffix", [".a\u0308", ".A\u030a", "\u1100\u1161"])
def test_a_suffix_that_file_systems_would_normalise_is_refused(suffix: str) -> None:
    with pytest.raises(PartsConfigError, match="NFC"):
        Part(suffix)
    composed = unicodedata.normalize("NFC", suffix)
    assert Part(composed).key_suffix == composed


@pytest.mark.parametrize("value", [True, False, 0, 1, "no", None, [], {}])
def test_must_understand_is_a_boolean_and_changes_nothing(value: object) -> None:
    data = {**FIRST_EXAMPLE, "must_understand": value}
    assert VALIDATOR.is_valid(data) is isinstance(value, bool)
    if isinstance(value, bool):
        assert ConcatParts.from_json(data).to_json() == FIRST_EXAMPLE
        return
    with pytest.raises(PartsConfigError):
        ConcatParts.from_json(data)


@pytest.mark.parametrize(
    "parts", [[], (), "", ".a", b".a", {"key_suffix": ""}, None, 3, [1], [None], [[""]], [b""], bytearray(b"ab")]
)
def test_what_is_no_list_of_parts_is_refused_in_python_too(parts: Any) -> None:
    with pytest.raises(PartsConfigError):
        ConcatParts.parse(parts)


@pytest.mark.parametrize("size", [True, False, np.True_, -1, np.int8(-1), 2**63, 1.0, "1", b"1", [1]])
def test_sizes_in_python_are_checked_like_those_in_json(size: Any) -> None:
    with pytest.raises(PartsConfigError) as caught:
        Part("", size)
    assert caught.value.member == "size"


# --- the shard index ----------------------------------------------------------------------------------------------


def test_the_size_of_the_shard_index_is_written_as_a_number() -> None:
    parts = ConcatParts([Part(".header", 64), "", Part(".index", SHARD_INDEX)])
    resolved = parts.with_shard_index(1604)
    assert resolved.to_json() == SECOND_EXAMPLE
    assert resolved == ConcatParts.from_json(SECOND_EXAMPLE)
    assert resolved.with_shard_index(None) == resolved.with_shard_index(99) == resolved


def test_unknown_size_of_the_shard_index_is_not_serialized() -> None:
    parts = ConcatParts(["", Part(".index", SHARD_INDEX)])
    with pytest.raises(PartsConfigError, match="SHARD_INDEX"):
        parts.to_json()
    with pytest.raises(PartsConfigError, match="SHARD_INDEX"):
        parts.with_shard_index(None)
    with pytest.raises(PartsConfigError, match=r"regular chunk grid, for SHARD_INDEX.*found a rectilinear chunk grid"):
        parts.with_shard_index(None, is_regular=False)


def test_the_shard_index_is_no_size_in_json_and_no_unsized_part() -> None:
    assert ConcatParts(["", Part(".index", SHARD_INDEX)]).unsized == (0,)
    assert repr(SHARD_INDEX) == "SHARD_INDEX"
    assert pickle.loads(pickle.dumps(SHARD_INDEX)) is SHARD_INDEX
    with pytest.raises(PartsConfigError):
        ConcatParts.from_json(transformer({"key_suffix": "", "size": "shard index"}))


# --- the anchor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "anchor"),
    [
        # The main part, wherever it is and whether it has a size or not.
        ([""], 0),
        ([Part("", 3)], 0),
        ([".a", ""], 1),
        ([".a", ".b", Part("", 3)], 2),
        ([Part("", 3), ".a"], 0),
        ([Part(".a", 1), "", Part(".b", 1)], 1),
        # Without one, the first part without size.
        ([".a", ".b"], 0),
        ([Part(".a", 1), ".b"], 1),
        ([Part(".a", 1), ".b", ".c"], 1),
        # Without that, the first.
        ([Part(".a", 1)], 0),
        ([Part(".a", 1), Part(".b", 1)], 0),
        # A size of zero is a size.
        ([Part(".a", 0), ".b"], 1),
    ],
)
def test_anchor_is_the_main_part_or_first_unsized_or_first_part(parts: Any, anchor: int) -> None:
    sizes = [part.size if isinstance(part, Part) else None for part in parts]
    assert ConcatParts(parts).sizes == tuple(sizes)
    assert ConcatParts(parts).unsized == tuple(number for number, size in enumerate(sizes) if size is None)
    assert ConcatParts(parts).anchor == anchor


# --- any document -------------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.sampled_from([2**63 - 1, 2**63, 10**30, 4.0, -0.0])
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["", ".a", ".header", "..", "a/b", "0", "\n", "a\\", "\x7f", "\x85", "concat-parts"])
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
part_objects = (
    st.fixed_dictionaries({"key_suffix": scalars}, optional={"size": scalars})
    | st.fixed_dictionaries({"key_suffix": st.text(max_size=3)}, optional={"size": st.integers(0, 9)})
    | st.dictionaries(st.sampled_from(["key_suffix", "size", "other"]), json_values, max_size=3)
)
configurations = (
    st.fixed_dictionaries({"parts": st.lists(part_objects, max_size=4)})
    | st.dictionaries(st.sampled_from(["parts", "other"]), json_values, max_size=2)
    | json_values
)
transformers = json_values | st.fixed_dictionaries(
    {"name": st.just("concat-parts") | json_values},
    optional={"configuration": configurations, "must_understand": st.booleans(), "other": json_values},
)


def compatible(suffix: str) -> str:
    """Return a suffix as a file system sees it that ignores case and Unicode forms."""
    text = suffix
    for _ in range(2):
        text = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", text)


def is_beyond_the_schema(data: Any) -> bool:
    """Whether it breaks a rule that a schema does not say.

    Two parts whose suffixes are the same but for case and Unicode form, a suffix that is not in form NFC, a number like
    3.0, which is an integer to JSON Schema and none to us, and a final newline, which Python's regular expressions let
    pass.
    """
    parts = data["configuration"]["parts"]
    suffixes = [part["key_suffix"] for part in parts]
    return (
        len({compatible(suffix) for suffix in suffixes}) < len(suffixes)
        or any(suffix != unicodedata.normalize("NFC", suffix) for suffix in suffixes)
        or any(isinstance(part.get("size"), float) for part in parts)
        or any(suffix.endswith("\n") for suffix in suffixes)
    )


@settings(max_examples=examples(100))
@given(transformers)
@example(FIRST_EXAMPLE)
@example(SECOND_EXAMPLE)
@example(transformer({"key_suffix": "", "size": 3.0}))
@example({**FIRST_EXAMPLE, "must_understand": False})
def test_any_json_gives_parts_or_our_error_like_the_schema(data: Any) -> None:
    is_valid = VALIDATOR.is_valid(data)
    try:
        parts = ConcatParts.from_json(data)
    except PartsConfigError as error:
        said = str(error)
        assert "expected" in said
        assert "found" in said
        assert not is_valid or is_beyond_the_schema(data), said
    else:
        assert is_valid
        written = json.loads(json.dumps(parts.to_json()))
        assert written == {"name": data["name"], "configuration": data["configuration"]}
        assert ConcatParts.from_json(written) == parts


@given(json_values | st.lists(part_objects | st.text(max_size=3), max_size=4))
def test_any_value_in_python_gives_parts_or_our_error(value: Any) -> None:
    try:
        parts = ConcatParts.parse(value)
    except PartsConfigError:
        return
    assert not isinstance(value, str | Mapping)
    assert len(parts.parts) == len(list(value))
