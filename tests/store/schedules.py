"""Random schedules of two stores over one array that both create, open, write, resize, delete and consolidate.

Every schedule follows from its seed. An oracle keeps what the array holds, chunk by chunk, and says after each step
whether the outcome is allowed:

- A handle of the array as it is now reads its values, and writes what every other reader sees.
- A handle of an array that was created again with another layout since, or deleted, raises.

What the documentation names as a limit is left out of the schedules: on an object store, a handle of an earlier array
is only used on chunks at whose old anchor there is a tagged object, and not for writes and deletes that look at nothing
first. A store that was served a newer document since has no older handle: a store does not know which handle asks.
"""

import random
import warnings
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import obstore
import zarr
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore
from zarr.core.sync import sync
from zarr.errors import ZarrUserWarning

import parts_store as ps

CHUNKS = 2
STEPS = 12
PATH = "g/x"
USES = ("read", "write", "write in part", "resize")


@dataclass(frozen=True)
class Spec:
    """How an array is created: its parts, None for none, by suffix and size; its type; the length of a chunk."""

    parts: tuple[tuple[str, int | None], ...] | None
    dtype: str = "uint16"
    chunk: int = 4

    @property
    def anchor(self) -> str:
        """The suffix of the part that decides whether a chunk exists."""
        suffixes = [suffix for suffix, _ in self.parts or (("", None),)]
        unsized = [suffix for suffix, size in self.parts or () if size is None]
        return "" if "" in suffixes else unsized[0]


SPECS = [
    Spec((("", None), (".t", 2))),
    Spec(((".t", 2), ("", None))),
    Spec((("", None), (".t", 2)), dtype="int16"),
    Spec((("", None), (".t", 2)), dtype="uint8", chunk=8),
    Spec((("", None), (".t", 4))),
    Spec(((".a", 4), (".b", None))),
    Spec(((".b", None), (".a", 4))),
    Spec((("", None),)),
    Spec(None),
]


@dataclass(frozen=True)
class Action:
    """One step of one of the two stores."""

    actor: int
    name: str
    spec: Spec | None = None
    # Chunks that are written, or the one that is written in part; the new number of chunks.
    chunk: int = 0
    value: int = 0


class Actor(Protocol):
    """A process with one store, and at most one handle of the array."""

    def carry_out(self, action: Action) -> tuple[str, Any]:
        """Return `("done", value)`, or `("raised", description)`."""


class Here:
    """An actor in this process."""

    def __init__(self, objects: Any) -> None:
        self.store = ps.PartsStore(objects)
        self.array: zarr.Array[Any] | None = None

    def carry_out(self, action: Action) -> tuple[str, Any]:
        try:
            return "done", self._carry_out(action)
        except Exception as error:
            return "raised", f"{type(error).__name__}: {error}"

    def _carry_out(self, action: Action) -> Any:
        array = self.array
        match action.name:
            case "create":
                assert action.spec is not None
                self.array = _create(self.store, action.spec)
                self.array[:] = _values(action.spec.dtype, CHUNKS * action.spec.chunk, action.value)
            case "delete":
                sync(self.store.delete_dir(PATH))
            case "consolidate":
                zarr.consolidate_metadata(self.store, path="g")
            case "open":
                self.array = None
                self.array = zarr.open_array(self.store, path=PATH)
                return self.array.shape
            case "open consolidated":
                self.array = None
                found = zarr.open_consolidated(self.store, path="g")["x"]
                assert isinstance(found, zarr.Array)
                self.array = found
                return found.shape
            case "forget":
                self.array = None
        return None if array is None else self._use(array, action)

    def _use(self, array: zarr.Array[Any], action: Action) -> Any:
        length = array.chunks[0]
        match action.name:
            case "read":
                return np.asarray(array[:])
            case "write":
                array[action.chunk * length : (action.chunk + 1) * length] = _values(array.dtype, length, action.value)
            case "write in part":
                array[action.chunk * length + 1] = action.value
            case "resize":
                array.resize((action.chunk * length,))
        return None


def _create(store: ps.PartsStore, spec: Spec) -> zarr.Array[Any]:
    arguments: dict[str, Any] = {
        "shape": (CHUNKS * spec.chunk,),
        "chunks": (spec.chunk,),
        "dtype": spec.dtype,
        "compressors": None,
        "overwrite": True,
    }
    if spec.parts is None:
        return zarr.create_array(store, name=PATH, **arguments)
    parts = [ps.Part(suffix, size=size) for suffix, size in spec.parts]
    return ps.create_array(store, PATH, parts=parts, **arguments)


def _values(dtype: Any, length: int, value: int) -> NDArray[Any]:
    """Values of which no two are the same in a chunk, none is the fill value, and the bytes of each differ."""
    return (np.arange(length) * 7 + value).astype(dtype)


