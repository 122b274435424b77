"""What can be done with references gives the values that numpy gives, and nothing is read for it."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup
from virtualizarr.manifests.utils import create_v3_array_metadata

import parts_store as ps
from parts_store.errors import LocationError, ManifestError, PartsConfigError, PartsStoreError, StoreConfigError
from parts_store.manifests import PartsArray, PartsGroup
from tests.effort import examples
from tests.manifests.making import Files, Kind, chunk_of, kinds, make, random_values, seeds, shapes

FEW = settings(max_examples=examples(40))
PLAIN = Kind("<i4", "plain", 2, (2, 3))


def simple(shape: tuple[int, ...] = (6, 6), kind: Kind = PLAIN, *, seed: int = 0) -> tuple[PartsArray, NDArray[Any]]:
    """An array that is bound to the files that it refers to, and its values."""
    files = Files(np.random.default_rng(seed))
    array, values = make(random_values(shape, kind, files.rng), kind, files)
    return array.with_registry(files.registry()), values


def entry(offset: int = 0, length: int = 4, path: str = "s3://b/f") -> dict[str, Any]:
    return {"path": path, "offset": offset, "length": length}


def metadata(shape: tuple[int, ...] = (4,), chunks: tuple[int, ...] = (2,), **others: Any) -> Any:
    return create_v3_array_metadata(shape=shape, data_type=np.dtype("u2"), chunk_shape=chunks, **others)


# --- against numpy ------------------------------------------------------------------------------------------------


@FEW
@given(st.data(), seeds)
def test_what_is_loaded_is_what_was_written_with_fill_values_where_chunks_are_missing(
    data: st.DataObject, seed: int
) -> None:
    kind = data.draw(kinds())
    files = Files(np.random.default_rng(seed))
    array, values = make(random_values(data.draw(shapes(kind)), kind, files.rng), kind, files, holes=0.3)
    loaded = array.load(files.registry(), coalesce_gap=data.draw(st.sampled_from([0, 3, 1 << 20])), concurrency=2)
    assert loaded.dtype == values.dtype
    assert np.array_equal(loaded, values)


@FEW
@given(st.data(), seeds)
def test_arrays_concatenate_as_numpys_do(data: st.DataObject, seed: int) -> None:
    kind = data.draw(kinds())
    files = Files(np.random.default_rng(seed))
    shape = list(data.draw(shapes(kind)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    made = []
    for last in (False, False, True):
        chunk = chunk_of(kind)[axis]
        shape[axis] = data.draw(st.integers(1, 3 * chunk)) if last else chunk * data.draw(st.integers(0, 2))
        made.append(make(random_values(tuple(shape), kind, files.rng), kind, files, holes=0.2))
    combined = np.concatenate([array for array, _ in made], axis=axis)
    assert isinstance(combined, PartsArray)
    assert np.array_equal(combined.load(files.registry()), np.concatenate([values for _, values in made], axis=axis))


@FEW
@given(st.data(), seeds)
def test_arrays_stack_and_gain_axes_as_numpys_do(data: st.DataObject, seed: int) -> None:
    kind = data.draw(kinds())
    files = Files(np.random.default_rng(seed))
    shape = data.draw(shapes(kind))
    made = [make(random_values(shape, kind, files.rng), kind, files, holes=0.2) for _ in range(2)]
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    stacked: Any = np.stack([array for array, _ in made], axis=axis)
    registry = files.registry()
    assert np.array_equal(stacked.load(registry), np.stack([values for _, values in made], axis=axis))
    array, values = made[0]
    expanded: Any = np.expand_dims(array, axis)
    assert np.array_equal(expanded.load(registry), np.expand_dims(values, axis))
    two: Any = np.expand_dims(array, (0, -1))
    assert np.array_equal(two.load(registry), np.expand_dims(values, (0, -1)))


@FEW
@given(st.data(), seeds)
def test_arrays_broadcast_as_numpys_do(data: st.DataObject, seed: int) -> None:
    base = data.draw(kinds())
    repeated = [data.draw(st.booleans()) for _ in base.chunks]
    nbytes = np.dtype(base.dtype).itemsize * int(
        np.prod([1 if again else chunk for again, chunk in zip(repeated, base.chunks, strict=True)])
    )
    chunks = tuple(1 if again else chunk for again, chunk in zip(repeated, base.chunks, strict=True))
    kind = Kind(base.dtype, base.codecs, min(base.parts, nbytes), chunks)
    files = Files(np.random.default_rng(seed))
    shape = tuple(1 if again else 2 * chunk for again, chunk in zip(repeated, chunks, strict=True))
    array, values = make(random_values(shape, kind, files.rng), kind, files, holes=0.2)
    target = tuple(3 if again else length for again, length in zip(repeated, shape, strict=True))
    target = (*data.draw(st.sampled_from([(), (2,), (1, 3)])), *target)
    broadcast: Any = np.broadcast_to(array, target)
    assert np.array_equal(broadcast.load(files.registry()), np.broadcast_to(values, target))


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[Any, ...]:
    """Indices on the boundaries of chunks, with all that numpy takes beside them."""
    found: list[Any] = []
    for length, chunk in zip(shape, chunks, strict=True):
        boundaries = [*range(0, length, chunk), length]
        start, stop = draw(st.sampled_from(boundaries)), draw(st.sampled_from(boundaries))
        choices: list[Any] = [slice(start, stop), slice(start, None), slice(None), slice(start - length, stop, 1)]
        if chunk == 1:
            choices += [start % length, np.int64(start % length - length)]
        found.append(draw(st.sampled_from(choices)))
    if draw(st.booleans()):
        count = draw(st.integers(0, len(found)))
        found = [*found[:count], ...]
    for _ in range(draw(st.integers(0, 2))):
        found.insert(draw(st.integers(0, len(found))), None)
    return tuple(found)


@settings(max_examples=examples(80))
@given(st.data(), seeds)
def test_an_index_on_the_boundaries_of_chunks_selects_what_numpy_selects(data: st.DataObject, seed: int) -> None:
    kind = data.draw(kinds())
    files = Files(np.random.default_rng(seed))
    shape = data.draw(shapes(kind))
    array, values = make(random_values(shape, kind, files.rng), kind, files, holes=0.2)
    key = data.draw(selections(shape, chunk_of(kind)))
    selected = array[key]
    assert selected.shape == values[key].shape
    assert np.array_equal(selected.load(files.registry()), values[key])


@FEW
@given(st.data(), seeds)
def test_any_other_slice_is_refused_or_what_numpy_selects(data: st.DataObject, seed: int) -> None:
    kind = data.draw(kinds(ndim=2))
    files = Files(np.random.default_rng(seed))
    shape = data.draw(shapes(kind))
    array, values = make(random_values(shape, kind, files.rng), kind, files)
    numbers = st.none() | st.integers(-8, 8)
    axis = st.builds(slice, numbers, numbers, st.sampled_from([None, 1, 2, -1])) | st.integers(-8, 8)
    key = data.draw(st.tuples(axis, axis))
    try:
        selected = array[key]
    except ManifestError:
        return
    except IndexError:
        with pytest.raises(IndexError):
            values[key]
        return
    assert np.array_equal(selected.load(files.registry()), values[key])


@FEW
@given(st.data(), seeds)
def test_joined_chunks_have_the_same_values(data: st.DataObject, seed: int) -> None:
    kind = data.draw(kinds(codecs=("plain",)))
    files = Files(np.random.default_rng(seed))
    array, values = make(random_values(data.draw(shapes(kind)), kind, files.rng), kind, files)
    count = data.draw(st.integers(1, 4))
    joined = array.join_chunks(count)
    assert joined.chunks[0] == kind.chunks[0] * count
    assert len(joined.manifests) == kind.parts * count
    registry = files.registry()
    assert np.array_equal(joined.load(registry), values)
    assert np.array_equal(array.join().load(registry), values)


# --- indexing, by example -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (np.s_[1:3], "axis 0: expected a slice on the boundaries of chunks, such as 0:4"),
        (np.s_[:, 1:2], "axis 1: expected a slice on the boundaries of chunks, such as 0:3"),
        (np.s_[0], "axis 0: expected a slice, such as 0:2, or chunks of length 1"),
        (np.s_[-1], "axis 0: expected a slice, such as 4:6, or chunks of length 1"),
        (np.s_[::2], "axis 0: expected a slice with the step 1"),
        (np.s_[::-1], "axis 0: expected a slice with the step 1"),
        (np.s_["a":], "axis 0: expected a slice of integers"),
        ([0, 1], "expected integers, slices, an ellipsis or new axes; load the values"),
        (np.array([0, 1]), "expected integers, slices, an ellipsis or new axes; load the values"),
        (True, "expected integers, slices, an ellipsis or new axes; load the values"),
        (0.0, "expected integers, slices, an ellipsis or new axes; load the values"),
    ],
)
def test_an_index_that_references_cannot_serve_says_what_would_work(key: Any, expected: str) -> None:
    array, _ = simple()
    with pytest.raises(ManifestError, match=expected):
        array[key]


@pytest.mark.parametrize("key", [np.s_[6], np.s_[-7], np.s_[:, :, :], np.s_[..., ...]])
def test_an_index_that_numpy_refuses_is_an_index_error(key: Any) -> None:
    array, values = simple()
    with pytest.raises(IndexError):
        values[key]
    with pytest.raises(IndexError):
        array[key]


def test_a_slice_within_a_chunk_is_taken_where_its_bytes_are_a_range_of_one_part() -> None:
    files = Files(np.random.default_rng(1), names=("s3://one/a",))
    content = np.arange(24, dtype="<u2").reshape(8, 3)
    files.contents["s3://one/a"] = bytearray(content.tobytes())
    document = metadata((8, 3), (4, 3))
    entries = {"0.0": entry(0, 24, "s3://one/a"), "1.0": entry(24, 24, "s3://one/a")}
    array = PartsArray(document, [entries], parts=[ps.Part("", size=24)]).with_registry(files.registry())
    assert np.array_equal(array[5:7].load(), content[5:7])
    assert array[5:7].declared_parts is None
    with pytest.raises(ManifestError, match="such as 0:8"):
        array[3:5]
    two = PartsArray(
        document,
        [
            {"0.0": entry(0, 12, "s3://one/a"), "1.0": entry(24, 12, "s3://one/a")},
            {"0.0": entry(12, 12, "s3://one/a"), "1.0": entry(36, 12, "s3://one/a")},
        ],
    )
    with pytest.raises(ManifestError, match="in 2 parts"):
        two[5:7]
    inline = PartsArray(document, [{"0.0": {**entry(), "data": b"a" * 24}}])
    with pytest.raises(ManifestError, match="inlined in the manifest"):
        inline[1:2]
    short = PartsArray(document, [{"0.0": entry(0, 20, "s3://one/a")}])
    with pytest.raises(ManifestError, match="chunks of 24 bytes"):
        short[1:2]


# --- joining, by example ------------------------------------------------------------------------------------------


def test_joined_chunks_are_lists_of_ranges() -> None:
    array = PartsArray(
        metadata((6,), (2,)), [{f"{i}": entry(10 * i, 1) for i in range(3)}, {f"{i}": entry(99, 3) for i in range(3)}]
    )
    joined = array.join_chunks(2)
    assert joined.dict()["0"] == [entry(0, 1), entry(99, 3), entry(10, 1), entry(99, 3)]
    filled = joined.dict()["1"]
    assert filled[:2] == [entry(20, 1), entry(99, 3)]
    assert [each["data"] for each in filled[2:]] == [b"\0", b"\0\0\0"]


def test_a_missing_chunk_is_not_joined_unless_all_are_missing() -> None:
    array = PartsArray(metadata((8,), (2,)), [{"2": entry(), "3": entry()}])
    assert list(array.join_chunks(2).dict()) == ["1"]
    with pytest.raises(ManifestError, match=r"chunk '3'.*missing"):
        PartsArray(metadata((8,), (2,)), [{"2": entry()}]).join_chunks(2)


def test_chunks_that_are_not_plain_values_one_after_the_other_are_not_joined() -> None:
    with pytest.raises(ManifestError, match="only the codec 'bytes'"):
        simple(kind=Kind("<i4", "zstd", 2, (2, 3)))[0].join_chunks(2)
    with pytest.raises(ManifestError, match="on the axes before axis 1"):
        simple()[0].join_chunks(2, axis=1)
    with pytest.raises(ManifestError, match="chunk '1': expected 4 bytes, found 3"):
        PartsArray(metadata(), [{"0": entry(), "1": entry(length=3)}]).join_chunks(2)
    with pytest.raises(ManifestError, match="a number of chunks of at least 1, found 0"):
        simple()[0].join_chunks(0)
    array, values = simple((3, 6), Kind("<i4", "plain", 3, (1, 2)))
    assert np.array_equal(array.join(1).load(), values)


def test_more_parts_than_can_be_stored_can_be_loaded() -> None:
    array, values = simple((80,), Kind("<i4", "plain", 2, (1,)))
    joined = array.join()
    assert np.array_equal(joined.load(), values)
    with pytest.raises(PartsConfigError, match="1 to 64 parts"):
        _ = joined.parts


# --- what is refused ----------------------------------------------------------------------------------------------


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
def test_arrays_that_differ_are_not_combined_and_it_is_said_in_what(other: Kind, named: str, function: Any) -> None:
    with pytest.raises(ManifestError, match=f"{function.__name__}, array 1: expected the {named} "):
        function([simple()[0], simple(kind=other)[0]])


def test_arrays_of_different_parts_or_fill_values_are_not_combined() -> None:
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


def test_a_partial_chunk_is_not_followed_by_others() -> None:
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
    with pytest.raises(TypeError):
        np.sum(array)


GOOD = [{"0": entry(), "1": entry()}]


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
        (GOOD, ["", ".a"], PartsConfigError, "expected 1 parts, one for each manifest, found 2"),
        (GOOD, [ps.Part("", size=3)], PartsConfigError, "expected 3 bytes in a part of chunk '0', found 4"),
    ],
)
def test_manifests_that_make_no_array_are_refused_by_name(
    manifests: Any, parts: Any, error: type[PartsStoreError], message: str
) -> None:
    with pytest.raises(error, match=message):
        PartsArray(metadata(), manifests, parts=parts)


@pytest.mark.parametrize(
    "document", [None, {}, {"shape": [4]}, {**metadata().to_dict(), "chunk_grid": {"name": "round"}}]
)
def test_metadata_that_is_none_is_refused_by_name(document: Any) -> None:
    with pytest.raises(ManifestError, match="metadata"):
        PartsArray(document, GOOD)


# --- what it is ---------------------------------------------------------------------------------------------------


def test_an_array_tells_what_it_is() -> None:
    array = PartsArray(metadata(), [{"0": entry(length=1)}, {"0": entry(5)}, {"0": entry(length=2)}])
    assert repr(array) == "PartsArray<shape=(4,), dtype=uint16, chunks=(2,), parts=3>"
    assert (array.ndim, array.size, array.nbytes) == (1, 4, 8)
    assert [part.key_suffix for part in array.parts.parts] == [".part0", "", ".part1"]
    assert array.dict() == {"0": [entry(length=1), entry(5), entry(length=2)]}
    assert np.result_type(array, array) == np.dtype("u2")
    assert copy.deepcopy(array) is array
    assert pickle.loads(pickle.dumps(array)).is_same(array)
    assert PartsArray(metadata((), ()), [{"c": entry()}]).dict() == {"": [entry()]}


def test_the_parts_of_a_stored_document_are_taken() -> None:
    parts = ps.ConcatParts([ps.Part(".a", size=1), ps.Part("")])
    document = {**metadata().to_dict(), "storage_transformers": [parts.to_json()]}
    array = PartsArray(document, [{"0": entry(length=1)}, {"0": entry()}])
    assert array.parts == parts
    with pytest.raises(PartsConfigError):
        PartsArray(document, [{"0": entry()}, {"0": entry()}])
    empty = PartsArray(metadata(), [{}, {"0": entry()}], parts=[ps.Part(".none", size=0), ps.Part("")])
    assert empty.dict() == {"0": [entry()]}
    assert empty.join_chunks(1).dict() == {"0": [entry()]}


def test_comparison_is_by_elements_and_follows_the_chunks() -> None:
    one = PartsArray(metadata((3,), (2,)), [{"0": entry(), "1": entry(9)}])
    other = PartsArray(metadata((3,), (2,)), [{"0": entry(), "1": entry(8)}])
    assert (one == PartsArray(one.metadata, one.manifests)).tolist() == [True] * 3
    assert (one == other).tolist() == [True, True, False]
    assert (one != other).tolist() == [False, False, True]
    assert (one == 1).tolist() == (np.zeros(3) == one).tolist() == [False] * 3
    assert (one == one.to_manifest_array()).all()
    data = [PartsArray(metadata((2,), (2,)), [{"0": {**entry(), "data": data}}]) for data in (b"aaaa", b"bbbb")]
    assert not (data[0] == data[1]).any()
    with pytest.raises(ManifestError, match="an array of shape"):
        _ = one == one[:2]
    with pytest.raises(TypeError):
        _ = one == "text"


def test_arrays_and_groups_of_virtualizarr_go_through() -> None:
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


def test_values_need_a_registry_and_are_never_had_without_a_copy() -> None:
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


# --- xarray -------------------------------------------------------------------------------------------------------


def test_xarray_combines_datasets_of_references_and_reads_nothing() -> None:
    files = Files(np.random.default_rng(1))
    (one, first), (two, second) = (make(random_values((6, 6), PLAIN, files.rng), PLAIN, files) for _ in range(2))
    unread = [PartsArray(each.metadata, each.manifests) for each in (one, two)]
    datasets = [
        xr.Dataset({"v": (("y", "x"), array)}, coords={"y": np.arange(6) + 6 * number}, attrs={"a": 1})
        for number, array in enumerate(unread)
    ]
    assert "PartsArray" in repr(datasets[0])
    combined = xr.combine_by_coords([datasets[1], datasets[0]])
    assert isinstance(combined, xr.Dataset)
    for dataset in (xr.concat(datasets, dim="y"), combined):
        assert isinstance(dataset.v.data, PartsArray)
        assert dataset.v.data.shape == (12, 6)
    stacked = xr.concat(datasets, dim="z", join="override")
    assert stacked.v.data.shape == (2, 6, 6)
    assert isinstance(datasets[0].isel(y=slice(2, 4)).v.data, PartsArray)
    assert datasets[0].identical(datasets[0].copy(deep=True))
    assert not datasets[0].equals(datasets[1])
    registry = files.registry()
    bound = [
        dataset.assign(v=(("y", "x"), array.with_registry(registry)))
        for dataset, array in zip(datasets, (one, two), strict=True)
    ]
    combined = xr.concat(bound, dim="y")
    assert np.array_equal(combined.v.values, np.concatenate([first, second]))
    assert np.array_equal(np.asarray(combined.v), np.concatenate([first, second]))


def test_arrays_whose_registries_mean_different_files_by_one_location_are_not_read() -> None:
    one, _ = simple(seed=1)
    two, _ = simple(seed=2)
    combined: Any = np.concatenate([one, two])
    with pytest.raises(LocationError, match="several registered stores"):
        combined.load()


def test_codecs_that_cannot_take_another_axis_are_named() -> None:
    codecs = [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}]
    document = metadata((4, 4), (2, 2)).to_dict() | {
        "codecs": codecs,
        "data_type": "uint8",
        "dimension_names": ["y", "x"],
    }
    array = PartsArray(document, [{"0.0": entry()}])
    for refused in (lambda: np.stack([array]), lambda: array[None], lambda: np.broadcast_to(array, (2, 4, 4))):
        with pytest.raises(ManifestError):
            refused()
    concatenated: Any = np.concatenate([array, array], axis=1)
    assert concatenated.metadata.dimension_names == ("y", "x")


def test_the_names_of_dimensions_follow_their_axes() -> None:
    document = metadata((4, 4), (1, 2), dimension_names=("y", "x"))
    array: Any = PartsArray(document, [{"0.0": entry()}])
    assert array[1].metadata.dimension_names == ("x",)
    assert array[:, None].metadata.dimension_names == ("y", None, "x")
    stacked: Any = np.stack([array], axis=-1)
    assert stacked.metadata.dimension_names == ("y", "x", None)
    broadcast: Any = np.broadcast_to(array, (3, 4, 4))
    assert broadcast.metadata.dimension_names == (None, "y", "x")
