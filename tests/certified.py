"""Chunks that tell whether they are one whole write, and a process that changes them in random ways."""

import asyncio
import hashlib
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from zarr.core.buffer import cpu, default_buffer_prototype

import parts_store as ps
from parts_store.errors import ConcurrentWriteError, LayoutChangedError, PartsStoreError

NBYTES = 4000
SEED = 16
CHUNKS = 3
PARTS: list[Any] = [ps.Part(".head", size=SEED), "", ps.Part(".tail", size=500)]


def value_of(seed: bytes) -> bytes:
    """The only value that begins with this seed."""
    return seed + hashlib.shake_128(seed).digest(NBYTES - SEED)


def new_value(numbers: random.Random) -> bytes:
    return value_of(numbers.randbytes(SEED))


def is_whole(value: bytes) -> bool:
    return value == value_of(value[:SEED])


def create(store: ps.PartsStore, path: str, *, overwrite: bool = False) -> None:
    shape: dict[str, Any] = {"shape": (CHUNKS * NBYTES,), "chunks": (NBYTES,), "dtype": "uint8"}
    ps.create_array(store, path, parts=PARTS, compressors=None, overwrite=overwrite, **shape)


def read(store: ps.PartsStore, key: str) -> bytes | None:
    found = store.get_sync(key, prototype=default_buffer_prototype())
    return None if found is None else found.to_bytes()


def write(store: ps.PartsStore, key: str, value: bytes) -> None:
    store.set_sync(key, cpu.Buffer.from_bytes(value))


def change(writer: ps.PartsStore, deleter: ps.PartsStore, numbers: random.Random) -> str:
    """Make one random change or read; return what went wrong, if anything did."""
    kinds = {"write": 8, "partial": 6, "read": 6, "delete": 2, "delete chunks": 1, "overwrite": 2, "delete array": 1}
    kind = numbers.choices([*kinds], [*kinds.values()])[0]
    try:
        return _change(kind, writer, deleter, numbers)
    except ConcurrentWriteError as error:
        return "false 'exclusive' error" if "although" in str(error) else ""
    except LayoutChangedError as error:
        # The array is gone at this moment, and chunks have no place to go.
        return "" if "was deleted" in str(error) else f"{kind}: {error}"
    except (PartsStoreError, OSError) as error:
        return f"{kind}: {type(error).__name__}"


def _change(kind: str, writer: ps.PartsStore, deleter: ps.PartsStore, numbers: random.Random) -> str:
    key = f"g/a/c/{numbers.randrange(CHUNKS)}"
    if kind in ("partial", "read"):
        value = read(writer, key)
        if value is not None and not is_whole(value):
            return "mixture read"
    match kind:
        # After a read of the same key in the same context, it fails if the chunk is another one by then.
        case "write" | "partial":
            write(writer, key, new_value(numbers))
        case "delete":
            writer.delete_sync(key)
        case "delete chunks":
            asyncio.run(deleter.delete_dir("g/a/c"))
        case "overwrite":
            create(deleter, "g/a", overwrite=True)
        case "delete array":
            asyncio.run(deleter.delete_dir(numbers.choice(["g/a", "g", ""])))
    return ""


def main(folder: str, seed: int, count: int) -> None:
    """Make changes; print what went wrong."""
    numbers = random.Random(seed)
    writer, deleter = ps.PartsStore.from_url(folder), ps.PartsStore.from_url(folder)
    # What it knows stays known, also when another process deletes the array.
    assert writer.parts_of("g/a") is not None
    print("ready", flush=True)
    sys.stdin.readline()
    wrong = Counter(change(writer, deleter, numbers) for _ in range(count))
    del wrong[""]
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
