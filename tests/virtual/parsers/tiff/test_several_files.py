"""OME-TIFF images in several files: they become the one array that tifffile reads, or the report says why not."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from numpy.typing import NDArray

import parts_store as ps
from parts_store.errors import PartsStoreError
from parts_store.virtual.report import Adoption
from tests.virtual.adopting import adopted, repository, settle
from tests.virtual.parsers.tiff.files import read

NAMES = ("t0.ome.tif", "t1.ome.tif", "t2.ome.tif")
VALUES = np.random.default_rng(3).integers(0, 60000, (3, 2, 40, 50)).astype("u2")
STORED: dict[str, dict[str, Any]] = {
    "whole pages": {},
    "tiles": {"tile": (16, 16), "compression": "zlib", "predictor": 2},
    "strips": {"rowsperstrip": 16, "compression": "lzw"},
    "BigTIFF, big-endian": {"tile": (16, 32), "compression": "zstd"},
    "values that are loaded": {"rowsperstrip": 16, "compression": "jpeg2000"},
}


def plane(number: int, name: str, uuid: str, **attributes: int) -> str:
    """An element for planes that begin with the first page of a file, and the time `number`."""
    shown = " ".join(f'{key}="{value}"' for key, value in {"IFD": 0, "FirstT": number, **attributes}.items())
    return f'<TiffData {shown}><UUID FileName="{name}">{uuid}</UUID></TiffData>'


def document(uuid: str, planes: str, order: str = "XYCZT", times: int = 3, **more: str) -> str:
    sizes = f'SizeX="50" SizeY="40" SizeZ="1" SizeC="2" SizeT="{times}"'
    image = f'<Image ID="Image:0"><Pixels DimensionOrder="{order}" {sizes} Type="uint16">{planes}</Pixels></Image>'
    kind = 'xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"'
    return f'<?xml version="1.0"?><OME {kind} UUID="{uuid}">{image}{more.get("images", "")}</OME>'


def write(path: Path, values: NDArray[Any], xml: str | bytes, options: Mapping[str, Any], **kind: Any) -> None:
    with tifffile.TiffWriter(path, **kind) as file:
        for number, each in enumerate(values):
            text = xml if number == 0 else None
            file.write(each, description=text, metadata=None, photometric="minisblack", contiguous=False, **options)
    settle(path)


def write_all(
    folder: Path, options: Mapping[str, Any] | None = None, planes: Sequence[str] | None = None, **kind: Any
) -> list[Path]:
    """Write an image of three times in three files, with two channels in each."""
    if planes is None:
        planes = [plane(number, name, f"urn:uuid:{number}", PlaneCount=2) for number, name in enumerate(NAMES)]
    for number, name in enumerate(NAMES):
        xml = document(f"urn:uuid:{number}", "".join(planes))
        write(folder / name, VALUES[number], xml, options or {}, **kind)
    return [folder / name for name in NAMES]


def require_own_pages(report: Adoption, store: ps.PartsStore, problem: str, number: int = 0) -> None:
    """Only the pages in the file itself are adopted, and the report says why."""
    assert not report.is_complete
    assert problem in " ".join(each.reason for each in report.skipped)
    found = [read(store, each.path) for each in report.arrays]
    np.testing.assert_array_equal(np.concatenate([each.reshape(-1, 40, 50) for each in found]), VALUES[number])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("label", STORED)
def test_files_become_the_array_that_tifffile_reads(tmp_path: Path, label: str, which: int) -> None:
    kind: Any = {"bigtiff": True, "byteorder": ">"} if "BigTIFF" in label else {}
    paths = write_all(tmp_path, STORED[label], **kind)
    expected = tifffile.imread(paths[which])
    report, store = adopted(paths[which], strict=True)
    assert report.is_complete
    assert [(each.path, each.shape) for each in report.arrays] == [("data", (3, 2, 40, 50))]
    np.testing.assert_array_equal(read(store), expected)
    np.testing.assert_array_equal(expected, VALUES)
    assert zarr.open_array(store, path="data", mode="r").metadata.dimension_names == ("t", "c", "y", "x")  # type: ignore[union-attr]
    assert (report.nbytes_copied > 0) == (label in ("strips", "values that are loaded"))


@pytest.mark.parametrize("order", ["XYCZT", "XYTCZ", "XYZTC"])
def test_the_order_of_planes_is_that_of_the_document(tmp_path: Path, order: str) -> None:
    planes = [
        plane(time, NAMES[time], f"urn:uuid:{time}", IFD=channel, FirstC=channel, PlaneCount=1)
        for channel in (1, 0)
        for time in (2, 0, 1)
    ]
    for number, name in enumerate(NAMES):
        write(tmp_path / name, VALUES[number], document(f"urn:uuid:{number}", "".join(planes), order), {})
    expected = tifffile.imread(tmp_path / NAMES[1])
    _, store = adopted(tmp_path / NAMES[1], strict=True)
    np.testing.assert_array_equal(read(store), expected)
    assert expected.size == VALUES.size


def test_pyramids_and_images_in_other_files_are_read_as_by_tifffile(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    planes = "".join(plane(number, NAMES[number], f"urn:uuid:{number}", PlaneCount=2) for number in range(2))
    third = f'<Image ID="Image:1"><Pixels DimensionOrder="XYCZT" SizeX="50" SizeY="40" SizeZ="1" SizeC="2" SizeT="1" \
Type="uint16">{plane(0, NAMES[2], "urn:uuid:2", PlaneCount=2)}</Pixels></Image>'
    for number, name in enumerate(NAMES):
        xml = document(f"urn:uuid:{number}", planes, times=2, images=third)
        with tifffile.TiffWriter(tmp_path / name) as file:
            for channel in range(2):
                tiles: Any = {"tile": (16, 16), "metadata": None, "photometric": "minisblack", "compression": "zlib"}
                text = xml if channel == 0 else None
                levels = 0 if number == 2 else 1
                file.write(VALUES[number, channel], description=text, subifds=levels, **tiles)
                for _ in range(levels):
                    file.write(rng.integers(0, 9, (20, 25)).astype("u2"), subfiletype=1, **tiles)
        settle(tmp_path / name)
    report, store = adopted(tmp_path / NAMES[0], strict=True)
    with tifffile.TiffFile(tmp_path / NAMES[0]) as tif:
        expected = {
            "series_0/level_0/data": tif.series[0].levels[0].asarray(),
            "series_0/level_1/data": tif.series[0].levels[1].asarray(),
            "series_1/data": tif.series[1].asarray(),
        }
    assert {each.path for each in report.arrays} == expected.keys()
    for path, values in expected.items():
        np.testing.assert_array_equal(read(store, path), values)
    np.testing.assert_array_equal(expected["series_1/data"], VALUES[2])


def delete(paths: list[Path]) -> str:
    paths[1].unlink()
    return "which does not exist: t1.ome.tif"


def change_uuid(paths: list[Path]) -> str:
    write(paths[2], VALUES[0], document("urn:uuid:9", ""), {})
    return "'t2.ome.tif' has the UUID 'urn:uuid:9', expected 'urn:uuid:2'"


def leave_out_page(paths: list[Path]) -> str:
    write(paths[1], VALUES[1, :1], str(tifffile.tiffcomment(paths[1])), {})
    return "1 of 6 pages are in none of its files"


def cut_values(paths: list[Path]) -> str:
    # The directories are before the values.
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[:-10])
    return f"its values end at {len(data):,}, and the file at {len(data) - 10:,}"


def replace_with_text(paths: list[Path]) -> str:
    paths[1].write_text("a text")
    return "'t1.ome.tif' cannot be read: it is no TIFF file"


def replace(content: bytes, paths: list[Path]) -> str:
    paths[1].write_bytes(content)
    return "'t1.ome.tif' cannot be read"


CONTENTS = (b"", b"II*\0" + bytes(100), b"II*\0\x08\0\0\0\xff\xff")


@pytest.mark.parametrize(
    "damage",
    [
        delete,
        change_uuid,
        leave_out_page,
        cut_values,
        replace_with_text,
        *(partial(replace, each) for each in CONTENTS),
    ],
)
def test_only_own_pages_are_adopted_if_another_file_is_missing_or_damaged(
    tmp_path: Path, damage: Callable[[list[Path]], str]
) -> None:
    paths = write_all(tmp_path)
    problem = damage(paths)
    for path in paths:
        if path.exists():
            settle(path)
    report, store = adopted(paths[0])
    require_own_pages(report, store, problem)


@pytest.mark.parametrize("name", ["../{}", "{folder}/../{}", "sub/{}", "..\\{}", "sub\\{}", "..", ".", ""])
def test_names_with_folders_are_refused_and_not_opened(tmp_path: Path, name: str) -> None:
    (folder := tmp_path / "images").mkdir()
    (folder / "sub").mkdir()
    wanted = name.format(NAMES[2], folder=folder)
    planes = [plane(0, NAMES[0], "urn:uuid:0", PlaneCount=2), plane(1, NAMES[1], "urn:uuid:1", PlaneCount=2)]
    paths = write_all(folder, planes=[*planes, plane(2, wanted, "urn:uuid:2", PlaneCount=2)])
    for place in (tmp_path, folder / "sub"):
        (place / NAMES[2]).write_bytes(paths[2].read_bytes())
    report, store = adopted(paths[0])
    require_own_pages(report, store, f"{wanted!r} is not the name of a file in the same folder")


@pytest.mark.parametrize(
    ("options", "kind"), [({"compression": "zlib"}, {}), ({"rowsperstrip": 8}, {}), ({}, {"byteorder": ">"})]
)
def test_pages_that_are_stored_in_another_way_are_not_joined(
    tmp_path: Path, options: dict[str, Any], kind: dict[str, Any]
) -> None:
    paths = write_all(tmp_path, {"tile": (16, 16)})
    xml = tifffile.tiffcomment(paths[1])
    write(paths[1], VALUES[1], str(xml), options, **kind)
    report, store = adopted(paths[0])
    require_own_pages(report, store, "its pages in this file are adopted one by one: pages")


def test_the_only_page_in_a_file_is_adopted_if_it_cannot_be_joined(tmp_path: Path) -> None:
    planes = "".join(plane(0, name, f"urn:uuid:{number}", FirstC=number) for number, name in enumerate(NAMES[:2]))
    for number, options in enumerate([{}, {"compression": "zlib"}]):
        xml = document(f"urn:uuid:{number}", planes, times=1)
        write(tmp_path / NAMES[number], VALUES[number, :1], xml, options)
    for number in range(2):
        report, store = adopted(tmp_path / NAMES[number])
        assert not report.is_complete
        assert [each.path for each in report.arrays] == ["page_0/data"]
        np.testing.assert_array_equal(read(store, "page_0/data"), VALUES[number, 0])


@pytest.mark.slow
def test_another_file_that_changes_in_the_second_of_its_adoption_is_noticed(tmp_path: Path) -> None:
    paths = write_all(tmp_path)
    session = repository(tmp_path).writable_session("main")
    paths[1].touch()
    ps.adopt(paths[0], into=session)
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    paths[1].write_bytes(data)
    found = zarr.open_array(ps.PartsStore.from_session(session), path="data", mode="r")
    with pytest.raises(PartsStoreError):
        found[1]


def test_an_image_is_not_read_after_another_file_has_changed(tmp_path: Path) -> None:
    paths = write_all(tmp_path)
    _, store = adopted(paths[0], strict=True)
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    paths[1].write_bytes(data)
    found = zarr.open_array(store, path="data", mode="r")
    np.testing.assert_array_equal(found[0], VALUES[0])
    with pytest.raises(PartsStoreError):
        found[1]


def test_in_a_list_each_file_has_its_own_pages(tmp_path: Path) -> None:
    paths = write_all(tmp_path)
    session = repository(tmp_path).writable_session("main")
    report = ps.adopt(paths, into=session, concat_dim="t")
    assert "to join it with 't1.ome.tif', adopt it alone" in " ".join(each.reason for each in report.skipped)
    found = read(ps.PartsStore.from_session(session))
    np.testing.assert_array_equal(found.reshape(VALUES.shape), VALUES)


@pytest.mark.parametrize("uuid", ["", 'UUID="urn:uuid:0"'])
def test_names_with_spaces_are_found_also_without_a_uuid_of_the_document(tmp_path: Path, uuid: str) -> None:
    names = ["a b.ome.tif", "b %20 \N{LATIN SMALL LETTER U WITH DIAERESIS}.ome.tif"]
    planes = "".join(plane(number, name, f"urn:uuid:{number}", PlaneCount=2) for number, name in enumerate(names))
    for number, name in enumerate(names):
        xml = document("", planes, times=2).replace('UUID=""', uuid if number == 0 else "")
        write(tmp_path / name, VALUES[number], xml.encode(), {})
    _, store = adopted(tmp_path / names[0], strict=True)
    np.testing.assert_array_equal(read(store), VALUES[:2])


def test_more_files_than_are_opened_are_refused(tmp_path: Path) -> None:
    planes = "".join(plane(0, f"{number}.tif", f"urn:uuid:{number}") for number in range(1, 5000))
    write(tmp_path / NAMES[0], VALUES[0], document("urn:uuid:0", planes), {})
    report, store = adopted(tmp_path / NAMES[0])
    require_own_pages(report, store, "4,999 files, and at most 4,096 are opened")
