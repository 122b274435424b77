"""The S3 server of the tests behaves like S3 where nothing is switched off, and differs where it is told to."""

from collections.abc import Callable, Iterator

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tests.s3_server import Flaws, S3Server

QUICK = {"max_retries": 0}


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


def test_objects_are_written_read_listed_and_deleted(server: S3Server) -> None:
    store = server.store(prefix="data")
    data = bytes(range(100))
    written = obstore.put(store, "a/x ü+&", data, attributes={"tag": "v"})
    assert server.objects() == {"data/a/x ü+&": data}
    whole = obstore.get(store, "a/x ü+&")
    assert (bytes(whole.bytes()), whole.attributes["tag"]) == (data, "v")
    assert whole.meta["e_tag"] == written["e_tag"]
    assert bytes(obstore.get(store, "a/x ü+&", options={"range": {"suffix": 3}}).bytes()) == data[-3:]
    assert bytes(obstore.get(store, "a/x ü+&", options={"range": (2, 7)}).bytes()) == data[2:7]
    assert bytes(obstore.get(store, "a/x ü+&", options={"range": {"offset": 90}}).bytes()) == data[90:]
    obstore.put(store, "a/b/y", b"y")
    page = obstore.list_with_delimiter(store, "a")
    assert [list(page["common_prefixes"]), [each["path"] for each in page["objects"]]] == [["a/b"], ["a/x ü+&"]]
    obstore.delete(store, ["a/b/y", "a/x ü+&", "a/absent"])
    assert server.objects() == {}
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "a/b/y")


def test_listings_have_pages_and_large_objects_are_sent_in_parts(server: S3Server) -> None:
    for at in range(2345):
        server.put_object(f"n/{at:04}", b"")
    assert sum(len(batch) for batch in obstore.list(server.store(), "n")) == 2345
    data = bytes(range(256)) * 50_000
    obstore.put(server.store(), "large", data)
    assert server.objects()["large"] == data


@pytest.mark.parametrize(
    ("flaws", "broken"),
    [
        (Flaws(ignores_if_none_match=True), {"create"}),
        (Flaws(ignores_if_match_on_put=True), {"update"}),
        (Flaws(ignores_if_match_on_get=True), {"get"}),
        (Flaws(drops_metadata=True), {"metadata"}),
        (Flaws(), set()),
    ],
)
def test_each_flaw_breaks_exactly_one_behaviour(flaws: Flaws, broken: set[str]) -> None:
    with S3Server(flaws) as server:
        store = server.store(retry_config=QUICK)
        obstore.put(store, "x", b"1", attributes={"tag": "v"})
        other = '"other"'
        attempts: dict[str, Callable[[], object]] = {
            "create": lambda: obstore.put(store, "x", b"1", mode="create", attributes={"tag": "v"}),
            "update": lambda: obstore.put(store, "x", b"1", mode={"e_tag": other}, attributes={"tag": "v"}),
            "get": lambda: obstore.get(store, "x", options={"if_match": other}),
        }
        wrong = {name for name, attempt in attempts.items() if not _is_refused(attempt)}
        if "tag" not in obstore.get(store, "x").attributes:
            wrong.add("metadata")
        assert wrong == broken


def _is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (AlreadyExistsError, PreconditionError):
        return True
    return False
