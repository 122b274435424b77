"""Wrong shard indexes raise an error of parts_store, or return exactly the bytes that they name."""

import struct
from collections import Counter
from operator import itemgetter
from typing import Any

import google_crc32c
import numpy as np
import pytest
from zarr.abc.store import RangeByteRequest

from parts_store.errors import PartsStoreError
from parts_store.format.keys import Chunk
from parts_store.format.parts import ConcatParts, Part
from parts_store.format.shard_index import ShardIndex
from parts_store.transactions import shards
from parts_store.transactions.reading import ReadSettings
from parts_store.transactions.rules import Level, Rules
from parts_store.transactions.session import SessionProtocol
from tests.effort import examples
from tests.transactions.objects import Objects

SLOTS, MAIN = 4, bytes(range(40))
NBYTES = SLOTS * 16 + 4
NONE = 2**64 - 1


def fuzzed(seed: int) -> bytes:
    """An index of four inner chunks, mostly with a right checksum, with numbers that tend to be on some edge."""
    random = np.random.default_rng(seed)
    edges = [0, 1, 39, 40, 41, NONE, NONE - 1, 2**63, 2**63 - 1, 2**32, 10]
    numbers = [
        int(random.integers(0, random.choice([12, 45])))
        if random.random() < 0.8
        else edges[random.integers(len(edges))]
        for _ in range(2 * SLOTS)
    ]
    table = struct.pack(f"<{2 * SLOTS}Q", *numbers)
    checksum = google_crc32c.value(table) ^ int(random.random() < 0.1)
    return table + struct.pack("<I", checksum)


INDEX = ShardIndex(NBYTES, "end", SLOTS, "<u8", has_checksum=True)
CHUNK = Chunk("a/c/0", ConcatParts([Part(""), Part(".index", size=NBYTES)]), "a", is_split=True)
SETTINGS = ReadSettings(0, 1 << 20, 1)
PROTOCOL = SessionProtocol(Rules(Level.WRITERS, True, True, lambda: "0" * 32, lambda: lambda: 0.0))


def attempted(call: Any) -> Any:
    """What a call returns, None if it raises an error of ours; every other error is one of the test."""
    try:
        return call()
    except PartsStoreError:
        return None


def in_range(index: bytes) -> list[tuple[int, int]]:
    table = struct.unpack(f"<{2 * SLOTS}Q", index[:-4])
    pairs = list(zip(table[::2], table[1::2], strict=True))
    return [(start, nbytes) for start, nbytes in pairs if (start, nbytes) != (NONE, NONE)]


@pytest.mark.slow
def test_wrong_indexes_raise_errors_or_read_the_named_bytes() -> None:
    outcomes: Counter[tuple[bool, bool]] = Counter()
    for seed in range(examples(10_000)):
        index = fuzzed(seed)
        is_sound = google_crc32c.value(index[:-4]).to_bytes(4, "little") == index[-4:]
        bucket = Objects(has_tags=False)
        for key, data in zip(CHUNK.part_keys, (MAIN, index), strict=True):
            bucket.put(key, data)
        # Offsets count from the beginning of the shard, which ends with its index.
        shard, places = MAIN + index, in_range(index)
        is_there = all(not nbytes or start + nbytes <= len(MAIN) for start, nbytes in places)
        whole = attempted(lambda: bucket.run(shards.read_whole(PROTOCOL, CHUNK, INDEX, SETTINGS)))  # noqa: B023
        assert (whole is not None) == (is_sound and is_there), seed
        if whole is not None:
            # In the order in which they lie; of equals, in any.
            expected = b"".join(shard[start : start + nbytes] for start, nbytes in sorted(places, key=itemgetter(0)))
            assert b"".join(whole.values[0])[:-NBYTES] == expected
        versioned = attempted(
            lambda: bucket.run(  # noqa: B023
                shards.read_index(PROTOCOL, CHUNK, INDEX, SETTINGS, known=None, is_suspect=False)
            )
        )
        assert (versioned is not None) == is_sound, seed
        outcomes[is_sound, is_there] += 1
        wanted = [RangeByteRequest(start, start + nbytes) for start, nbytes in places if nbytes]
        if versioned is None or not wanted:
            continue
        read = attempted(lambda: bucket.run(shards.read_data(PROTOCOL, CHUNK, INDEX, wanted, SETTINGS, versioned)))  # noqa: B023
        assert (read is not None) == is_there, seed
        if read is not None:
            assert [b"".join(value) for value in read.values] == [shard[each.start : each.end] for each in wanted]
    # All of them were met, often.
    assert len(outcomes) == 4
    assert min(outcomes.values()) > examples(50)
