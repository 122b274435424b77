"""Whole N5 containers: groups, attributes, multiscales, and what is skipped with a reason."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store.errors import AdoptionError, CodecError, HeaderError, PartsStoreError, StoreConfigError
from parts_store.virtual.parsers.n5.dataset import N5Dataset
from tests.virtual.adopting import adopted, repository
from tests.virtual.parsers.n5.containers import numbers, open_tensorstore, read_z5py, settle, write_java, write_root

MULTISCALES = [{"datasets": [{"path": "s0", "scale": [1, 1]}, {"path": "s1", "scale": [2, 2]}]}]
OME = {
    "version": "0.5",
    "multiscales": [
        {
            "name": "timepoint0",
            "axes": [
                {"name": "y", "type": "space", "unit": "micrometer"},
                {"name": "x", "type": "space", "unit": "micrometer"},
            ],
            "datasets": [
                {"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [0.2, 0.1]}]},
                {
                    "path": "s1",
                    "coordinateTransformations": [
                        {"type": "scale", "scale": [0.4, 0.2]},
                        {"type": "translation", "translation": [0.1, 0.05]},
                    ],
                },
            ],
        }
    ],
}


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A multiscale volume in groups with and without attributes."""
    folder = tmp_path / "volume.n5"
    write_java(folder / "setup 0/timepoint0/s0", numbers((8, 6), "uint16"), (4, 4), "gzip", downsamplingFactors=[1, 1])
    write_java(folder / "setup 0/timepoint0/s1", numbers((4, 3), "uint16"), (4, 4), "gzip", downsamplingFactors=[2, 2])
    (folder / "setup 0/timepoint0/attributes.json").write_text(json.dumps({"multiscales": MULTISCALES}))
    write_root(folder, pixelResolution={"unit": "um", "dimensions": [0.1, 0.2]})
    return folder


def test_groups_and_attributes_are_kept(container: Path) -> None:
    report, store = adopted(container, path="a")
    assert report.is_complete
    assert [each.path for each in report.arrays] == ["a/setup 0/timepoint0/s0", "a/setup 0/timepoint0/s1"]
    assert [each.references for each in report.arrays] == [4, 1]
    assert "2 blocks are cut at the edge" in report.arrays[0].plan
    assert "1 block is cut at the edge" in report.arrays[1].plan
    ps.adopt_in_place(container)
    local = ps.PartsStore.from_url(container, read_only=True)
    for where, prefix, axes in ((store, "a/", 1), (local, "", -1)):
        root = zarr.open_group(where, path=prefix.rstrip("/"), mode="r")
        assert root.attrs.asdict() == {"pixelResolution": {"unit": "um", "dimensions": [0.1, 0.2]}}
        assert root["setup 0"].attrs.asdict() == {}
        group = root["setup 0/timepoint0"]
        assert group.attrs.asdict() == {"multiscales": MULTISCALES, **({"ome": OME} if where is store else {})}
        for name, factor, shape in (("s0", 1, (8, 6)), ("s1", 2, (4, 3))):
            array: Any = zarr.open_array(where, path=f"{prefix}setup 0/timepoint0/{name}", mode="r")
            assert array.shape == shape[::axes]
            assert array.attrs.asdict() == {"downsamplingFactors": [factor, factor]}


def test_a_dataset_is_adopted_by_its_name(container: Path) -> None:
    expected = read_z5py(container, "setup 0/timepoint0/s0")
    session = repository(container.parent).writable_session("main")
    report = ps.adopt(container / "setup 0/timepoint0/s0", into=session, path="a")
    store = ps.PartsStore.from_session(session)
    assert [each.path for each in report.arrays] == ["a/s0"]
    np.testing.assert_array_equal(zarr.open_array(store, path="a/s0", mode="r")[...], expected)
    report = ps.adopt_in_place(container, "setup 0/timepoint0/s0")
    assert [each.path for each in report.arrays] == ["setup 0/timepoint0/s0"]
    assert not (container / "zarr.json").exists()
    local = ps.PartsStore.from_url(container, read_only=True)
    np.testing.assert_array_equal(zarr.open_array(local, path="setup 0/timepoint0/s0", mode="r")[...], expected.T)


def test_a_group_without_attributes_of_n5_needs_the_parser(container: Path) -> None:
    with pytest.raises(AdoptionError, match="or pass a `parser`"):
        adopted(container / "setup 0")
    report, _ = adopted(container / "setup 0", parser=ps.parsers.N5())
    assert [each.path for each in report.arrays] == ["timepoint0/s0", "timepoint0/s1"]


