"""Text without secrets: what is hidden, and what stays as it is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parts_store.errors import LocationError, StoreConfigError, describe
from parts_store.redaction import hide_in_text, hide_in_url, hide_name, hide_secrets, is_secret_name, secrets_in


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@host/x", "https://***@host/x"),
        ("https://u:p/w@h/x", "https://***@h/x"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://a@b/c@host/x", "https://***@host/x"),
        ("https://u:12/w@h/x", "https://***@h/x"),
        ("https://u:p?w@h/x", "https://***"),
        ("https://h/x?X-Amz-Signature=abc&X-Amz-Date=1", "https://h/x?***"),
        ("https://h/x?sig=a@b", "https://h/x?***"),
        ("https://h/x#access_token=abc", "https://h/x#***"),
        ("az://c/x?sv=1&sig=abc", "az://c/x?***"),
        ("s3://AKID:se/cret@bucket/x", "s3://***@bucket/x"),
        ("s3://AKID@bucket/x", "s3://***@bucket/x"),
    ],
)
def test_the_user_the_password_and_the_query_of_a_url_are_hidden(url: str, shown: str) -> None:
    assert hide_in_url(url) == shown
    assert hide_in_text(f"could not read '{url}', it is gone") == f"could not read '{shown}', it is gone"
    assert hide_in_url(shown) == shown
    assert str(LocationError(url, "gone")) == f"location {shown!r}: gone"
    assert str(StoreConfigError("url", "another", f"{url}")) == f"url: expected another, found {shown}"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/run@2024/x",
        "s3://bucket/12:00@2024/x#1",
        "gs://bucket/abc",
        "abfss://container@account.dfs.core.windows.net/x",
        "https://host/run@2024/x",
        "http://127.0.0.1:9000/bucket/key",
        "http://[::1]:9000/bucket/key",
        "file:///home/me@work/data",
        "/home/me@work/data?x",
        "C:\\data@work",
        "me@work",
        "",
    ],
)
def test_an_address_without_a_secret_stays_as_it_is(text: str) -> None:
    assert hide_in_url(text) == text
    assert hide_in_text(f"at {text} and so on") == f"at {text} and so on"
    assert describe(text) == repr(text)


@example("A://@?/@")
@given(st.text(max_size=40) | st.text("ab:/@?#. \"'", max_size=20).map("x http://{}".format))
def test_hiding_twice_hides_no_more(text: str) -> None:
    for url in (text, text.removeprefix("x ")):
        assert hide_in_url(hide_in_url(url)) == hide_in_url(url)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: AWS4-HMAC-SHA256 Credential=AKID/1/x, Signature=abc", "Authorization: *** ***"),
        ("sent Bearer abc.def-ghi", "sent Bearer ***"),
        ('{"secret_access_key": "a\\"b", "region": "x"}', '{"secret_access_key": ***, "region": "x"}'),
        ("sig=abc&se=1", "sig=***&se=1"),
        ("AWS_SESSION_TOKEN=abc", "AWS_SESSION_TOKEN=***"),
        ("x-amz-security-token: abc", "x-amz-security-token: ***"),
        ("expected 4 bytes, found 3", "expected 4 bytes, found 3"),
        ("The Access Key Id you provided does not exist", "The Access Key Id you provided does not exist"),
    ],
)
def test_secrets_in_messages_of_other_libraries_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_known_secrets_are_hidden_however_they_are_spelled() -> None:
    secret = "a/b+c=\"d'<e>"
    options = {
        "client_options": {"default_headers": {"X": secret}},
        "config": {"aws_secret_access_key": secret},
        "n": 1,
    }
    assert secrets_in(options) == [secret, secret]
    for spelling in (secret, "a/b%2Bc%3D%22d%27%3Ce%3E", "a%2Fb%2Bc%3D%22d%27%3Ce%3E", repr(secret)):
        assert hide_secrets(f"found {spelling}!", [secret]).replace("'", "") == "found ***!"


@pytest.mark.parametrize("name", ["access_key_id", "AWS_SECRET_ACCESS_KEY", "session_token", "account_key", "sas_key"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)
    assert not is_secret_name("region")
    assert hide_name(name) == name
    assert hide_name("kJ7+secret==") == "***"


def test_a_value_that_is_shown_has_no_secret_in_it() -> None:
    long = f"https://user:{'x' * 300}@host/x"
    assert describe(long) == "'https://***@host/x'"
    assert "xxx" not in describe([long, {"a": long}])
    assert describe({"secret_access_key": "abc", "region": "x"}) == "{'region': 'x', 'secret_access_key': '***'}"


@pytest.mark.parametrize("text", ["root: /data/basic run/x", "expected basic types, found 'x'", "a bearer of news"])
def test_plain_words_are_not_taken_for_credentials(text: str) -> None:
    assert hide_in_text(text) == text
