"""The list of groups and arrays is made as seldom as its age allows."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import zarr

import parts_store as ps
from parts_store.web import hierarchy
from parts_store.web.hierarchy import Hierarchy


@pytest.mark.parametrize(("duration", "until"), [(0.0, 5.0), (4.0, 8.0), (20.0, 40.0)])
def test_a_list_is_kept_for_five_seconds_or_twice_the_time_that_it_takes(
    monkeypatch: pytest.MonkeyPatch, duration: float, until: float
) -> None:
    store = ps.PartsStore.from_url("memory://")
    zarr.create_group(store)
    now, begun = [0.0], []
    inspect: Any = vars(hierarchy)["inspect"]

    def slow(listed: ps.PartsStore) -> Any:
        begun.append(now[0])
        now[0] += duration
        return inspect(listed)

    monkeypatch.setattr(hierarchy, "inspect", slow)
    monkeypatch.setattr(hierarchy, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def ask() -> None:
        found = Hierarchy(store, is_fixed=False)
        await found.listing()
        for moment in (until - 0.1, until + 0.1):
            now[0] = moment
            assert [node.path for node in (await found.listing()).nodes] == [""]

    asyncio.run(ask())
    assert begun == [0.0, until + 0.1]
