"""Options of obstore: a wrong name gets the right one as a suggestion."""

import ast
from pathlib import Path
from typing import Any

import obstore
import pytest

import parts_store as ps
from parts_store.backends.obstore_options import similar_options
from parts_store.errors import StoreConfigError

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
