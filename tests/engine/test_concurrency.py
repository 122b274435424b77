"""Many calls at the same time: the order of results, the limit, and what an error does to the other calls."""

import asyncio

import pytest

from parts_store.engine.concurrency import run_for_each


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_results_are_in_order_and_calls_are_limited(count: int, at_once: int) -> None:
    running: list[int] = []
    most = 0

    async def double(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await asyncio.sleep(0.001 * (count - number))
        running.remove(number)
        return 2 * number

    assert asyncio.run(run_for_each(range(count), double, at_once)) == [2 * number for number in range(count)]
    assert most == min(count, at_once)


def test_error_cancels_other_calls_and_is_raised_after_they_end() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def act(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.sleep(0 if number == 1 else 60)
            raise LookupError(number)
        finally:
            ended.append(number)

    with pytest.raises(LookupError, match="1"):
        asyncio.run(run_for_each(range(5), act, 3))
    assert begun == [0, 1, 2]
    assert sorted(ended) == [0, 1, 2]
