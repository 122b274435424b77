"""The store on Azure Blob Storage: zarr's own test suite, the README's guarantees, and several writers, on Azurite.

Where there is neither Azurite nor npm, these tests are skipped, and say so in one line.
"""

import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import AzureStore

import parts_store as ps
from integration.azurite import Azurite
from integration.store import test_contract as contract
from parts_store.store.options import Concurrency
from tests.test_guarantees import (  # noqa: F401 - the tests run here, with the fixture `objects` of this module
    test_a_client_that_may_only_read_sees_what_a_dead_writer_committed,
    test_a_missing_or_damaged_part_raises,
    test_a_read_returns_one_whole_write,
    test_a_writer_that_dies_leaves_the_old_chunk_or_the_new_one,
    test_an_array_that_was_created_again_with_another_layout_raises,
    test_partial_writes_of_one_shard_at_the_same_time_are_merged_or_raise,
    test_when_two_clients_write_a_chunk_at_once_one_write_survives_intact,
    test_with_full_a_delete_at_the_same_time_leaves_a_whole_chunk_or_none,
)

PARTS = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]


@dataclass(frozen=True, slots=True)
class Container:
    """A container for one test."""

    name: str
    server: Azurite

    def store(self, prefix: str | None = None) -> AzureStore:
        return AzureStore(self.name, prefix=prefix, **self.server.options, client_options={"allow_http": True})

    def list_keys(self) -> set[str]:
        return {each["path"] for page in obstore.list(self.store()) for each in page}


@pytest.fixture
def bucket(azure: Azurite) -> Container:
    container = Container(f"parts-store-{secrets.token_hex(8)}", azure)
    azure.make_container(container.name)
    return container


@pytest.fixture
def objects(bucket: Container) -> AzureStore:
    return bucket.store("data")


class _OnAzure:
    def test_store_repr(self, store: ps.PartsStore) -> None:
        assert re.fullmatch(r"PartsStore\(AzureStore\(.*\)\)", repr(store))


class TestPlainOnAzure(_OnAzure, contract.TestPlain):
    """Every key is an object."""


class TestWithPartsOnAzure(_OnAzure, contract.TestWithParts):
    """The keys that the suite writes are chunks of arrays with parts."""


@pytest.mark.parametrize("concurrency", contract.LEVELS)
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_zarrs_state_machines_find_no_difference_on_azure(bucket: Any, concurrency: Concurrency) -> None:
    parts = {"*": [ps.Part(""), ps.Part(".tail", size=0)]}
    contract.test_zarrs_state_machines_find_no_difference(bucket, parts, concurrency)


def test_check_finds_everything_that_writing_needs(objects: AzureStore) -> None:
    found = ps.PartsStore(objects).check()
    assert found.has_conditional_puts
    assert "full" in str(found)


def test_a_random_read_of_a_known_shard_is_one_request(objects: AzureStore) -> None:
    values = np.arange(64 * 64).reshape(64, 64)
    array = ps.create_array(
        ps.PartsStore(objects), "a", parts=PARTS, shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="int32"
    )
    array[:] = values + 1
    store = ps.PartsStore(objects)
    again = ps.open_array(store, path="a")
    assert again[3, 3] == values[3, 3] + 1
    store.stats.reset()
    np.testing.assert_array_equal(again[8:16, 16:24], values[8:16, 16:24] + 1)
    assert {kind: number for kind, number in store.stats.calls.items() if number} == {"get": 1}


def test_eight_writers_of_one_shard_lose_nothing(objects: AzureStore) -> None:
    ps.create_array(
        ps.PartsStore(objects), "a", parts=PARTS, shape=(64, 64), chunks=(8, 8), shards=(64, 64), dtype="int32"
    )[:] = -1

    def write(row: int) -> None:
        array = ps.open_array(ps.PartsStore(objects), path="a", mode="r+")
        for column in range(8):
            array[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = row * 8 + column

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    expected = np.arange(64).reshape(8, 8).repeat(8, axis=0).repeat(8, axis=1)
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[:], expected)
    report = ps.PartsStore(objects).verify()
    assert not report.is_damaged, str(report)


@pytest.mark.parametrize("shard_file", ["tiff", "hdf5"])
def test_shards_that_are_files_are_read_back(objects: AzureStore, shard_file: Any) -> None:
    values = np.random.default_rng(1).integers(1, 1000, (100, 90)).astype("uint16")
    array = ps.create_array(
        ps.PartsStore(objects),
        "a",
        shard_file=shard_file,
        shape=(100, 90),
        chunks=(16, 16),
        shards=(64, 64),
        dtype="uint16",
    )
    array[:] = values
    array[20:30, 20:30] = values[20:30, 20:30] = 7
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[:], values)
