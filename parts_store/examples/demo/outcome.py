"""What a step of the demo found: values that the terminal and the page show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of the page: its HTML, and the text below it."""

    html: str
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page. The first cell of a row names the row, the other cells are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"expected {len(self.head)} cells in each row, found {self.rows}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step found.

    `result` is one line for the terminal. `text` are sentences for the page. `code` are the functions whose source the
    page shows: they have run. `outputs` are texts that the library has printed, each with a title.
    """

    result: str
    is_right: bool
    text: str
    code: tuple[Callable[..., Any], ...]
    figures: tuple[Figure, ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the demo that has run."""

    title: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class Demo:
    """All steps, and the page about them."""

    page: Path
    steps: Sequence[Step]

    @property
    def is_right(self) -> bool:
        """Whether every step found what it should find."""
        return all(step.outcome.is_right for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document for `parts-store demo --json`."""
        return {
            "page": str(self.page),
            "is_right": self.is_right,
            "steps": [
                {
                    "title": step.title,
                    "result": step.outcome.result,
                    "is_right": step.outcome.is_right,
                    "seconds": round(step.seconds, 3),
                }
                for step in self.steps
            ],
        }
