"""Random schedules of processes that write, read and delete the chunks of one array on a local disk."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import parts_store as ps
from tests.certified import CHUNKS, NBYTES, create, is_whole, read


def files(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def mend_document(folder: Path, document: bytes) -> ps.PartsStore:
    """A new store on the same folder, with the array's document as it was."""
    (folder / "g/a").mkdir(parents=True, exist_ok=True)
    (folder / "g/a/zarr.json").write_bytes(document)
    return ps.PartsStore.from_url(folder)


def schedule(folder: Path, processes: int, count: int, seed: int) -> Counter[str]:
    """Let processes write, read and delete in random order; return what went wrong."""
    store = ps.PartsStore.from_url(folder)
    create(store, "g/a")
    document = (folder / "g/a/zarr.json").read_bytes()
    command = [sys.executable, "-m", "tests.certified", str(folder)]
    running = [
        subprocess.Popen(
            [*command, str(seed * 1000 + number), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    wrong: Counter[str] = Counter()
    try:
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in running:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        for each in running:
            output, _ = each.communicate()
            wrong.update(json.loads(output) if each.returncode == 0 else {f"exit {each.returncode}": 1})
    finally:
        for each in running:
            each.kill()
            each.wait()
    again = mend_document(folder, document)
    wrong["damage"] += int(again.verify().is_damaged)
    for number in range(CHUNKS):
        try:
            value = read(again, f"g/a/c/{number}")
        except ps.errors.PartsStoreError:
            wrong["damage"] += 1
            continue
        wrong["mixture at the end"] += int(value is not None and (len(value) != NBYTES or not is_whole(value)))
    wrong["lock files"] += sum(each.endswith(".lock") for each in files(folder))
    return +wrong
