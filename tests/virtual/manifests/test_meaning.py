"""Arrays are joined only if their attributes give the stored numbers the same meaning."""

import base64
import struct
from typing import Any

import numpy as np
import pytest

from parts_store.errors import ManifestError
from parts_store.virtual.manifests.meaning import ATTRIBUTES, require_same_meaning

NAN = base64.b64encode(struct.pack("<d", float("nan"))).decode()
OTHER_NAN = base64.b64encode(struct.pack("<Q", 0xFFF8_0000_0000_0001)).decode()


@pytest.mark.parametrize(
    ("attribute", "one", "another"),
    [
        ("units", "K", "K"),
        ("units", None, None),
        ("calendar", None, "standard"),
        ("calendar", "gregorian", None),
        ("calendar", "standard", "Gregorian"),
        ("calendar", "noleap", "NOLEAP"),
        ("scale_factor", 0.5, np.float64(0.5)),
        ("scale_factor", 0.5, np.float32(0.5)),
        ("scale_factor", [0.5], 0.5),
        ("add_offset", 1, 1.0),
        ("add_offset", np.array([2.0]), 2),
        ("add_offset", np.array(2.0), 2),
        ("_FillValue", -999, -999.0),
        ("_FillValue", float("nan"), np.float32("nan")),
        ("_FillValue", NAN, "NaN"),
        ("_FillValue", NAN, OTHER_NAN),
        ("_FillValue", base64.b64encode(struct.pack("<d", -999.0)).decode(), -999.0),
        ("_FillValue", [NAN, NAN], ["NaN", float("nan")]),
        ("_FillValue", "missing", "missing"),
        ("missing_value", [-1, -2], np.array([-1, -2], "i2")),
        ("missing_value", "-Infinity", float("-inf")),
        ("_Unsigned", "true", "true"),
        ("long_name", "one", "another"),
    ],
)
def test_same_meaning_is_accepted(attribute: str, one: Any, another: Any) -> None:
    first, other = ({} if each is None else {attribute: each} for each in (one, another))
    require_same_meaning("a", first, other)
    require_same_meaning("a", other, first)


@pytest.mark.parametrize(
    ("attribute", "one", "another"),
    [
        ("units", "days since 2003-01-01", "days since 2004-01-01"),
        ("units", "K", None),
        ("calendar", "noleap", None),
        ("calendar", "proleptic_gregorian", "standard"),
        ("scale_factor", 0.5, 0.25),
        ("scale_factor", 1.0, None),
        ("add_offset", 0, None),
        ("_FillValue", -999, -9999),
        ("_FillValue", 0, None),
        ("_FillValue", NAN, 0.0),
        ("_FillValue", "missing", "absent"),
        ("missing_value", [-1, -2], [-1]),
        ("missing_value", -1, None),
        ("_Unsigned", "true", "false"),
        ("_Unsigned", "true", None),
    ],
)
def test_other_meaning_is_refused_with_both_values(attribute: str, one: Any, another: Any) -> None:
    first, other = ({} if each is None else {attribute: each} for each in (one, another))
    for expected, found in ((first, other), (other, first)):
        with pytest.raises(ManifestError) as caught:
            require_same_meaning("data/a", expected, found)
        shown = [repr(each[attribute]) if each else "none" for each in (expected, found)]
        # A number that JSON has as text.
        shown = [text.replace(repr(NAN), "nan") for text in shown]
        assert str(caught.value) == (
            f"references, array 'data/a', attribute {attribute!r}: expected {shown[0]}, found {shown[1]}"
        )


def test_fill_values_are_shown_as_numbers() -> None:
    encoded = [base64.b64encode(struct.pack("<d", value)).decode() for value in (-1.0, -2.5)]
    expected, found = ({"_FillValue": value} for value in encoded)
    with pytest.raises(ManifestError, match=r"attribute '_FillValue': expected -1\.0, found -2\.5$"):
        require_same_meaning("a", expected, found)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"scale_factor": np.float32(0.5)}, {"scale_factor": np.float64(0.5)}),
        ({"scale_factor": 1}, {"scale_factor": 1.0}),
        ({"scale_factor": np.int16(1)}, {"scale_factor": np.int64(1)}),
        (
            {"scale_factor": np.float32(0.5), "add_offset": np.float32(1)},
            {"scale_factor": np.float64(0.5), "add_offset": np.float64(1)},
        ),
    ],
)
def test_scale_that_decodes_to_another_type_is_refused(first: dict[str, Any], other: dict[str, Any]) -> None:
    for expected, found in ((first, other), (other, first)):
        with pytest.raises(ManifestError, match=r"'scale_factor': expected .*, decoded as .*, found .*, decoded"):
            require_same_meaning("a", expected, found)


def test_types_of_scale_do_not_matter_if_the_offset_decides() -> None:
    # xarray decodes to float64 whenever scale and offset are not of the same floating-point type.
    require_same_meaning("a", {"scale_factor": 1, "add_offset": 2}, {"scale_factor": 1.0, "add_offset": 2.0})


def test_all_attributes_that_change_numbers_are_compared() -> None:
    decoding = {"units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"}
    flags = {"flag_values", "flag_meanings", "flag_masks"}
    assert set(ATTRIBUTES) == decoding | flags