def test_a_container_that_was_adopted_in_place_is_still_n5(container: Path) -> None:
    expected = read_z5py(container, "setup 0/timepoint0/s0")
    ps.adopt_in_place(container)
    settle(container)
    _, store = adopted(container)
    np.testing.assert_array_equal(zarr.open_array(store, path="setup 0/timepoint0/s0", mode="r")[...], expected)
    found = open_tensorstore(container / "setup 0/timepoint0/s0").read().result()
    np.testing.assert_array_equal(found, expected.T)


def test_a_mistyped_container_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(PartsStoreError, match="typo"):
        ps.adopt_in_place(tmp_path / "typo.n5")
    assert not list(tmp_path.iterdir())


def test_a_second_adoption_in_place_changes_nothing(container: Path) -> None:
    first = ps.adopt_in_place(container)
    times = {each: each.stat().st_mtime_ns for each in container.rglob("*")}
    assert ps.adopt_in_place(container) == first
    assert {each: each.stat().st_mtime_ns for each in container.rglob("*")} == times


def test_other_documents_are_replaced_only_if_the_caller_says_so(container: Path) -> None:
    file = container / "setup 0/timepoint0/s1/zarr.json"
    file.write_text("{}")
    with pytest.raises(StoreConfigError, match=r"s1/zarr\.json"):
        ps.adopt_in_place(container)
    assert [each.name for each in container.rglob("zarr.json")] == ["zarr.json"]
    assert len(ps.adopt_in_place(container, overwrite=True, dry_run=True).arrays) == 2
    assert file.read_text() == "{}"
    ps.adopt_in_place(container, overwrite=True)
    assert json.loads(file.read_text())["node_type"] == "array"


def test_a_session_cannot_be_adopted_in_place(container: Path) -> None:
    session = repository(container.parent).writable_session("main")
    with pytest.raises(StoreConfigError, match=r"`ps\.adopt` adopts a container into a session"):
        ps.adopt_in_place(ps.PartsStore.from_session(session))
    with pytest.raises(ValueError, match="read-only"):
        ps.adopt_in_place(ps.PartsStore.from_url(container, read_only=True))
    with pytest.raises(StoreConfigError, match="because a store is given"):
        ps.adopt_in_place(ps.PartsStore.from_url(container), region="r")
    (container.parent / "empty").mkdir()
    with pytest.raises(AdoptionError, match="no group and no dataset of N5"):
        ps.adopt_in_place(container.parent / "empty")


def test_an_array_in_place_can_be_written_and_n5_programs_read_it(container: Path) -> None:
    folder = container / "setup 0/timepoint0/s0"
    ps.adopt_in_place(container)
    store = ps.PartsStore.from_url(container)
    array: Any = zarr.open_array(store, path="setup 0/timepoint0/s0", mode="r+")
    array[1:5, 2:8] = 7
    expected = array[...]
    np.testing.assert_array_equal(open_tensorstore(folder).read().result(), expected)
    for document in container.rglob("zarr.json"):
        document.unlink()
    np.testing.assert_array_equal(read_z5py(container, "setup 0/timepoint0/s0"), expected.T)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dimensions": []}, "expected `dimensions` with 1 to 32 lengths"),
    ({"dimensions": 8}, "expected `dimensions` with 1 to 32 lengths, found 8"),
    ({"dimensions": [8, -1]}, "expected `dimensions` with lengths from 0"),
    ({"dimensions": [8, 2**64]}, "expected `dimensions` with lengths from 0"),
    ({"dimensions": [8, 6.5]}, "expected `dimensions` with lengths from 0"),
    ({"dimensions": [8, True]}, "expected `dimensions` with lengths from 0"),
    ({"dimensions": [2**62, 2**62]}, "blocks, and at most 16,777,216 can be listed"),
    ({"blockSize": [4, 0]}, "expected `blockSize` with lengths from 1"),
    ({"blockSize": [4, -4]}, "expected `blockSize` with lengths from 1"),
    ({"blockSize": [4]}, "2 `dimensions`, and a `blockSize` of 1"),
    ({"blockSize": [2**20, 2**20]}, "blocks of 1,099,511,627,776 elements"),
    ({"blockSize": None}, "expected `blockSize` with 1 to 32 lengths, found None"),
    ({"dataType": "string"}, "values of type 'string': only numbers are read"),
    ({"dataType": ["uint16"]}, "values of type"),
    ({"compression": None}, "expected a `compression` with a `type`"),
    ({"compression": {"type": "jpeg"}}, "a compression that Zarr has no codec for: jpeg"),
    ({"compression": {"type": "blosc", "cname": "snappy"}}, "blosc with snappy"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("changes", "reason"), WRONG)
