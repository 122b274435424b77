"""The options of a store: what it cannot give is refused by name when it is opened, and never found out later."""

import copy
import itertools
import pickle
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store

import parts_store as ps
from parts_store.engine.backend import Capabilities, WriteIdentity
from parts_store.errors import PartsConfigError, StoreConfigError
from parts_store.store.options import StoreOptions, parse_patterns, protocol_of
from parts_store.transactions.rules import Level

NAMES = [field.name for field in fields(StoreOptions)]
LEVELS: list[Any] = ["exclusive", "writers", "full"]


def backend(identity: WriteIdentity, *, has_conditions: bool = True, has_unique_etags: bool = True) -> Any:
    can = Capabilities(identity, has_conditions=has_conditions, has_unique_etags=has_unique_etags)
    return SimpleNamespace(capabilities=can)


@pytest.mark.parametrize("wrong", ["", "Writers", "none", None, 1, Level.FULL, ["full"]])
def test_a_level_that_there_is_not_is_refused_with_those_that_there_are(wrong: Any) -> None:
    with pytest.raises(StoreConfigError, match="concurrency: expected one of 'exclusive', 'writers', 'full', found"):
        ps.PartsStore(MemoryStore(), concurrency=wrong)


@pytest.mark.parametrize(
    ("identity", "lacks"), [(WriteIdentity.TAGS, "conditional PUTs"), (WriteIdentity.JOURNAL, "locks that end with")]
)
def test_unsupported_concurrency_is_refused_with_an_alternative(identity: WriteIdentity, lacks: str) -> None:
    without = backend(identity, has_conditions=False)
    for concurrency in LEVELS:
        if concurrency == "exclusive":
            assert protocol_of(StoreOptions(concurrency=concurrency), without).rules.level is Level.EXCLUSIVE
            continue
        with pytest.raises(StoreConfigError, match=f"expected 'exclusive', since this .* {lacks}"):
            protocol_of(StoreOptions(concurrency=concurrency), without)
        # A store that only reads needs neither.
        protocol_of(StoreOptions(read_only=True, concurrency=concurrency), without)


def s3(**options: Any) -> S3Store:
    return S3Store("bucket", region="us-east-1", access_key_id="x", secret_access_key="x", **options)


def test_s3_with_conditional_puts_disabled_is_for_one_writer() -> None:
    disabled = s3(conditional_put="disabled")
    with pytest.raises(StoreConfigError, match="conditional PUTs disabled"):
        ps.PartsStore(disabled)
    assert ps.PartsStore(disabled, concurrency="exclusive").protocol.rules.level is Level.EXCLUSIVE
    assert ps.PartsStore(disabled, read_only=True).read_only
    assert ps.PartsStore(s3()).protocol.rules.level is Level.WRITERS


def test_what_each_store_can_do_is_known_by_its_kind(tmp_path: Any) -> None:
    azure = AzureStore("container", account_name="x", account_key="eA==")
    facts = {
        (type(store).__name__): ps.PartsStore(store, read_only=True)._backend.capabilities
        for store in (s3(), azure, GCSStore("b"), MemoryStore(), LocalStore(tmp_path), HTTPStore("https://x.invalid"))
    }
    assert {name: each.identifies_writes_by for name, each in facts.items()} == {
        "S3Store": WriteIdentity.TAGS,
        "AzureStore": WriteIdentity.TAGS,
        "GCSStore": WriteIdentity.TAGS,
        "MemoryStore": WriteIdentity.TAGS,
        "LocalStore": WriteIdentity.JOURNAL,
        "HTTPStore": WriteIdentity.ETAGS,
    }
    # On S3 an ETag is, or may be, a digest of the bytes, and comes back with them.
    unique = {
        name
        for name, each in facts.items()
        if each.has_unique_etags and each.identifies_writes_by is WriteIdentity.TAGS
    }
    assert unique == {"AzureStore", "GCSStore", "MemoryStore"}
    assert not ps.PartsStore(HTTPStore("https://x.invalid")).supports_writes
    assert not ps.PartsStore(HTTPStore("https://x.invalid")).supports_listing


