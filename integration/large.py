"""One large chunk, written or read by a process of its own, which tells how long it took and how much memory.

python -m integration.large ORDER    # the order and the answer are JSON
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from obstore.store import S3Store
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from parts_store import Part, PartsStore

ROOT = Path(__file__).parent.parent
PROTOTYPE = default_buffer_prototype()
KEY = "a/c/0"
BLOCK = 1 << 17


type Work = Literal["write", "read"]


@dataclass(frozen=True, slots=True)
class Order:
    """What is done, where, and with how large a chunk."""

    work: Work
    bucket: str
    options: dict[str, Any]
    nbytes: int
    # The chunk is as many numbers, from this one.
    first: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took: seconds, and memory in chunks, the chunk itself among them."""

    seconds: float
    chunks: float
    # Of what a read found.
    is_right: bool


def create(store: PartsStore, tail_nbytes: int) -> None:
    """Create an array of one chunk, with a last part of the given size."""
    parts = [Part(".head", size=16), Part(""), Part(".tail", size=tail_nbytes)]
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (8,), "dtype": "uint8", "compressors": None}
    ps.create_array(store, "a", parts=parts, **arguments)


def _memory(name: Literal["VmRSS", "VmHWM"]) -> int:
    """Return the memory of this process, or its maximum, in bytes.

    What `resource` says includes what the parent had when it started this process, where there is nothing better.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name)) * 1024


def _is_right(found: NDArray[np.uint64], first: int) -> bool:
    """Return whether the values are right; compare them in blocks, since a second array would double the memory."""
    starts = range(0, len(found), BLOCK)
    blocks = ((found[at : at + BLOCK], first + at) for at in starts)
    return all((block == np.arange(start, start + len(block), dtype=np.uint64)).all() for block, start in blocks)


def main(order: Order) -> Cost:
    """Carry out an order."""
    store = PartsStore(S3Store(order.bucket, **order.options))
    store.parts_of("a")
    before = _memory("VmRSS")
    count = order.nbytes // 8
    is_right = True
    if order.work == "write":
        value = np.arange(order.first, order.first + count, dtype=np.uint64)
        began = time.monotonic()
        store.set_sync(KEY, PROTOTYPE.buffer.from_array_like(value.view("B")))
    else:
        began = time.monotonic()
        found = store.get_sync(KEY)
        is_right = found is not None and len(found) == order.nbytes
        if found is not None and is_right:
            is_right = _is_right(np.frombuffer(found.as_buffer_like(), np.uint64), order.first)
    return Cost(time.monotonic() - began, (_memory("VmHWM") - before) / order.nbytes, is_right)


def run(order: Order) -> Cost:
    """Carry out the order in another process."""
    command = [sys.executable, "-m", "integration.large", json.dumps(asdict(order))]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(main(Order(**json.loads(sys.argv[1]))))))
