"""Concurrent partial writes, reads and deletes are linearizable per inner chunk of a shard."""

from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore

from tests.histories import CLIENTS, OPERATIONS, PARTS, Operation, is_linearizable, record, violations

# `make soak` runs more.
SEEDS = 2


def operation(begin: float, end: float, written: Any = None, found: Any = None) -> Operation:
    return Operation(begin, end, written, found)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([operation(0, 1, (1,)), operation(2, 3, found=(1,))], True),
        ([operation(0, 1, (1,)), operation(2, 3, found=(0,))], False),
        ([operation(0, 3, (1,)), operation(1, 2, found=(0,)), operation(4, 5, found=(1,))], True),
        (
            [operation(0, 3, (1,)), operation(0, 3, (2,)), operation(4, 5, found=(1,)), operation(6, 7, found=(2,))],
            False,
        ),
        ([operation(0, 9, (1,)), operation(1, 2, found=(1,)), operation(3, 4, found=(0,))], False),
    ],
)
def test_the_search_tells_histories_apart(operations: list[Operation], *, expected: bool) -> None:
    assert is_linearizable(operations, (0,)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "local"])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_inner_chunk_is_linearizable(pipeline: str, place: str, parts: str, seed: int, tmp_path: Path) -> None:
    objects = MemoryStore() if place == "memory" else LocalStore(tmp_path)
    histories = record(objects, PARTS[parts], seed)
    assert sum(map(len, histories)) > CLIENTS * OPERATIONS // 4
    assert violations(histories) == [], f"{pipeline}, seed {seed}"