def test_writers_check_for_each_other_only_if_etags_recur() -> None:
    for concurrency, unique in itertools.product(LEVELS, (True, False)):
        found = backend(WriteIdentity.TAGS, has_unique_etags=unique)
        rules = protocol_of(StoreOptions(concurrency=concurrency), found).rules
        assert rules.is_registered is (not unique and concurrency != "exclusive")


@pytest.mark.parametrize("option", ["retries", "coalesce_gap", "index_cache_bytes"])
@pytest.mark.parametrize("wrong", [-1, 1.0, "1", True, [1], np.float64(1)])
def test_a_number_that_is_none_is_refused_by_the_name_of_its_option(option: str, wrong: Any) -> None:
    chosen: dict[str, Any] = {option: wrong}
    with pytest.raises(StoreConfigError, match=f"{option}: expected an integer from 0"):
        ps.PartsStore(MemoryStore(), **chosen)


def test_patterns_are_parsed_in_order() -> None:
    assert parse_patterns(None) == ()
    assert parse_patterns({"b/*": ["", ps.Part(".t", size=1)], "a": [""]}) == (
        ("b/*", ps.ConcatParts(["", ps.Part(".t", size=1)])),
        ("a", ps.ConcatParts([""])),
    )
    wrong: Any
    for wrong in (["a"], "a", 3, [("a", [""])]):
        with pytest.raises(PartsConfigError, match="expected patterns of paths, each with its parts"):
            parse_patterns(wrong)


def test_options_survive_pickling_and_every_way_to_copy_a_store() -> None:
    store = ps.PartsStore.from_url(
        "s3://bucket",
        parts={"a*": ["", ".t"]},
        concurrency="exclusive",
        index_cache_bytes=1,
        coalesce_gap=2,
        retries=4,
        must_understand=False,
        region="us-east-1",
        access_key_id="x",
        secret_access_key="x",
    )
    expected = StoreOptions(False, parse_patterns({"a*": ["", ".t"]}), "exclusive", 1, 2, 4, must_understand=False)
    reading = replace(expected, read_only=True)
    without_parts = replace(expected, parts=())
    copies: list[tuple[ps.PartsStore, StoreOptions]] = [
        (store, expected),
        (pickle.loads(pickle.dumps(store)), expected),
        (copy.copy(store), expected),
        (store.with_read_only(read_only=True), reading),
        (pickle.loads(pickle.dumps(store.with_read_only(read_only=True))), reading),
        (store.with_own_catalog(), without_parts),
        (store.with_parts({}, must_understand=True), replace(without_parts, must_understand=True)),
    ]
    for each, options in copies:
        assert [getattr(each._options, name) for name in NAMES] == [getattr(options, name) for name in NAMES]
        assert each.read_only is options.read_only


def test_stores_on_the_same_objects_are_equal_whatever_their_options(tmp_path: Path) -> None:
    changed: list[dict[str, Any]] = [
        {"index_cache_bytes": 0, "coalesce_gap": 1, "retries": 9},
        {"read_only": True},
        {"parts": {"a": [""]}},
        {"concurrency": "full"},
        {"must_understand": False},
    ]
    # zarr relies on this: it does not overwrite an array by itself.
    for objects in (MemoryStore(), LocalStore(tmp_path)):
        store = ps.PartsStore(objects)
        for options in changed:
            assert store == ps.PartsStore(objects, **options)
        assert store != ps.PartsStore(MemoryStore())
        assert store != objects
    assert store == ps.PartsStore(LocalStore(tmp_path))
    assert store != ps.PartsStore(LocalStore(tmp_path / "deeper", mkdir=True))


def test_numpy_integers_and_truthy_values_become_plain_ones() -> None:
    options = StoreOptions(read_only=None, retries=np.int64(2), coalesce_gap=np.uint8(200))  # type: ignore[arg-type]
    assert options.read_only is False
    assert [type(options.retries), type(options.coalesce_gap)] == [int, int]
    assert (options.retries, options.coalesce_gap) == (2, 200)
