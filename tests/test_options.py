"""The options of a store: what it cannot give is refused by name when it is opened, and never found out later."""

import itertools
from typing import Any

import numpy as np
import pytest
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store

import parts_store as ps
from parts_store.engine.backend import Capabilities, Means
from parts_store.errors import PartsConfigError, StoreConfigError
from parts_store.options import parse_patterns, require_count, rules_of
from parts_store.transactions.rules import Level

LEVELS: list[Any] = ["exclusive", "writers", "full"]


def capabilities(means: Means, *, has_conditions: bool = True, has_unique_etags: bool = True) -> Capabilities:
    return Capabilities(
        means=means,
        has_conditions=has_conditions,
        has_unique_etags=has_unique_etags,
        is_remote=True,
        is_writable=means is not Means.ETAGS,
        is_listable=means is not Means.ETAGS,
    )


@pytest.mark.parametrize("concurrency", LEVELS)
def test_a_level_is_what_it_is_called(concurrency: Any) -> None:
    rules = rules_of(concurrency, capabilities(Means.TAGS), has_locks=True, is_read_only=False)
    assert rules.level is Level(concurrency)
    assert rules.level.value == concurrency


@pytest.mark.parametrize("wrong", ["", "Writers", "none", None, 1, Level.FULL, ["full"]])
def test_a_level_that_there_is_not_is_refused_with_those_that_there_are(wrong: Any) -> None:
    with pytest.raises(StoreConfigError, match="concurrency: expected one of 'exclusive', 'writers', 'full', found"):
        ps.PartsStore(MemoryStore(), concurrency=wrong)


@pytest.mark.parametrize(("means", "lacks"), [(Means.TAGS, "conditional PUTs"), (Means.LOCKS, "locks that end with")])
def test_a_level_that_a_store_cannot_keep_is_refused_and_the_one_that_it_can_is_named(means: Means, lacks: str) -> None:
    without = capabilities(means, has_conditions=False)
    for concurrency in LEVELS:
        if concurrency == "exclusive":
            assert rules_of(concurrency, without, has_locks=False, is_read_only=False).level is Level.EXCLUSIVE
            continue
        with pytest.raises(StoreConfigError, match=f"expected 'exclusive', since this .* {lacks}"):
            rules_of(concurrency, without, has_locks=False, is_read_only=False)
        # Who only reads needs neither.
        rules_of(concurrency, without, has_locks=False, is_read_only=True)


def s3(**options: Any) -> S3Store:
    return S3Store("bucket", region="us-east-1", access_key_id="x", secret_access_key="x", **options)


def test_s3_with_conditional_puts_disabled_is_for_one_writer() -> None:
    disabled = s3(conditional_put="disabled")
    with pytest.raises(StoreConfigError, match="conditional PUTs disabled"):
        ps.PartsStore(disabled)
    assert ps.PartsStore(disabled, concurrency="exclusive")._operations.rules.level is Level.EXCLUSIVE
    assert ps.PartsStore(disabled, read_only=True).read_only
    assert ps.PartsStore(s3())._operations.rules.level is Level.WRITERS


def test_what_each_store_can_do_is_known_by_its_kind(tmp_path: Any) -> None:
    azure = AzureStore("container", account_name="x", account_key="eA==")
    facts = {
        (type(store).__name__): ps.PartsStore(store, read_only=True)._backend.capabilities
        for store in (s3(), azure, GCSStore("b"), MemoryStore(), LocalStore(tmp_path), HTTPStore("https://x.invalid"))
    }
    assert {name: each.means for name, each in facts.items()} == {
        "S3Store": Means.TAGS,
        "AzureStore": Means.TAGS,
        "GCSStore": Means.TAGS,
        "MemoryStore": Means.TAGS,
        "LocalStore": Means.LOCKS,
        "HTTPStore": Means.ETAGS,
    }
    # On S3 an ETag is, or may be, a digest of the bytes, and comes back with them.
    unique = {name for name, each in facts.items() if each.has_unique_etags and each.means is Means.TAGS}
    assert unique == {"AzureStore", "GCSStore", "MemoryStore"}
    assert [name for name, each in facts.items() if not each.is_writable] == ["HTTPStore"]


def test_writers_look_for_each_other_only_where_etags_come_back_and_there_may_be_others() -> None:
    for concurrency, unique in itertools.product(LEVELS, (True, False)):
        rules = rules_of(
            concurrency, capabilities(Means.TAGS, has_unique_etags=unique), has_locks=True, is_read_only=False
        )
        assert rules.is_registered is (not unique and concurrency != "exclusive")


def test_every_generation_is_new_and_of_32_hexadecimal_digits() -> None:
    rules = rules_of("writers", capabilities(Means.TAGS), has_locks=True, is_read_only=False)
    generations = [rules.new_generation() for _ in range(1000)]
    assert len(set(generations)) == 1000
    assert all(len(each) == 32 and int(each, 16) >= 0 and each == each.lower() for each in generations)


@pytest.mark.parametrize("option", ["retries", "coalesce_gap", "index_cache_bytes"])
@pytest.mark.parametrize("wrong", [-1, 1.0, "1", True, [1], np.float64(1)])
def test_a_number_that_is_none_is_refused_by_the_name_of_its_option(option: str, wrong: Any) -> None:
    chosen: dict[str, Any] = {option: wrong}
    with pytest.raises(StoreConfigError, match=f"{option}: expected an integer from 0"):
        ps.PartsStore(MemoryStore(), **chosen)


@pytest.mark.parametrize("right", [0, 1, 2**70])
def test_whole_numbers_from_zero_are_taken(right: int) -> None:
    require_count("retries", right)


def test_patterns_are_parsed_in_their_order_and_nothing_else_is_a_pattern() -> None:
    assert parse_patterns(None) == {}
    parsed = parse_patterns({"b/*": ["", ps.Part(".t", size=1)], "a": [""]})
    assert list(parsed.items()) == [
        ("b/*", ps.ConcatParts(["", ps.Part(".t", size=1)])),
        ("a", ps.ConcatParts([""])),
    ]
    wrong: Any
    for wrong in (["a"], "a", 3, [("a", [""])]):
        with pytest.raises(PartsConfigError, match="expected patterns of paths, each with its parts"):
            parse_patterns(wrong)
