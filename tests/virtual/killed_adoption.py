"""Adopt the months in a folder and commit them, in a process that waits for a line of input at each step."""

import sys
from pathlib import Path

import parts_store as ps


def wait_for_parent(step: str) -> None:
    print(step, flush=True)
    sys.stdin.readline()


def main(folder: Path) -> None:
    repository = ps.open_repository(folder / "repository", virtual=[folder / "data"], create=False)
    session = repository.writable_session("main")
    ps.adopt(
        folder / "data/*.nc",
        into=session,
        concat_dim="time",
        progress=lambda done, of: wait_for_parent(f"{done} of {of}"),
    )
    wait_for_parent("adopted")
    session.commit("adopt")
    wait_for_parent("committed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
