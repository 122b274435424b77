"""The list of groups and arrays is made as seldom as its age allows."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zarr

import parts_store as ps
from parts_store.store.inspection import Node
from parts_store.web import hierarchy
from parts_store.web.hierarchy import Hierarchy, Listing
from parts_store.web.looking import Looker


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


def test_the_page_of_many_groups_looks_at_each_array_once() -> None:
    arrays = [Node(f"a{number}", "array", 3, (1,)) for number in range(300)]
    groups = [Node(f"g{number}", "group", 3) for number in range(300)]
    looked: list[str] = []

    class Nodes(list[Node]):
        def __iter__(self) -> Iterator[Node]:
            for node in super().__iter__():
                looked.append(node.path)
                yield node

    pyramid = {"attributes": {"multiscales": [{"datasets": [{"path": "0"}]}]}}
    listing = Listing(Nodes([*arrays, *groups]), {node.path: pyramid for node in groups})
    looker = Looker(ps.PartsStore.from_url("memory://"), Listed(listing), "")  # type: ignore[arg-type] # only lists
    assert len(asyncio.run(looker.tree())["nodes"]) == 600
    assert len(looked) <= 3 * 600


class Listed:
    """A hierarchy that was listed."""

    def __init__(self, listing: Listing) -> None:
        self.found = listing

    async def listing(self) -> Listing:
        return self.found


def test_a_group_has_the_members_of_the_newest_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchy, "_MAX_AGE", 0)
    store = ps.PartsStore.from_url("memory://")
    group = zarr.create_group(store)

    async def ask(found: Hierarchy) -> set[str]:
        stored = await store.get_versioned("zarr.json")
        assert stored is not None
        served = await found.with_members("", stored)
        assert served.nbytes == sum(each.nbytes for each in served.pieces)
        document = json.loads(b"".join(served.pieces))
        assert document["attributes"] == dict(group.attrs)
        return set((document.get("consolidated_metadata") or {}).get("metadata", {}))

    async def main() -> None:
        found = Hierarchy(store, is_fixed=False)
        for number in range(3):
            await asyncio.to_thread(group.create_array, f"a{number}", shape=(1,), dtype="u1")
            monkeypatch.setattr(found, "_valid_until", 0.0)
            for _ in range(2):
                assert await ask(found) == {f"a{each}" for each in range(number + 1)}
            await asyncio.to_thread(group.attrs.__setitem__, "number", number)
            assert await ask(found) >= {f"a{each}" for each in range(number + 1)}

    asyncio.run(main())
