"""The argument `executor`: run tasks in this thread, on an executor of `concurrent.futures`, with dask or Lithops."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, override

from parts_store.errors import StoreConfigError, describe

type ExecutorLike = Executor | Literal["dask", "lithops"] | Any | None
"""An executor of `concurrent.futures`, a `distributed.Client`, "dask" for the current client, "lithops", or None."""

_EXPECTED: Final = "an instance of concurrent.futures.Executor, a distributed.Client, 'dask', 'lithops', or None"
# How many tasks are submitted at least before the first of them has finished. More are submitted if there are more than
# half as many threads. A limit, because results of many tasks need memory, and a task that was begun cannot be stopped.
_MIN_SUBMITTED: Final = 64
# The number of seconds after which it is asked whether tasks were cancelled.
_LOOK_AGAIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class Finished[T]:
    """A task that has ended: its number, and what it returned or raised."""

    number: int
    value: T | None
    error: Exception | None = None

    def result(self) -> T:
        """Return what the task returned; raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value] # what the task returned may be None


class Workers(ABC):
    """What runs the tasks."""

    @abstractmethod
    def run[A, T](self, function: Callable[[A], T], items: Sequence[A]) -> Generator[Finished[T], None, None]:
        """Call a function for every item, and yield tasks in the order in which they end.

        If the generator is closed early, tasks that have not begun are not run, and the others have ended when it
        returns; use `contextlib.closing`. On other processes and machines, the function and the items must be
        picklable.

        Parameters
        ----------
        function
            The function to call.
        items
            The argument of each task. The number of a task is the position of its item.
        """

    def run_in_order[A, T](self, function: Callable[[A], T], items: Sequence[A]) -> Iterator[T]:
        """Call a function for every item, and yield what it returns in the order of the items.

        If a task fails, its error is raised, and no further tasks are begun.
        """
        early: dict[int, T] = {}
        following = 0
        with closing(self.run(function, items)) as tasks:
            for task in tasks:
                early[task.number] = task.result()
                while following in early:
                    yield early.pop(following)
                    following += 1


@contextmanager
def open_workers(executor: ExecutorLike) -> Iterator[Workers]:
    """Yield what runs the tasks, given the argument of a caller. An executor or a client of the caller stays open.

    Parameters
    ----------
    executor
        An instance of `concurrent.futures.Executor`; a `distributed.Client`; "dask" for the current client, or for
        threads of this process if there is none; "lithops" for the functions that the configuration of Lithops says;
        None to run one task after the other, in this thread.

    Raises
    ------
    StoreConfigError
        If it is anything else.
    ImportError
        If a package for it is not installed.
    """
    with ExitStack() as stack:
        if executor is None or executor is False:
            yield _Serial()
        elif isinstance(executor, Executor):
            # Executors do not tell how many tasks they run at once; those of the standard library have this attribute.
            yield _Pool(executor, lambda: getattr(executor, "_max_workers", 0))
        elif executor == "lithops":
            yield _Mapping(stack.enter_context(_lithops()))
        elif executor == "dask" or _is_client(executor):
            client = stack.enter_context(open_client(None if executor == "dask" else executor))
            yield _Pool(client.get_executor(pure=False), lambda: sum(client.nthreads().values()), can_cancel=False)
        else:
            raise StoreConfigError("executor", _EXPECTED, describe(executor))


class _Serial(Workers):
    """The thread that takes the results."""

    @override
    def run[A, T](self, function: Callable[[A], T], items: Sequence[A]) -> Generator[Finished[T], None, None]:
        for number, item in enumerate(items):
            try:
                finished = Finished(number, function(item))
            # The caller decides what to do about it.
            except Exception as error:
                finished = Finished(number, None, error)
            yield finished


