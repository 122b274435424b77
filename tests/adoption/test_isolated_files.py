"""A file that crashes a library, or never ends, is named or skipped; the other files are adopted, in bounded time."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any, override

import dask
import numpy as np
import pytest
import xarray as xr
from distributed import Client

import parts_store as ps
from parts_store.adoption.preparation import AdoptionRequest
from parts_store.errors import AdoptionError, StoreConfigError
from tests.adoption.adopting import repository, settle
from tests.adoption.deadly_parsers import BAD, Deadly
from tests.adoption.formats.hdf5.damaged_files import CRASHES, HANGS
from tests.test_http import Ranged, Server

ENDED = r"a library ended the process that parsed it \((SIGSEGV|SIGKILL|SIGABRT|SIGBUS|exit code 7)\)"
# A file that hangs costs as many seconds, and on a busy machine the other files need some of them.
HANGING, OTHERWISE = 10, 300
LATE = f"it was not parsed within {HANGING} seconds"


def write(path: Path, first: int) -> Path:
    values = np.arange(800.0).reshape(2, 400) + first
    dataset = xr.Dataset({"v": (("day", "x"), values)}, {"day": [first, first + 1]})
    dataset.to_netcdf(path, engine="h5netcdf", encoding={"v": {"zlib": True, "chunksizes": (1, 400)}})
    settle(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, of which the second one has a name that parsers may fail on."""
    return [write(tmp_path / f"{name}.nc", 2 * at) for at, name in enumerate(["a", BAD, "c"])]


def require_others(files: list[Path], session: Any) -> None:
    """The first and the last file are in the session, with all values."""
    found = xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False, chunks=None).load()
    with xr.open_mfdataset([files[0], files[2]], engine="h5netcdf", combine="nested", concat_dim="day") as expected:
        xr.testing.assert_equal(found, expected.load())


@pytest.mark.parametrize(
    ("data", "problem"),
    [pytest.param(CRASHES, ENDED, id="crash"), pytest.param(HANGS, LATE, id="endless", marks=pytest.mark.slow)],
)
def test_a_damaged_file_that_hdf5_does_not_survive_is_named_or_skipped(
    files: list[Path], data: bytes, problem: str
) -> None:
    files[1].write_bytes(data)
    settle(files[1])
    session = repository(files[0].parent).writable_session("main")
    limit = HANGING if problem == LATE else OTHERWISE
    began = time.monotonic()
    with pytest.raises(AdoptionError, match=problem) as caught:
        ps.adopt(files, into=session, concat_dim="day", file_timeout=limit)
    assert caught.value.location == files[1].as_uri()
    assert not session.has_uncommitted_changes
    report = ps.adopt(files, into=session, concat_dim="day", file_timeout=limit, on_error="skip")
    assert [each.name for each in report.failed] == [files[1].as_uri()]
    require_others(files, session)
    assert time.monotonic() - began < 300


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("executor", ["threads", "this thread", "processes"])
@pytest.mark.parametrize(("how", "problem"), [("exit", ENDED), ("kill", ENDED), ("hang", LATE)])
def test_a_parser_that_ends_or_blocks_its_process_fails_one_file(
    files: list[Path], how: str, problem: str, executor: str
) -> None:
    session = repository(files[0].parent).writable_session("main")
    limit = HANGING if problem == LATE else OTHERWISE
    arguments: dict[str, Any] = {"parser": Deadly(how), "concat_dim": "day", "file_timeout": limit, "on_error": "skip"}
    if executor == "processes":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            report = ps.adopt(files, into=session, executor=pool, **arguments)
    else:
        report = ps.adopt(files, into=session, executor=None if executor == "threads" else False, **arguments)
    (failed,) = report.failed
    assert failed.name == files[1].as_uri()
    assert failed.reason.startswith(("a library ended the process", LATE))
    require_others(files, session)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_worker_that_dies_in_a_pool_is_an_error_that_says_what_to_do(files: list[Path], on_error: Any) -> None:
    """The pool cannot be used any more, and does not know which task ended its process."""
    session = repository(files[0].parent).writable_session("main")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(AdoptionError, match=r"BrokenProcessPool.*`file_timeout` tells which one"):
            ps.adopt(files, into=session, concat_dim="day", parser=Deadly("exit"), executor=pool, on_error=on_error)
        # A pool that is broken already.
        with pytest.raises(AdoptionError, match="BrokenProcessPool"):
            ps.adopt(files[:1], into=session, executor=pool, on_error=on_error)
    assert not session.has_uncommitted_changes


@pytest.mark.slow
def test_a_file_that_ends_workers_of_dask_is_found(files: list[Path]) -> None:
    """Dask gives up all tasks that its workers had, so that without a time limit the file is not known."""
    session = repository(files[0].parent).writable_session("main")
    arguments: dict[str, Any] = {"parser": Deadly("exit"), "concat_dim": "day", "on_error": "skip"}
    workers: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        Client(**workers) as client,
        pytest.raises(AdoptionError, match=r"KilledWorker.*`file_timeout` tells which one"),
    ):
        ps.adopt(files, into=session, executor=client, **arguments)
    assert not session.has_uncommitted_changes
    # Other workers: dask does not replace a worker that ends before dask has noticed that it has started.
    with Client(**workers) as client:
        report = ps.adopt(files, into=session, executor=client, file_timeout=300, **arguments)
    (failed,) = report.failed
    assert failed.name == files[1].as_uri()
    assert "(exit code 7)" in failed.reason
    require_others(files, session)


class Failing(Executor):
    """An executor that fails, with a message that contains a password."""

    @override
    def submit[T](self, function: Callable[..., T], /, *items: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_exception(RuntimeError("no answer of https://user:Tr0ub4dor@cluster.example/tasks"))
        return future


def test_an_error_of_an_executor_names_the_file_and_no_password(files: list[Path]) -> None:
    session = repository(files[0].parent).writable_session("main")
    with pytest.raises(AdoptionError, match="the executor did not parse it: RuntimeError: no answer of") as caught:
        ps.adopt(files, into=session, concat_dim="day", executor=Failing(), on_error="skip")
    # All tasks have failed, in any order.
    assert caught.value.location in {file.as_uri() for file in files}
    assert "Tr0ub4dor" not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"


@pytest.mark.slow
def test_files_on_a_server_are_parsed_in_another_process(files: list[Path]) -> None:
    handler = partial(Ranged, directory=str(files[0].parent))
    with Server(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        folder = f"http://127.0.0.1:{server.server_address[1]}"
        urls = [f"{folder}/{file.name}" for file in files]
        request = AdoptionRequest(concat_dim="day", file_timeout=300)
        prepared = request.prepare(urls, {"client_options": {"allow_http": True}})
        server.shutdown()
        thread.join()
    assert prepared.locations == tuple(urls)
    assert isinstance(prepared.source, xr.Dataset)
    assert prepared.source["day"].values.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "10"])
def test_a_time_limit_that_is_no_number_of_seconds_is_refused(files: list[Path], wrong: Any) -> None:
    session = repository(files[0].parent).writable_session("main")
    with pytest.raises(StoreConfigError, match="file_timeout"):
        ps.adopt(files[0], into=session, file_timeout=wrong)


def test_a_copy_with_a_time_limit_is_refused(files: list[Path], tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path / "copy.zarr")
    with pytest.raises(StoreConfigError, match="file_timeout"):
        ps.adopt(files[0], into=store, copy=True, file_timeout=5)
