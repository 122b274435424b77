"""A file that refers to other files: a failed read of one of them is an error, and never counts as damage of it."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import parts_store as ps
from parts_store.errors import AdoptionError
from tests.s3_server import BUCKET, Call, Reply, S3Server, refusal
from tests.virtual.parsers.tiff import test_several_files as ome_tiff


def write_hdf5(folder: Path) -> tuple[str, str]:
    with h5py.File(folder / "source.h5", "w") as file:
        file["x"] = np.arange(10)
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource("source.h5", "x", (10,))
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
        file["own"] = np.arange(3)
    return "virtual.h5", "source.h5"


def write_ome_tiff(folder: Path) -> tuple[str, str]:
    first, second, _ = ome_tiff.write_all(folder)
    return first.name, second.name


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("write", [write_hdf5, write_ome_tiff])
def test_a_server_that_fails_for_another_file_is_an_error(
    tmp_path: Path, write: Callable[[Path], tuple[str, str]], method: str
) -> None:
    name, other = write(tmp_path)
    with S3Server() as server:
        for path in tmp_path.iterdir():
            server.put_object(path.name, path.read_bytes())

        def answer(call: Call) -> Reply | None:
            return refusal(503) if (call.method, call.key) == (method, other) else None

        server.before = answer
        registry = {f"s3://{BUCKET}": server.store(retry_config={"max_retries": 0})}
        with pytest.raises(AdoptionError, match=f"{other}.*it cannot be read.*(SlowDown|503)"):
            ps.open_virtual_dataset(f"s3://{BUCKET}/{name}", registry)
        server.before = lambda _call: None
        assert ps.open_virtual_dataset(f"s3://{BUCKET}/{name}", registry)
