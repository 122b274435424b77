"""Virtual and external datasets are references into the files that have their values, where these are allowed."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import parts_store as ps
from parts_store.virtual.adopt import adopt
from parts_store.virtual.existing_files import location_of
from tests.virtual.adopting import adopted, array, settle
from tests.virtual.parsers.hdf5.files import reasons

pytestmark = pytest.mark.slow

OPTIONS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (2, 5)},
    "compressed": {"chunks": (2, 5), "compression": "gzip", "shuffle": True},
}


def write_sources(folder: Path, count: int, options: dict[str, Any]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file.create_dataset("deep/x", data=np.arange(40).reshape(4, 10) + 100 * number, **options)
        settle(folder / f"{number}.h5")
    return [folder / f"{number}.h5" for number in range(count)]


def adopted_into(path: Path, *virtual: Path, **options: Any) -> tuple[Any, ps.PartsStore]:
    settle(path)
    repository = ps.open_repository(path.parent / f"{len(virtual)}.repository", virtual=[path.parent, *virtual])
    session = repository.writable_session("main")
    report = adopt(path, into=session, **options)
    return report, ps.PartsStore.from_session(session)


def require_as_h5py(path: Path, store: ps.PartsStore, *names: str) -> None:
    with h5py.File(path) as file:
        for name in names:
            assert array(store, name)[...].tolist() == file[name][()].tolist(), name


@pytest.mark.parametrize("label", OPTIONS)
@pytest.mark.parametrize("place", ["beside", "below", "absolute"])
def test_virtual_datasets_refer_to_their_sources(tmp_path: Path, label: str, place: str) -> None:
    sources = write_sources(tmp_path / "below" if place == "below" else tmp_path, 3, OPTIONS[label])
    names = [str(each) if place == "absolute" else os.path.relpath(each, tmp_path) for each in sources]
    path = tmp_path / "virtual.h5"
    with h5py.File(path, "w") as file:
        rows = h5py.VirtualLayout((12, 10), "i8")
        columns = h5py.VirtualLayout((4, 40), "i8")
        stacked = h5py.VirtualLayout((4, 4, 10), "i8")
        for number, name in enumerate(names):
            source = h5py.VirtualSource(name, "deep/x", shape=(4, 10))
            rows[4 * number : 4 * number + 4] = source
            columns[:, 10 * number : 10 * number + 10] = source
            stacked[number] = source
        for name, layout in {"rows": rows, "columns": columns, "stacked": stacked}.items():
            file.create_virtual_dataset(name, layout, fillvalue=-7)
        file["rows"].attrs["units"] = "m"
    report, store = adopted_into(path, strict=True)
    assert not report.loaded
    assert array(store, "rows").attrs["units"] == "m"
    require_as_h5py(path, store, "rows", "columns", "stacked")
    # A source that was changed later is not read.
    sources[1].write_bytes(sources[1].read_bytes())
    with pytest.raises(ps.PartsStoreError):
        array(store, "rows")[...]


def test_a_source_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=np.arange(30).reshape(10, 3), chunks=(5, 3), compression="gzip")
        layout = h5py.VirtualLayout((20, 3), "i8")
        layout[5:15] = h5py.VirtualSource(file["g/x"])
        file.create_virtual_dataset("v", layout, fillvalue=9)
    _, store = adopted_into(path, strict=True)
    require_as_h5py(path, store, "v", "g/x")


def test_virtual_datasets_that_are_no_grid_of_chunks_are_named(tmp_path: Path) -> None:
    write_sources(tmp_path, 2, OPTIONS["chunks"])
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    write_sources(outside, 1, OPTIONS["chunks"])
    path = tmp_path / "virtual.h5"

    def source(name: str, inside: str = "deep/x") -> Any:
        return h5py.VirtualSource(name, inside, shape=(4, 10))

    with h5py.File(path, "w") as file:
        made: dict[str, Any] = {name: h5py.VirtualLayout((12, 10), "i8") for name in NAMED}
        made["shifted"][1:5] = source("0.h5")
        made["part"][0:2] = source("0.h5")[0:2]
        made["steps"][0:8:2] = source("0.h5")
        made["overlap"][0:4] = source("0.h5")
        made["overlap"][2:6] = source("1.h5")
        made["absent file"][0:4] = source("none.h5")
        made["absent dataset"][0:4] = source("0.h5", "deep/none")
        made["outside"][0:4] = source(f"../{outside.name}/0.h5")
        made["absolute"][0:4] = source(str(outside / "0.h5"))
        made["system"][0:4] = source("/etc/passwd")
        made["another type"] = h5py.VirtualLayout((12, 10), "f4")
        made["another type"][0:4] = source("0.h5")
        for name, layout in made.items():
            file.create_virtual_dataset(name, layout)
        file["good"] = [1, 2]
    report, store = adopted_into(path)
    assert [each.path for each in report.arrays] == ["good"]
    found = reasons(report)
    for name, reason in NAMED.items():
        assert reason in found.pop(name), name
    assert not found
    assert array(store, "good")[:].tolist() == [1, 2]
    # With the folder in a container, it is allowed.
    report, store = adopted_into(path, outside)
    assert {each.path for each in report.arrays} == {"good", "outside", "absolute"}
    require_as_h5py(path, store, "outside", "absolute")


NAMED = {
    "shifted": "does not begin and end with a chunk",
    "part": "it has a part of 'deep/x'",
    "steps": "not one block",
    "overlap": "two of its sources overlap",
    "absent file": "does not exist: none.h5",
    "absent dataset": "nothing is",
    "outside": "may not point to",
    "absolute": "may not point to",
    "system": "may not point to",
    "another type": "a source has the data type int64, and not float32",
}


def test_external_datasets_refer_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(bytes(8) + np.arange(12, dtype="<i4").tobytes())
    settle(tmp_path / "raw.bin")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, raw in {
            "good": ("raw.bin", 8, 48),
            "short": ("raw.bin", 12, 48),
            "system": ("/etc/passwd", 0, 48),
        }.items():
            file.create_dataset(name, (3, 4), "<i4", external=[raw])
    report, store = adopted_into(path)
    assert set(reasons(report)) == {"short", "system"}
    assert "its bytes end at 60, and the file raw.bin at 56" in reasons(report)["short"]
    assert "may not point to" in reasons(report)["system"]
    assert array(store, "good")[...].tolist() == np.arange(12).reshape(3, 4).tolist()


@pytest.mark.parametrize(
    ("name", "location", "expected"),
    [
        ("b.h5", "file:///x/a.h5", "file:///x/b.h5"),
        ("y/b c.h5", "file:///x%20z/a.h5", "file:///x%20z/y/b%20c.h5"),
        ("../b.h5", "file:///x/y/a.h5", "file:///x/b.h5"),
        ("../../../../etc/passwd", "file:///x/y/a.h5", "file:///etc/passwd"),
        ("/z/b.h5", "file:///x/a.h5", "file:///z/b.h5"),
        ("./b%20.h5", "s3://bucket/x/a.h5", "s3://bucket/x/b%20.h5"),
        ("../../b.h5", "s3://bucket/x/a.h5", "s3://bucket/b.h5"),
    ],
)
def test_names_of_other_files_are_relative_to_the_folder(name: str, location: str, expected: str) -> None:
    assert location_of(name, location) == expected


def test_a_virtual_dataset_without_an_end_is_named_and_not_empty(tmp_path: Path) -> None:
    """Its sources are not opened by the HDF5 library, which then says that its length is 0."""
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_dataset("x", data=np.arange(6.0), maxshape=(None,), chunks=(3,))
    layout = h5py.VirtualLayout((6,), "f8", maxshape=(None,))
    source = h5py.VirtualSource("source.h5", "x", (6,), maxshape=(None,))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
    report, _ = adopted(path)
    assert not report.arrays
    assert "has no end" in reasons(report)["x"]
