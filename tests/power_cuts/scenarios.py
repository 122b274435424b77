"""Calls of a store that a power cut interrupts, and the values that are stored before, between and after them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps

type Values = tuple[bytes | None, ...]
type Act = Callable[[ps.PartsStore], object]

NBYTES = 12
OLD, NEW, NEWER = b"old " * 3, b"new " * 3, b"NEWER and longer"
TWO = ["", {"key_suffix": ".end", "size": 4}]
THREE = [{"key_suffix": ".start", "size": 2}, "", {"key_suffix": ".end", "size": 4}]
ONE = [""]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Calls of a store one after the other, and what a reader finds before the first and after each of them."""

    prepare: Act
    acts: tuple[Act, ...]
    read: Callable[[ps.PartsStore], Values]
    values: tuple[Values, ...]
    # A call that works after the power cut, and what a reader finds then.
    again: Act
    last: Values


def array(name: str, parts: Any, chunks: tuple[int, ...] = (1,)) -> Act:
    """Create an array whose chunks may have any number of bytes."""
    arguments: dict[str, Any] = {"shape": tuple(4 * each for each in chunks), "chunks": chunks, "dtype": "int8"}
    arguments["overwrite"] = True
    if parts is None:
        return lambda store: zarr.create_array(store, name=name, **arguments)
    return lambda store: ps.create_array(store, name, parts=parts, **arguments)


def put(key: str, value: bytes) -> Act:
    return lambda store: store.set_sync(key, cpu.Buffer.from_bytes(value))


def put_new(key: str, value: bytes) -> Act:
    return lambda store: sync(store.set_if_not_exists(key, cpu.Buffer.from_bytes(value)))


def put_with_loop(key: str, value: bytes) -> Act:
    return lambda store: sync(store.set(key, cpu.Buffer.from_bytes(value)))


def delete(key: str) -> Act:
    return lambda store: store.delete_sync(key)


def delete_folder(folder: str) -> Act:
    return lambda store: sync(store.delete_dir(folder))


def repair(store: ps.PartsStore) -> None:
    store.repair(min_age=0)


def together(*acts: Act) -> Act:
    return lambda store: [act(store) for act in acts]


def read(*keys: str) -> Callable[[ps.PartsStore], Values]:
    def of(store: ps.PartsStore) -> Values:
        found = [store.get_sync(key, prototype=default_buffer_prototype()) for key in keys]
        return tuple(None if each is None else each.to_bytes() for each in found)

    return of


def of_chunk(parts: Any, key: str, *acts: tuple[Act, bytes | None], old: bytes | None = None) -> Scenario:
    """Return a scenario of one chunk of an array."""
    chunks = (1,) * (key.count("/") - 1)
    prepare = [array("a", parts, chunks), *([] if old is None else [put(key, old)])]
    values = [(old,), *((value,) for _, value in acts)]
    return Scenario(
        together(*prepare), tuple(act for act, _ in acts), read(key), tuple(values), put(key, NEWER), (NEWER,)
    )


def _attributes(store: ps.PartsStore) -> Values:
    document = store.get_sync("a/zarr.json", prototype=default_buffer_prototype())
    return (None if document is None else str(dict(zarr.open_array(store, path="a", mode="r").attrs)).encode(),)


def _set_attributes(number: int) -> Act:
    return lambda store: zarr.open_array(store, path="a", mode="r+").attrs.update({"n": number})


def _shards(store: ps.PartsStore) -> zarr.Array[Any]:
    parts = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
    return ps.create_array(store, "a", parts=parts, shape=(8,), chunks=(2,), shards=(8,), dtype="int8")


def _set_values(start: int, stop: int, value: int) -> Act:
    def act(store: ps.PartsStore) -> None:
        zarr.open_array(store, path="a", mode="r+")[start:stop] = value

    return act


def _read_values(store: ps.PartsStore) -> Values:
    return (np.asarray(zarr.open_array(store, path="a", mode="r")[:]).tobytes(),)


def _resize(store: ps.PartsStore) -> None:
    zarr.open_array(store, path="a", mode="r+").resize((2,))


