"""The page: what it asks the server for is right, and what makes no sense is refused."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import S3Store
from PIL import Image

import parts_store as ps
from parts_store.web import looking
from tests.web.served import VALUES, ask, write_arrays

# The first snapshot of every repository.
FIRST = "1CECHNKREP0F1RSTCMT0"
STACK = (np.arange(3 * 300 * 280, dtype="u2").reshape(3, 300, 280) % 1000).astype("u2")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    store = ps.PartsStore.from_url("memory://")
    write_arrays(store)
    zarr.create_array(store, name="stack", data=STACK, chunks=(1, 64, 64), dimension_names=["t", "y", "x"])
    zarr.create_array(store, name="line", data=np.array([1.0, np.nan, 3.0]))
    zarr.create_array(store, name="texts", data=np.array(["a", "b"]))
    group = zarr.create_group(store, path="pyramid")
    for level, step in (("0", 1), ("1", 2)):
        group.create_array(level, data=VALUES[::step, ::step], chunks=(8, 8))
    datasets = [{"path": level, "coordinateTransformations": [{"type": "scale", "scale": [1, 1]}]} for level in "01"]
    ome: Any = {"version": "0.5", "multiscales": [{"axes": [], "datasets": datasets}]}
    group.attrs["ome"] = ome
    zarr.create_group(store, path="<script>alert(1)<")
    with ps.serve(store) as server:
        yield server.url


def get(url: str, path: str) -> Any:
    status, _, body = ask(url, path)
    assert status == 200, body
    return json.loads(body)


def pixels(url: str, path: str) -> Any:
    status, headers, body = ask(url, path)
    assert (status, headers["content-type"]) == (200, "image/png"), body
    with Image.open(io.BytesIO(body)) as image:
        return np.asarray(image.convert("RGB"))[..., 0]


def test_a_tile_shows_the_values(url: str) -> None:
    shown = pixels(url, "/api/tile/stack?axes=1,2&at=2,0,0&place=1,1&low=0&high=1000&map=gray")
    inside = STACK[2, 256:, 256:]
    assert np.array_equal(shown, np.rint(np.rint(inside / 1000 * 254) / 254 * 255))


def test_the_tree_names_every_array_and_the_levels_of_a_pyramid(url: str) -> None:
    nodes = {node["path"]: node for node in get(url, "/api/tree")["nodes"]}
    assert nodes["stack"]["shape"] == [3, 300, 280]
    assert nodes["stack"]["dimension_names"] == ["t", "y", "x"]
    assert nodes["index"]["shards"] == [24, 20]
    assert nodes["three"]["parts"][0]["key_suffix"] == ".head"
    assert nodes["pyramid"]["levels"] == ["pyramid/0", "pyramid/1"]
    assert nodes["stack"]["unusual"] == []


def test_values_and_plots_are_those_of_the_array(url: str) -> None:
    assert get(url, "/api/values/stack?at=1,2,3") == {"value": str(STACK[1, 2, 3])}
    assert get(url, "/api/values/line") == {"step": 1, "values": [1.0, None, 3.0]}


def test_the_contrast_is_that_of_percentiles(url: str) -> None:
    found = get(url, "/api/contrast/stack?axes=1,2&at=0,0,0")
    assert 0 <= found["low"] < 50
    assert 950 < found["high"] < 1000


def test_the_requests_of_a_tile_are_named(url: str) -> None:
    lines = get(url, "/api/requests/stack?axes=1,2&at=1,0,0&place=1,1")
    assert len(lines) == 1
    assert "stack/c/1/4/4" in lines[0]


def test_the_page_is_self_contained_and_runs_no_script_but_its_own(url: str) -> None:
    status, headers, body = ask(url, "/")
    assert status == 200
    nonce = re.findall(r"script-src 'nonce-([\w-]+)'", headers["content-security-policy"])
    assert nonce == re.findall(r'<script nonce="([\w-]+)"', body.decode())
    assert not re.findall(rb'(?:src|href)="?https?://', body)
    assert b"innerHTML" not in body
    assert ask(url, "/")[1]["content-security-policy"] != headers["content-security-policy"]


BAD = [
    *("tile/stack", "tile/stack?axes=1,2", "tile/stack?axes=1&at=0,0,0", "tile/stack?axes=1,1&at=0,0,0"),
    *("tile/stack?axes=1,9&at=0,0,0", "tile/stack?axes=1,2&at=9,0,0", "tile/stack?axes=1,2&at=0,0,0&zoom=99999999"),
    *("tile/stack?axes=1,2&at=0,0,0&place=99,99", "tile/stack?axes=1,2&at=0,0,0&low=nan", "tile/texts?axes=0,1&at=0,0"),
    *("tile/stack?axes=1,2&at=0,0,0&map=none", "tile/stack?axes=1,2&at=0,0,0&low=5&high=5", "tile/line?axes=0,1&at=0"),
    *(
        "tile/stack?axes=-1,2&at=0,0,0",
        "tile/stack?axes=1,2&at=0,0,0&colour=1",
        f"values/stack?at={'9' * 5000},0,0",
    ),
    *("values/stack?at=0,0", "values/stack?at=300,0,0", "values/stack", "values/texts", "contrast/stack?axes=1,2&at=a"),
    *("tile/stack?axes=1,2&at=0,0,0&snapshot=x", "requests/stack?axes=1,2&at=0,0,0&place=7,7"),
]


@pytest.mark.parametrize("path", BAD)
def test_a_picture_that_makes_no_sense_is_refused(url: str, path: str) -> None:
    status, _, body = ask(url, f"/api/{path}")
    assert status == 400
    assert b"expected" in body


@pytest.mark.parametrize("kind", ["tile", "contrast", "requests", "values", "stored"])
@pytest.mark.parametrize("path", ["nothing", "pyramid", "../stack", "stack/c/0", "%3Cscript%3E"])
def test_what_is_no_array_is_404(url: str, kind: str, path: str) -> None:
    assert ask(url, f"/api/{kind}/{path}?axes=0,1&at=0,0")[0] == 404


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.text(max_size=20))
def test_any_query_is_answered_or_refused(url: str, name: str, value: str) -> None:
    path = f"/api/tile/stack?axes=1,2&at=0,0,0&{quote(name)}={quote(value, errors='replace')}"
    assert ask(url, path)[0] in (200, 400)


def test_the_difference_of_two_versions_is_shown() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    versions = []
    for value in (10, 13):
        session = repository.writable_session("main")
        zarr.create_array(ps.PartsStore.from_session(session), name="a", data=np.full((4, 4), value), overwrite=True)
        versions.append(session.commit(str(value)))
    before, after = versions
    with ps.serve(repository) as server:
        query = f"axes=0,1&at=0,0&snapshot={after}&against={before}"
        assert get(server.url, f"/api/contrast/a?{query}") == {"low": -3.0, "high": 3.0}
        same = pixels(server.url, f"/api/tile/a?axes=0,1&at=0,0&snapshot={before}&low=9&high=11&map=gray")
        assert np.all(same == 128)
        assert [each["message"] for each in get(server.url, "/api/history")][:2] == ["13", "10"]
        assert ask(server.url, "/api/tile/a?axes=0,1&at=0,0&snapshot=nothing")[0] == 400


def test_versions_of_other_branches_are_not_shown() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    first = repository.lookup_branch("main")
    versions = {}
    for branch in ("main", "private"):
        if branch != "main":
            repository.create_branch(branch, snapshot_id=first)
        session = repository.writable_session(branch)
        zarr.create_array(ps.PartsStore.from_session(session), name="a", data=VALUES)
        versions[branch] = session.commit(branch)
    with ps.serve(repository) as server:
        # What is served stays as it is, and so does its history.
        session = repository.writable_session("main")
        zarr.create_array(ps.PartsStore.from_session(session), name="b", data=VALUES)
        session.commit("later")
        assert [each["message"] for each in get(server.url, "/api/history")][:1] == ["main"]
        for path in ("tile/a?axes=0,1&at=0,0", "requests/a?axes=0,1&at=0,0", "values/a?at=0,0"):
            assert ask(server.url, f"/api/{path}&snapshot={versions['main']}")[0] == 200
            assert ask(server.url, f"/api/{path}&snapshot={versions['private']}")[0] == 400


def test_what_is_stored_of_an_array_is_counted(url: str) -> None:
    assert get(url, "/api/stored/three").startswith("25 chunks in 75 objects, ")


def test_a_plot_decodes_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_PLOT_NBYTES", 5000)
    store = ps.PartsStore.from_url("memory://")
    zarr.create_array(store, name="a", data=np.arange(100_000, dtype="f4"), chunks=(100,))
    with ps.serve(store) as server:
        store.stats.reset()
        found = get(server.url, "/api/values/a")
        assert found["values"] == list(range(0, 100_000, found["step"]))
        assert store.stats.calls["get"] <= 20


def test_an_array_of_very_many_chunks_has_a_picture_and_a_plot() -> None:
    store = ps.PartsStore.from_url("memory://")
    for name, ndim in (("plane", 2), ("line", 1)):
        zarr.create_array(store, name=name, shape=(2**40,) * ndim, chunks=(1,) * ndim, dtype="u1")
    with ps.serve(store) as server:
        query = "axes=0,1&at=0,0&zoom=32"
        assert pixels(server.url, f"/api/tile/plane?{query}").shape == (256, 256)
        assert len(get(server.url, "/api/values/line")["values"]) == 2000
        status, _, body = ask(server.url, f"/api/requests/plane?{query}")
        assert status == 400
        assert b"at most 1,000,000 chunks" in body


def test_attributes_and_names_that_are_not_json_do_not_hide_the_page(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "data")
    zarr.create_array(store, name="\U0001f468\u200d\U0001f469", data=VALUES, attributes={"limit": float("nan")})
    zarr.create_array(store, name="a\u00a0b", data=VALUES)
    document = tmp_path / "data/a\u00a0b/zarr.json"
    document.write_text(document.read_text().replace('"attributes": {}', '"attributes": {"half": "\\ud800"}'))
    with ps.serve(tmp_path / "data") as server:
        tree = get(server.url, "/api/tree")
        nodes = {node["path"]: node for node in tree["nodes"]}
        assert json.loads(nodes["\U0001f468\u200d\U0001f469"]["attributes"])["limit"] != 0
        assert json.loads(nodes["a\u00a0b"]["attributes"]) == {"half": "\ud800"}
        for name in ("\U0001f468\u200d\U0001f469", "a\u00a0b"):
            assert ask(server.url, f"/zarr/{quote(name)}/c/0/0")[0] == 200
            assert get(server.url, f"/api/values/{quote(name)}?at=3,4") == {"value": str(VALUES[3, 4])}


def test_a_folder_of_the_machine_is_shown_by_its_name_alone(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "my data")
    with ps.serve(tmp_path / "my data") as server:
        assert get(server.url, "/api/tree")["title"] == "my data"
    with ps.serve(ps.PartsStore(S3Store("bucket", prefix="a/b"))) as server:
        assert server.title == 'S3Store(bucket="bucket", prefix="a/b")'
    ps.open_repository(tmp_path / "scans").create_tag("v1", snapshot_id=FIRST)
    for source in (tmp_path / "scans", f"file://{tmp_path}/scans/"):
        with ps.serve(source) as server:
            assert server.title == "scans · branch main"
        with ps.serve(source, tag="v1") as server:
            assert server.title == "scans · tag v1"


def test_a_store_that_cannot_be_listed_says_so() -> None:
    with ps.serve(ps.PartsStore.from_url("http://127.0.0.1:9/x", client_options={"allow_http": True})) as server:
        status, _, body = ask(server.url, "/api/tree")
        assert status == 400
        assert b"expected a store that can be listed" in body


def test_an_array_with_chunks_of_several_sizes_is_shown_and_hides_no_other() -> None:
    store = ps.PartsStore.from_url("memory://")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        grid: Any = [[30, 10], [25, 25]]
        zarr.create_array(store, name="a", shape=(40, 50), chunks=grid, dtype="<u2")[...] = VALUES
        zarr.create_array(store, name="b", shape=(40, 50), chunks=(5, 5), shards=grid, dtype="<u2")[...] = VALUES
        zarr.create_array(store, name="c", data=VALUES)
        with ps.serve(store) as server:
            nodes = {node["path"]: node for node in get(server.url, "/api/tree")["nodes"]}
            assert (nodes["a"]["chunks"], nodes["a"]["shards"]) == ([30, 25], None)
            assert (nodes["b"]["chunks"], nodes["b"]["shards"]) == ([5, 5], [30, 25])
            assert {"a", "b", "c"} == set(get(server.url, "/zarr/zarr.json")["consolidated_metadata"]["metadata"])
            for name in "abc":
                shown = pixels(server.url, f"/api/tile/{name}?axes=0,1&at=0,0&low=0&high=5000&map=gray")
                assert np.array_equal(shown, np.rint(np.rint(VALUES / 5000 * 254) / 254 * 255))
        assert "PNG" in repr(store.view("a"))


def test_a_pyramid_with_an_empty_level_is_shown_as_a_group() -> None:
    store = ps.PartsStore.from_url("memory://")
    datasets = [{"path": "0"}, {"path": "1"}]
    group = zarr.create_group(store, path="a", attributes={"multiscales": [{"datasets": datasets}]})
    group.create_array("0", data=VALUES)
    group.create_array("1", shape=(0, 0), chunks=(1, 1), dtype="u2")
    with ps.serve(store) as server:
        nodes = {node["path"]: node for node in get(server.url, "/api/tree")["nodes"]}
        assert "levels" not in nodes["a"]


def test_the_page_counts_beyond_32_bits(url: str) -> None:
    # JavaScript's operators of bits wrap, so that an axis of 2**31 values never ended a loop.
    script = ask(url, "/")[2].partition(b"<script")[2]
    assert b"<<" not in script
    assert b">>" not in script
