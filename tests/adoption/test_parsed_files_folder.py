"""A folder for `resume` in which archives are damaged: the files are parsed again."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import StoreConfigError
from tests.adoption.adopting import repository, settle


def test_an_archive_with_numbers_of_other_files_is_parsed_again(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((4, 3000))
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file.create_dataset("v", data=values, chunks=(1, 3000), compression="gzip")
    settle(tmp_path / "0.h5")
    kept = tmp_path / "kept"
    arguments: dict[str, Any] = {"concat_dim": "phony_dim_0", "resume": kept}
    ps.adopt(tmp_path / "0.h5", into=repository(tmp_path).writable_session("main"), **arguments)
    (archive,) = kept.glob("*.npz")
    with np.load(archive) as known:
        changed = {name: each + 5 if name.startswith("n") else each for name, each in known.items()}
    np.savez(archive, allow_pickle=False, **changed)
    session = repository(tmp_path).writable_session("main")
    ps.adopt(tmp_path / "0.h5", into=session, **arguments)
    found = zarr.open_array(ps.PartsStore.from_session(session), path="v", mode="r")
    assert np.array_equal(found[...], values)


def test_a_folder_that_is_no_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0.h5").write_bytes(b"")
    wrong: Any = 5
    with pytest.raises(StoreConfigError, match="resume: expected a folder of this machine, found 5"):
        ps.adopt(tmp_path / "0.h5", into=repository(tmp_path).writable_session("main"), resume=wrong)
