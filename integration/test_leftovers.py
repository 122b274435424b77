"""Beside a dead writer on a real server: few objects, few requests; and a mirror that kept old tags."""

from collections import Counter
from typing import Any

import numpy as np
import obstore
import pytest
import zarr

import parts_store as ps
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from integration.writers import Death, abandon
from parts_store import PartsStore
from parts_store.errors import IncompleteChunkError

# Overwrites with staged copies, as for large parts; `tests/transactions/test_embedding.py` has those without.
pytestmark = pytest.mark.usefixtures("large_parts")

NBYTES = 64
PARTS = [ps.Part(".head", size=4), ps.Part(""), ps.Part(".tail", size=4)]


def create(store: PartsStore) -> zarr.Array[Any]:
    array = ps.create_array(store, "a", parts=PARTS, shape=(NBYTES,), chunks=(NBYTES,), dtype="uint8", compressors=None)
    array[...] = 1
    return array


def beside(bucket: Bucket) -> set[str]:
    return {key for key in bucket.list_keys() if "/.parts-txn/" in key}


@pytest.mark.parametrize("death", [Death.COPY, Death.ANCHOR, Death.ALL_PARTS])
def test_objects_beside_a_chunk_do_not_grow_after_a_writer_died(bucket: Bucket, death: Death) -> None:
    array = create(PartsStore(bucket.store()))
    abandon(PartsStore(bucket.store()), "a/c/0", b"\x09" * NBYTES, death)
    for number in range(60):
        array[...] = number % 5 + 1
        if number % 10 == 9:
            # The dead writer's copy; the last one's, that it has finished, and that the one before has.
            assert len(beside(bucket)) <= 4
    np.testing.assert_array_equal(zarr.open_array(PartsStore(bucket.store()), path="a")[...], 59 % 5 + 1)
    report = PartsStore(bucket.store()).repair(min_age=0)
    assert report.is_clean
    assert beside(bucket) == set()


def test_overwrite_beside_leftovers_costs_one_head_and_one_put_more(bucket: Bucket, server: Server) -> None:
    with CountingProxy(server.endpoint) as proxy:
        user = Server(proxy.endpoint, server.access_key, server.secret_key)
        store = PartsStore(bucket.store(user=user))
        array = create(store)

        def cost() -> Counter[str]:
            array[...] = 2
            store.stats.reset()
            proxy.requests.clear()
            array[...] = 3
            found = Counter(each.kind for each in proxy.requests)
            assert found == {kind: count for kind, count in store.stats.calls.items() if count}
            return found

        alone = cost()
        abandon(PartsStore(bucket.store()), "a/c/0", b"\x09" * NBYTES, Death.COPY)
        for _ in range(3):
            array[...] = 4
        assert cost() - alone == Counter({"head": 1, "put": 1})


def test_a_mirror_that_skips_equal_bytes_is_refused_and_mended(bucket: Bucket) -> None:
    source, target = bucket.store("source"), bucket.store("target")
    header = b"HEAD"
    array = ps.create_array(
        PartsStore(source),
        "a",
        parts=[ps.Part(".header", size=len(header)), ps.Part("")],
        shape=(NBYTES,),
        chunks=(NBYTES,),
        dtype="uint8",
        compressors=[ps.codecs.pad_codec(nbytes=len(header), padding=header)],
    )

    def mirror() -> None:
        there = {each["path"] for batch in obstore.list(target) for each in batch}
        for key in [each["path"] for batch in obstore.list(source) for each in batch]:
            found = obstore.get(source, key)
            attributes, data = dict(found.attributes), bytes(found.bytes())
            if key not in there or bytes(obstore.get(target, key).bytes()) != data:
                obstore.put(target, key, data, attributes=attributes)

    array[...] = 1
    mirror()
    array[...] = 2
    mirror()
    store = PartsStore(target)
    with pytest.raises(IncompleteChunkError):
        zarr.open_array(store, path="a")[...]
    assert store.verify().is_damaged
    assert store.repair(min_age=0, retag=True).is_clean
    np.testing.assert_array_equal(zarr.open_array(PartsStore(target), path="a")[...], 2)
