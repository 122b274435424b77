"""A conditional PUT is repeated only if the failure proves that it was not carried out."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from obstore.exceptions import PreconditionError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from parts_store.backends.conditional_puts import SingleRequests, pauses, was_not_carried_out, without_retries
from parts_store.backends.object_store import ObjectBackend
from parts_store.engine.steps import Condition, Done, IfAbsent, IfMatch, Lost, Outcome, Put, Refused
from parts_store.format.layout import BufferChain
from tests.s3_server import Call, Reply, S3Server, refusal

MANY: Any = {"max_retries": 3, "backoff": {"init_backoff": timedelta(milliseconds=1), "base": 2}}
PUTS: dict[str, Condition] = {"create": IfAbsent(), "overwrite": IfMatch('"0cc175b9c0f1b6a831c399e269772661"', None)}
type Perform = Callable[[ObjectBackend, Put], Outcome]


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def perform(request: pytest.FixtureRequest) -> Perform:
    if request.param == "sync":
        return lambda backend, put: backend.perform_sync(put)
    return lambda backend, put: asyncio.run(backend.perform(put))


def fail(server: S3Server, times: int, reply: Reply) -> None:
    """Answer the next conditional PUTs with a failure, without carrying them out."""
    left = [reply] * times

    def before(call: Call) -> Reply | None:
        return left.pop() if call.conditions and left else None

    server.before = before


@pytest.mark.parametrize("kind", PUTS)
@pytest.mark.parametrize("reply", [refusal(503), refusal(429, "TooManyRequests")], ids=["SlowDown", "429"])
def test_put_that_was_not_carried_out_is_repeated(server: S3Server, perform: Perform, kind: str, reply: Reply) -> None:
    if kind == "overwrite":
        server.put_object("k", b"a")
    fail(server, 3, reply)
    outcome = perform(ObjectBackend(server.store(retry_config=MANY)), Put("k", b"b", None, PUTS[kind], ""))
    assert isinstance(outcome, Done)
    assert server.objects() == {"k": b"b"}
    assert server.counts() == {"PUT": 4}


def test_repeated_put_sends_all_of_its_buffers_again(server: S3Server, perform: Perform) -> None:
    fail(server, 3, refusal(503))
    data = BufferChain((memoryview(b"abc"), memoryview(b""), memoryview(b"de")))
    outcome = perform(ObjectBackend(server.store(retry_config=MANY)), Put("k", data, None, IfAbsent(), ""))
    assert isinstance(outcome, Done)
    assert [call.body for call in server.calls] == [b"abcde"] * 4


def test_repeated_put_is_not_sent_more_often_than_configured(server: S3Server, perform: Perform) -> None:
    fail(server, 9, refusal(503))
    outcome = perform(ObjectBackend(server.store(retry_config=MANY)), Put("k", b"b", None, IfAbsent(), ""))
    assert isinstance(outcome, Lost)
    assert server.counts() == {"PUT": 1 + MANY["max_retries"]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", PUTS)
@pytest.mark.parametrize(
    "reply",
    [refusal(500), refusal(503, "SlowDownWrite"), refusal(503, "ServiceUnavailable"), Reply(502), Reply(504)],
    ids=["500", "503 of MinIO", "503 without a reason", "502", "504"],
)
def test_put_that_may_have_been_carried_out_is_lost(
    server: S3Server, perform: Perform, kind: str, reply: Reply
) -> None:
    # The server has answered a conditional PUT before.
    backend = ObjectBackend(server.store(retry_config=MANY))
    assert isinstance(perform(backend, Put("k", b"a", None, IfAbsent(), "")), Done)
    assert isinstance(perform(backend, Put("k", b"b", None, IfAbsent(), "")), Refused)
    fail(server, 1, reply)
    server.calls.clear()
    outcome = perform(backend, Put("k", b"b", None, PUTS[kind], ""))
    assert isinstance(outcome, Lost)
    assert server.counts() == {"PUT": 1}


def test_refused_connection_proves_that_nothing_was_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    store = S3Store(
        "b",
        endpoint=endpoint,
        access_key_id="a",
        secret_access_key="b",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(Exception, match="error sending request") as caught:
        store.put("k", b"", mode="create")
    assert was_not_carried_out(caught.value)


def test_response_that_speaks_of_a_connection_proves_nothing(server: S3Server) -> None:
    text = "HttpError {\n kind: Connect, - Server returned non-2xx status code: 429"
    server.before = lambda _: refusal(500, message=text)
    with pytest.raises(Exception, match="500") as caught:
        server.store(retry_config={"max_retries": 0}).put("k", b"", mode="create")
    assert "kind: Connect" in str(caught.value)
    assert not was_not_carried_out(caught.value)


def test_pauses_follow_the_configuration_of_the_store() -> None:
    backoff: Any = {"init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=3), "base": 10}
    found = list(pauses(S3Store("b", retry_config={"max_retries": 50, "backoff": backoff})))
    assert len(found) == 50
    assert found[0] == 1
    assert 1 <= min(found) <= max(found) == 3
    assert list(pauses(S3Store("b", retry_config={"max_retries": 0}))) == []
    assert len(list(pauses(S3Store("b")))) == 10


@pytest.mark.parametrize(
    "store",
    [
        S3Store("b", prefix="p", region="eu-west-1", access_key_id="a", secret_access_key="b"),
        GCSStore("b", prefix="p", skip_signature=True),
        AzureStore("b", prefix="p", account_name="n", account_key="a2V5"),
    ],
    ids=["S3", "GCS", "Azure"],
)
def test_store_without_retries_has_the_same_options(store: Any) -> None:
    once = without_retries(store)
    assert once.retry_config["max_retries"] == 0
    assert (type(once), once.prefix, once.config) == (type(store), store.prefix, store.config)


def test_store_in_memory_stays_the_same() -> None:
    store = MemoryStore()
    assert without_retries(store) is store


def refuse(requests: SingleRequests, *, is_partial: bool) -> Any:
    """Let a server refuse a PUT; return the store on which it was sent."""
    with pytest.raises(PreconditionError), requests.choose(is_partial=is_partial) as store:
        raise PreconditionError("412")
    return store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of one number, the seconds that `time.monotonic` returns."""
    now = [1000.0]
    monkeypatch.setattr("parts_store.backends.conditional_puts.time.monotonic", lambda: now[0])
    return now


