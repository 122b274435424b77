"""Options and addresses of obstore: wrong ones are refused by name when a store is opened, with what to write."""

import ast
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import S3Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.backends.addresses import similar_options
from parts_store.errors import PartsStoreError, StoreConfigError
from tests.effort import examples

STORES = {"s3": ("_aws.pyi", "S3Config"), "gs": ("_gcs.pyi", "GCSConfig"), "az": ("_azure.pyi", "AzureConfig")}


def declared(file: str, name: str) -> list[str]:
    """Return the members of a dictionary type that obstore declares for type checkers."""
    tree = ast.parse((Path(obstore.__file__).parent / "_store" / file).read_text())
    (found,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    return [
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


OPTIONS = [(scheme, name) for scheme, (file, kind) in STORES.items() for name in declared(file, kind)]


@pytest.mark.parametrize(("scheme", "name"), OPTIONS, ids=str)
def test_every_option_that_obstore_declares_is_suggested(scheme: str, name: str) -> None:
    assert similar_options(scheme, [name[:-1]]) == [name.removeprefix("aws_")]


@pytest.mark.parametrize("name", declared("_client.pyi", "ClientConfig"))
def test_client_options_are_suggested_in_their_place(name: str) -> None:
    assert similar_options("s3", [name[:-1]]) == [f"client_options={{{name!r}: ...}}"]


@pytest.mark.parametrize(
    ("url", "options", "found"),
    [
        ("s3://bucket/data", {"endpont": "http://127.0.0.1:9"}, "endpont; did you mean endpoint?"),
        ("s3://bucket/data", {"AWS_REGOIN": "x"}, "AWS_REGOIN; did you mean region?"),
        (
            "s3://bucket/data",
            {"regoin": "x", "skip_signatur": "true"},
            "regoin, skip_signatur; did you mean region and skip_signature?",
        ),
        (
            "s3://bucket/data",
            {"region": "x", "timout": "9s"},
            "region, timout; did you mean client_options={'timeout': ...}?",
        ),
        (
            "abfss://container@account.dfs.core.windows.net/data",
            {"acount_key": "x"},
            "acount_key; did you mean account_key?",
        ),
        ("s3://bucket/data", {"no_such": "x"}, "no_such"),
        ("folder", {"regoin": "x"}, "regoin"),
    ],
)
def test_wrong_option_name_gets_a_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, options: dict[str, Any], found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigError) as raised:
        ps.PartsStore.from_url(url, **options)
    assert str(raised.value).endswith(f", found {found}")


def test_a_secret_given_as_a_name_is_not_repeated() -> None:
    options: dict[str, Any] = {"AKIA/secret+key==": "x"}
    with pytest.raises(StoreConfigError) as raised:
        ps.PartsStore.from_url("s3://bucket/data", **options)
    assert "secret" not in str(raised.value)


KEYS: Final = {"region": "us-east-1", "access_key_id": "AKID", "secret_access_key": "test-secret"}
HASTY: Final[dict[str, Any]] = {"retry_config": {"max_retries": 0}, "client_options": {"timeout": "100ms"}}

# What is wrong, and what the error says to write instead.
WRONG: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("s3://b", {"endpoint": "127.0.0.1:9000"}, "'http://127.0.0.1:9000'"),
    ("s3://b", {"endpoint": "localhost"}, "'http://localhost'"),
    ("s3://b", {"aws_endpoint_url": "localhost:9000"}, "'http://localhost:9000'"),
    ("s3://b", {"config": {"endpoint": "localhost:9000"}}, "'http://localhost:9000'"),
    ("s3://b", {"endpoint": ""}, "such as 'http://127.0.0.1:9000'"),
    ("s3://b", {"endpoint": "http://"}, "such as 'http://127.0.0.1:9000'"),
    ("s3://b", {"endpoint": "http://127.0.0.1:99999"}, "such as 'http://127.0.0.1:9000'"),
    ("s3://b", {"endpoint": "http://[::1"}, "such as"),
    ("s3://b", {"endpoint": "http://127.0.0.1:9/ a b"}, "such as"),
    ("s3://b", {"endpoint": "ftp://127.0.0.1"}, "'http://127.0.0.1'"),
    ("s3://b", {"allow_http": True}, "client_options={'allow_http': ...}"),
    ("s3://b", {"AWS_ALLOW_HTTP": "true"}, "client_options={'allow_http': ...}"),
    ("s3://b", {"timeout": "5s"}, "client_options={'timeout': ...}"),
    ("s3://b", {"config": {"proxy_url": "http://u:test-secret@p"}}, "client_options={'proxy_url': ...}"),
    ("gs://b", {"base_url": "127.0.0.1:9", "skip_signature": True}, "'http://127.0.0.1:9'"),
    ("az://c", {"endpoint": "127.0.0.1:9", "account_name": "x", "account_key": "AAAA"}, "'http://127.0.0.1:9'"),
    ("s3://b", {"region": "eu west"}, "letters, digits"),
    ("s3://b", {"access_key_id": "test-secret\n"}, "printable ASCII"),
    ("s3://b", {"session_token": "test-secret-ü"}, "printable ASCII"),
    ("s3://b", {"retry_config": {"backoff": {"base": -1}}}, "a base of at least 1"),
    ("s3://b", {"retry_config": {"max_retries": -1}}, "options that obstore takes"),
    ("s3://b", {"nonsense": "test-secret"}, "obstore's options"),
    ("file:///tmp/a\0b", {}, "a folder that can be opened"),
    ("/proc/nothing/there", {}, "a folder that can be opened"),
]


