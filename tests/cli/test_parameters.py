"""The texts of parameters: ages, selections and options."""

import pytest

from parts_store.cli.parameters import parse_age, parse_options


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


def test_parse_options() -> None:
    given = ["endpoint=http://a=b", 'client_options={"timeout": "5s"}', "region="]
    expected = {"endpoint": "http://a=b", "client_options": {"timeout": "5s"}, "region": ""}
    assert parse_options(given) == expected
    assert parse_options(None) == {}
