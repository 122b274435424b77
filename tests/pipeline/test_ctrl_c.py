"""Ctrl-C in a write: chunks that have not begun are not written, and later writes stay."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from zarr.core.sync import _get_loop, _runner

import parts_store as ps

ROOT = Path(__file__).parents[2]
# The write of chunk 0 waits in its thread. SIGINT interrupts the main thread, which writes the other chunks itself.
PROGRAM = """
import asyncio, os, signal, sys, threading
import zarr
from zarr.core.sync import sync
import parts_store as ps
from tests.store.interrupted import Interrupted

reached, released, interrupted = threading.Event(), threading.Event(), threading.Event()

class Waiting(Interrupted):
    def perform_sync(self, request):
        if str(getattr(request, "key", "")).startswith("a/c/0") and not reached.is_set():
            reached.set()
            released.wait()
        return self.backend.perform_sync(request)

def interrupt():
    reached.wait()
    # Python forgets an interrupt that arrives just before the main thread begins to wait.
    while not interrupted.wait(0.2):
        os.kill(os.getpid(), signal.SIGINT)

def once(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupted.set()
    raise KeyboardInterrupt

async def others():
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

folder, how, workers = sys.argv[1:]
zarr.config.set({"codec_pipeline.max_workers": int(workers)})
store = ps.PartsStore.from_url(folder)
array = ps.create_array(store, "a", parts=["", ps.Part(".end", size=2)], shape=(200,), chunks=(4,), dtype="i4")
if how == "fast":
    with ps.fast(max_workers=int(workers)):
        array = zarr.open_array(store, path="a")
backend, store._backend = store._backend, Waiting(store._backend, 0, lambda: None)
signal.signal(signal.SIGINT, once)
threading.Thread(target=interrupt).start()
try:
    array[:] = 1
    sys.exit("not interrupted")
except KeyboardInterrupt as error:
    kept = error  # as an interactive Python does, with the frames of its traceback
store._backend = backend
later = ps.open_array(ps.PartsStore.from_url(folder), "a", mode="r+")
before = later[:].tolist()
later[4:] = 2
released.set()
sync(others())
found = later[:].tolist()
print(before[-4:], found[:4], set(found[4:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["open_array", "fast"])
def test_ctrl_c_stops_chunks_that_have_not_begun(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), how, "1"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr
    # The chunk that had begun is written to its end.
    assert ran.stdout.split("\n")[0] == "[0, 0, 0, 0] [1, 1, 1, 1] {2}"


def test_write_is_whole_if_another_function_than_that_of_zarr_waits_for_it() -> None:
    store = ps.PartsStore.from_url("memory://")
    array: Any = ps.create_array(store, "a", parts=["", ps.Part(".end", size=2)], shape=(40,), chunks=(4,), dtype="i4")
    writing = _runner(array.async_array.setitem(slice(None), 1))
    assert asyncio.run_coroutine_threadsafe(writing, _get_loop()).result() is None
    assert set(array[:].tolist()) == {1}
