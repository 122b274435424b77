"""A pytest plugin for zarr's own tests: their stores are a PartsStore, in the place and with the pipeline to test.

`integration.zarr_suite` runs pytest in another process with this module, in the unpacked sources of zarr.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, Self, override

import icechunk
import obstore.store
import pytest
import zarr.core.codec_pipeline
import zarr.registry
import zarr.storage
from hypothesis import HealthCheck, Phase, settings
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from integration.zarr_suite.left_out import FILES, LEFT_OUT, ON_DISK, REFUSALS, applies, find_pattern
from parts_store.pipeline.codec_pipeline import PartsCodecPipeline

RUN: Final = tuple(os.environ["ZARR_SUITE"].split())
PIPELINE, CHUNKS, PLACE = RUN
# Of tests with very many cases, every n-th is run.
SAMPLED: Final = {
    "tests/test_array.py::test_from_array": 25,
    "tests/test_array.py::TestCreateArray::test_v3_chunk_encoding": 10,
    "tests/test_group.py::test_group_create_array": 10,
    "tests/test_pipeline_parity.py::test_pipeline_parity": 9,
}
FUSED: Final = "zarr.core.codec_pipeline.FusedCodecPipeline"
_TAIL: Final = [ps.Part(""), ps.Part(".tail", size=1)]
# An array at the root of the store, one below it, and any other.
_PARTS: Final[dict[str, Any]] = {"whole": {}, "parts": {"": _TAIL, "*": _TAIL, "**": _TAIL}}
_chunks: Final = Counter[str]()
_refusals: Final = {refusal: 0 for refusal in REFUSALS if applies(refusal, RUN)}
_folder: Final = tempfile.TemporaryDirectory()
_numbers = iter(range(10**9))
# The stores that a test has opened by a path, and those that it has opened by a dictionary, which is kept for its id.
_opened: Final[dict[Path | int, tuple[object, ps.PartsStore]]] = {}


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


def _new_store(root: Path) -> ps.PartsStore:
    """Return an empty store in the place to test."""
    options: dict[str, Any] = {"parts": _PARTS[CHUNKS], "must_understand": False}
    if PLACE == "session":
        repository = icechunk.Repository.create(icechunk.in_memory_storage())
        return ps.PartsStore.from_session(repository.writable_session("main"), **options)
    objects = obstore.store.LocalStore(root, mkdir=True) if PLACE == "disk" else obstore.store.MemoryStore()
    return ps.PartsStore(objects, **options)


class _Store(ps.PartsStore):
    """A PartsStore that is created and used as zarr's own stores are."""

    @override
    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        store = cls(*args, **kwargs)
        await store._open()
        return store

    @override
    async def set(self, key: str, value: Any, byte_range: None = None) -> None:
        del byte_range
        await super().set(key, value)

    @property
    def _store_dict(self) -> "_Values":
        return _Values(self)


class _Values(MutableMapping[str, Any]):
    """The values of a store by their keys, as zarr's memory store has them."""

    def __init__(self, store: ps.PartsStore) -> None:
        self._store = store

    @override
    def __getitem__(self, key: str) -> Any:
        value = self._store.get_sync(key, prototype=default_buffer_prototype())
        if value is None:
            raise KeyError(key)
        return value

    @override
    def __setitem__(self, key: str, value: Any) -> None:
        self._store.set_sync(key, value)

    @override
    def __delitem__(self, key: str) -> None:
        self._store.delete_sync(key)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(sync(_all(self._store)))

    @override
    def __len__(self) -> int:
        return len(list(iter(self)))


async def _all(store: ps.PartsStore) -> list[str]:
    return [key async for key in store.list()]


class MemoryStore(_Store):
    """A new PartsStore."""

    def __init__(self, store_dict: Mapping[str, Any] | None = None, *, read_only: bool = False) -> None:
        _, store = _opened.get(id(store_dict), (None, None))
        if store is None:
            store = _new_store(Path(_folder.name, str(next(_numbers))))
            for key, value in (store_dict or {}).items():
                store.set_sync(key, value)
            if store_dict is not None:
                _opened[id(store_dict)] = store_dict, store
        self.__dict__.update(store.with_read_only(read_only).__dict__)


class LocalStore(_Store):
    """The PartsStore with a path."""

    def __init__(self, root: str | Path, *, read_only: bool = False, mode: str | None = None) -> None:
        self.root = Path(root)
        if PLACE == "disk" and mode in ("r", "r+") and not self.root.exists():
            raise FileNotFoundError(self.root)
        if PLACE == "disk":
            store = _new_store(self.root)
        else:
            _, store = _opened.setdefault(self.root, (None, _new_store(self.root)))
        self.__dict__.update(store.with_read_only(read_only).__dict__)


def pytest_collection() -> None:
    """Run few examples of each property: zarr's own profile has 300, and `make soak` is for new seeds."""
    settings.register_profile(
        "zarr_suite",
        max_examples=10,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # A property that must fail is not made smaller.
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("zarr_suite")


def _describe(item: pytest.Item) -> str:
    """Return the name of a test, without the first folder, and its parameters by their names."""
    parameters: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    return " ".join([item.nodeid.removeprefix("tests/"), *(f"{name}={value}" for name, value in parameters.items())])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that are left out, which must fail, and take a sample of those with very many cases."""
    numbers = Counter[str]()
    chosen: list[pytest.Item] = []
    for item in items:
        if PLACE != "disk" and item.nodeid.startswith(ON_DISK):
            continue
        name = item.nodeid.partition("[")[0]
        if numbers[name] % SAMPLED.get(name, 1) == 0:
            chosen.append(item)
        numbers[name] += 1
    items[:] = chosen
    patterns = {pattern: left for left in LEFT_OUT if applies(left, RUN) for pattern in left.patterns}
    unused = set(patterns)
    for item in items:
        pattern = find_pattern(_describe(item), patterns)
        if pattern is not None:
            unused.discard(pattern)
            item.add_marker(pytest.mark.xfail(reason=patterns[pattern].reason, strict=True))
    if unused and _runs_everything(config):
        raise pytest.UsageError(f"no test of zarr matches {sorted(unused)} any more: change left_out.py")


def _runs_everything(config: pytest.Config) -> bool:
    return not config.option.keyword and tuple(config.args) == FILES


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a test as left out if the store refuses what it does."""
    report = yield
    if report.failed:
        for refusal in _refusals:
            if re.search(refusal.error, report.longreprtext):
                _refusals[refusal] += 1
                report.outcome = "skipped"
                report.wasxfail = refusal.reason
                break
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if the store refuses something no more."""
    if any(count == 0 for count in _refusals.values()) and _runs_everything(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_runtest_teardown() -> None:
    """Forget the stores of the test."""
    _opened.clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was refused, and how many chunks were read and written by our pipeline."""
    for refusal, count in _refusals.items():
        terminalreporter.write_line(f"{count} tests are left out: {refusal.reason}")
    terminalreporter.write_line(f"our pipeline: {_chunks['read']} read, {_chunks['written']} written")


# The tests import these names after this module is imported.
for module in (zarr.storage, zarr.storage._common):
    vars(module).update(MemoryStore=MemoryStore, LocalStore=LocalStore)
if PIPELINE == "ours":
    zarr.core.codec_pipeline.FusedCodecPipeline = CountingPipeline  # type: ignore[misc]
    zarr.registry._pipeline_registry.register(CountingPipeline, FUSED)