@pytest.mark.parametrize(("url", "options", "advice"), WRONG, ids=[f"{url} {options}" for url, options, _ in WRONG])
def test_what_obstore_cannot_use_is_refused_with_what_to_write(
    url: str, options: dict[str, Any], advice: str, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = KEYS if url.startswith("s3") else {}
    with pytest.raises(StoreConfigError) as caught:
        ps.PartsStore.from_url(url, **{**keys, **options})
    assert advice in str(caught.value)
    assert "test-secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    # Rust prints a panic by itself, and with a backtrace.
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "options",
    [{"endpoint": "127.0.0.1:9000"}, {"endpoint": "http://h:99999"}, {"region": "a b"}, {"access_key_id": "a\nb"}],
    ids=str,
)
def test_a_store_that_would_panic_at_its_first_request_is_refused(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    store = S3Store("b", **{**KEYS, **options})
    with pytest.raises(StoreConfigError, match=next(iter(options))):
        ps.PartsStore(store)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.slow
def test_an_endpoint_of_the_environment_is_checked_too() -> None:
    code = (
        "import parts_store as ps\n"
        "try:\n"
        "    ps.PartsStore.from_url('s3://b')\n"
        "except ps.errors.StoreConfigError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "AWS_ENDPOINT_URL": "127.0.0.1:9000", "AWS_REGION": "x", "AWS_SKIP_SIGNATURE": "true"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "AWS_ENDPOINT_URL: expected" in done.stdout
    assert "'http://127.0.0.1:9000'" in done.stdout
    assert done.stderr == ""


def test_a_panic_that_comes_all_the_same_is_an_error_of_ours() -> None:
    class Panic(BaseException):
        """As pyo3's, which cannot be imported."""

    Panic.__module__ = "pyo3_runtime"
    store = ps.PartsStore(S3Store("b", **KEYS, client_options={"timeout": "100ms"}, retry_config={"max_retries": 0}))  # type: ignore[arg-type]

    def panic(*_: object, **__: object) -> object:
        raise Panic("request valid: test-secret")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obstore, "get", panic)
        with pytest.raises(StoreConfigError) as caught:
            store.get_sync("zarr.json")
        assert "test-secret" not in str(caught.value)
        # What ends a program is not an error of a store.
        for end in (KeyboardInterrupt, SystemExit):
            patch.setattr(obstore, "get", lambda *_, end=end, **__: (_ for _ in ()).throw(end()))
            with pytest.raises(end):
                store.get_sync("zarr.json")


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
endpoints = texts | st.builds("http://{}".format, texts) | st.sampled_from(["http://127.0.0.1:1", "https://[::1]:1"])
names = st.sampled_from(
    [
        *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "allow_http", "timeout"),
        *("aws_endpoint", "virtual_hosted_style_request", "skip_signature", "conditional_put", "checksum_algorithm"),
        *("unsigned_payload", "imdsv1_fallback", "sse_kms_key_id", "server_side_encryption", "bucket", "nonsense"),
    ]
)
options_of_s3 = st.dictionaries(names, endpoints | st.booleans() | st.none() | st.integers(), max_size=4)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.builds("s3://{}".format, texts) | st.just("s3://bucket/data"), options_of_s3)
def test_any_options_give_a_store_or_an_error_of_ours(url: str, options: Mapping[str, Any]) -> None:
    given_options = {**KEYS, "endpoint": "http://127.0.0.1:1", **HASTY, **options}
    with contextlib.suppress(PartsStoreError):
        store = ps.PartsStore.from_url(url, **given_options)
        if "127.0.0.1" in str(given_options["endpoint"]):
            for read in (store.get_sync, lambda key: sync(store.get(key, default_buffer_prototype()))):
                with pytest.raises(PartsStoreError):
                    read("a/zarr.json")
