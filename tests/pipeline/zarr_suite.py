"""A pytest plugin for zarr's own tests: their stores are a PartsStore, and the fused pipeline is ours.

`test_zarr_suite` runs pytest in another process with this module, in the unpacked sources of zarr.
"""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self, override

import obstore.store
import zarr.core.codec_pipeline
import zarr.registry
import zarr.storage
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.pipeline.codec_pipeline import PartsCodecPipeline

FUSED: Final = "zarr.core.codec_pipeline.FusedCodecPipeline"
_TAIL: Final = [ps.Part(""), ps.Part(".tail", size=1)]
# An array at the root of the store, one below it, and any other.
_PARTS: Final[dict[str, Any]] = {"whole": {}, "parts": {"": _TAIL, "*": _TAIL, "**": _TAIL}}
_chunks: Final = Counter[str]()


class CountingPipeline(PartsCodecPipeline):
    """Our pipeline, which counts the chunks that it reads and writes itself."""

    @override
    def _read_chunk(self, *args: Any) -> Any:
        _chunks["read"] += 1
        return super()._read_chunk(*args)

    @override
    def _write_chunk(self, *args: Any, **kwargs: Any) -> None:
        _chunks["written"] += 1
        super()._write_chunk(*args, **kwargs)


class _Store(ps.PartsStore):
    """A PartsStore that is created and used as zarr's own stores are."""

    def _set_up(self, objects: Any, *, read_only: bool) -> None:
        parts = _PARTS[os.environ["ZARR_SUITE"]]
        ps.PartsStore.__init__(self, objects, read_only=read_only, parts=parts, must_understand=False)

    @override
    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        return cls(*args, **kwargs)

    @override
    async def set(self, key: str, value: Any, byte_range: None = None) -> None:
        del byte_range
        await super().set(key, value)

    @property
    def _store_dict(self) -> dict[str, Any]:
        return {key: self.get_sync(key, prototype=default_buffer_prototype()) for key in sync(_all(self))}


async def _all(store: ps.PartsStore) -> list[str]:
    return [key async for key in store.list()]


class MemoryStore(_Store):
    """A PartsStore in memory."""

    def __init__(self, store_dict: Mapping[str, Any] | None = None, *, read_only: bool = False) -> None:
        assert not store_dict
        self._set_up(obstore.store.MemoryStore(), read_only=read_only)


class LocalStore(_Store):
    """A PartsStore on disk."""

    def __init__(self, root: str | Path, *, read_only: bool = False) -> None:
        self._set_up(obstore.store.LocalStore(root, mkdir=True), read_only=read_only)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many chunks were read and written by our pipeline."""
    terminalreporter.write_line(f"our pipeline: {_chunks['read']} read, {_chunks['written']} written")


# The tests import these names after this module is imported.
zarr.storage.MemoryStore = MemoryStore  # type: ignore[misc, assignment]
zarr.storage.LocalStore = LocalStore  # type: ignore[misc, assignment]
zarr.core.codec_pipeline.FusedCodecPipeline = CountingPipeline  # type: ignore[misc]
zarr.registry._pipeline_registry.register(CountingPipeline, FUSED)
