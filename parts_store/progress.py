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
    with progress_bar(description, unit) as update:
        yield update


@contextmanager
def progress_bar(description: str, unit: str, *, is_shown: bool = True) -> Iterator[Progress]:
    """Show a progress bar on standard error while the block runs, with the rate and the remaining time.

    Parameters
    ----------
    description
        The kind of work, such as `"verify"`.
    unit
        The plural of what is counted, such as `"chunks"`.
    is_shown
        Whether to show the bar.

    Yields
    ------
    Progress
        A function to call with the number of finished items, and the number of all items. It is thread-safe.
    """
    try:
        import rich.progress as bars  # noqa: PLC0415 (an extra)
        from rich.console import Console  # noqa: PLC0415 (an extra)
    except ImportError as error:
        problem = f"a progress bar needs {error.name}: pip install 'parts_store[cli]', or pass a function"
        raise ImportError(problem, name=error.name) from error
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn(unit),
        bars.TextColumn("{task.fields[rate]}", style="progress.data.speed"),
        # The remaining time, and at the end the elapsed time.
        bars.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with bars.Progress(*columns, console=Console(stderr=True), disable=not is_shown) as bar:
        # Without a total, during the listing for example, the bar only shows activity.
        task = bar.add_task(description, total=None, rate="")

        def update(done: int, total: int) -> None:
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(task, completed=done, total=total, rate=f"{speed:,.0f} {unit}/s" if speed else "")

        yield update