def test_blind_writes_share_connections_until_a_refusal(server: S3Server, clock: list[float]) -> None:
    requests = SingleRequests(server.store())
    with requests.choose(is_partial=False) as first, requests.choose(is_partial=False) as second:
        assert first is second
    assert refuse(requests, is_partial=False) is first
    with requests.choose(is_partial=False) as after:
        assert after.client_options["pool_max_idle_per_host"] == "0"
    clock[0] += 60
    with requests.choose(is_partial=False) as later:
        assert later is not first
        assert "pool_max_idle_per_host" not in later.client_options


def test_no_two_partial_writes_share_a_connection(server: S3Server) -> None:
    requests = SingleRequests(server.store())
    with ExitStack() as at_work:
        chosen = [at_work.enter_context(requests.choose(is_partial=True)) for _ in range(20)]
        keeping = [store for store in chosen if "pool_max_idle_per_host" not in store.client_options]
        assert len({id(store) for store in keeping}) == len(keeping) > 0
    # They are used again, one after the other, because the server has answered.
    for _ in range(3):
        with requests.choose(is_partial=True) as again:
            assert again in keeping


@pytest.mark.parametrize("error", [PreconditionError("412"), ConnectionResetError(), KeyboardInterrupt()])
def test_connection_without_a_regular_answer_is_not_used_again(
    server: S3Server, clock: list[float], error: BaseException
) -> None:
    requests = SingleRequests(server.store())
    used: set[int] = set()
    kept: list[Any] = []
    for _ in range(20):
        with pytest.raises(type(error)), requests.choose(is_partial=True) as store:
            raise error
        clock[0] += 60
        # Otherwise a new store could have the same identity.
        kept.append(store)
        assert id(store) not in used
        used.add(id(store))


def test_connections_of_other_partial_writes_outlive_a_refusal(server: S3Server, clock: list[float]) -> None:
    requests = SingleRequests(server.store())
    with requests.choose(is_partial=True) as first:
        refused = refuse(requests, is_partial=True)
        with requests.choose(is_partial=True) as after:
            assert after.client_options["pool_max_idle_per_host"] == "0"
    clock[0] += 60
    with requests.choose(is_partial=True) as later:
        assert later is first
        assert later is not refused


def test_store_without_connections_keeps_the_options_of_the_environment(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {name: value for name, value in server.options().items() if name != "client_options"}
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_USER_AGENT", "of the environment")
    requests = SingleRequests(S3Store("bucket", **options))
    for is_partial in (False, True):
        with requests.choose(is_partial=is_partial) as store:
            store.put("k", b"1")
    refuse(requests, is_partial=False)
    with requests.choose(is_partial=False) as store:
        store.put("k", b"2")
    assert [call.headers["user-agent"] for call in server.calls] == ["of the environment"] * 3
