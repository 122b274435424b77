"""Two sessions that change an array in parts, compared with two sessions that change an array without parts."""

from collections.abc import Callable
from pathlib import Path

from icechunk import Repository as Icechunk

from tests.sessions.histories import PLAIN, SOLVERS, Kind, Result, Scene
from tests.sessions.steps import REBASE_FAILED

OVERWRITE_ARRAY, DELETE_ARRAY = "overwrite the array", "delete the array"


class Stage:
    """A scene for each kind, and for an array without parts, to which the others are held."""

    def __init__(self, files: Path, new_repository: Callable[[Path], Icechunk]) -> None:
        self.files, self.new_repository = files, new_repository
        self.scenes: dict[Kind, Scene] = {}
        self.expected: dict[tuple[str, ...], Result] = {}

    def scene(self, kind: Kind) -> Scene:
        """Return the scene of a kind, in a repository of its own."""
        if kind not in self.scenes:
            self.scenes[kind] = Scene(kind, self.new_repository(self.files), self.files)
        return self.scenes[kind]

    def require_as_plain(self, kind: Kind, first: str, second: str, solver: str, interleaving: str) -> None:
        """Raise unless two operations end as they do for an array without parts."""
        case = (first, second, solver, interleaving)
        if case not in self.expected:
            self.expected[case] = self.scene(PLAIN).play(first, second, SOLVERS[solver], interleaving)
        plain = self.expected[case]
        found = self.scene(kind).play(first, second, SOLVERS[solver], interleaving)
        before, last = (first, second) if interleaving.endswith("cB") else (second, first)
        is_below = before != DELETE_ARRAY and last == OVERWRITE_ARRAY
        if kind.split and is_below and plain.ends[1] == "committed":
            # Icechunk puts no new nodes below what is an array in the commit before: nothing is lost, but refused.
            assert found.ends == ("committed", REBASE_FAILED), case
            return
        assert found == plain, case
