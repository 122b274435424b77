"""Settings and fixtures of all unit tests. `tests.effort` decides how much of them runs."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline

from parts_store.engine import executor

# Hooks of pytest, which it finds here.
from tests.effort import (  # noqa: F401
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_xdist_auto_num_workers,
)

# Busy machines make processes of dask connect late. Worker processes inherit it.
os.environ.setdefault("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "300s")


class Batched(BatchedCodecPipeline):
    """zarr's default pipeline, by a name that is not the default, so that no store replaces it."""


register_pipeline(Batched)

PIPELINES = {
    "batched": f"{Batched.__module__}.Batched",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "parts": "parts_store.pipeline.codec_pipeline.PartsCodecPipeline",
}


@pytest.fixture(params=sorted(PIPELINES))
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with each of zarr's codec pipelines, and with ours.

    `ps.create_array` returns an array with our pipeline in any case, so such an array has to be opened again.
    """
    name: str = request.param
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
        yield name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a store, which is not there yet."""
    return tmp_path / "objects"


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, folder: Path) -> Callable[[], Any]:
    """Return a function that makes an empty obstore store, in memory and on a local disk."""
    if request.param == "memory":
        return MemoryStore
    numbers = itertools.count()
    # Without clean-up, obstore leaves empty folders behind, and lists them.
    return lambda: LocalStore(folder / str(next(numbers)), mkdir=True, automatic_cleanup=True)


@pytest.fixture
def objects(place: Callable[[], Any]) -> Any:
    """Make an empty obstore store, in memory and on a local disk."""
    return place()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat a request after microseconds, where the package would wait for some milliseconds."""
    monkeypatch.setattr(executor, "_FIRST_WAIT_SECONDS", 1e-6)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, also if the tests run in the background, where interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
