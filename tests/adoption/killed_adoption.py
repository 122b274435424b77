"""Adopt files in a process of its own, which a test kills: prints each step that begins."""

import sys
from pathlib import Path

import parts_store as ps
from parts_store.adoption.parsers import HDF5


def main(folder: Path) -> None:
    """Adopt the files of a folder into the repository beside them, and keep what was parsed."""
    inner = HDF5.describe

    def describe(self: HDF5, file: object, *others: object) -> object:
        # One line for each file that is parsed.
        with (folder / "parsed.txt").open("a") as log:
            log.write(f"{str(getattr(file, 'location', '')).rpartition('/')[2]}\n")
        return inner(self, file, *others)  # type: ignore[arg-type]

    HDF5.describe = describe  # type: ignore[method-assign, assignment]
    repository = ps.open_repository(folder / "repository", virtual=[folder / "data"])
    print("begins", flush=True)
    session = repository.writable_session("main")
    ps.adopt(folder / "data/*.nc", into=session, concat_dim="time", executor=False, resume=folder / "kept")
    session.commit("adopted")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
