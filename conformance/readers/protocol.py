"""The command line of a reader in Python: one array, or many with `--batch`."""

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

type Read = Callable[[Path, str], np.ndarray[Any, Any]]


class UnreadableError(Exception):
    """An array cannot be read; `name` is the class of the error in the words of the kit, or None."""

    def __init__(self, name: str | None, message: str) -> None:
        super().__init__(name, message)
        self.name, self.message = name, message


def main(read: Read, arguments: Sequence[str]) -> None:
    """Read the array that the arguments name, and exit; or with `--batch` those that standard input names."""
    if [*arguments] == ["--batch"]:
        for line in sys.stdin:
            folder, array, out = json.loads(line)
            print(json.dumps(answer(read, folder, array, out)), flush=True)
        return
    if len(arguments) != 3:
        sys.exit("usage: FOLDER ARRAY OUT.npy, or --batch")
    said = answer(read, *arguments)
    if not said["ok"]:
        print(said["message"], f"class: {said['class']}", sep="\n", file=sys.stderr)
        sys.exit(1)


def answer(read: Read, folder: str, array: str, out: str) -> dict[str, Any]:
    """Read an array, write its values, and return the answer of a batch."""
    try:
        np.save(out, read(Path(folder), array), allow_pickle=False)
    except UnreadableError as error:
        return {"ok": False, "class": error.name, "message": error.message}
    except (ValueError, zlib.error) as error:
        # What NumPy and zlib raise for bytes that they cannot decode.
        return {"ok": False, "class": "bad-data", "message": f"{type(error).__name__}: {error}"}
    # A batch goes on after an error of any kind.
    except Exception as error:
        return {"ok": False, "class": None, "message": f"{type(error).__name__}: {error}"}
    return {"ok": True}
