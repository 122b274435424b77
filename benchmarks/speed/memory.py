"""Measure the memory that one chunk of 64 MiB takes while it is written or read, in a process of its own.

Called with a description of the case on standard input, this module is that process.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np

from benchmarks.places import Place, place_from_json, place_to_json
from benchmarks.speed.layouts import ONE_CHUNK
from benchmarks.speed.measuring import Result
from benchmarks.speed.peers import PEERS, THREE_PARTS, Peer

WHERE = "memory"
MEMORY_PEERS = tuple(PEERS[name] for name in ("zarr", "zarrs", "tensorstore", "icechunk", "ours, no parts"))
NBYTES = ONE_CHUNK.chunk**2

type Direction = Literal["write", "read"]


def measure_memory(place: Place, where: str, peers: Sequence[Peer] = (*MEMORY_PEERS, THREE_PARTS)) -> Iterator[Result]:
    """Return how many copies of the chunk each peer had in memory at once, besides the array."""
    for peer in peers:
        for direction in ("write", "read"):
            case = {
                "peer": peer.name,
                "direction": direction,
                "place": place_to_json(place.below(f"memory-{peer.folder}")),
            }
            # The credentials of the server are in it, and other users can see arguments.
            ended = subprocess.run(
                [sys.executable, "-m", "benchmarks.speed.memory"],
                input=json.dumps(case),
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                print(f"  {peer.name} cannot do '{direction}': {ended.stderr[-300:]}", file=sys.stderr)
                continue
            yield Result(f"{WHERE}, {where}", ONE_CHUNK.name, direction, peer.name, float(ended.stdout), "copies")


def _copies(peer: Peer, place: Place, direction: Direction) -> float:
    values = ONE_CHUNK.values()
    with peer.configured():
        # Everything is imported and connected before; this small array is not part of what is measured.
        small = type(ONE_CHUNK)("warm", 64, 64)
        peer.create(place.below(f"warm-{direction}"), small).write(small.values())
        np.testing.assert_array_equal(
            peer.reopen(place.below(f"warm-{direction}"), small, False).read(), small.values()
        )
        if direction == "write":
            handle = peer.create(place.below("array"), ONE_CHUNK)
            with _Peak() as peak:
                handle.write(values)
            return peak.nbytes / NBYTES
        handle = peer.reopen(place.below("array"), ONE_CHUNK, False)
        with _Peak() as peak:
            found = handle.read()
        np.testing.assert_array_equal(found, values)
        return (peak.nbytes - found.nbytes) / NBYTES


class _Peak:
    """The most resident memory that a block of code had, beyond the memory at its begin."""

    nbytes: int

    def __enter__(self) -> Self:
        # From here on the kernel notes the highest value anew.
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.nbytes = _status("VmHWM") - self._before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(value) * 1024


def main() -> None:
    """Measure one case, and print the number of copies."""
    case = json.load(sys.stdin)
    print(
        _copies(
            {**PEERS, THREE_PARTS.name: THREE_PARTS}[case["peer"]], place_from_json(case["place"]), case["direction"]
        )
    )


if __name__ == "__main__":
    main()
