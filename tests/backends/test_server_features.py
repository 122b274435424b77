"""A server that lacks what the write protocol needs is refused by name, before anything is written to it."""

import itertools
import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from parts_store import cli
from parts_store.errors import ServerFeatureError, StoreConfigError
from parts_store.store.options import Concurrency
from parts_store.transactions import server
from tests.s3_server import Call, Flaws, Reply, S3Server, refusal

PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SHARDED: dict[str, Any] = {"shape": (16, 16), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint16"}
VALUES = np.arange(1, 257, dtype="uint16").reshape(16, 16)
CONDITIONS = [
    Flaws(ignores_if_none_match=True),
    Flaws(ignores_if_match_on_put=True),
    Flaws(ignores_if_none_match=True, ignores_if_match_on_put=True),
]
# The other parts of an overwrite are in the metadata.
METADATA = [Flaws(drops_metadata=True), Flaws(lowers_metadata=True), Flaws(most_metadata=1500)]
SMALL: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "int32", "compressors": None}
TWO_PARTS: list[Any] = [ps.Part(".h", size=4), ""]
PROBE = {"put": 4, "head": 1, "delete": 1}
SERVER_PROBE = {"PUT": 4, "HEAD": 1, "POST": 1}


@pytest.fixture(autouse=True)
def nothing_is_known_of_any_server() -> Iterator[None]:
    """A free port may have been another server's in an earlier test."""
    server._known.clear()
    server._confirmed.clear()
    yield
    server._known.clear()
    assert not server._asking


def store_on(running: S3Server, concurrency: Concurrency = "writers", **options: Any) -> ps.PartsStore:
    return ps.PartsStore(running.store(prefix="data", **options), concurrency=concurrency)


def create(store: ps.PartsStore, **more: Any) -> zarr.Array[Any]:
    return ps.create_array(store, "a", **{"parts": PARTS, **SHARDED, **more})


def written(running: S3Server) -> set[str]:
    """The keys below the array."""
    return {key for key in running.objects() if key.startswith("data/a/") or ".parts-txn" in key}


