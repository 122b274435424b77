"""A destination that records its requests and can fail."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

from zarr.core.buffer import Buffer, BufferPrototype

import parts_store as ps
from tests.copying.places import Place, new_place


@dataclass
class Events:
    """What a store was asked for, and what is to go wrong."""

    sets: list[str] = field(default_factory=list)
    fails_at: int | None = None
    fails_late: bool = False
    reading: int = 0
    most_reading: int = 0
    reads: int = 0


class Watched(ps.PartsStore):
    """A store that fails at the n-th write, before or after it took place, and counts what is read at once."""

    events: Events

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self.events.sets.append(key)
        fails = len(self.events.sets) == self.events.fails_at
        if fails and not self.events.fails_late:
            raise OSError("the disk is full")
        await super().set(key, value)
        if fails:
            raise OSError("no answer came")

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: Any = None) -> Buffer | None:
        self.events.reads += 1
        self.events.reading += 1
        self.events.most_reading = max(self.events.most_reading, self.events.reading)
        await asyncio.sleep(0.001)
        try:
            return await super().get(key, prototype, byte_range)
        finally:
            self.events.reading -= 1


def new_watched(kind: str, folder: Path, cls: type[Watched] = Watched, **events: Any) -> Place:
    """Make a place whose store, and every store that is derived from it, records the same events."""
    watched = type(cls.__name__, (cls,), {"events": Events(**events)})
    return new_place(kind, folder, watched)


def events_of(place: Place) -> Events:
    assert isinstance(place.store, Watched)
    return place.store.events
