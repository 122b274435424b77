"""Run one coroutine function for many items at the same time, with a limit."""

import asyncio
from collections.abc import Awaitable, Callable, Collection


async def run_for_each[T, R](items: Collection[T], act: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """Await `act(item)` for every item, at most `at_once` at the same time, and return the results in order.

    After the first error the other calls are cancelled. The error is raised when all of them have ended.
    """
    waiting = iter(enumerate(items))
    results: dict[int, R] = {}

    async def work() -> None:
        for number, item in waiting:
            results[number] = await act(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[number] for number in range(len(items))]