def small_values(store: ps.PartsStore, path: str) -> list[Any]:
    found: list[Any] = np.asarray(zarr.open_array(store, path=path, mode="r")[:]).tolist()
    return found


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flaws", CONDITIONS, ids=str)
@pytest.mark.parametrize("level", ["writers", "full"])
def test_server_that_ignores_conditions_is_refused_at_creation(flaws: Flaws, level: Concurrency) -> None:
    with S3Server(flaws) as running:
        with pytest.raises(ServerFeatureError) as caught:
            create(store_on(running, level))
        assert running.objects() == {}
        ignored = {
            "If-None-Match": flaws.ignores_if_none_match,
            "If-Match": flaws.ignores_if_match_on_put,
        }
        message = str(caught.value)
        assert [name in message for name in ignored] == list(ignored.values())
        assert running.endpoint in message
        assert f"concurrency={level!r}" in message
        assert "concurrency='exclusive'" in message
        assert isinstance(caught.value, StoreConfigError)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        assert str(pickle.loads(pickle.dumps(caught.value))) == message


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", ["exclusive", "writers", "full"])
@pytest.mark.parametrize("flaws", METADATA, ids=str)
def test_server_that_drops_or_changes_metadata_is_refused_for_several_parts(flaws: Flaws, level: Concurrency) -> None:
    with S3Server(flaws) as running:
        store = store_on(running, level)
        with pytest.raises(ServerFeatureError, match="user metadata"):
            create(store)
        assert running.objects() == {}
        # One object is written whole or not at all: no tag has to say which write it is of.
        for name, parts in (("one", [ps.Part(".dat")]), ("none", None)):
            array = (
                zarr.create_array(store, name=name, **SHARDED)
                if parts is None
                else ps.create_array(store, name, parts=parts, **SHARDED)
            )
            array[...] = VALUES
            np.testing.assert_array_equal(zarr.open_array(store_on(running, level), path=name)[...], VALUES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flaws", [*CONDITIONS, Flaws(drops_metadata=True)], ids=str)
def test_the_first_write_to_an_existing_array_is_refused_too(flaws: Flaws) -> None:
    with S3Server() as running:
        create(store_on(running))[...] = VALUES
        server._known.clear()
        running.flaws = flaws
        before = running.objects()
        array = zarr.open_array(store_on(running), path="a")
        with pytest.raises(ServerFeatureError):
            array[:4, :4] = 7
        with pytest.raises(ServerFeatureError):
            store_on(running).repair()
        assert running.objects() == before


@pytest.mark.parametrize("flaws", CONDITIONS, ids=str)
def test_a_server_that_ignores_conditions_serves_one_writer_at_a_time(flaws: Flaws) -> None:
    with S3Server(flaws) as running:
        array = create(store_on(running, "exclusive"))
        array[...] = VALUES
        array[:4, :4] = 7
        expected = VALUES.copy()
        expected[:4, :4] = 7
        again = zarr.open_array(store_on(running, "exclusive"), path="a")
        np.testing.assert_array_equal(again[...], expected)
        # The anchor of an overwrite contains the small other part, so that a crash in its middle loses nothing.
        running.calls.clear()
        again[...] = VALUES
        puts = [call for call in running.calls if call.method == "PUT"]
        assert any(";e=" in call.headers.get("x-amz-meta-partsgen", "") for call in puts)
        # No condition is sent that would be taken for kept.
        assert not any(call.conditions for call in running.calls)


def test_server_without_conditional_puts_is_refused_after_one_request() -> None:
    with S3Server(Flaws(rejects_conditional_puts=True)) as running:
        for level in ("writers", "exclusive"):
            store = store_on(running, level)
            running.calls.clear()
            with pytest.raises(ServerFeatureError, match="conditional_put='disabled'"):
                ps.create_array(store, "", parts=PARTS, **SHARDED)
            conditional = [call for call in running.calls if call.conditions]
            assert len(conditional) <= 1, "a 501 is not retried"
        running.calls.clear()
        with pytest.raises(ServerFeatureError, match="501"):
            _set_if_absent(store_on(running), "k")
        assert len(running.calls) == 1


def test_server_without_conditional_puts_serves_a_single_writer() -> None:
    with S3Server(Flaws(rejects_conditional_puts=True)) as running:
        store = store_on(running, "exclusive", conditional_put="disabled")
        array = create(store)
        array[...] = VALUES
        array[:4, :4] = 7
        np.testing.assert_array_equal(array[4:, 4:], VALUES[4:, 4:])
        assert not any(call.conditions for call in running.calls)


# --- what a probe costs -----------------------------------------------------------------------------------------------


def test_a_good_server_is_asked_once_with_six_requests_at_creation() -> None:
    with S3Server() as running:
        store = store_on(running)
        array = create(store)
        probes = Counter(call.method for call in running.calls if ".parts-txn" in call.key or call.method == "POST")
        assert probes == SERVER_PROBE
        assert {kind: count for kind, count in store.stats.calls.items() if count and kind in PROBE} == {
            # Two documents besides: that of the array, and that of the group above it.
            "put": 4 + 2,
            "head": 1,
            "delete": 1,
        }
        running.calls.clear()
        array[...] = VALUES
        create(store, overwrite=True)[...] = VALUES
        zarr.open_array(store_on(running), path="a")[...] = VALUES
        assert not any("probe-" in call.key for call in running.calls)
        assert not any("probe-" in key for key in running.objects())


@pytest.mark.slow
def test_concurrent_first_writes_probe_the_server_once(pipeline: str) -> None:
    with S3Server() as running:
        create(store_on(running), shape=(128, 128))
        server._known.clear()
        array = zarr.open_array(store_on(running), path="a")
        running.calls.clear()
        array[...] = 5
        assert Counter(call.method for call in running.calls if "probe-" in call.key) == {"PUT": 4, "HEAD": 1}


@pytest.mark.slow
def test_threads_that_write_at_once_probe_the_server_once() -> None:
    with S3Server() as running:
        create(store_on(running), shape=(128, 128))
        server._known.clear()
        running.calls.clear()
        stores = [store_on(running) for _ in range(8)]
        together = threading.Barrier(8)

        def write(at: int) -> None:
            together.wait()
            zarr.open_array(stores[at], path="a")[16 * at : 16 * at + 16] = at + 1

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        assert Counter(call.method for call in running.calls if "probe-" in call.key) == {"PUT": 4, "HEAD": 1}
        found = zarr.open_array(store_on(running), path="a")[:, 0]
        np.testing.assert_array_equal(found, np.repeat(np.arange(1, 9), 16))


def test_a_pickled_store_does_not_ask_again() -> None:
    with S3Server() as running:
        store = store_on(running)
        create(store)
        pickled = pickle.dumps(store)
        server._known.clear()
        running.calls.clear()
        zarr.open_array(pickle.loads(pickled), path="a")[...] = VALUES
        assert not any("probe-" in call.key for call in running.calls)


def test_reading_listing_explaining_and_plain_arrays_never_ask() -> None:
    with S3Server() as running:
        create(store_on(running))[...] = VALUES
        server._known.clear()
        running.calls.clear()
        store = ps.PartsStore(running.store(prefix="data"), read_only=True)
        zarr.open_array(store, path="a", mode="r")[:3, :3]
        store.explain("a", np.s_[:3, :3])
        store.verify()
        writable = store_on(running)
        writable.explain("a", np.s_[:3, :3])
        zarr.create_array(writable, name="plain", **SHARDED)[...] = VALUES
        list(zarr.open_group(writable).members())
        assert not any("probe-" in call.key for call in running.calls)


def test_stores_in_memory_and_on_disk_never_ask(tmp_path: Any) -> None:
    for store in (ps.PartsStore.from_url("memory://"), ps.PartsStore.from_url(tmp_path)):
        create(store)
        assert store.stats.calls["head"] == 0
        assert store.stats.calls["delete"] == 0


# --- the object of the probe ------------------------------------------------------------------------------------------


def test_the_object_of_the_probe_is_hidden_while_it_is_there() -> None:
    with S3Server() as running:
        reader = ps.PartsStore(running.store(prefix="data"), read_only=True)
        listed: list[list[str]] = []

        def before(call: Call) -> None:
            if call.method == "HEAD" and "probe-" in call.key:
                assert call.key.startswith("data/")
                assert "/.parts-txn/probe-" in call.key
                running.before = None
                assert any("probe-" in key for key in running.objects())
                listed.append(_list(reader))

        running.before = before
        create(store_on(running))
        assert len(listed) == 1
        assert not any("parts-txn" in key for key in listed[0])


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "InvalidRequest")], ids=str)
@pytest.mark.parametrize("at", range(5))
def test_the_object_of_the_probe_is_removed_after_a_failure(status: int, code: str, at: int) -> None:
    with S3Server() as running:
        running.before = _at(at, lambda: refusal(status, code))
        with pytest.raises(Exception, match=rf"{status}|{code}|permission"):
            create(store_on(running))
        assert written(running) == set()
        # A failure says nothing about the server: the next write asks again.
        running.before = None
        create(store_on(running))[...] = VALUES