def test_wrong_attributes_are_named_and_the_rest_is_adopted(
    container: Path, changes: dict[str, Any], reason: str
) -> None:
    file = container / "setup 0/timepoint0/s1/attributes.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    settle(container)
    report, _ = adopted(container)
    assert [each.path for each in report.arrays] == ["setup 0/timepoint0/s0"]
    (skipped,) = report.skipped
    assert skipped.name == "setup 0/timepoint0/s1"
    assert reason in skipped.reason
    with pytest.raises(AdoptionError, match="s1"):
        adopted(container, strict=True)
    # In place, blocks are not listed, and any number of them is possible.
    is_only_large = "can be listed" in reason
    report = ps.adopt_in_place(container)
    assert [reason in each.reason for each in report.skipped] == ([] if is_only_large else [True])
    if not is_only_large:
        with pytest.raises(AdoptionError, match="s1"):
            ps.adopt_in_place(container, strict=True)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}"])
def test_attributes_that_are_not_json_are_named(container: Path, content: bytes) -> None:
    (container / "setup 0/timepoint0/s1/attributes.json").write_bytes(content)
    settle(container)
    for report in (adopted(container)[0], ps.adopt_in_place(container)):
        assert [each.path for each in report.arrays] == ["setup 0/timepoint0/s0"]
        assert [each.name for each in report.skipped] == ["setup 0/timepoint0/s1"]
        assert "attributes.json is not" in report.skipped[0].reason
    (container / "attributes.json").write_bytes(content)
    settle(container)
    with pytest.raises(AdoptionError, match=r"attributes\.json is not"):
        adopted(container)


def header(mode: int, *shape: int) -> bytes:
    return struct.pack(f">HH{len(shape)}I", mode, len(shape), *shape)


