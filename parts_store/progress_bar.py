"""A progress bar on standard error, with the rate and the remaining time."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from parts_store.engine.stats import Progress


@contextmanager
def progress_bar(description: str, unit: str, *, is_shown: bool = True) -> Iterator[Progress]:
    """Show a progress bar on standard error while the block runs.

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
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        _RateColumn(unit),
        # The remaining time, and at the end the elapsed time.
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=Console(stderr=True), disable=not is_shown) as bar:
        # Without a total, during the listing for example, the bar only shows activity.
        task = bar.add_task(description, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


class _RateColumn(ProgressColumn):
    """A column with the number of items per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s", style="progress.data.speed")
