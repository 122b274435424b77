"""The codec pipeline through a bad network: a read returns the values or raises, and no chunk is torn."""

from typing import Any

import numpy as np
import pytest
from obstore.store import S3Store

import parts_store as ps
from integration.chaos.network import PATIENT
from integration.chaos.plan import Plan
from integration.conftest import Bucket
from integration.toxics import Proxy, Toxic, toxic
from parts_store.errors import PartsStoreError

TOXICS: dict[str, Toxic] = {
    "slow": toxic("latency", "downstream", latency=30, jitter=30),
    "resets": toxic("reset_peer", "downstream", 0.2),
    "no answers": toxic("timeout", "downstream", 0.2, timeout=300),
    "answers cut off": toxic("limit_data", "downstream", 0.2, bytes=100),
}
SHARDED: dict[str, Any] = {"shape": (64, 64), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint16"}
PARTS = [ps.Part(".head", size=8), ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


@pytest.mark.parametrize("name", TOXICS)
def test_a_bad_network_gives_values_or_an_error_with_a_key(bad_network: Proxy, bucket: Bucket, name: str) -> None:
    values = np.arange(1, 64 * 64 + 1, dtype="uint16").reshape(64, 64)
    direct = ps.PartsStore(bucket.store())
    ps.create_array(direct, "a", parts=PARTS, compressors=None, **SHARDED)[...] = values
    options = Plan.options_of(bad_network.server, client_options=PATIENT, retry_config={"max_retries": 0})
    array = ps.open_array(ps.PartsStore(S3Store(bucket.name, **options)), "a", mode="r+")
    bad_network.poison(TOXICS[name])
    failed_reads: list[str] = []
    failed_writes: list[str] = []
    for number in range(6):
        for selection in (np.s_[...], np.s_[5:50, 7], np.s_[::9, ::5]):
            try:
                np.testing.assert_array_equal(array[selection], values[selection])
            except PartsStoreError as error:
                failed_reads.append(str(error))
        new = values + np.uint16(4096 * (number + 1))
        try:
            array[...] = new
        except PartsStoreError as error:
            failed_writes.append(str(error))
        found = np.asarray(ps.open_array(ps.PartsStore(bucket.store()), "a")[...])
        for row in range(0, 64, 16):
            for column in range(0, 64, 16):
                shard = np.s_[row : row + 16, column : column + 16]
                assert found[shard].tolist() in (values[shard].tolist(), new[shard].tolist())
        values = found
    assert bool(failed_reads) == (name != "slow")
    assert all("a/c/" in message for message in failed_reads)
    # A write may also fail when it looks for other writers, or at what the server supports.
    assert all("'a/" in message for message in failed_writes)
