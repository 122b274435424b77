"""The server answers as HTTP says, serves nothing but the hierarchy, and turns no failure into fill values."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import icechunk
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.web import gateway
from parts_store.web.gateway import parse_range
from tests.web.served import NAMES, SHARDS, SIZE, VALUES, ask, write_arrays

SUFFIX = "c/0/0"
# What zarr lists of the arrays, computed from their shapes.
COUNTS = {"plain": (5, 5), "three": (5, 5), "shards": (2, 3), "index": (2, 3), "tiff": (2, 2), "holes": (1, 1)}
KEYS = {"zarr.json", *(f"{name}/zarr.json" for name in NAMES)} | {
    f"{name}/c/{row}/{column}" for name in NAMES for row in range(COUNTS[name][0]) for column in range(COUNTS[name][1])
}


def new_store(kind: str, folder: Path) -> ps.PartsStore:
    if kind == "session":
        repository = icechunk.Repository.create(icechunk.in_memory_storage())
        return ps.PartsStore.from_session(repository.writable_session("main"))
    return ps.PartsStore.from_url("memory://" if kind == "memory" else folder)


@pytest.fixture(scope="module", params=["memory", "disk", "session"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ps.PartsStore:
    found = new_store(request.param, tmp_path_factory.mktemp("store"))
    write_arrays(found)
    return found


@pytest.fixture(scope="module")
def url(store: ps.PartsStore) -> Iterator[str]:
    with ps.serve(store) as server:
        yield server.url


def whole(store: ps.PartsStore, key: str) -> bytes:
    found = store.get_sync(key)
    assert found is not None
    return found.to_bytes()


@pytest.mark.parametrize("name", ["plain", "three", "shards", "index", "tiff"])
def test_a_chunk_is_served_whole_with_its_size_and_etag(url: str, store: ps.PartsStore, name: str) -> None:
    expected = whole(store, f"{name}/{SUFFIX}")
    status, headers, body = ask(url, f"/zarr/{name}/{SUFFIX}")
    assert (status, body) == (200, expected)
    head = ask(url, f"/zarr/{name}/{SUFFIX}", method="HEAD")
    assert head[0] == 200
    assert head[2] == b""
    for found in (headers, head[1]):
        assert int(found["content-length"]) == len(expected)
        assert found["etag"] == headers["etag"]
        assert found["accept-ranges"] == "bytes"


@pytest.mark.parametrize("name", ["plain", "three", "shards", "index", "tiff"])
@given(data=st.data())
def test_a_range_is_that_of_the_assembled_chunk(url: str, store: ps.PartsStore, name: str, data: st.DataObject) -> None:
    expected = whole(store, f"{name}/{SUFFIX}")
    size = len(expected)
    start, last = sorted(data.draw(st.tuples(st.integers(0, size - 1), st.integers(0, 2 * size))))
    header, wanted = data.draw(
        st.sampled_from(
            [
                (f"bytes={start}-{last}", expected[start : last + 1]),
                (f"bytes={start}-", expected[start:]),
                (f"bytes=-{start + 1}", expected[-start - 1 :]),
            ]
        )
    )
    status, headers, body = ask(url, f"/zarr/{name}/{SUFFIX}", headers={"Range": header})
    if not wanted:
        assert (status, headers["content-range"]) == (416, f"bytes */{size}")
        return
    assert (status, body) == (206, wanted)
    place = size - len(wanted) if header.startswith("bytes=-") else start
    assert headers["content-range"] == f"bytes {place}-{place + len(wanted) - 1}/{size}"


@pytest.mark.parametrize("header", [None, "bytes=0-3", "bytes=-16", "bytes=5-"])
@pytest.mark.parametrize("key", ["plain/c/9/9", "holes/c/1/2", "nothing/c/0/0", "plain/x.json", "nothing/zarr.json"])
def test_what_is_missing_is_404_also_for_a_range(url: str, key: str, header: str | None) -> None:
    headers = {} if header is None else {"Range": header}
    assert ask(url, f"/zarr/{key}", headers=headers)[0] == 404
    assert ask(url, f"/zarr/{key}", headers=headers, method="HEAD")[0] == 404


def test_conditions_are_compared_with_the_write_of_the_chunk(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    array = ps.create_array(store, "a", parts=["", ps.Part(".b", size=2)], shape=(8,), chunks=(8,), dtype="u1")
    array[:] = 1
    key = "/zarr/a/c/0"
    with ps.serve(store) as server:
        etag = ask(server.url, key)[1]["etag"]
        assert ask(server.url, key, headers={"If-None-Match": f'"x", {etag}'})[0] == 304
        assert ask(server.url, key, headers={"If-Match": etag})[0] == 200
        assert ask(server.url, key, headers={"Range": "bytes=0-1", "If-Range": etag})[0] == 206
        array[:] = 2
        status, headers, _ = ask(server.url, key, headers={"If-None-Match": etag})
        assert status == 200
        assert headers["etag"] != etag
        assert ask(server.url, key, headers={"If-Match": etag})[0] == 412
        status, _, body = ask(server.url, key, headers={"Range": "bytes=0-1", "If-Range": etag})
        assert (status, body) == (200, whole(store, "a/c/0"))


def test_all_ranges_of_one_write_have_one_etag(url: str, store: ps.PartsStore) -> None:
    for name in ("three", "index", "shards"):
        size = len(whole(store, f"{name}/{SUFFIX}"))
        ranges = ["bytes=0-1", f"bytes={size - 2}-", "bytes=-1", "bytes=4-5", f"bytes=0-{size}"]
        etags = {ask(url, f"/zarr/{name}/{SUFFIX}", headers={"Range": each})[1]["etag"] for each in ranges}
        assert len(etags) == 1


def test_a_group_is_served_with_the_metadata_of_all_its_members(url: str) -> None:
    document = json.loads(ask(url, "/zarr/zarr.json")[2])
    members = document["consolidated_metadata"]["metadata"]
    assert {"plain", "three", "shards", "index", "tiff", "holes"} <= set(members)
    for name, member in members.items():
        assert member == json.loads(ask(url, f"/zarr/{name}/zarr.json")[2])
        assert not member.get("storage_transformers")


HIDDEN = [
    *("three/c/0/0.head", "three/c/0/0.tail", "index/c/0/0.index", "image.vrt", "notes.txt", "three/.parts-txn/x"),
    *("three/__parts__/.head/zarr.json", "three/__parts__/.head/c/0/0", "", "/", "plain", "plain/c", "plain/c/0"),
    *(
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "plain/../../secret",
        "plain//c/0/0",
        "plain/./c/0/0",
        "/etc/passwd",
    ),
    *("plain/c/0/0%00", "plain\\c\\0\\0", "plain/c/0/0/", "plain/c/00/0", "plain/c/-1/0", "plain/c/0/0.tmp", "%ff"),
]


@pytest.mark.parametrize("key", HIDDEN)
def test_nothing_but_the_hierarchy_is_served(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "data"
    store = ps.PartsStore.from_url(folder)
    write_arrays(store)
    for stray in (tmp_path / "secret", folder / "notes.txt", folder / "image.vrt", folder / "three/.parts-txn/x"):
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("secret")
    with ps.serve(store) as server:
        status, _, body = ask(server.url, f"/zarr/{key}")
    assert status == 404
    assert b"secret" not in body


PATHS = st.lists(
    st.sampled_from(
        [*NAMES, "c", "0", "1", "..", ".", "", "%2e%2e", "%2F", "zarr.json", "0.head", "0.index", "__parts__"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(quote),
    max_size=6,
).map("/".join)


@given(PATHS)
def test_any_path_is_a_key_that_zarr_lists_or_refused(url: str, store: ps.PartsStore, path: str) -> None:
    status, _, body = ask(url, f"/zarr/{path}")
    assert status in (200, 404)
    if status == 200:
        key = unquote(path)
        assert key in KEYS
        assert key.endswith("zarr.json") or body == whole(store, key)


@pytest.mark.parametrize("path", ["a" * 5000, "plain/c/" + "9" * 300 + "/0", "é" * 130])
def test_a_key_that_is_too_long_for_stores_is_refused(tmp_path: Path, path: str) -> None:
    write_arrays(ps.PartsStore.from_url(tmp_path))
    with ps.serve(tmp_path) as server:
        assert ask(server.url, f"/zarr/{quote(path)}")[0] == 414


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(url: str, method: str) -> None:
    for path in ("/", "/zarr/plain/c/0/0", "/zarr/new", "/api/tree"):
        assert ask(url, path, method=method)[0] == 405


BAD_RANGES = ["bytes=3-1", "bytes=a-b", "bytes=0-1,3-4", "bytes=", "bytes=--1", "bytes=1-2-3", "words=0-1", "bytes=-0"]


@pytest.mark.parametrize("header", [*BAD_RANGES, f"bytes={10**30}-", f"bytes={10**15}-{10**15 + 1}"])
def test_a_range_that_makes_no_sense_is_416(url: str, header: str) -> None:
    assert ask(url, f"/zarr/plain/{SUFFIX}", headers={"Range": header})[0] == 416


@given(st.text(max_size=30))
def test_any_text_as_range_is_understood_or_refused(text: str) -> None:
    with suppress(ValueError):
        parse_range(text)


def test_a_damaged_chunk_is_an_error_that_names_the_key_and_no_path(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    ps.create_array(store, "a", parts=["", ps.Part(".b", size=2)], shape=(8,), chunks=(8,), dtype="u1")[:] = 1
    (tmp_path / "a/c/0.b").unlink()
    with ps.serve(store) as server:
        for headers in ({}, {"Range": "bytes=-3"}, {"Range": "bytes=2-"}):
            status, _, body = ask(server.url, "/zarr/a/c/0", headers=headers)
            assert status == 500
            assert b"a/c/0" in body
            assert str(tmp_path).encode() not in body


def test_a_page_of_another_site_does_not_reach_the_server_by_a_name_of_its_own(url: str) -> None:
    assert ask(url, "/zarr/zarr.json", headers={"Host": "evil.example"})[0] == 400
    assert ask(url, "/", headers={"Host": "localhost:1"})[0] == 200


def test_other_origins_may_read_only_if_they_are_named(store: ps.PartsStore, url: str) -> None:
    origin = {"Origin": "https://viewer.example"}
    assert "access-control-allow-origin" not in ask(url, "/zarr/zarr.json", headers=origin)[1]
    with ps.serve(store, cors="https://viewer.example") as server:
        _, headers, _ = ask(server.url, f"/zarr/plain/{SUFFIX}", headers={**origin, "Range": "bytes=0-1"})
        assert headers["access-control-allow-origin"] == "https://viewer.example"
        assert {"content-range", "etag"} <= {
            each.strip().lower() for each in headers["access-control-expose-headers"].split(",")
        }
        other = ask(server.url, "/zarr/zarr.json", headers={"Origin": "https://other.example"})[1]
        assert other.get("access-control-allow-origin") != "https://other.example"


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_value_that_is_sent_in_pieces_is_complete(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(gateway, "PIECE", size)
    store = new_store("memory", Path())
    write_arrays(store)
    with ps.serve(store) as server:
        for name in ("index", "three"):
            expected = whole(store, f"{name}/{SUFFIX}")
            assert ask(server.url, f"/zarr/{name}/{SUFFIX}")[2] == expected
            for header, wanted in [
                ("bytes=3-", expected[3:]),
                ("bytes=-11", expected[-11:]),
                ("bytes=2-60", expected[2:61]),
            ]:
                assert ask(server.url, f"/zarr/{name}/{SUFFIX}", headers={"Range": header})[2] == wanted


def test_a_read_over_http_makes_one_request_to_the_store(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url("memory://")
    zarr.create_array(store, name="a", **SHARDS)[...] = VALUES
    with ps.serve(store) as server:
        ask(server.url, "/zarr/a/zarr.json")
        ask(server.url, "/zarr/a/c/0/0", headers={"Range": "bytes=0-9"})
        for headers in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=-100"}, {"Range": "bytes=30-"}):
            store.stats.reset()
            ask(server.url, "/zarr/a/c/0/0", headers=headers)
            assert store.stats.calls == {"get": 1} or {k: v for k, v in store.stats.calls.items() if v} == {"get": 1}


def test_the_server_of_a_snapshot_serves_that_snapshot() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    snapshots = []
    for value in (1, 2):
        session = repository.writable_session("main")
        store = ps.PartsStore.from_session(session)
        array = zarr.create_array(
            store, name="a", overwrite=True, shape=(4,), chunks=(4,), dtype="u1", compressors=None
        )
        array[:] = value
        snapshots.append(session.commit(f"value {value}"))
    for value, snapshot in enumerate([*snapshots, None], 1):
        with ps.serve(repository, snapshot=snapshot) as server:
            assert ask(server.url, "/zarr/a/c/0")[2] == bytes([min(value, 2)] * 4)
            history = json.loads(ask(server.url, "/api/history")[2])
            assert history[0]["message"] == f"value {min(value, 2)}"


@pytest.mark.parametrize("separator", [".", "/"])
def test_a_new_server_serves_chunks_of_v2_to_clients_that_know_the_metadata(tmp_path: Path, separator: str) -> None:
    encoding: Any = {"name": "v2", "separator": separator}
    zarr.create_array(tmp_path, name="g/a", data=VALUES, chunks=(8, 10), zarr_format=2, chunk_key_encoding=encoding)
    expected = (tmp_path / "g/a" / separator.join("02")).read_bytes()
    with ps.serve(tmp_path) as server:
        assert ask(server.url, f"/zarr/g/a/{separator.join('02')}")[::2] == (200, expected)
        assert ask(server.url, f"/zarr/g/a/{separator.join('99')}")[0] == 404
        assert ask(server.url, f"/zarr/g/{separator.join('00')}")[0] == 404


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"zarr_format": 3}'])
def test_a_chunk_of_an_array_with_a_damaged_document_is_an_error(tmp_path: Path, text: str) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    write_arrays(store)
    (tmp_path / "plain/zarr.json").write_text(text)
    with ps.serve(tmp_path) as server:
        status, _, body = ask(server.url, f"/zarr/plain/{SUFFIX}")
        assert status == 500
        assert b"plain/c/0/0" in body
        # The others are served.
        assert ask(server.url, f"/zarr/three/{SUFFIX}")[::2] == (200, whole(store, f"three/{SUFFIX}"))
        assert "three" in json.loads(ask(server.url, "/zarr/zarr.json")[2])["consolidated_metadata"]["metadata"]


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_stored_consolidated_metadata_that_is_out_of_date_is_an_error_and_not_fill_values() -> None:
    objects = MemoryStore()
    old = ps.PartsStore(objects)
    ps.create_array(old, "parts", parts=["", ps.Part(".b", size=2)], **SIZE)[...] = VALUES
    zarr.create_array(old, name="plain", **SIZE)[...] = VALUES
    zarr.consolidate_metadata(old)
    for name in ("parts", "plain"):
        parts = [ps.Part(""), ps.Part(".c", size=3)]
        ps.create_array(ps.PartsStore(objects), name, parts=parts, overwrite=True, **SIZE)[:8, :10] = 9
    with ps.serve(ps.PartsStore(objects)) as server:
        ask(server.url, "/zarr/zarr.json")
        for name in ("parts", "plain"):
            for key in (f"{name}/c/0/0", f"{name}/c/1/1"):
                status, _, body = ask(server.url, f"/zarr/{key}")
                assert status == 500
                assert b"LayoutChangedError" in body
            # Reading the metadata again heals it.
            ask(server.url, f"/zarr/{name}/zarr.json")
            assert ask(server.url, f"/zarr/{name}/c/0/0")[0] == 200
            assert ask(server.url, f"/zarr/{name}/c/1/1")[0] == 404