@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_request_of_the_probe_without_an_answer_is_repeated(at: int) -> None:
    with S3Server() as running:
        once = iter([refusal(400, "RequestTimeout")])
        running.before = _at(at, lambda: next(once, None))
        create(store_on(running))[...] = VALUES
        assert not any("probe-" in key for key in running.objects())


def test_repair_removes_what_a_probe_left_that_was_killed() -> None:
    """Of a writer that dies while it asks, one small object stays; it belongs to no array."""
    with S3Server() as running:
        create(store_on(running))[...] = VALUES
        left = {f"data/.parts-txn/probe-{number:032x}" for number in range(3)}
        for key in left:
            running.put_object(key, b"a1")
        store = store_on(running)
        report = store.verify()
        assert (report.is_damaged, report.is_clean) == (False, False)
        assert {f"data/{key}" for finding in report.findings for key in finding.keys} == left
        store.repair()
        assert left <= set(running.objects()), "its writer may be alive"
        assert store.repair(min_age=0).is_clean
        assert not left & set(running.objects())
        assert store.verify().is_clean
        np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES)


def test_exclusive_keeps_group_attributes_if_conditions_are_ignored() -> None:
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"k": 1}}).encode()
    with S3Server(Flaws(ignores_if_none_match=True)) as running:
        running.put_object("p/g/zarr.json", group)
        store = ps.PartsStore(running.store(prefix="p"), concurrency="exclusive")
        ps.create_array(store, "g/x", parts=TWO_PARTS, **SMALL)[:] = 5
        assert running.objects()["p/g/zarr.json"] == group
        assert small_values(store, "g/x") == [5] * 8


@pytest.mark.sampled(3)
@pytest.mark.parametrize("at", range(6))
def test_lost_response_of_the_probe_refuses_no_good_server(at: int) -> None:
    with S3Server() as running:
        count = itertools.count()

        def lose(call: Call) -> Reply | None:
            if "probe-" in call.key and next(count) == at:
                with running._lock:
                    running._answer(call, running.buckets["bucket"])
                return refusal(500)
            return None

        running.before = lose
        ps.create_array(ps.PartsStore(running.store(prefix="p")), "x", parts=TWO_PARTS, **SMALL)[:] = 5
        assert small_values(ps.PartsStore(running.store(prefix="p")), "x") == [5] * 8
        assert not [key for key in running.objects() if "probe-" in key]


