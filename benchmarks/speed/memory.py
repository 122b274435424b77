"""Measure the most memory that work takes, each in a process of its own.

- one chunk of 64 MiB, and 1 GiB in shards, written or read by each peer, besides the array;
- `adopt` of many files, `verify` and `copy` of many chunks, and many reads.

Called with a description of the case on standard input, this module is that process.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import obstore
import zarr
from obstore.store import MemoryStore

import parts_store as ps
from benchmarks.archive import sources
from benchmarks.archive.contestants import our_repository
from benchmarks.places import Disk, Place, place_from_json, place_to_json
from benchmarks.speed.layouts import LARGE, ONE_CHUNK, ZSTD, Layout, zarr_arguments
from benchmarks.speed.measuring import Result, Unit
from benchmarks.speed.peers import PEERS, THREE_PARTS
from benchmarks.speed.work import DISK, S3

WHERE = "memory"
OURS, OURS_PLAIN = "ours, 2 parts", "ours, no parts"
MEMORY_PEERS = ("zarr", "zarrs", "tensorstore", "icechunk", "ours, no parts", THREE_PARTS.name)
LARGE_PEERS = ("zarr", "zarrs", "tensorstore", "ours, no parts", "ours, 2 parts")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work there is."""

    layout: Layout = LARGE
    files: int = 10_000
    chunks: int = 100_000
    reads: int = 10_000


QUICK = Sizes(ZSTD, 100, 2_000, 1_000)


