"""A server of a store on S3: many clients at once read equal values, with few requests and little memory."""

import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr

import parts_store as ps
from integration.conftest import Bucket
from tests.web.clients import CLIENTS, WITHOUT_SHARDS
from tests.web.served import NAMES, ask, expected, served, write_arrays

READERS = 50


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_read_arrays_that_are_on_s3(bucket: Bucket, client: str) -> None:
    write_arrays(ps.PartsStore(bucket.store()))
    # In a process of its own, because zarrs holds the lock of the interpreter while it reads.
    options = [f"--option={name}={value}" for name, value in bucket.server.options.items()]
    with served(f"s3://{bucket.name}", *options) as url:
        for name in WITHOUT_SHARDS if client == "GDAL" else NAMES:
            assert np.array_equal(CLIENTS[client](url, name), expected(name))


def test_a_range_of_a_chunk_is_one_request_and_of_a_chunk_in_parts_those_of_its_parts(bucket: Bucket) -> None:
    store = ps.PartsStore(bucket.store())
    write_arrays(store)
    with ps.serve(store) as server:
        for name, calls in (("shards", {"get": 1}), ("tiff", {"get": 1}), ("index", {"get": 1, "head": 1})):
            ask(server.url, f"/zarr/{name}/c/0/0", headers={"Range": "bytes=0-3"})
            # The index of a shard, and an inner chunk of it.
            for wanted, expected_calls in (("bytes=-40", calls), ("bytes=160-319", {"get": 1})):
                store.stats.reset()
                assert ask(server.url, f"/zarr/{name}/c/0/0", headers={"Range": wanted})[0] == 206
                assert {kind: number for kind, number in store.stats.calls.items() if number} == expected_calls


@pytest.mark.slow
def test_many_clients_at_the_same_time_get_no_error_and_memory_stays_flat(bucket: Bucket) -> None:
    store = ps.PartsStore(bucket.store())
    values = np.random.default_rng(0).integers(0, 1 << 16, (4096, 2048), "u2")
    zarr.create_array(store, name="large", data=values, chunks=(256, 256), shards=(2048, 2048), compressors=None)
    write_arrays(store)
    keys = ["large/c/0/0", "large/c/1/0", *[f"{name}/c/0/0" for name in NAMES]]
    with ps.serve(store) as server:
        wanted = {key: ask(server.url, f"/zarr/{key}")[2] for key in keys}

        def read(number: int) -> bool:
            key = keys[number % len(keys)]
            start = number % (len(wanted[key]) - 1)
            if number % 3:
                body = ask(server.url, f"/zarr/{key}", headers={"Range": f"bytes={start}-{start + 999}"})[2]
                return body == wanted[key][start : start + 1000]
            return ask(server.url, f"/zarr/{key}")[2] == wanted[key]

        with ThreadPoolExecutor(READERS) as pool:
            assert all(pool.map(read, range(500)))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert all(pool.map(read, range(1000)))
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kibibytes. The values that were sent a second time are two gigabytes.
    assert after - before < 300_000
