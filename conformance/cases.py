"""The cases of the kit: what a reader must find in a folder, and whether it has found it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
DATA = "data"
MANIFEST = "cases.json"


@dataclass(frozen=True, slots=True)
class Case:
    """An array of the kit, and what is expected of a reader of it."""

    name: str
    folder: Path
    array: str
    checks: str
    basis: str
    features: frozenset[str]
    # As it is in the list: `values`, or `shape`, `dtype`, `fill` and `regions`, or `error`.
    expect: dict[str, Any]
    root: Path

    @property
    def error(self) -> str | None:
        """The class of the error that the reader must report, None if it must read the values."""
        error: str | None = self.expect.get("error")
        return error

    def expected_values(self) -> np.ndarray[Any, Any]:
        """Return the values that the reader must write."""
        if "values" in self.expect:
            loaded: np.ndarray[Any, Any] = np.load(self.root / self.expect["values"], allow_pickle=False)
            return loaded
        values = np.full(self.expect["shape"], self.expect["fill"], self.expect["dtype"])
        for region in self.expect["regions"]:
            box = tuple(slice(*each) for each in zip(region["start"], region["stop"], strict=True))
            values[box] = np.load(self.root / region["values"], allow_pickle=False)
        return values

    def difference(self, written: Path) -> str | None:
        """Return how a file that the reader has written differs from the expected values, None if it does not."""
        try:
            found = np.load(written, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            return f"no .npy file was written: {error}"
        expected = self.expected_values()
        if found.shape != expected.shape:
            return f"shape {found.shape} in place of {expected.shape}"
        # The byte order does not matter.
        if found.dtype.newbyteorder("=") != expected.dtype.newbyteorder("="):
            return f"data type {found.dtype} in place of {expected.dtype}"
        differs = found != expected
        if expected.dtype.kind == "f":
            differs &= ~(np.isnan(found) & np.isnan(expected))
        if not differs.any():
            return None
        first = tuple(int(at) for at in np.argwhere(differs)[0])
        return f"{int(differs.sum())} wrong values, the first at {first}: {found[first]} in place of {expected[first]}"


def load_cases(folder: Path = FOLDER, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> list[Case]:
    """Return the cases of the kit.

    `only` are names or beginnings of names, such as `pad/`. Cases with one of the features `without` are left out.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    cases = [
        Case(
            each["name"],
            folder / each["folder"],
            each["array"],
            each["checks"],
            each["basis"],
            frozenset(each["features"]),
            each["expect"],
            folder,
        )
        for each in manifest["cases"]
    ]
    chosen = [case for case in cases if not only or case.name.startswith(tuple(only))]
    return [case for case in chosen if not case.features & set(without)]
