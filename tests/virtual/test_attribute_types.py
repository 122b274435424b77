"""The types of attributes survive JSON, unless the attribute was changed since."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from parts_store.virtual.attribute_types import to_member, type_name, types_in, with_types

NUMBERS = st.sampled_from(["i1", "u1", "<i2", ">u2", "<i4", ">i4", "u8", "i8", "<f2", "<f4", ">f4", "f8"])


@given(npst.arrays(NUMBERS, st.integers(1, 4), elements={"allow_nan": False, "allow_infinity": False}))
def test_numbers_have_their_type_after_json(values: Any) -> None:
    value = values[0] if values.size == 1 else values
    name = type_name(values.dtype)
    document = json.loads(json.dumps({"a": value.tolist(), **to_member({} if name is None else {"a": name})}))
    found = np.asarray(with_types({"a": document["a"]}, types_in(document))["a"])
    if values.dtype.newbyteorder("=") not in (np.dtype("i8"), np.dtype("f8")):
        assert found.dtype == values.dtype.newbyteorder("=")
    assert np.array_equal(found, value)


@pytest.mark.parametrize("value", [0.1, "text", None, [1, "a"], True, {"a": 1}, 1e300])
def test_attribute_that_was_changed_since_stays_as_it_is(value: Any) -> None:
    assert with_types({"a": value}, {"a": "float32"}) == {"a": value}


@pytest.mark.parametrize("values", [[2**64 - 4, 0], [2**63 + 1, 1], [2**63, 2**64 - 1, 3]])
def test_large_integers_are_exact_beside_small_ones(values: list[int]) -> None:
    found = with_types({"a": values}, {"a": "uint64"})["a"]
    assert found.dtype == "uint64"
    assert found.tolist() == values
    # Values that were changed since, and do not fit.
    assert with_types({"a": [*values, -1]}, {"a": "uint64"}) == {"a": [*values, -1]}


def test_bytes_are_bytes_again() -> None:
    assert with_types({"a": "x", "b": "x"}, {"a": "bytes"}) == {"a": b"x", "b": "x"}


@pytest.mark.parametrize(
    "member", [None, 1, [], {}, {"types": 1}, {"types": {"a": 1}}, {"types": {"a": "quaternion"}}, {"name": "other"}]
)
def test_member_that_is_not_known_is_ignored(member: Any) -> None:
    types = types_in({"parts_store.attribute_types": member})
    assert with_types({"a": 1}, types) == {"a": 1}


@pytest.mark.parametrize("is_named", [True, False])
def test_types_are_read_from_a_member_with_a_name_and_from_the_older_form(is_named: bool) -> None:
    name, types = "parts_store.attribute_types", {"types": {"a": "float32"}}
    member = {"name": name, "configuration": types} if is_named else types
    document = {name: {**member, "must_understand": False}}
    assert types_in(document) == {"a": "float32"}
    assert not is_named or to_member({"a": "float32"}) == document


def test_document_without_types_has_no_member() -> None:
    assert to_member({}) == {}
    assert types_in({}) == {}
