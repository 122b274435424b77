"""The argument `progress`: True for a progress bar, a function, or None."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parts_store.engine.stats import Progress
from parts_store.errors import StoreConfigError, describe

type ProgressLike = bool | Progress | None
"""True for a progress bar, a function of the amount that is done and the total amount, None or False for nothing."""


def require_progress(progress: object) -> None:
    """Raise `StoreConfigError` unless a value can be the argument `progress`."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise StoreConfigError("progress", "True, a callable with two arguments, or None", describe(progress))


@contextmanager
def report_progress(progress: Any, description: str, unit: str) -> Iterator[Progress]:
    """Yield the function to call with the amount that is done and the total amount, whatever the caller has passed.

    Parameters
    ----------
    progress
        The argument of the caller: True, a function, or None.
    description
        The kind of work, such as `"verify"`.
    unit
        The plural of what is counted, such as `"chunks"`.
    """
    require_progress(progress)
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda _done, _total: None
        return
    try:
        from parts_store.progress_bar import progress_bar  # noqa: PLC0415 (rich is an extra)
    except ImportError as error:
        problem = f"a progress bar needs {error.name}: pip install 'parts_store[cli]', or pass a function"
        raise ImportError(problem, name=error.name) from error
    with progress_bar(description, unit) as update:
        yield update
