"""A large chunk in three parts needs at most one copy of it besides the array, to read and to write."""

import subprocess
import sys
from pathlib import Path

import pytest

# The most memory that is used while the statement runs, as a multiple of the chunk.
SCRIPT = """
import sys
import numpy as np
import parts_store as ps
from obstore.store import LocalStore

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

folder, layout = sys.argv[1:]
shape = dict(shape=(8192, 8192), dtype="uint8", compressors=None)
last = ps.Part(".tail", size=64) if layout == "chunk" else ps.Part(".index", size=ps.SHARD_INDEX)
kind = dict(chunks=(8192, 8192)) if layout == "chunk" else dict(chunks=(512, 512), shards=(8192, 8192))
store = ps.PartsStore(LocalStore(folder, mkdir=True))
array = ps.create_array(store, "a", parts=[ps.Part(".head", size=64), "", last], **shape, **kind)
values = np.random.default_rng(0).integers(1, 255, (8192, 8192), dtype="uint8")
for statement in ("array[...] = values", "found = array[...]"):
    open("/proc/self/clear_refs", "w").write("5")
    before = memory("VmRSS")
    exec(statement)
    print((memory("VmHWM") - before) / values.nbytes)
assert np.array_equal(found, values)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is measured with /proc of Linux")
@pytest.mark.parametrize("layout", ["chunk", "shard"])
def test_a_large_chunk_in_parts_is_copied_at_most_once(tmp_path: Path, layout: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "data"), layout]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    writing, reading = map(float, ended.stdout.split())
    assert writing <= 1.25
    # The array that is returned is new memory too.
    assert reading <= 2.25