def test_a_writer_that_may_write_below_the_array_alone_can_write() -> None:
    with S3Server() as running:
        ps.create_array(ps.PartsStore(running.store()), "data/x", parts=TWO_PARTS, **SMALL)
        server._known.clear()
        running.before = lambda call: (
            refusal(403) if call.method == "PUT" and not call.key.startswith("data/") else None
        )
        zarr.open_array(ps.PartsStore(running.store()), path="data/x", mode="r+")[:] = 5
        assert small_values(ps.PartsStore(running.store()), "data/x") == [5] * 8


# --- the report -------------------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "has_conditional_puts": True,
    "refuses_create": True,
    "refuses_update": True,
    "keeps_metadata": True,
    "refuses_read": True,
    "has_suffix_ranges": True,
    "has_unique_etags": False,
    "has_listing": True,
    "levels": ["exclusive", "writers", "full"],
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("flaws", "expected", "code"),
    [
        (Flaws(), {}, 0),
        (Flaws(has_unique_etags=True), {"has_unique_etags": True}, 0),
        (Flaws(ignores_if_none_match=True), {"refuses_create": False, "levels": ["exclusive"]}, 1),
        (Flaws(ignores_if_match_on_put=True), {"refuses_update": False, "levels": ["exclusive"]}, 1),
        *((flaws, {"keeps_metadata": False, "levels": []}, 1) for flaws in METADATA),
        (Flaws(ignores_if_match_on_get=True), {"refuses_read": False}, 0),
        (Flaws(ignores_suffix_ranges=True), {"has_suffix_ranges": False}, 0),
        (Flaws(refuses_listings=True), {"has_listing": False}, 0),
        (
            Flaws(rejects_conditional_puts=True),
            {
                "has_conditional_puts": False,
                "refuses_create": False,
                "refuses_update": False,
                "levels": ["exclusive"],
            },
            1,
        ),
    ],
    ids=str,
)
def test_check_reports_each_flaw_and_no_other(
    flaws: Flaws, expected: dict[str, Any], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with S3Server(flaws) as running:
        assert store_on(running).check().to_json() == EVERYTHING | expected
        options = [f"{name}={value}" for name, value in running.options().items() if name != "client_options"]
        arguments = ["s3://bucket/data", *(word for each in options for word in ("-o", each))]
        assert cli.main(["check", "--json", *arguments]) == code
        assert json.loads(capsys.readouterr().out) == EVERYTHING | expected
        assert cli.main(["check", *arguments]) == code
        lines = capsys.readouterr().out.splitlines()
        levels = expected.get("levels", EVERYTHING["levels"])
        assert lines[-1].split("  ")[-1] == (", ".join(levels) or "none, only reading")
        assert running.objects() == {}


def test_missing_bucket_is_not_reported_as_a_server_flaw() -> None:
    with S3Server() as running:
        store = ps.PartsStore(running.store(bucket="absent", prefix="data"))
        for ask in (store.check, lambda: ps.create_array(store, "", parts=PARTS, **SHARDED)):
            with pytest.raises(Exception, match="NoSuchBucket"):
                ask()


def test_check_asks_again_and_corrects_what_is_known() -> None:
    with S3Server(Flaws(drops_metadata=True)) as running:
        store = store_on(running)
        with pytest.raises(ServerFeatureError):
            create(store)
        running.flaws = Flaws()
        assert store.check().supports_default
        create(store)[...] = VALUES


# --- helpers ----------------------------------------------------------------------------------------------------------


def _set_if_absent(store: ps.PartsStore, key: str) -> None:
    value = default_buffer_prototype().buffer.from_bytes(b"1")
    zarr.core.sync.sync(store.set_if_not_exists(key, value))


def _list(store: ps.PartsStore) -> list[str]:
    async def listed() -> list[str]:
        return [key async for key in store.list()] + [key async for key in store.list_dir("")]

    return zarr.core.sync.sync(listed())


def _at(number: int, answer: Callable[[], Reply | None]) -> Callable[[Call], Reply | None]:
    """Return a hook that answers this request of a probe, and of each repetition of it."""
    counts: Counter[str] = Counter()

    def before(call: Call) -> Reply | None:
        if "probe-" not in call.key:
            return None
        counts[call.key] += 1
        return answer() if counts[call.key] == number + 1 else None

    return before
