"""Invalid arrays of references and combinations are rejected, and the attributes of an array are right."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup

import parts_store as ps
from parts_store.errors import LocationError, ManifestError, PartsConfigError, PartsStoreError, StoreConfigError
from parts_store.manifests import PartsArray, PartsGroup
from tests.virtual.manifests.making import GOOD, Kind, entry, metadata, simple


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Kind("<i8", "plain", 2, (2, 3)), "dtype"),
        (Kind("<i4", "zstd", 2, (2, 3)), "codecs"),
        (Kind("<i4", "plain", 2, (3, 3)), "chunk shape"),
        (Kind("<i4", "plain", 3, (2, 3)), "number of parts"),
    ],
)
@pytest.mark.parametrize("function", [np.concatenate, np.stack])
def test_combining_different_arrays_names_the_difference(other: Kind, named: str, function: Any) -> None:
    with pytest.raises(ManifestError, match=f"{function.__name__}, array 1 of .*: expected the {named} "):
        function([simple()[0], simple(kind=other)[0]])


def test_combining_different_parts_or_fill_values_is_rejected() -> None:
    one = PartsArray(metadata(), [{"0": entry(), "1": entry()}], parts=[""])
    for parts in ([".a"], [ps.Part("", size=4)]):
        other = PartsArray(metadata(), one.manifests, parts=parts)
        with pytest.raises(ManifestError, match="expected the parts"):
            np.concatenate([one, other])
    undeclared = PartsArray(metadata(), one.manifests)
    kept: Any = np.concatenate([undeclared, one])
    assert kept.declared_parts == ps.ConcatParts([""])
    filled = PartsArray(metadata(fill_value=1), [{"0": entry()}])
    with pytest.raises(ManifestError, match="the same fill value"):
        np.concatenate([one, filled])


def test_concatenate_rejects_partial_chunk_before_the_last() -> None:
    array, _ = simple((5, 6))
    with pytest.raises(ManifestError, match="not evenly divisible"):
        np.concatenate([array, array])
    with pytest.raises(ManifestError, match="chunks of length 1 on axis 0"):
        np.broadcast_to(simple((1, 6))[0], (2, 6))
    with pytest.raises(ManifestError, match="a shape that"):
        np.broadcast_to(array, (7, 6))
    with pytest.raises(ManifestError, match="an axis, and no other arguments"):
        np.concatenate([array, array], axis=None)
    with pytest.raises(ManifestError, match="arrays of references only"):
        np.concatenate([array, np.zeros((2, 6), "i4")])
    with pytest.raises(np.exceptions.AxisError):
        np.stack([array], axis=4)


def with_data(data: dict[tuple[int, ...], bytes]) -> ChunkManifest:
    """Return a manifest whose first chunk is marked as one of four bytes that the manifest contains."""
    paths: Any = np.array(["__inlined__", "s3://b/f"], np.dtypes.StringDType())
    lengths = np.array([4, 4], np.uint64)
    return ChunkManifest.from_arrays(
        paths=paths, offsets=lengths - lengths, lengths=lengths, validate_paths=False, inlined=data
    )


@pytest.mark.parametrize(
    ("manifests", "parts", "error", "message"),
    [
        ([], None, ManifestError, "at least one"),
        ({"0": entry()}, None, ManifestError, "a list with a manifest for each part"),
        ([[]], None, ManifestError, "part 0: expected a ChunkManifest"),
        ([{"2": entry()}], None, ManifestError, "part 0, chunk '2': expected the key of a chunk"),
        ([{"0.0": entry()}], None, ManifestError, "the key of a chunk"),
        ([{"00": entry()}], None, ManifestError, "the key of a chunk"),
        ([{0: entry()}], None, ManifestError, "the key of a chunk"),
        ([{"0": {"path": "s3://b/f"}}], None, ManifestError, "an entry with"),
        ([{"0": entry(-1)}], None, ManifestError, "an integer from 0 as 'offset'"),
        ([{"0": entry(0, 0)}], None, ManifestError, "an integer from 1 as 'length'"),
        ([{"0": entry(True)}], None, ManifestError, "an integer from 0 as 'offset'"),
        ([{"0": entry(2**63 - 2, 4)}], None, ManifestError, "a range that ends at"),
        ([{"0": entry(path="relative/f")}], None, ManifestError, "the URL of a file"),
        ([{"0": entry(path="mailto:x")}], None, ManifestError, "the URL of a file"),
        ([{"0": entry(path="__inlined__")}], None, ManifestError, "the URL of a file"),
        ([{"0": {**entry(), "data": b""}}], None, ManifestError, "at least one byte"),
        ([ChunkManifest({"0": entry()})], None, ManifestError, r"a grid of \(2,\) chunks"),
        ([*GOOD, {"0": entry()}], None, PartsConfigError, "all parts of chunk '1', or none, found no part 1"),
        ([{"1": entry()}, *GOOD], None, PartsConfigError, "all parts of chunk '0', or none, found no part 0"),
        ([with_data({(0,): b"abcd", (1,): b"ab"})], None, ManifestError, "chunk '1': expected 0 bytes in the manifest"),
        ([with_data({(0,): b"abcd", (5,): b"ab"})], None, ManifestError, "chunk '5': expected 0 bytes in the manifest"),
        ([with_data({(0,): b"abc"})], None, ManifestError, "chunk '0': expected 4 bytes in the manifest, found 3"),
        ([with_data({})], None, ManifestError, "chunk '0': expected 4 bytes in the manifest, found 0"),
        (GOOD, ["", ".a"], PartsConfigError, "expected 1 parts, one for each manifest, found 2"),
        (GOOD, [ps.Part("", size=3)], PartsConfigError, "expected 3 bytes in a part of chunk '0', found 4"),
    ],
)
def test_invalid_manifests_are_rejected_with_the_reason(
    manifests: Any, parts: Any, error: type[PartsStoreError], message: str
) -> None:
    with pytest.raises(error, match=message):
        PartsArray(metadata(), manifests, parts=parts)


@pytest.mark.parametrize(
    "document", [None, {}, {"shape": [4]}, {**metadata().to_dict(), "chunk_grid": {"name": "round"}}]
)
def test_invalid_metadata_is_rejected_with_the_reason(document: Any) -> None:
    with pytest.raises(ManifestError, match="metadata"):
        PartsArray(document, GOOD)


def test_an_array_tells_what_it_is() -> None:
    array = PartsArray(metadata(), [{"0": entry(length=1)}, {"0": entry(5)}, {"0": entry(length=2)}])
    assert repr(array) == "PartsArray<shape=(4,), dtype=uint16, chunk_shape=(2,), parts=3>"
    assert (array.ndim, array.size, array.nbytes) == (1, 4, 8)
    assert [part.key_suffix for part in array.parts.parts] == [".part0", "", ".part1"]
    assert array.dict() == {"0": [entry(length=1), entry(5), entry(length=2)]}
    assert copy.deepcopy(array) is array
    assert pickle.loads(pickle.dumps(array)).is_same(array)
    assert PartsArray(metadata((), ()), [{"c": entry()}]).dict() == {"": [entry()]}


def test_parts_are_read_from_a_metadata_document() -> None:
    parts = ps.ConcatParts([ps.Part(".a", size=1), ps.Part("")])
    document = {**metadata().to_dict(), "storage_transformers": [parts.to_json()]}
    array = PartsArray(document, [{"0": entry(length=1)}, {"0": entry()}])
    assert array.parts == parts
    with pytest.raises(PartsConfigError):
        PartsArray(document, [{"0": entry()}, {"0": entry()}])
    empty = PartsArray(metadata(), [{}, {"0": entry()}], parts=[ps.Part(".none", size=0), ps.Part("")])
    assert empty.dict() == {"0": [entry()]}
    assert empty.join_chunks(1).dict() == {"0": [entry()]}


def test_comparison_without_a_registry_is_refused_unless_the_bytes_are_the_same() -> None:
    one = PartsArray(metadata((3,), (2,)), [{"0": entry(), "1": entry(9)}])
    assert (one == PartsArray(one.metadata, one.manifests)).tolist() == [True] * 3
    assert (one != PartsArray(one.metadata, one.manifests)).tolist() == [False] * 3
    assert (one == one.to_manifest_array()).all()
    others: list[Any] = [
        PartsArray(metadata((3,), (2,)), [{"0": entry(), "1": entry(8)}]),
        PartsArray(metadata((3,), (2,)), one.manifests, checksums={"s3://b/f": "changed"}),
    ]
    changed = PartsArray(one.metadata, one.manifests, checksums={"s3://b/f": "before"})
    for array, other in ((one, others[0]), (changed, others[1]), (one, 1), (one, np.zeros(3))):
        with pytest.raises(StoreConfigError, match=r"with_registry\(registry\)"):
            _ = array == other
    data = [PartsArray(metadata((2,), (2,)), [{"0": {**entry(), "data": data}}]) for data in (b"aaaa", b"aabb")]
    assert (data[0] == data[1]).tolist() == [True, False]
    with pytest.raises(ManifestError, match="an array of shape"):
        _ = one == one[:2]
    with pytest.raises(TypeError):
        _ = one == "text"


def test_virtualizarr_arrays_and_groups_survive_roundtrip() -> None:
    theirs = ManifestArray(metadata=metadata(), chunkmanifest=ChunkManifest({"0": entry(), "1": entry(4)}))
    array = PartsArray.from_manifest_array(theirs)
    assert (array.to_manifest_array() == theirs).all()
    mixed: Any = np.concatenate([array, theirs])
    assert mixed.shape == (8,)
    group = ManifestGroup({"a": theirs}, {"g": ManifestGroup(attributes={"x": 1})}, {"y": 2})
    ours = PartsGroup.from_manifest_group(group)
    assert ours == PartsGroup.from_manifest_group(ours.to_manifest_group())
    assert (list(ours), len(ours), ours.attributes, ours.groups["g"].attributes) == (["a", "g"], 2, {"y": 2}, {"x": 1})
    assert ours["a"] is ours.arrays["a"]
    assert "PartsArray<shape=(4,)" in repr(ours)
    assert ours != PartsGroup(attributes={"y": 2})
    with pytest.raises(ManifestError, match="2 parts"):
        PartsGroup({"a": simple()[0]}).to_manifest_group()
    with pytest.raises(KeyError):
        ours["b"]
    for wrong in ({"": array}, {"a/b": array}, {"__parts__": array}, {"a": 1}, {"zarr.json": array}):
        with pytest.raises(ManifestError):
            PartsGroup(wrong)  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match="twice"):
        PartsGroup({"a": array}, {"a": PartsGroup()})


def test_loading_needs_a_registry_and_a_copy() -> None:
    array, values = simple()
    assert np.array_equal(np.asarray(array), values)
    assert np.asarray(array, dtype="f4").dtype == np.dtype("f4")
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(array, copy=False)
    unbound = PartsArray(metadata(), GOOD)
    with pytest.raises(StoreConfigError, match="expected a registry"):
        np.asarray(unbound)
    inline = PartsArray(metadata(), [{"0": {**entry(), "data": b"\1\0\2\0"}}])
    assert np.asarray(inline).tolist() == [1, 2, 0, 0]


def test_arrays_with_conflicting_registries_are_not_read() -> None:
    one, _ = simple(seed=1)
    two, _ = simple(seed=2)
    combined: Any = np.concatenate([one, two])
    with pytest.raises(LocationError, match="several registered stores"):
        combined.load()


def test_codec_that_cannot_accept_an_axis_is_named() -> None:
    codecs = [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}]
    document = metadata((4, 4), (2, 2), "u1", dimension_names=("y", "x")).to_dict() | {"codecs": codecs}
    array = PartsArray(document, [{"0.0": entry()}])
    for refused in (lambda: np.stack([array]), lambda: array[None], lambda: np.broadcast_to(array, (2, 4, 4))):
        with pytest.raises(ManifestError):
            refused()
    concatenated: Any = np.concatenate([array, array], axis=1)
    assert concatenated.metadata.dimension_names == ("y", "x")


def test_dimension_names_follow_their_axes() -> None:
    document = metadata((4, 4), (1, 2), dimension_names=("y", "x"))
    array: Any = PartsArray(document, [{"0.0": entry()}])
    assert array[1].metadata.dimension_names == ("x",)
    assert array[:, None].metadata.dimension_names == ("y", None, "x")
    stacked: Any = np.stack([array], axis=-1)
    assert stacked.metadata.dimension_names == ("y", "x", None)
    broadcast: Any = np.broadcast_to(array, (3, 4, 4))
    assert broadcast.metadata.dimension_names == (None, "y", "x")


ABSENT = "import sys; sys.modules['virtualizarr'] = None\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", ["ps.manifests", "ps.PartsStore.from_url('memory://').manifest('a')"])
def test_what_is_missing_is_named(use: str) -> None:
    program = f"{ABSENT}import parts_store as ps\ntry:\n    {use}\nexcept ImportError as error:\n    print(error)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "pip install 'parts_store[virtual]'" in ran.stdout


def test_importing_parts_store_imports_no_virtualizarr_or_xarray() -> None:
    program = "import sys, parts_store; print(sorted({'virtualizarr', 'xarray', 'obspec_utils'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
