"""Arrays of references are indexed, joined, stacked and broadcast like NumPy arrays."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import ManifestError, PartsConfigError
from parts_store.manifests import PartsArray
from parts_store.virtual.manifests.operations import can_cut_rows, contiguous_range, cut_range, cut_rows
from tests.effort import examples
from tests.virtual.manifests.making import (
    FEW,
    Files,
    Kind,
    Made,
    chunk_of,
    drawn,
    encode,
    entry,
    kinds,
    make,
    metadata,
    random_values,
    simple,
)


@FEW
@given(drawn(), st.sampled_from([0, 3, 1 << 20]))
def test_load_returns_written_values_and_fill_values(made: Made, gap: int) -> None:
    loaded = made.array.load(made.files.registry(), coalesce_gap=gap, concurrency=2)
    assert loaded.dtype == made.values.dtype
    assert np.array_equal(loaded, made.values)


def assert_same(function: Callable[[Sequence[Any]], Any], made: Made, *others: Made) -> PartsArray:
    """Assert that a function of arrays of references returns what it returns for the values of these arrays."""
    found = function([each.array for each in (made, *others)])
    assert isinstance(found, PartsArray)
    expected = function([each.values for each in (made, *others)])
    assert found.shape == expected.shape
    assert np.array_equal(found.load(made.files.registry()), expected)
    return found


@FEW
@given(st.data(), drawn())
def test_arrays_concatenate_as_numpys_do(data: st.DataObject, made: Made) -> None:
    shape, axis = list(made.values.shape), data.draw(st.integers(-made.values.ndim, made.values.ndim - 1))
    chunk, arrays = chunk_of(made.kind)[axis], []
    for last in (False, False, True):
        shape[axis] = data.draw(st.integers(1, 3 * chunk)) if last else chunk * data.draw(st.integers(0, 2))
        arrays.append(made.like(tuple(shape)))
    assert_same(lambda arrays: np.concatenate(arrays, axis=axis), *arrays)


@FEW
@given(st.data(), drawn())
def test_stack_expand_dims_and_broadcast_match_numpy(data: st.DataObject, made: Made) -> None:
    axis = data.draw(st.integers(-made.values.ndim - 1, made.values.ndim))
    assert_same(lambda arrays: np.stack(arrays, axis=axis), made, made.like(made.values.shape))
    assert_same(lambda arrays: np.expand_dims(arrays[0], (0, -1)), made)
    expanded = assert_same(lambda arrays: np.expand_dims(arrays[0], axis), made)
    longer = list(expanded.shape)
    longer[axis] = 3
    target = (*data.draw(st.sampled_from([(), (2,), (1, 3)])), *longer)
    assert_same(lambda arrays: np.broadcast_to(np.expand_dims(arrays[0], axis), target), made)


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
@given(st.data(), drawn())
def test_index_on_chunk_boundaries_selects_the_same_as_numpy(data: st.DataObject, made: Made) -> None:
    key = data.draw(selections(made.values.shape, chunk_of(made.kind)))
    assert_same(lambda arrays: arrays[0][key], made)


@FEW
@given(st.data(), drawn(kinds(ndim=2)))
def test_other_slices_are_rejected_or_the_same_as_numpy(data: st.DataObject, made: Made) -> None:
    numbers = st.none() | st.integers(-8, 8)
    axis = st.builds(slice, numbers, numbers, st.sampled_from([None, 1, 2, -1])) | st.integers(-8, 8)
    key = data.draw(st.tuples(axis, axis))
    try:
        made.array[key]
    except ManifestError:
        return
    except IndexError:
        with pytest.raises(IndexError):
            made.values[key]
        return
    assert_same(lambda arrays: arrays[0][key], made)


@FEW
@given(drawn(kinds(codecs=("plain",)), holes=0), st.integers(1, 4))
def test_joined_chunks_have_the_same_values(made: Made, count: int) -> None:
    joined, registry = made.array.join_chunks(count), made.files.registry()
    assert joined.chunk_shape[0] == made.kind.chunks[0] * count
    assert len(joined.manifests) == made.kind.parts * count
    assert np.array_equal(joined.load(registry), made.values)
    assert np.array_equal(made.array.join().load(registry), made.values)


@pytest.mark.parametrize(
    ("key", "axis", "found"),
    [
        (np.s_[1:3], ", axis 0", r"slice\(1, 3, None\) and chunks of length 2"),
        (np.s_[:, 1:2], ", axis 1", r"slice\(1, 2, None\) and chunks of length 3"),
        (np.s_[0], ", axis 0", "0 and chunks of length 2"),
        # The only element of the last chunk, which is stored as a whole chunk.
        (np.s_[-1], ", axis 0", "4 and chunks of length 2"),
        (np.s_[::2], "", "slice"),
        (np.s_[::-1], "", "slice"),
        (np.s_["a":], "", "slice"),
        ([0, 1], "", r"\[0, 1\]"),
        (np.array([0, 1]), "", r"array\(\[0, 1\]\)"),
        (True, "", "True"),
        (0.0, "", "0.0"),
    ],
)
def test_rejected_index_names_what_is_possible(key: Any, axis: str, found: str) -> None:
    array, _ = simple((5, 6))
    possible = "integers on axes with chunks of length 1, slices on the boundaries of chunks.*; load the values"
    with pytest.raises(ManifestError, match=f"index{axis}: expected {possible}.*, found {found}"):
        array[key]


@pytest.mark.parametrize("key", [np.s_[6], np.s_[-7], np.s_[:, :, :], np.s_[..., ...]])
def test_index_out_of_bounds_is_an_index_error(key: Any) -> None:
    array, values = simple()
    with pytest.raises(IndexError):
        values[key]
    with pytest.raises(IndexError):
        array[key]


def test_slice_within_a_chunk_is_a_byte_range_of_one_part() -> None:
    files = Files(np.random.default_rng(1), names=("s3://one/a",))
    content = np.arange(24, dtype="<u2").reshape(8, 3)
    files.contents["s3://one/a"] = bytearray(content.tobytes())
    document = metadata((8, 3), (4, 3))
    entries = {"0.0": entry(0, 24, "s3://one/a"), "1.0": entry(24, 24, "s3://one/a")}
    array = PartsArray(document, [entries], parts=[ps.Part("", size=24)]).with_registry(files.registry())
    assert np.array_equal(array[5:7].load(), content[5:7])
    assert array[5:7].declared_parts is None
    with pytest.raises(ManifestError, match="slice would split individual chunks"):
        array[3:5]


@pytest.mark.parametrize(
    "manifests",
    [
        [{"0.0": entry(0, 12)}, {"0.0": entry(12, 12)}],
        [{"0.0": {**entry(), "data": b"a" * 24}}],
        [{"0.0": entry(0, 20)}],
    ],
    ids=["in two parts", "inlined", "too short"],
)
def test_slice_within_a_chunk_needs_one_whole_range(manifests: Any) -> None:
    array = PartsArray(metadata((8, 3), (4, 3)), manifests)
    with pytest.raises(ManifestError, match=r"axis 0: expected .*slices on the boundaries of chunks.*length 4"):
        array[1:2]


def test_join_rejects_missing_chunk_unless_all_are_missing() -> None:
    array = PartsArray(metadata((8,), (2,)), [{"2": entry(), "3": entry()}])
    assert list(array.join_chunks(2).dict()) == ["1"]
    with pytest.raises(ManifestError, match=r"chunk '3'.*missing"):
        PartsArray(metadata((8,), (2,)), [{"2": entry()}]).join_chunks(2)


def test_chunks_that_are_not_contiguous_plain_values_are_not_joined() -> None:
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


def test_array_with_very_many_parts_can_be_loaded() -> None:
    array, values = simple((80,), Kind("<i4", "plain", 2, (1,)))
    joined = array.join()
    assert np.array_equal(joined.load(), values)
    with pytest.raises(PartsConfigError, match="1 to 64 parts"):
        _ = joined.parts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("chunks", [(5, 2, 3), (2, 2, 3), (3, 1, 2), (1, 2, 2), (1, 1, 3), (7, 4, 3)])
def test_rows_are_cut_where_they_are_ranges_of_bytes(order: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    files = Files(np.random.default_rng(0), inline=0)
    kind = Kind("<i2", "plain", 1, chunks, order=order)
    for holes in (0.0, 0.3):
        array, values = make(random_values((5, 4, 3), kind, files.rng), kind, files, holes=holes)
        for axis in range(3):
            # Rows follow each other in a chunk if the axes that vary more slowly in it have one element.
            slower = order[: order.index(axis)]
            assert can_cut_rows(array.references, axis) == all(chunks[each] == 1 for each in slower)
            if can_cut_rows(array.references, axis):
                rows = cut_rows(array.references, axis)
                assert rows.chunk_shape == tuple(1 if each == axis else size for each, size in enumerate(chunks))
                assert np.array_equal(PartsArray.of(rows, ()).load(files.registry()), values)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Kind("<i2", "zstd", 1, (3, 2)), entry(0, 12)),
        (Kind("<i2", "plain", 1, (3, 2)), {**entry(), "data": bytes(12)}),
        (Kind("<i2", "plain", 1, (3, 2)), entry(0, 11)),
    ],
    ids=["compressed", "inlined", "shorter"],
)
def test_chunks_that_are_not_plain_ranges_are_not_cut(kind: Kind, found: dict[str, Any]) -> None:
    document, _ = encode(np.zeros((3, 2), "<i2"), kind)
    assert not can_cut_rows(PartsArray(document, [{"0.0": found}]).references, 0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_chunks_that_follow_each_other_are_cut_in_any_other_way(order: tuple[int, ...], tmp_path: Path) -> None:
    """In every chunk shape, for every order of the axes in the file: values that are one range of bytes, or not."""
    shape = (4, 3, 2)
    values = np.arange(24, dtype="<i2").reshape(shape)
    stored = np.ascontiguousarray(values.transpose(order))
    (tmp_path / "a.raw").write_bytes(b"head" + stored.tobytes() + b"tail")
    codecs = [
        {"name": "transpose", "configuration": {"order": list(order)}},
        {"name": "bytes", "configuration": {"endian": "little"}},
    ]
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    arrays, shapes = [], []
    for chunks in itertools.product(*([size for size in (1, 2, 3, 4) if length % size == 0] for length in shape)):
        numbers = np.arange(24).reshape(stored.shape).transpose(np.argsort(order))
        manifest, is_range = {}, True
        for index in np.ndindex(*(length // size for length, size in zip(shape, chunks, strict=True))):
            region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(index, chunks, strict=True))
            inside = numbers[region].transpose(order).ravel()
            is_range &= bool(np.array_equal(inside, np.arange(inside[0], inside[0] + len(inside))))
            where = {"path": (tmp_path / "a.raw").as_uri(), "offset": 4 + 2 * int(inside[0]), "length": 2 * len(inside)}
            manifest[".".join(map(str, index))] = where
        document = {
            "shape": list(shape),
            "data_type": "int16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": codecs,
            "fill_value": 0,
        }
        array = PartsArray(document, [manifest])
        found = contiguous_range(array.references)
        assert (found is not None) == is_range, chunks
        if found is not None:
            assert (found.span.start, found.span.stop) == (4, 52)
            arrays.append((array.references, found))
            shapes.append(chunks)
    for (references, found), chunks in itertools.product(arrays, shapes):
        cut = PartsArray.of(cut_range(references, found, chunks), ())
        assert cut.references.chunk_shape == chunks
        assert np.array_equal(cut.load(registry), values)


@pytest.mark.parametrize(
    "second",
    [
        {**entry(12, 12), "path": "s3://bucket/other"},
        entry(13, 12),
        entry(0, 12),
        {**entry(), "data": bytes(12)},
        None,
    ],
    ids=["other file", "gap", "twice", "inlined", "missing"],
)
def test_other_chunks_are_not_one_range_of_a_file(second: dict[str, Any] | None) -> None:
    document, _ = encode(np.zeros((6, 2), "<i2"), Kind("<i2", "plain", 1, (3, 2)))
    manifest = {"0.0": entry(0, 12)} | ({} if second is None else {"1.0": second})
    assert contiguous_range(PartsArray(document, [manifest]).references) is None
    together = {"0.0": entry(0, 12), "1.0": entry(12, 12)}
    found = contiguous_range(PartsArray(document, [together]).references)
    assert found is not None
    assert (found.span.start, found.span.stop) == (0, 24)