BLOCKS = [
    (b"", "a block of 0 bytes"),
    (header(0, 4, 4)[:11], "a block of 11 bytes"),
    (header(1, 4, 4) + bytes(40), "mode 1 \\(varlength\\)"),
    (header(2, 4, 4) + bytes(40), "mode 2 \\(object\\)"),
    (header(9, 4, 4) + bytes(40), "mode 9 \\(not known\\)"),
    (header(0, 4, 4, 4) + bytes(40), "expected 2 dimensions, found 3"),
    (header(0, 4, 0) + bytes(40), "expected lengths from 1"),
    (header(0, 5, 4) + bytes(40), r"its header says \(5, 4\)|a block of at most \(4, 4\)"),
    (header(0, 2**32 - 1, 2**32 - 1) + bytes(40), r"its header says|a block of at most"),
    (header(0, 2, 4) + bytes(40), "it has 52 bytes, and 28 are expected|expected 16 bytes"),
    (header(0, 2, 4) + bytes(3), "it has 15 bytes, and 28 are expected|expected 16 bytes"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("content", "message"), BLOCKS)
def test_damaged_blocks_are_named_and_never_read(tmp_path: Path, content: bytes, message: str) -> None:
    folder = tmp_path / "x"
    write_java(folder, numbers((6, 6), "uint16"), (4, 4))
    # At the edge, where blocks may have other shapes.
    (folder / "1/0").write_bytes(content)
    settle(folder)
    with pytest.raises(AdoptionError, match=message):
        adopted(folder, strict=True)
    ps.adopt_in_place(folder)
    array: Any = zarr.open_array(ps.PartsStore.from_url(folder, read_only=True), mode="r")
    np.testing.assert_array_equal(array[:4], numbers((6, 6), "uint16").T[:4])
    with pytest.raises((CodecError, HeaderError), match=message):
        array[:]


def test_other_modes_are_refused_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_java(folder, numbers((4, 4), "uint8"), (4, 4))
    (folder / "0/0").write_bytes(header(1, 4, 4) + bytes(4) + bytes(16))
    with pytest.raises(AdoptionError, match="varlength"):
        ps.adopt_in_place(folder, strict=True)
    report = ps.adopt_in_place(folder)
    assert report.arrays == ()
    assert "varlength" in report.skipped[0].reason
    assert not (folder / "zarr.json").exists()


@pytest.mark.parametrize("compression", ["gzip", "zlib", "zstd", "bzip2", "xz", "lz4", "blosc"])
def test_damaged_values_raise_an_error_with_the_name_of_the_codec(tmp_path: Path, compression: str) -> None:
    folder = tmp_path / "x"
    write_java(folder, numbers((4, 4), "int64"), (4, 4), compression)
    ps.adopt_in_place(folder)
    array: Any = zarr.open_array(ps.PartsStore.from_url(folder, read_only=True), mode="r")
    block = (folder / "0/0").read_bytes()
    for damaged in (block[:-9], block[:16], block[:12] + bytes(len(block) - 12)):
        (folder / "0/0").write_bytes(damaged)
        with pytest.raises(CodecError, match="codec 'n5_default'"):
            array[:]


def test_a_changed_block_of_an_adopted_container_is_not_read(container: Path) -> None:
    _, store = adopted(container)
    array: Any = zarr.open_array(store, path="setup 0/timepoint0/s0", mode="r")
    file = container / "setup 0/timepoint0/s0/0/0"
    file.write_bytes(file.read_bytes())
    with pytest.raises(PartsStoreError):
        array[:]


def test_blocks_beyond_the_dataset_and_other_files_are_ignored(container: Path) -> None:
    folder = container / "setup 0/timepoint0/s0"
    shutil.copytree(folder / "0", folder / "7")
    (folder / "0/00").write_bytes(b"")
    (folder / "0/note").write_text("a note")
    (folder / "0/0.bak").write_text("a note")
    settle(container)
    report, _ = adopted(container)
    assert report.is_complete
    assert report.arrays[0].references == 4


def test_nodes_in_a_dataset_are_named(container: Path) -> None:
    write_java(container / "setup 0/timepoint0/s0/inner", numbers((4, 4), "uint8"), (4, 4))
    write_java(container / "setup 0/timepoint0/s0/inner/deep", numbers((4, 4), "uint8"), (4, 4))
    settle(container)
    for report in (adopted(container)[0], ps.adopt_in_place(container)):
        names = [each.name for each in report.skipped]
        assert names == ["setup 0/timepoint0/s0/inner", "setup 0/timepoint0/s0/inner/deep"]
        assert all("'setup 0/timepoint0/s0', which is a dataset" in each.reason for each in report.skipped)
    assert not (container / "setup 0/timepoint0/s0/inner/zarr.json").exists()


@pytest.mark.parametrize(
    ("attributes", "axes"),
    [
        ({"axes": ["x", "y"]}, ("x", "y")),
        ({"axes": ["x", "x"]}, None),
        ({"axes": ["x"]}, None),
        ({"axes": ["\ud800", "y"]}, None),
        ({"axes": [{"name": "x"}, {"name": "y"}]}, None),
        ({"transform": {"axes": ["y", "x"], "ordering": "C"}}, ("x", "y")),
        ({"transform": {"axes": ["x", "y"], "ordering": "F"}}, ("x", "y")),
        ({"_ARRAY_DIMENSIONS": ["y", "x"]}, ("x", "y")),
        ({}, None),
    ],
)
def test_axes_are_named_in_the_order_of_n5(attributes: dict[str, Any], axes: tuple[str, ...] | None) -> None:
    described = {"dimensions": [8, 6], "blockSize": [4, 4], "dataType": "uint8", "compressionType": "raw"}
    dataset = N5Dataset.from_json({**described, **attributes})
    assert dataset.axes == axes
    assert dataset.attributes == attributes
    assert dataset.document().get("dimension_names") == (None if axes is None else list(axes))
    assert dataset.reversed_document(has_headers=True).get("dimension_names") == (
        None if axes is None else list(axes[::-1])
    )


def test_links_that_lead_to_folders_above_are_refused(container: Path) -> None:
    (container / "link").symlink_to(container, target_is_directory=True)
    for adopt in (adopted, ps.adopt_in_place):
        with pytest.raises(PartsStoreError, match="loop"):
            adopt(container)


def test_numbers_that_json_does_not_have_become_text(container: Path) -> None:
    file = container / "setup 0/timepoint0/attributes.json"
    file.write_text('{"minimum": NaN, "maximum": [Infinity]}')
    settle(container)
    _, store = adopted(container)
    ps.adopt_in_place(container)
    for where in (store, ps.PartsStore.from_url(container, read_only=True)):
        group = zarr.open_group(where, path="setup 0/timepoint0", mode="r")
        added = {"ome": OME} if where is store else {}
        assert group.attrs.asdict() == {"minimum": "NaN", "maximum": ["Infinity"], **added}


def test_adoption_in_place_reports_progress(container: Path) -> None:
    told: list[tuple[int, int]] = []
    ps.adopt_in_place(container, progress=lambda done, total: told.append((done, total)))
    # Two datasets and the three groups above them.
    assert told == [(number, 5) for number in range(1, 6)]
    assert len(list(container.rglob("zarr.json"))) == 5
    with pytest.raises(StoreConfigError, match="progress: expected True"):
        ps.adopt_in_place(container, progress=1, overwrite=True)  # type: ignore[arg-type] # that is what the test is about
