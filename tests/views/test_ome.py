"""What OME-XML says besides values: the order of axes, sizes of pixels and channels."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import zarr

import parts_store as ps

SPACE = "{http://www.openmicroscopy.org/Schemas/OME/2016-06}"
AXES = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "micrometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "parsec"},
]
SCALES = [{"type": "scale", "scale": [2.0, 1, 0.5, 0.25, 0.25]}]
IMAGE = {"axes": AXES, "datasets": [{"path": "0", "coordinateTransformations": SCALES}]}


def pixels_of(tmp_path: Path, group: dict[str, Any], **arguments: Any) -> ET.Element:
    store = ps.PartsStore.from_url(tmp_path)
    zarr.create_group(store, path="image", attributes=group)
    shape = arguments.pop("shape", (3, 2, 5, 40, 50))
    leading = (1,) * (len(shape) - 2)
    ps.create_array(
        store,
        "image/0",
        shard_file="tiff",
        **{
            "shape": shape,
            "chunks": (*leading, 16, 16),
            "shards": (*leading, 48, 64),
            "dtype": "uint16",
            **arguments,
        },
    )[...] = 1
    key = ps.write_view(store, "image/0", format="ome")
    root = ET.parse(tmp_path / key).getroot()
    assert root.tag == f"{SPACE}OME"
    (image,) = root
    assert image.attrib == {"ID": "Image:0", "Name": "0"}
    (pixels,) = image
    return pixels


@pytest.mark.parametrize("is_old", [False, True])
def test_axes_sizes_and_channels_are_those_of_ome_zarr(is_old: bool, tmp_path: Path) -> None:
    image = {"multiscales": [IMAGE], "omero": {"channels": [{"label": "DAPI"}, {"label": "GFP"}]}}
    pixels = pixels_of(tmp_path, image if is_old else {"ome": image})
    assert pixels.attrib == {
        "ID": "Pixels:0",
        "DimensionOrder": "XYZCT",
        "Type": "uint16",
        "BigEndian": "false",
        "Interleaved": "false",
        "SizeX": "50",
        "SizeY": "40",
        "SizeZ": "5",
        "SizeC": "2",
        "SizeT": "3",
        "TimeIncrement": "2.0",
        "TimeIncrementUnit": "s",
        "PhysicalSizeZ": "0.5",
        "PhysicalSizeZUnit": "µm",
        "PhysicalSizeY": "0.25",
        "PhysicalSizeYUnit": "µm",
    }
    channels = pixels.findall(f"{SPACE}Channel")
    assert [(each.get("Name"), each.get("SamplesPerPixel")) for each in channels] == [("DAPI", "1"), ("GFP", "1")]
    files = pixels.findall(f"{SPACE}TiffData/{SPACE}UUID")
    assert len(files) == 30
    assert {str(each.get("FileName")) for each in files} == {
        str(path.relative_to(tmp_path / "image")) for path in (tmp_path / "image/0/c").rglob("*") if path.is_file()
    }
    assert len({each.text for each in files}) == 30


@pytest.mark.parametrize(
    "group",
    [
        {"ome": {"multiscales": [{**IMAGE, "datasets": []}]}},
        {"ome": {"multiscales": [{**IMAGE, "axes": AXES[1:]}]}},
        {"ome": {"multiscales": 5, "omero": {"channels": [{"label": "one of two"}]}}},
        {"ome": {"multiscales": [], "omero": 5}},
        {"ome": "text"},
        {},
    ],
)
def test_groups_that_are_no_ome_zarr_image_say_nothing(group: dict[str, Any], tmp_path: Path) -> None:
    pixels = pixels_of(tmp_path, group, dimension_names=["time", "C", "Depth", "y", "x"])
    assert pixels.get("DimensionOrder") == "XYZCT"
    assert not [name for name in pixels.attrib if "Physical" in name or "Time" in name]
    assert [each.get("Name") for each in pixels.findall(f"{SPACE}Channel")] == [None, None]


@pytest.mark.parametrize(
    ("shape", "names", "order", "sizes"),
    [
        ((40, 50), None, "XYZCT", {}),
        ((2, 40, 50), None, "XYZCT", {"Z": 2}),
        ((2, 3, 40, 50), None, "XYZCT", {"Z": 3, "C": 2}),
        ((2, 3, 4, 40, 50), None, "XYZCT", {"Z": 4, "C": 3, "T": 2}),
        ((2, 40, 50), ["t", "y", "x"], "XYTZC", {"T": 2}),
        ((2, 3, 40, 50), ["z", "t", "y", "x"], "XYTZC", {"T": 3, "Z": 2}),
        ((2, 3, 40, 50), ["c", "z", None, None], "XYZCT", {"C": 2, "Z": 3}),
    ],
)
def test_axes_have_their_names_or_the_usual_order(
    shape: tuple[int, ...], names: Any, order: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    pixels = pixels_of(tmp_path, {}, shape=shape, dimension_names=names)
    assert pixels.get("DimensionOrder") == order
    assert {axis: pixels.get(f"Size{axis}") for axis in "ZCT"} == {axis: str(sizes.get(axis, 1)) for axis in "ZCT"}
    for axis in "ZCT":
        starts = {int(each.get(f"First{axis}", 0)) for each in pixels.findall(f"{SPACE}TiffData")}
        assert starts == set(range(sizes.get(axis, 1)))
