"""Verifying never says that all is in order where an array cannot be opened."""

import json
from pathlib import Path
from typing import Any

import obstore
import pytest
import zarr
from obstore.store import LocalStore

import parts_store as ps
from parts_store.cli import main

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
# What is put in place of members of the document; or what is there in place of the document.
CHANGES: dict[str, dict[str, Any] | bytes] = {
    "no JSON": b"{",
    "no object": b"[]",
    "empty": b"",
    "no text": b"\xff\xfe",
    "no members": b"{}",
    "another kind of node": {"node_type": "cube"},
    "another format": {"zarr_format": 4},
    "unknown codec": {"codecs": [{"name": "unknown-name"}, BYTES]},
    "unknown inner codec": {
        "codecs": [
            {"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": [{"name": "unknown-name"}]}}
        ]
    },
    "wrong configuration": {"codecs": [BYTES, {"name": "gzip", "configuration": {"level": "high"}}]},
    "unknown type": {"data_type": "uint7"},
    "unknown grid": {"chunk_grid": {"name": "hexagonal"}},
    "no shape": {"shape": None},
    "unknown transformer": {"storage_transformers": [{"name": "unknown-name"}]},
    "two transformers": {"storage_transformers": [{"name": "concat-parts"}, {"name": "concat-parts"}]},
    "wrong parts": {"storage_transformers": [{"name": "concat-parts", "configuration": {"parts": []}}]},
    "unknown member": {"unknown-name": {"must_understand": True}},
}


def can_be_opened(store: ps.PartsStore, path: str) -> bool:
    try:
        zarr.open_array(store, path=path, zarr_format=3)
    except Exception:
        return False
    return True


@pytest.mark.sampled(5)
@pytest.mark.parametrize("has_parts", [True, False])
@pytest.mark.parametrize("what", CHANGES)
def test_verify_reports_an_array_that_cannot_be_opened(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str], *, has_parts: bool
) -> None:
    objects = LocalStore(tmp_path)
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (4,), "dtype": "uint8", "compressors": None}
    ps.create_array(store, "good", parts=["", ps.Part(".t", size=2)], **arguments)[:] = 1
    if has_parts:
        ps.create_array(store, "bad", parts=["", ps.Part(".t", size=2)], **arguments)[:] = 1
    else:
        zarr.create_array(store, name="bad", **arguments)[:] = 1
    change = CHANGES[what]
    if isinstance(change, bytes):
        obstore.put(objects, "bad/zarr.json", change)
    else:
        document = json.loads(bytes(obstore.get(objects, "bad/zarr.json").bytes()))
        obstore.put(objects, "bad/zarr.json", json.dumps(document | change).encode())
    fresh = ps.PartsStore(objects)
    assert not can_be_opened(fresh, "bad")
    assert can_be_opened(fresh, "good")
    for report in (fresh.verify(), fresh.verify("bad"), fresh.repair()):
        assert [path for path, _ in report.not_understood] == ["bad"]
        assert report.is_damaged
        assert not report.is_clean
        assert "no problems found" not in str(report)
        assert "not understood: bad: " in str(report)
    assert main(["verify", str(tmp_path)]) != 0
    assert "bad" in capsys.readouterr().out
    assert fresh.verify("good").is_clean


def test_verify_reports_openable_arrays_as_sound(tmp_path: Path) -> None:
    store = ps.PartsStore(LocalStore(tmp_path))
    zarr.create_group(store, attributes={"a": 1})
    shards: dict[str, Any] = {"shape": (8, 8), "chunks": (2, 2), "shards": (4, 4), "dtype": "float32"}
    parts: list[str | ps.Part] = ["", ps.Part(".index", size=ps.SHARD_INDEX)]
    ps.create_array(store, "shards", parts=parts, **shards)[:] = 1
    zarr.create_array(store, name="plain", dimension_names=("y", "x"), **shards)[:] = 1
    zarr.create_array(store, name="text", shape=(2,), chunks=(2,), dtype="datetime64[s]")[:] = 1
    zarr.create_group(store, path="v2", zarr_format=2)
    report = store.verify()
    assert not report.not_understood
    assert report.is_clean
    assert str(report).endswith("no problems found")