CHUNK, DEEP = "a/c/0", "a/c/1/2"
SCENARIOS = {
    "create": of_chunk(TWO, CHUNK, (put(CHUNK, NEW), NEW)),
    "create in a new folder": of_chunk(TWO, DEEP, (put(DEEP, NEW), NEW)),
    "create three parts": of_chunk(THREE, CHUNK, (put(CHUNK, NEW), NEW)),
    "create if absent": of_chunk(TWO, CHUNK, (put_new(CHUNK, NEW), NEW)),
    "overwrite": of_chunk(TWO, CHUNK, (put(CHUNK, NEW), NEW), old=OLD),
    "overwrite with an event loop": of_chunk(TWO, CHUNK, (put_with_loop(CHUNK, NEW), NEW), old=OLD),
    "overwrite three parts": of_chunk(THREE, CHUNK, (put(CHUNK, NEWER), NEWER), old=OLD),
    "overwrite twice": of_chunk(TWO, CHUNK, (put(CHUNK, NEWER), NEWER), (put(CHUNK, NEW), NEW), old=OLD),
    "delete": of_chunk(TWO, CHUNK, (delete(CHUNK), None), old=OLD),
    "delete in a folder": of_chunk(TWO, DEEP, (delete(DEEP), None), old=OLD),
    "overwrite and delete": of_chunk(TWO, CHUNK, (put(CHUNK, NEW), NEW), (delete(CHUNK), None), old=OLD),
    "delete and create": of_chunk(TWO, CHUNK, (delete(CHUNK), None), (put(CHUNK, NEW), NEW), old=OLD),
    "one part": of_chunk(ONE, DEEP, (put(DEEP, OLD), OLD), (put(DEEP, NEW), NEW), (delete(DEEP), None)),
    "no parts": of_chunk(None, DEEP, (put(DEEP, OLD), OLD), (put(DEEP, NEW), NEW), (delete(DEEP), None)),
    "no parts, if absent": of_chunk(None, DEEP, (put_new(DEEP, NEW), NEW)),
    "two chunks": Scenario(
        together(array("a", TWO), put(CHUNK, OLD)),
        (put(CHUNK, NEW), put("a/c/1", NEW)),
        read(CHUNK, "a/c/1"),
        ((OLD, None), (NEW, None), (NEW, NEW)),
        together(put(CHUNK, NEWER), put("a/c/1", OLD)),
        (NEWER, OLD),
    ),
    "a strange key": Scenario(
        lambda _: None,
        (put("notes of the day", OLD), put("notes of the day", NEW)),
        read("notes of the day"),
        ((None,), (OLD,), (NEW,)),
        put("notes of the day", NEWER),
        (NEWER,),
    ),
    "document": Scenario(
        together(array("a", TWO), _set_attributes(1)),
        (_set_attributes(2),),
        _attributes,
        ((b"{'n': 1}",), (b"{'n': 2}",)),
        _set_attributes(3),
        (b"{'n': 3}",),
    ),
    "new array": Scenario(
        lambda _: None, (array("a", TWO),), _attributes, ((None,), (b"{}",)), array("a", THREE), (b"{}",)
    ),
    "merge of a shard": Scenario(
        together(_shards, _set_values(0, 8, 1)),
        (_set_values(0, 2, 2), _set_values(2, 4, 3)),
        _read_values,
        ((b"\1" * 8,), (b"\2\2" + b"\1" * 6,), (b"\2\2\3\3" + b"\1" * 4,)),
        _set_values(0, 8, 4),
        (b"\4" * 8,),
    ),
    "smaller array": Scenario(
        together(array("a", TWO), put("a/c/1", OLD), put("a/c/2", OLD), put("a/c/3", OLD)),
        (_resize,),
        read("a/c/1", "a/c/2", "a/c/3"),
        ((OLD, OLD, OLD), (OLD, None, None)),
        together(put("a/c/1", NEWER), put("a/c/2", NEW), put("a/c/3", NEW)),
        (NEWER, NEW, NEW),
    ),
    "delete an array": Scenario(
        together(array("a", TWO), put(CHUNK, OLD), put("a/c/1", OLD)),
        (put(CHUNK, NEW), delete_folder("a")),
        read("a/c/0.end", CHUNK, "a/c/1"),
        ((None, OLD, OLD), (None, NEW, OLD), (None, None, None)),
        together(array("a", TWO), put(CHUNK, NEWER), put("a/c/1", NEWER)),
        (None, NEWER, NEWER),
    ),
}

# The first call is killed, then other processes go on.
KILLED = {
    "overwrite, then overwrite": of_chunk(TWO, CHUNK, (put(CHUNK, NEWER), NEWER), (put(CHUNK, NEW), NEW), old=OLD),
    "overwrite, then delete": of_chunk(TWO, CHUNK, (put(CHUNK, NEW), NEW), (delete(CHUNK), None), old=OLD),
    "overwrite, then repair and delete": of_chunk(
        TWO, CHUNK, (put(CHUNK, NEW), NEW), (together(repair, delete(CHUNK)), None), old=OLD
    ),
    "create, then create": of_chunk(TWO, CHUNK, (put(CHUNK, NEWER), NEWER), (put(CHUNK, NEW), NEW)),
    "delete, then create": of_chunk(TWO, CHUNK, (delete(CHUNK), None), (put(CHUNK, NEW), NEW), old=OLD),
}


def opened(folder: Path, *, durable: bool = False) -> ps.PartsStore:
    return ps.PartsStore.from_url(folder, durable=durable)
