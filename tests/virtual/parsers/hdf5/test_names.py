"""Names, attributes and dimensions are kept, and what cannot be read is named with its reason."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from parts_store.errors import AdoptionError, ManifestError
from parts_store.virtual.adopt import adopt
from parts_store.virtual.parsers.hdf5 import reader
from tests.virtual.adopting import adopted, array, repository, settle
from tests.virtual.parsers.hdf5.files import reasons

pytestmark = pytest.mark.slow


def test_what_cannot_be_read_is_named_each_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(5)
        file.create_dataset("vlen", (3,), h5py.vlen_dtype("i4"))
        file.create_dataset("region", (3,), h5py.regionref_dtype)
        file.create_dataset("long double", data=np.zeros(3, "g"))
        file["external"] = h5py.ExternalLink("other.h5", "/a")
        file["soft external"] = h5py.SoftLink("/external/b")
        file["_nc4_non_coord_external"] = [7]
        file.create_dataset("many elements", (2,), [("x", "f4", (65,))])
    report, store = adopted(path)
    named = reasons(report)
    for name, reason in {
        "vlen": "lists of different lengths",
        "region": "references to regions",
        "long double": "16 bytes",
        "external": "a link into another file: other.h5:/a",
        "soft external": "a link into another file: other.h5:/a",
        "many elements": "a field of 65 elements: 'x'",
    }.items():
        assert reason in named.pop(name), name
    assert not named
    assert not report.is_complete
    assert [each.path for each in report.arrays] == ["_nc4_non_coord_external", "good"]
    assert array(store, "good")[:].tolist() == [0, 1, 2, 3, 4]
    settle(path)
    session = repository(tmp_path).writable_session("main")
    with pytest.raises(AdoptionError) as caught:
        adopt(path, into=session, strict=True)
    assert {name for name, _ in caught.value.problems} == set(reasons(report))
    assert not session.has_uncommitted_changes


def test_links_lead_to_the_same_values(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)
        file["hard"] = file["x"]
        file["group/inner/y"] = [1.5]
        file["group/inner"].attrs["units"] = "m"
        file["twice"] = file["group/inner"]
        for name, target in {
            "soft": "/x",
            "relative": "group/./inner/y",
            "twofold": "soft",
            "group/up": "/soft",
            "soft group": "/group/inner",
        }.items():
            file[name] = h5py.SoftLink(target)
        # These lead to nothing, or to what contains them.
        file["group/again"] = file["group"]
        file["group/above"] = file["/"]
        file["dangling"] = h5py.SoftLink("/nowhere/x")
        file["beyond"] = h5py.SoftLink("/x/y")
        file["loop"] = h5py.SoftLink("pool")
        file["pool"] = h5py.SoftLink("/loop")
        file["type"] = np.dtype("f4")
    # What is named has no values that would be lost.
    report, store = adopted(path, strict=True)
    assert report.is_complete
    assert set(reasons(report)) == {"group/again", "group/above", "dangling", "beyond", "loop", "pool", "type"}
    assert "'group'" in reasons(report)["group/again"]
    for name in ("x", "hard", "soft", "twofold", "group/up"):
        assert array(store, name)[:].tolist() == [0, 1, 2, 3, 4]
    for name in ("group/inner/y", "twice/y", "relative", "soft group/y"):
        assert array(store, name)[:].tolist() == [1.5]
    assert len(report.arrays) == 9
    assert zarr.open_group(store, path="soft group", mode="r").attrs["units"] == "m"


def test_groups_with_a_million_names_are_described_some_times(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(40):
            below = group.create_group("one")
            group["two"] = below
            group = below
        group["x"] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_MOST_NODES", 100)
        report, _ = adopted(path)
    assert report.is_complete
    assert len(report.arrays) >= 1
    assert 1 <= len(report.skipped) <= 200


def test_attributes_that_are_not_utf8_are_kept_as_netcdf4_reads_them(tmp_path: Path) -> None:
    texts = {"fixed": b"\xb0C", "one": b"\xb0", "good": "°C".encode(), "list": [b"\xb0C", b"ab"]}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = [1]
        for name, value in texts.items():
            for owner in (file, file["a"]):
                owner.attrs[name] = np.array(value, "S")
                owner.attrs.create(f"{name} vlen", value, dtype=h5py.string_dtype())
    report, store = adopted(tmp_path / "a.h5")
    expected: dict[str, Any] = {"fixed": "\ufffdC", "one": "\ufffd", "good": "°C", "list": ["\ufffdC", "ab"]}
    expected |= {f"{name} vlen": value for name, value in expected.items()}
    assert dict(array(store, "a").attrs) == expected
    assert dict(zarr.open_group(store, mode="r").attrs) == expected
    wrong = [name for name in expected if not name.startswith("good")]
    assert set(reasons(report)) == {f"{owner}@{name}" for owner in ("/", "a") for name in wrong}
    assert not report.is_complete


def test_names_of_an_enumeration_are_flags_unless_the_dataset_has_flags(tmp_path: Path) -> None:
    kind = h5py.enum_dtype({"TWO": 300, "ONE": -1, "a blank": 7}, ">i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.array([-1, 300], ">i2"), dtype=kind)
        file.create_dataset("own", data=np.array([-1, 300], ">i2"), dtype=kind).attrs["flag_meanings"] = "x y"
        file.create_dataset("bool", data=[True])
        file.create_dataset("field", data=np.zeros(2, [("n", kind)]))
    report, store = adopted(tmp_path / "a.h5")
    assert report.is_complete
    assert dict(array(store, "a").attrs) == {"flag_values": [-1, 7, 300], "flag_meanings": "ONE a_blank TWO"}
    assert dict(array(store, "own").attrs) == {"flag_meanings": "x y"}
    assert not array(store, "bool").attrs
    assert reasons(report) == {"field": "the names of an enumeration, in a field of a compound type"}


@pytest.mark.parametrize("action", ["concat_dim", "append_dim"])
def test_files_with_other_names_of_an_enumeration_are_refused(tmp_path: Path, action: str) -> None:
    members = [{"ICE": 1, "SEA": 2}, {"ICE": 2, "SEA": 1}]
    for number, names in enumerate(members):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=2 * number + np.arange(2)).make_scale("x")
            file.create_dataset("a", data=[1, 2], dtype=h5py.enum_dtype(names, "i1")).dims[0].attach_scale(file["x"])
        settle(tmp_path / f"{number}.h5")
    session = repository(tmp_path).writable_session("main")
    first, second = (tmp_path / f"{number}.h5" for number in range(2))
    along: dict[str, Any] = {action: "x"}
    if action == "append_dim":
        adopt(first, into=session)
    with pytest.raises((AdoptionError, ManifestError), match=r"flag_meanings.*ICE SEA.*SEA ICE"):
        adopt(second if action == "append_dim" else [first, second], into=session, **along)


def test_enumerations_booleans_and_complex_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for order in "<>":
            kind = h5py.enum_dtype({"ONE": 1, "TWO": 300}, f"{order}i2")
            file.create_dataset(f"enum {order}", data=np.array([1, 300, 1, 2], kind), dtype=kind, chunks=(3,))
        file.create_dataset("bool", data=np.array([True, False, True]), chunks=(2,), fillvalue=True, maxshape=(9,))
        file["bool"].resize((7,))
        for name, kind in {"native": h5py.h5t.COMPLEX_IEEE_F32BE, "double": h5py.h5t.COMPLEX_IEEE_F64LE}.items():
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((4,)))
            part = np.dtype(">f4" if name == "native" else "<f8")
            file[name].id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(8).astype(part), mtype=kind)
    _, store = adopted(path, strict=True)
    for name in ("native", "double"):
        assert array(store, name)[:].tolist() == [0 + 1j, 2 + 3j, 4 + 5j, 6 + 7j]
    assert array(store, "enum >")[:].tolist() == [1, 300, 1, 2]
    assert array(store, "bool")[:].tolist() == [True, False, True, True, True, True, True]


def test_millions_of_millions_of_chunks_are_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("huge", (2**50,), "i4", chunks=(1,))
        file.create_dataset("sparse", (2**40,), "i4", chunks=(2**18,), fillvalue=3)[2**39] = 4
        file.create_dataset("nothing", (2**50, 2), "i4", fillvalue=3)
    report, store = adopted(path, shard_chunks=1)
    assert set(reasons(report)) == {"huge"}
    assert array(store, "nothing").shape == (2**50, 2)


NAMES = [
    "a b",
    "ü",
    "日本",
    "a.b",
    "a%20b",
    "%",
    "c",
    "c0",
    ".hidden",
    "a:b?#*[x]",
    "x" * 200,
    "__x",
    "-",
    "0",
    "a.index",
]
NO_NAMES = ["zarr.json", "__parts__", "..", "...", "...."]


def test_a_backslash_in_a_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a\\b/c\\d"] = [1, 2]
        file["a\\b"].attrs["units"] = "m"
        file["a/b"] = 3
    report, store = adopted(path, strict=True)
    assert array(store, "a%5Cb/c%5Cd")[:].tolist() == [1, 2]
    assert zarr.open_group(store, path="a%5Cb", mode="r").attrs["units"] == "m"
    assert set(reasons(report)) == {"a\\b", "a\\b/c\\d"}
    assert "adopted as 'a%5Cb/c%5Cd'" in reasons(report)["a\\b/c\\d"]
    with h5py.File(path, "a") as file:
        file["a%5Cb"] = 4
    report, store = adopted(path)
    assert not report.is_complete
    assert "no node of Zarr can be called" in reasons(report)["a\\b"]
    assert array(store, "a%5Cb")[()] == 4


def test_names_of_every_kind_are_kept_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", track_order=True) as file:
        for number, name in enumerate([*NAMES, *NO_NAMES]):
            file.create_dataset(name, data=np.full(4, number), chunks=(2,))
            file[f"groups/{name}/inner"] = number
            file[f"groups/{name}"].attrs["a"] = number
        bad = h5py.h5s.create_simple((3,))
        h5py.h5d.create(file.id, b"not \xff text", h5py.h5t.NATIVE_INT32, bad)
    report, store = adopted(path, path="deep/down")
    for number, name in enumerate(NAMES):
        assert array(store, f"deep/down/{name}")[:].tolist() == [number] * 4
        group: Any = zarr.open_group(store, path=f"deep/down/groups/{name}", mode="r")
        assert group.attrs["a"] == number
        assert group["inner"][()] == number
    named = reasons(report)
    for name in NO_NAMES:
        for each in (name, f"groups/{name}", f"groups/{name}/inner"):
            assert "no node of Zarr can be called" in named.pop(each)
    assert named == {"not \\udcff text": "a text that is not UTF-8"}
    below = zarr.open_group(store, path="deep/down", mode="r")
    assert sorted(name for name, _ in below.arrays()) == sorted(NAMES)
    str(report).encode()


def test_attributes_are_kept_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
        for owner in (file, file["a"], file.create_group("only attributes")):
            attributes = owner.attrs
            attributes["int"] = np.int16(-3)
            attributes["large"] = np.uint64(2**64 - 1)
            attributes["float"] = np.float32(0.1)
            attributes["numbers"] = np.arange(3)
            attributes["one"] = np.array([5])
            attributes["nested"] = np.arange(6).reshape(2, 3)
            attributes["empty array"] = np.zeros((0,))
            attributes["text"] = "grün"
            attributes["texts"] = ["a", "ü"]
            attributes["fixed"] = np.bytes_("fixed")
            attributes["fixeds"] = np.array([b"a", b"bc"])
            attributes["nan"] = np.nan
            attributes["infinities"] = np.array([np.inf, -np.inf, 1])
            attributes["bool"] = True
            attributes["bools"] = np.array([True, False])
            attributes.create("enum", 2, dtype=h5py.enum_dtype({"A": 2}, "i1"))
            attributes["none"] = h5py.Empty("S1")
            attributes["nothing"] = h5py.Empty("f4")
            attributes["not text"] = np.bytes_(b"\xb0C")
            attributes["reference"] = file.ref
            attributes["complex"] = 1j
            attributes["compound"] = np.zeros((), [("x", "i4")])
            attributes["long double"] = np.longdouble(1)
            attributes["CLASS"] = "not a dimension scale"
            attributes["region"] = file["a"].regionref[:1]
    report, store = adopted(path)
    expected = {
        "int": -3,
        "large": 2**64 - 1,
        "float": float(np.float32(0.1)),
        "numbers": [0, 1, 2],
        "one": 5,
        "nested": [[0, 1, 2], [3, 4, 5]],
        "empty array": [],
        "text": "grün",
        "texts": ["a", "ü"],
        "fixed": "fixed",
        "fixeds": ["a", "bc"],
        "nan": None,
        "infinities": [np.inf, -np.inf, 1.0],
        "bool": True,
        "bools": [True, False],
        "enum": 2,
        "none": "",
        "nothing": [],
        "reference": "/",
        "compound": {"x": 0},
        "CLASS": "not a dimension scale",
        "not text": "\ufffdC",
    }
    for found in (zarr.open_group(store, mode="r"), array(store, "a"), zarr.open_group(store, path="only attributes")):
        assert found.attrs.asdict() == expected
    lost = ("not text", "region", "complex", "long double")
    owners = ("/", "a", "only attributes")
    assert set(reasons(report)) == {f"{owner}@{name}" for owner in owners for name in lost}
    assert "UTF-8" in reasons(report)["a@not text"]


def test_no_reason_is_a_message_of_python(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    one = h5py.h5s.create_simple((1,))
    compound, enum = h5py.h5t.create(h5py.h5t.COMPOUND, 4), h5py.h5t.enum_create(h5py.h5t.NATIVE_INT8)
    compound.insert(b"\xff", 0, h5py.h5t.NATIVE_INT32)
    enum.enum_insert(b"\xff", 1)
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(2)
        owner = file["good"]
        for raw_name, kind in {
            b"not \xff text": h5py.h5t.NATIVE_INT32,
            b"time": h5py.h5t.UNIX_D32LE,
            b"field": compound,
            b"enum": enum,
        }.items():
            h5py.h5d.create(file.id, raw_name, kind, one)
            h5py.h5a.create(owner.id, raw_name, kind, one)
        file["gone"] = 1
        dangling = file["gone"].ref
        del file["gone"]
        owner.attrs["dangling"] = dangling
        owner.attrs["null"] = h5py.Reference()
        lists = np.empty(2, object)
        lists[:] = [np.array(each, h5py.ref_dtype) for each in ([owner.ref, h5py.Reference()], [owner.ref] * 3)]
        owner.attrs.create("lists", lists, dtype=h5py.vlen_dtype(h5py.ref_dtype))
        file.create_dataset("dangling", data=np.array([owner.ref, dangling], h5py.ref_dtype))
        file.create_dataset("lists", data=lists, dtype=h5py.vlen_dtype(h5py.ref_dtype))
        for number, value in enumerate([np.zeros(0), h5py.Empty("f4"), owner.ref, "text", 1j, np.void(b"1")]):
            file[f"fill {number}"] = np.arange(2.0)
            file[f"fill {number}"].attrs["_FillValue"] = value
        for name in ("_Netcdf4Coordinates", "_Netcdf4Dimid", "REFERENCE_LIST", "DIMENSION_LIST"):
            file[name] = np.arange(2)
            file[name].make_scale()
            file[name].attrs[name] = "text"
        scale = h5py.Dataset(h5py.h5d.create(file.id, b"\xff", h5py.h5t.NATIVE_INT8, one))
        scale.make_scale()
        file["along"] = [7]
        file["along"].dims[0].attach_scale(scale)
    report, store = adopted(path)
    no_text, no_type = "a text that is not UTF-8", "a type that NumPy has none for: time"
    in_it, no_object = "a name or a text in it is not UTF-8", "a reference to an object that is not in the file"
    no_value = "an attribute without a value"
    no_number = "a fill value that is not of the type of the values, float64"
    assert reasons(report) == {
        **dict.fromkeys(["not \\udcff text", "\\udcff", "good@not \\udcff text"], no_text),
        **dict.fromkeys(["time", "good@time"], no_type),
        **dict.fromkeys(["field", "good@field"], in_it),
        **dict.fromkeys(["dangling", "good@dangling"], no_object),
        "lists": "values of a type that Zarr has none for: lists of different lengths",
        **{f"fill {number}@_FillValue": no_value if number < 2 else no_number for number in range(6)},
    }
    attributes = array(store, "good").attrs.asdict()
    assert attributes == {"enum": 0, "null": "", "lists": [["/good", ""], ["/good"] * 3]}
    assert array(store, "enum").attrs["flag_meanings"] == "\\udcff"
    assert array(store, "along").metadata.dimension_names == ("\\udcff",)
    assert array(store, "along")[:].tolist() == [7]


def test_a_file_with_attributes_alone_is_a_group(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "nothing else"
    report, store = adopted(path, strict=True)
    assert report.arrays == ()
    assert zarr.open_group(store, mode="r").attrs["title"] == "nothing else"


def test_dimensions_have_the_names_of_their_scales(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, size in {"x": 3, "y": 4, "other": 3}.items():
            file[name] = np.arange(size)
            file[name].make_scale()
        file["both"] = np.zeros((3, 4))
        for axis, names in enumerate((("other", "x"), ("y",))):
            for name in names:
                file["both"].dims[axis].attach_scale(file[name])
        file["same sizes"] = np.zeros((3, 3, 4, 3))
        file["others"] = np.zeros((4, 3))
        file["mixed"] = np.zeros((3, 5))
        file["mixed"].dims[0].attach_scale(file["x"])
        # A scale with another name, of a dataset that is called so in no group any more.
        file["gone"] = np.arange(2)
        file["gone"].make_scale()
        file["unnamed"] = np.zeros(2)
        file["unnamed"].dims[0].attach_scale(file["gone"])
        del file["gone"]
    _, store = adopted(path)
    found: dict[str, Any] = {
        name: each.metadata.to_dict()["dimension_names"] for name, each in zarr.open_group(store, mode="r").arrays()
    }
    assert found["x"] == ("x",)
    assert found["both"] == ("x", "y")
    one, two, four, three = found["same sizes"]
    assert len({one, two, three, four}) == 4
    assert found["others"] == (four, one)
    assert found["mixed"][0] == "x"
    assert found["unnamed"][0].startswith("phony_dim_")