@dataclass(frozen=True, slots=True)
class _Pool(Workers):
    """An executor of `concurrent.futures`, or that of a dask client. If a worker of dask dies, its tasks run again."""

    executor: Executor
    # Returns the number of tasks that run at the same time, 0 if it is not known. A cluster may grow.
    count_threads: Callable[[], int]
    # Whether a future knows that its task has begun, and is not cancelled then. dask would forget a task that goes on.
    can_cancel: bool = True

    @override
    def run[A, T](self, function: Callable[[A], T], items: Sequence[A]) -> Generator[Finished[T], None, None]:
        running: dict[Future[T], int] = {}
        following = 0
        try:
            while following < len(items) or running:
                limit = max(_MIN_SUBMITTED, 2 * self.count_threads())
                while following < len(items) and len(running) < limit:
                    try:
                        running[self.executor.submit(function, items[following])] = following
                    # An executor whose process has ended takes no more tasks.
                    except Exception as error:
                        yield Finished(following, None, error)
                    following += 1
                done = wait(running, _LOOK_AGAIN, FIRST_COMPLETED).done
                # `wait` does not see tasks that `Executor.shutdown` has cancelled.
                for future in done or [each for each in running if each.cancelled()]:
                    yield _finished(running.pop(future), future)
        finally:
            wait([future for future in running if not (self.can_cancel and future.cancel())])


@dataclass(frozen=True, slots=True)
class _Mapping(Workers):
    """An executor that has no futures, only `map`: that of VirtualiZarr for Lithops."""

    executor: Executor

    @override
    def run[A, T](self, function: Callable[[A], T], items: Sequence[A]) -> Generator[Finished[T], None, None]:
        if items:
            for number, (value, error) in enumerate(self.executor.map(partial(_attempt, function), items)):
                yield Finished(number, value, error)


def _attempt[A, T](function: Callable[[A], T], item: A) -> tuple[T | None, Exception | None]:
    """Return what a function returned, and what it raised: one error would end the whole `map`."""
    try:
        return function(item), None
    # The caller decides what to do about it.
    except Exception as error:
        return None, error


def _lithops() -> Executor:
    try:
        import lithops  # noqa: F401, PLC0415 (an optional package)
        from virtualizarr.parallel import LithopsEagerFunctionExecutor  # noqa: PLC0415 (an extra)
    except ImportError as error:
        problem = f"executor='lithops' needs {error.name}: pip install {error.name}"
        raise ImportError(problem, name=error.name) from error
    return LithopsEagerFunctionExecutor()


def _finished(number: int, future: Any) -> Finished[Any]:
    try:
        return Finished(number, future.result())
    # The caller decides what to do about it.
    except Exception as error:
        return Finished(number, None, error)


# --- dask -------------------------------------------------------------------------------------------------------------


def _is_client(value: object) -> bool:
    """Return whether a value is a client of dask, without importing `distributed` for any other value."""
    return any(each.__module__.startswith("distributed.") and each.__name__ == "Client" for each in type(value).__mro__)


@contextmanager
def missing_extra(purpose: str, extra: str) -> Iterator[None]:
    """Turn an ImportError of the block into one that names the extra to install."""
    try:
        yield
    except ImportError as error:
        problem = f"{purpose} needs {error.name}: pip install 'parts_store[{extra}]'"
        raise ImportError(problem, name=error.name) from error


@contextmanager
def open_client(client: Any) -> Iterator[Any]:
    """Yield the given client, the current client, or a client for threads of this process.

    Parameters
    ----------
    client
        A `distributed.Client` that is not asynchronous, or None.
    """
    with missing_extra("a dask cluster", "dask"):
        from distributed import Client, get_client, worker_client  # noqa: PLC0415 (an extra)

    with ExitStack() as stack:
        if client is None:
            try:
                # Inside a dask task. The task gives up its thread while it waits, so that its own tasks can run.
                client = stack.enter_context(worker_client())
            except ValueError:
                with suppress(ValueError):
                    client = get_client()
        if client is None:
            # With any free port: the default port of the dashboard may be in use, and dask would warn about that.
            client = stack.enter_context(Client(processes=False, dashboard_address=":0"))
        if not isinstance(client, Client):
            raise StoreConfigError("client", "a distributed.Client", describe(client))
        if client.asynchronous:
            raise StoreConfigError("client", "a client that is not asynchronous, or None", describe(client))
        yield client
