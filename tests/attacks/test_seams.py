"""Where several protections meet: stale handles in sessions, servers that fail while they are asked, odd keys."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from parts_store.errors import LayoutChangedError, PartsStoreError, ServerFeatureError, StoreConfigError
from parts_store.redaction import hide_in_text
from parts_store.transactions import server
from tests.attacks.s3_server import Call, Flaws, Reply, S3Server, refusal

SHAPE: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "int32", "compressors": None}
PARTS: list[Any] = [ps.Part(".h", size=4), ""]


@pytest.fixture(autouse=True)
def nothing_is_known_of_any_server() -> Iterator[None]:
    server._known.clear()
    server._confirmed.clear()
    yield
    server._known.clear()


def values(store: ps.PartsStore, path: str) -> list[Any]:
    found: list[Any] = np.asarray(zarr.open_array(store, path=path, mode="r")[:]).tolist()
    return found


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_handle_raises_after_a_rebase_onto_a_recreated_array() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    first = repository.writable_session("main")
    ps.create_array(ps.PartsStore.from_session(first), "x", parts=PARTS, **SHAPE)[:] = 3
    first.commit("one")
    mine = repository.writable_session("main")
    handle = zarr.open_array(ps.PartsStore.from_session(mine), path="x", mode="r+")
    assert np.asarray(handle[:]).tolist() == [3] * 8
    other = repository.writable_session("main")
    again = {**SHAPE, "dtype": "float32"}
    ps.create_array(ps.PartsStore.from_session(other), "x", parts=PARTS, overwrite=True, **again)[:] = 1.5
    other.commit("two")
    mine.rebase(icechunk.ConflictDetector())
    with pytest.raises(LayoutChangedError):
        handle[:]
    with pytest.raises(LayoutChangedError):
        handle[:] = 7
    assert values(ps.PartsStore.from_session(mine), "x") == [1.5] * 8


def test_a_handle_of_the_same_layout_goes_on_after_a_commit() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    handle = ps.create_array(store, "x", parts=PARTS, **SHAPE)
    handle[:] = 3
    session.commit("one")
    assert np.asarray(handle[:]).tolist() == [3] * 8


# --- servers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flaws", [Flaws(ignores_if_none_match=True), Flaws(drops_metadata=True)], ids=str)
def test_a_refused_creation_changes_nothing_on_the_server(flaws: Flaws) -> None:
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"k": 1}}).encode()
    with S3Server(flaws) as running:
        running.put_object("p/g/zarr.json", group)
        with pytest.raises(ServerFeatureError):
            ps.create_array(ps.PartsStore(running.store(prefix="p")), "g/x", parts=PARTS, **SHAPE)
        assert running.objects() == {"p/g/zarr.json": group}


def test_exclusive_keeps_group_attributes_if_conditions_are_ignored() -> None:
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"k": 1}}).encode()
    with S3Server(Flaws(ignores_if_none_match=True)) as running:
        running.put_object("p/g/zarr.json", group)
        store = ps.PartsStore(running.store(prefix="p"), concurrency="exclusive")
        ps.create_array(store, "g/x", parts=PARTS, **SHAPE)[:] = 5
        assert running.objects()["p/g/zarr.json"] == group
        assert values(store, "g/x") == [5] * 8


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
        ps.create_array(ps.PartsStore(running.store(prefix="p")), "x", parts=PARTS, **SHAPE)[:] = 5
        assert values(ps.PartsStore(running.store(prefix="p")), "x") == [5] * 8
        assert not [key for key in running.objects() if "probe-" in key]


def test_a_writer_that_may_write_below_the_array_alone_can_write() -> None:
    with S3Server() as running:
        ps.create_array(ps.PartsStore(running.store()), "data/x", parts=PARTS, **SHAPE)
        server._known.clear()
        running.before = lambda call: (
            refusal(403) if call.method == "PUT" and not call.key.startswith("data/") else None
        )
        zarr.open_array(ps.PartsStore(running.store()), path="data/x", mode="r+")[:] = 5
        assert values(ps.PartsStore(running.store()), "data/x") == [5] * 8


# --- documents of Zarr v2 ---------------------------------------------------------------------------------------------


def test_consolidated_metadata_of_zarr_v2_that_is_out_of_date_raises() -> None:
    objects = MemoryStore()
    store = ps.PartsStore(objects)
    zarr.create_group(store, path="g", zarr_format=2)
    zarr.create_array(store, name="g/x", zarr_format=2, **SHAPE)[:] = 1
    zarr.consolidate_metadata(store, path="g", zarr_format=2)
    ps.create_array(store, "g/x", overwrite=True, parts=[".d"], **SHAPE)[:] = 5
    handle: Any = zarr.open_consolidated(ps.PartsStore(objects), path="g", zarr_format=2)["x"]
    with pytest.raises(LayoutChangedError):
        handle[:]
    with pytest.raises(LayoutChangedError):
        handle[:] = 9
    assert values(ps.PartsStore(objects), "g/x") == [5] * 8


# --- odd keys and addresses -------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[ps.PartsStore], object]] = {
    "create": lambda store: ps.create_array(store, "a\tb", parts=[".d"], **SHAPE),
    "verify": lambda store: store.verify("../x"),
    "repair": lambda store: store.repair("../x", min_age=0),
    "explain": lambda store: store.explain("a\nb", ()),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_key_that_no_store_takes_is_our_error(call: str, kind: str, tmp_path: Path) -> None:
    store = ps.PartsStore(MemoryStore()) if kind == "memory" else ps.PartsStore.from_url(tmp_path)
    with pytest.raises(PartsStoreError):
        CALLS[call](store)


@pytest.mark.parametrize("url", ["s3:/KEY:hunter2pw@b/x", "https:/u:hunter2pw@h", "s3:K:hunter2pw@b"])
def test_a_password_in_a_mistyped_url_is_not_shown_and_makes_no_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigError, match="'://' behind its scheme") as caught:
        ps.PartsStore.from_url(url)
    assert "hunter2pw" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["root: /data/basic run/x", "expected basic types, found 'x'", "a bearer of news"])
def test_plain_words_are_not_taken_for_credentials(text: str) -> None:
    assert hide_in_text(text) == text
