"""The texts of parameters: ages, selections and options."""

from typing import Any

import pytest

from parts_store.cli.parameters import parse_age, parse_options, parse_selection
from parts_store.errors import StoreConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("24h", 86400),
        ("0.5d", 43200),
        ("7d", 604800),
        ("10000000d", 864e9),
    ],
)
def test_parse_age(text: str, seconds: float) -> None:
    assert parse_age(text).total_seconds() == seconds


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("...", (...,)),
        ("5", (5,)),
        ("-5", (-5,)),
        ("0:64, 5, ...", (slice(0, 64), 5, ...)),
        ("::2", (slice(None, None, 2),)),
        (" 1 : ", (slice(1, None),)),
    ],
)
def test_parse_selection(text: str, selection: tuple[Any, ...]) -> None:
    assert parse_selection(text) == selection


def test_parse_options() -> None:
    given = ["endpoint=http://a=b", 'client_options={"timeout": "5s"}', "region="]
    expected = {"endpoint": "http://a=b", "client_options": {"timeout": "5s"}, "region": ""}
    assert parse_options(given) == expected
    assert parse_options(None) == {}


@pytest.mark.parametrize("text", ["Topsecret", "=Topsecret", 'a={"Topsecret"', "branch=Topsecret"])
def test_refused_option_is_not_printed(text: str) -> None:
    with pytest.raises(StoreConfigError) as raised:
        parse_options([text])
    assert "Topsecret" not in str(raised.value)
    assert raised.value.__context__ is None