class There:
    """An actor in a process of its own, on a local disk."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def begin(self, root: Path) -> None:
        """Begin again with a new store."""
        self._pipe.send(str(root))
        self._pipe.recv()

    def carry_out(self, action: Action) -> tuple[str, Any]:
        self._pipe.send(action)
        result: tuple[str, Any] = self._pipe.recv()
        return result

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()


def _serve(pipe: Connection) -> None:
    warnings.simplefilter("ignore", ZarrUserWarning)
    actor: Here | None = None
    while (received := pipe.recv()) is not None:
        if isinstance(received, str):
            actor = Here(LocalStore(received))
            pipe.send(None)
        elif actor is not None:
            pipe.send(actor.carry_out(received))


@dataclass
class Content:
    """What an array holds, and how it was created: every creation is another one."""

    spec: Spec
    count: int = CHUNKS
    chunks: dict[int, NDArray[Any]] = field(default_factory=dict)

    def read(self, count: int) -> NDArray[Any]:
        """The values of so many chunks."""
        empty = np.zeros(self.spec.chunk, self.spec.dtype)
        return np.concatenate([empty[:0], *(self.chunks.get(number, empty) for number in range(count))])


@dataclass
class Handle:
    """What a handle was opened as, its number of chunks, and whether it was opened with consolidated metadata."""

    content: Content
    count: int
    is_consolidated: bool = False


@dataclass
class Result:
    """What became of schedules."""

    schedules: int = 0
    steps: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


class Schedule:
    """One schedule, its oracle, and what it found."""

    def __init__(self, seed: int, actors: tuple[Actor, Actor], objects: Any, result: Result) -> None:
        self.random = random.Random(seed)
        self.seed, self.actors, self.objects, self.result = seed, actors, objects, result
        self.is_local = isinstance(objects, LocalStore)
        self.now: Content | None = None
        # What consolidated metadata says of the array, if there is any: None for no array.
        self.is_consolidated = False
        self.consolidated: Handle | None = None
        self.handles: list[Handle | None] = [None, None]
        self.log: list[str] = []

    def run(self) -> None:
        """Carry out the steps; note what is wrong, and stop there."""
        zarr.create_group(ps.PartsStore(self.objects), path="g")
        before = len(self.result.wrong)
        for _ in range(STEPS):
            if (action := self._choose()) is not None:
                self._step(action)
            if len(self.result.wrong) > before:
                break
        else:
            self._compare_with_fresh_reader()
        self.result.schedules += 1

    def _choose(self) -> Action | None:
        actor = self.random.randrange(2)
        handle = self.handles[actor]
        if self.now is None:
            names = ["create"] * 4 + ["open", "open consolidated"]
        else:
            names = ["create"] * 3 + ["delete", "consolidate", "consolidate", "open", "open consolidated"]
        if handle is not None:
            names += ["read"] * 6 + ["write"] * 4 + ["write in part"] * 3 + ["resize"] * 2
        name = self.random.choice(names)
        spec = self.random.choice(SPECS) if name == "create" else None
        count = 1 if handle is None else handle.count
        chunk = self.random.randrange(1, 4) if name == "resize" else self.random.randrange(count)
        action = Action(actor, name, spec, chunk, self.random.randrange(1, 100))
        return None if self._is_limit(action) else action

    def _is_limit(self, action: Action) -> bool:
        """Return whether the documentation says that nothing can be promised of a step."""
        handle = self.handles[action.actor]
        if handle is None or self._is_current(handle) or action.name not in USES:
            return False
        if self.now is None and handle.content.spec.parts is None:
            # An array without parts that is gone is zarr's affair.
            return True
        if action.name == "resize":
            # A smaller shape deletes chunks first. The document of an array without parts is written without a look.
            # An array that is gone is not told from one that is being created, if consolidated metadata mentions it.
            is_blind = action.chunk < handle.count or handle.content.spec.parts is None
            return (self.now is None and handle.is_consolidated) or (not self.is_local and is_blind)
        if self.is_local:
            return False
        if action.name == "write" and (handle.content.spec.parts is None or len(handle.content.spec.parts) == 1):
            return True
        numbers = [action.chunk] if action.name != "read" else range(handle.count)
        return not any(self._has_tagged_anchor(handle, number) for number in numbers)

    def _has_tagged_anchor(self, handle: Handle, number: int) -> bool:
        key = f"{PATH}/c/{number}{handle.content.spec.anchor}"
        try:
            return "partsgen" in obstore.get(self.objects, key).attributes
        except FileNotFoundError:
            return False

    def _is_current(self, handle: Handle) -> bool:
        """Return whether the array is still the one that was opened, or was created again just like it."""
        return self.now is not None and self.now.spec == handle.content.spec

    def _step(self, action: Action) -> None:
        handle = self.handles[action.actor]
        outcome, value = self.actors[action.actor].carry_out(action)
        self.result.steps += 1
        self.log.append(f"{action} -> {outcome} {value!r}")
        match action.name:
            case "create":
                assert action.spec is not None
                whole = _values(action.spec.dtype, CHUNKS * action.spec.chunk, action.value)
                self.now = Content(action.spec, CHUNKS, dict(enumerate(np.split(whole, CHUNKS))))
                self.handles[action.actor] = Handle(self.now, CHUNKS)
                self._require(outcome == "done", "an array cannot be created")
            case "delete":
                self.now = None
                self._drop_handle(action.actor)
                self._require(outcome == "done", "an array cannot be deleted")
            case "consolidate":
                self._require(outcome == "done", "metadata cannot be consolidated")
                self.is_consolidated = True
                self.consolidated = None if self.now is None else Handle(self.now, self.now.count)
                # zarr was served the array as it is now.
                if handle is not None and not self._is_current(handle):
                    self._drop_handle(action.actor)
            case "open":
                self._opened(action.actor, None if self.now is None else Handle(self.now, self.now.count), outcome)
            case "open consolidated":
                found = self.consolidated
                self._opened(
                    action.actor,
                    None if found is None else Handle(found.content, found.count, is_consolidated=True),
                    outcome,
                )
            case _:
                assert handle is not None
                self._use(action, handle, outcome, value)

    def _drop_handle(self, actor: int) -> None:
        self.handles[actor] = None
        self.actors[actor].carry_out(Action(actor, "forget"))

    def _opened(self, actor: int, expected: Handle | None, outcome: str) -> None:
        self._require((outcome == "done") == (expected is not None), "opened what is not there, or not what is")
        self.handles[actor] = expected

    def _use(self, action: Action, handle: Handle, outcome: str, value: Any) -> None:
        if self.now is None or not self._is_current(handle):
            self._require(outcome == "raised", "a handle of another array was used")
            return
        if outcome == "raised":
            self.result.refused += 1
            self._require(False, "a handle of the array as it is was refused")
            return
        length = self.now.spec.chunk
        match action.name:
            case "read":
                expected = self.now.read(handle.count)
                is_same = value.dtype == expected.dtype and np.array_equal(value, expected)
                self._require(is_same, f"expected {expected.tolist()}")
            case "write":
                self.now.chunks[action.chunk] = _values(self.now.spec.dtype, length, action.value)
            case "write in part":
                chunk = self.now.chunks.get(action.chunk, np.zeros(length, self.now.spec.dtype)).copy()
                chunk[1] = action.value
                self.now.chunks[action.chunk] = chunk
            case "resize":
                for number in range(action.chunk, handle.count):
                    self.now.chunks.pop(number, None)
                handle.count = self.now.count = action.chunk

    def _compare_with_fresh_reader(self) -> None:
        """Compare with what a store reads that knows nothing, and with every chunk as it is."""
        if self.now is None:
            return
        fresh = Here(self.objects)
        fresh.carry_out(Action(0, "open"))
        outcome, value = fresh.carry_out(Action(0, "read"))
        expected = self.now.read(self.now.count)
        is_same = outcome == "done" and value.dtype == expected.dtype and np.array_equal(value, expected)
        self.log.append(f"fresh reader -> {outcome} {value!r}")
        self._require(is_same, f"a fresh reader does not see {expected.tolist()}")

    def _require(self, is_right: bool, problem: str) -> None:
        if not is_right:
            steps = "\n  ".join(self.log)
            self.result.wrong.append(f"seed {self.seed}: {problem}\n  {steps}")


def run_in_memory(seeds: range) -> Result:
    """Run the schedules of these seeds, each with two stores on one store in memory."""
    result = Result()
    for seed in seeds:
        objects = MemoryStore()
        Schedule(seed, (Here(objects), Here(objects)), objects, result).run()
    return result


def run_on_disk(seeds: range, root: Path) -> Result:
    """Run the schedules of these seeds, each with two stores on one folder."""
    result = Result()
    for seed in seeds:
        folder = root / str(seed)
        folder.mkdir()
        objects = LocalStore(folder)
        Schedule(seed, (Here(objects), Here(objects)), objects, result).run()
    return result


def run_in_processes(seeds: range, root: Path) -> Result:
    """Run the schedules of these seeds on a local disk, with one of the two stores in another process."""
    result = Result()
    there = There()
    try:
        for seed in seeds:
            folder = root / str(seed)
            folder.mkdir()
            there.begin(folder)
            objects = LocalStore(folder)
            Schedule(seed, (Here(objects), there), objects, result).run()
    finally:
        there.close()
    return result