def measure_memory(found: Mapping[str, Place], sizes: Sizes) -> Iterator[Result]:
    """Return the copies of a chunk that each peer had in memory at once, and MiB for all other work."""
    for where in () if sizes == QUICK else (DISK, S3[0]):
        yield from _of_array(found[where], where, ONE_CHUNK, MEMORY_PEERS, "copies")
    few = sizes == QUICK
    yield from _of_array(found[S3[0]], S3[0], sizes.layout, LARGE_PEERS[-1:] if few else LARGE_PEERS, "MiB")
    folder = found[DISK].below("memory-work")
    for task, counts in {
        "adopt": (sizes.files // 10, sizes.files),
        "verify": (sizes.chunks // 10, sizes.chunks),
        "copy": (sizes.chunks // 10, sizes.chunks),
        "reads": (sizes.reads,),
    }.items():
        what = {"adopt": "files", "reads": "random reads"}.get(task, "chunks")
        for count in counts[-1:] if few else counts:
            place = folder.below(f"{task}-{count}")
            if task == "adopt" and isinstance(place, Disk):
                sources.write_files(sources.Archive("files", count, 1, 1, 1, 1), place.folder / "files")
            nbytes = _in_process({"task": task, "count": count, "place": place_to_json(place)})
            if nbytes is not None:
                # The files are chunks without parts; what is verified, copied and read has two.
                name = OURS_PLAIN if task == "adopt" else OURS
                operation = "growth after the first tenth" if task == "reads" else task
                yield Result(WHERE, f"{count:,} {what}", operation, name, nbytes / MIB, "MiB")
            place.clear()


def _of_array(place: Place, where: str, layout: Layout, peers: tuple[str, ...], unit: Unit) -> Iterator[Result]:
    """Write and read an array with each peer."""
    for name in peers:
        own = place.below(f"memory-{layout.side}-{_peer(name).folder}")
        for direction in ("write", "read"):
            case = {"task": direction, "peer": name, "chunk": layout == ONE_CHUNK, "place": place_to_json(own)}
            nbytes = _in_process(case | {"quick": layout == QUICK.layout})
            if nbytes is not None:
                value = nbytes / ONE_CHUNK.chunk**2 if unit == "copies" else nbytes / MIB
                yield Result(f"{WHERE}, {where}", layout.name, direction, name, value, unit)
        own.clear()


def _in_process(case: dict[str, Any]) -> float | None:
    """Return the bytes that a process had at once for a case, None if it failed."""
    # The credentials of the server are in it, and other users can see arguments.
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.memory"],
        input=json.dumps(case),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        print(f"  cannot do {case['task']!r}: {ended.stderr[-300:]}", file=sys.stderr)
        return None
    return float(ended.stdout)


def _peer(name: str) -> Any:
    return {**PEERS, THREE_PARTS.name: THREE_PARTS}[name]


def _array(place: Place, case: dict[str, Any]) -> int:
    peer, direction = _peer(case["peer"]), case["task"]
    layout = ONE_CHUNK if case["chunk"] else QUICK.layout if case["quick"] else LARGE
    values = layout.values()
    with peer.configured():
        # Everything is imported and connected before; this small array is not part of what is measured.
        small = Layout("warm", 64, 64)
        peer.create(place.below(f"warm-{direction}"), small).write(small.values())
        np.testing.assert_array_equal(
            peer.reopen(place.below(f"warm-{direction}"), small, False).read(), small.values()
        )
        values = layout.values()
        if direction == "write":
            handle = peer.create(place.below("array"), layout)
            with _Peak() as peak:
                handle.write(values)
            return peak.nbytes
        handle = peer.reopen(place.below("array"), layout, False)
        with _Peak() as peak:
            found = handle.read()
        np.testing.assert_array_equal(found, values)
        return peak.nbytes - int(found.nbytes)


def _adopt(place: Place, case: dict[str, Any]) -> int:
    assert isinstance(place, Disk)
    files = sorted((place.folder / "files").iterdir())
    session = our_repository(place.below("repository"), place.folder / "files").writable_session("main")
    # Modules are imported before.
    ps.adopt(files[:2], into=session, path="warm", concat_dim="time")
    with _Peak() as peak:
        ps.adopt(files, into=session, path="all", concat_dim="time")
    group = zarr.open_group(ps.PartsStore.from_session(session), path="all", mode="r")
    array: Any = group["v0"]
    selection = (slice(len(files) - 1, len(files)), slice(None), slice(None))
    expected = sources.read_file(place.folder / "files", len(files) - 1, (slice(0, 1), slice(None), slice(None)))
    np.testing.assert_array_equal(array[selection], expected)
    return peak.nbytes


def _stored(count: int) -> MemoryStore:
    """Return a store with an array of so many chunks of two parts: copies of the first one."""
    memory = MemoryStore()
    parts = [ps.Part(""), ps.Part(".tail", size=4)]
    arguments: dict[str, Any] = {
        "shape": (count, 16),
        "chunks": (1, 16),
        "dtype": "uint8",
        "compressors": None,
        "fill_value": 0,
    }
    ps.create_array(ps.PartsStore(memory), "a", parts=parts, **arguments)[:1] = 7
    for key in ("a/c/0/0", "a/c/0/0.tail"):
        first = obstore.get(memory, key)
        data, attributes = bytes(first.bytes()), dict(first.attributes)
        for number in range(1, count):
            obstore.put(memory, key.replace("/0/", f"/{number}/", 1), data, attributes=attributes)
    return memory


def _verify(place: Place, case: dict[str, Any]) -> int:
    del place
    store = ps.PartsStore(_stored(case["count"]))
    with _Peak() as peak:
        report = store.verify()
    assert not report.findings
    assert (report.chunks, report.objects) == (case["count"], 2 * case["count"])
    return peak.nbytes


def _copy(place: Place, case: dict[str, Any]) -> int:
    """Copy into a store that has as many objects already, so that what is stored needs no further memory."""
    del place
    source, destination = _stored(case["count"]), _stored(case["count"])
    with _Peak() as peak:
        copied = ps.copy(ps.PartsStore(source), ps.PartsStore(destination), overwrite=True)
    assert copied.chunks == case["count"]
    found = ps.open_array(ps.PartsStore(destination), "a")[case["count"] - 1]
    np.testing.assert_array_equal(found, np.full(16, 7))
    return peak.nbytes


def _reads(place: Place, case: dict[str, Any]) -> int:
    """Return how much the memory grows after the first tenth of the reads."""
    values, store = ZSTD.values(), ps.PartsStore(place.objects())
    ps.create_array(store, "a", parts=[ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)], **zarr_arguments(ZSTD))
    array = ps.open_array(store, "a", mode="r+")
    array[...] = values
    corners = np.random.default_rng(0).integers(0, ZSTD.side - ZSTD.chunk, (case["count"], 2)).tolist()
    before = 0
    for number, (row, column) in enumerate(corners):
        region = slice(row, row + ZSTD.chunk), slice(column, column + ZSTD.chunk)
        np.testing.assert_array_equal(array[region], values[region])
        if number == len(corners) // 10:
            before = _status("VmRSS")
    return _status("VmRSS") - before


TASKS: dict[str, Callable[[Place, dict[str, Any]], int]] = {
    **dict.fromkeys(("write", "read"), _array),
    "adopt": _adopt,
    "verify": _verify,
    "copy": _copy,
    "reads": _reads,
}


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
    """Measure one case, and print the number of bytes."""
    case = json.load(sys.stdin)
    print(TASKS[case["task"]](place_from_json(case["place"]), case))


if __name__ == "__main__":
    main()
