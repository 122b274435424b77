"""MinIO supports everything that writing needs, and says so at the cost that is documented."""

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from parts_store import cli
from parts_store.transactions import server

PARTS = [ps.Part(".header", size=64), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
SHARDED: dict[str, Any] = {"shape": (16, 16), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint16"}
VALUES = np.arange(1, 257, dtype="uint16").reshape(16, 16)


@pytest.fixture
def proxy(server: Server) -> Iterator[CountingProxy]:
    with CountingProxy(server.endpoint) as proxy:
        yield proxy


def through(bucket: Bucket, proxy: CountingProxy) -> ps.PartsStore:
    user = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
    return ps.PartsStore(bucket.store("data", user=user))


def test_check_reports_that_minio_supports_every_level(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    features = ps.PartsStore(bucket.store("data")).check()
    assert features.to_json() == {
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
    arguments = [word for name, value in bucket.server.options.items() for word in ("-o", f"{name}={value}")]
    assert cli.main(["check", "--json", f"s3://{bucket.name}/data", *arguments]) == 0
    assert json.loads(capsys.readouterr().out) == features.to_json()
    assert cli.main(["check", f"s3://{bucket.name}-absent/data", *arguments]) == 2
    assert bucket.list_keys() == set()


def test_a_probe_is_six_requests_once_for_a_bucket_and_prefix(bucket: Bucket, proxy: CountingProxy) -> None:
    store = through(bucket, proxy)
    proxy.requests.clear()
    array = ps.create_array(store, "a", parts=PARTS, **SHARDED)
    seen = list(proxy.requests)
    assert Counter(each.kind for each in seen) == {kind: count for kind, count in store.stats.calls.items() if count}
    asked = [each for each in seen if "probe-" in (each.key or "")]
    assert [(each.kind, each.status) for each in asked] == [
        ("put", 200),
        ("put", 412),
        ("head", 200),
        ("put", 200),
        ("put", 412),
    ]
    # The sixth names its keys in its body.
    assert Counter(each.kind for each in seen)["delete"] == 1
    proxy.requests.clear()
    array[...] = VALUES
    zarr.open_array(through(bucket, proxy), path="a")[...] = VALUES
    pickled = pickle.dumps(store)
    server._known.clear()
    zarr.open_array(pickle.loads(pickled), path="a")[...] = VALUES
    assert not any("probe-" in (each.key or "") for each in proxy.requests)
    assert not any("parts-txn" in key for key in bucket.list_keys())
