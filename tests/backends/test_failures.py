"""What users are told if obstore fails in ways that no server shows."""

import subprocess
import sys
from pathlib import Path

import pytest

import parts_store as ps

pytest.importorskip("resource", reason="no limit of open files on this system")

# The store is opened while files are free, and obstore starts its threads when none is.
PROGRAM = """
import os, resource, sys
import parts_store as ps

store = ps.PartsStore.from_url(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for attempt in (store.verify, store.repair):
    try:
        attempt()
    except ps.errors.PartsStoreError as error:
        print(type(error).__name__, error)
    for file in files:
        os.close(file)
    files = []
"""


def test_too_many_open_files_are_not_called_wrong_credentials(tmp_path: Path) -> None:
    ps.create_array(ps.PartsStore.from_url(tmp_path), "a", parts=["", ".x"], shape=4, chunks=4, dtype="i4")
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("StorageError")
        assert "too many files were open" in line
        assert "start the process again" in line
        assert "credentials" not in line
