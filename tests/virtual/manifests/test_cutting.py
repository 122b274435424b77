"""Arrays of references in shards: the values are those of the uncut array, however the chunks lie in files."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parts_store.errors import ManifestError
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
from parts_store.manifests import PartsArray
from parts_store.virtual.manifests.references import References
from parts_store.virtual.manifests.shards import Sharded, cut, is_cut, uncut
from tests.effort import examples
from tests.virtual.manifests.making import DTYPES, Files, Kind, Made, drawn, encode, make, random_values, seeds

IN_ONE = ConcatParts([Part(""), Part(".index", size=SHARD_INDEX)])
IN_TWO = ConcatParts([Part(""), Part(".next"), Part(".index", size=SHARD_INDEX)])
IN_FOUR = ConcatParts([*map(Part, ("", ".next", ".next2", ".next3")), Part(".index", size=SHARD_INDEX)])


def in_turn(
    shape: tuple[int, ...], kind: Kind, files: Files, lengths: tuple[int, ...], *, holes: float = 0.0
) -> tuple[PartsArray, NDArray[Any]]:
    """Return an array whose chunks are in one file after the other along the first axis, and its values."""
    values = random_values(shape, kind, files.rng)
    metadata, chunks = encode(values, kind)
    ends = list(itertools.accumulate(lengths))
    names = [f"s3://one/{number}.nc" for number in range(len(lengths))]
    manifest: dict[str, Any] = {}
    for key in sorted(chunks, key=lambda _: files.rng.random()):
        index = tuple(int(number) for number in key.split("."))
        if files.rng.random() < holes:
            region = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, kind.chunks, strict=True))
            values[region] = kind.fill_value
            continue
        one = Files(files.rng, (names[sum(index[0] >= end for end in ends)],), inline=0, contents=files.contents)
        manifest[key] = one.put(chunks[key])
    checksums = {name: f'"{name}"' for name in names}
    return PartsArray(metadata, [manifest], checksums=checksums), values


def load(sharded: Sharded, files: Files) -> NDArray[Any]:
    """Return the values of an array in shards, read without checksums, which the files in memory do not have."""
    array = PartsArray.of(replace(sharded.references, checksums={}), ())
    store = array.to_store(files.registry())
    whole = array.load(files.registry())
    assert np.array_equal(zarr.open_array(store, mode="r")[...], whole)
    return whole


@settings(max_examples=examples(150))
@given(
    seed=seeds,
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    rest=st.lists(st.integers(1, 5), max_size=2),
    chunk=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    codecs=st.sampled_from(["plain", "zstd", "checksum"]),
    holes=st.sampled_from([0.0, 0.2, 1.0]),
    most=st.integers(1, 30),
)
def test_array_in_shards_has_the_values_and_the_chunks_of_the_array(
    seed: int, lengths: list[int], rest: list[int], chunk: int, dtype: str, codecs: str, holes: float, most: int
) -> None:
    files = Files(np.random.default_rng(seed))
    kind = Kind(dtype, codecs, 1, (chunk, *(1 for _ in rest)))
    # The last chunk of the first axis is not a whole one.
    shape = (max(1, sum(lengths) * chunk - seed % chunk), *rest)
    array, values = in_turn(shape, kind, files, tuple(lengths), holes=holes)
    sharded = cut(array.references, most)
    assert sharded.reason
    assert np.array_equal(load(sharded, files), values)
    parts = sharded.references.parts
    assert is_cut(sharded.references.metadata, parts) == sharded.is_cut
    if not sharded.is_cut:
        assert sharded.references is array.references
        return
    assert PartsArray.of(uncut(sharded.references), ()).is_same(array)
    assert parts is not None
    assert parts.parts == (*IN_FOUR.parts[: len(parts.parts) - 1], IN_FOUR.parts[-1])
    metadata = sharded.references.metadata
    assert metadata.shape == array.shape
    assert metadata.chunks == array.chunk_shape
    assert metadata.shards is not None
    assert np.prod(metadata.shards) <= most * np.prod(array.chunk_shape)
    # Every file that is referred to keeps its checksum.
    assert set(sharded.references.checksums) == set(array.references.locations())


@settings(max_examples=examples(50))
@given(drawn(), st.integers(2, 10))
def test_any_array_is_cut_or_stays_as_it_is(made: Made, most: int) -> None:
    assert np.array_equal(load(cut(made.array.references, most), made.files), made.values)


def test_shard_of_four_files() -> None:
    files = Files(np.random.default_rng(0))
    array, values = in_turn((24, 6), Kind("uint8", "zstd", 1, (1, 2)), files, (1, *[2] * 11, 1))
    sharded = cut(array.references)
    assert sharded.references.parts == IN_FOUR
    assert sharded.reason == "4 shards of about 18 chunks, each in at most 4 files"
    assert np.array_equal(load(sharded, files), values)


def test_attributes_and_names_are_kept() -> None:
    files = Files(np.random.default_rng(0))
    array, _ = in_turn((80, 3), Kind("<i4", "zstd", 1, (1, 3)), files, (40, 40))
    document = array.metadata.to_dict() | {"attributes": {"units": "K"}, "dimension_names": ("t", "x")}
    named = PartsArray(document, array.manifests)
    sharded = cut(named.references)
    assert sharded.references.parts == IN_ONE
    assert sharded.references.metadata.attributes == {"units": "K"}
    assert sharded.references.metadata.dimension_names == ("t", "x")
    assert sharded.references.metadata.fill_value == 7


def test_unused_second_part_is_one_byte() -> None:
    files = Files(np.random.default_rng(0))
    array, _ = in_turn((90, 2), Kind("uint8", "plain", 1, (1, 2)), files, (31, 28, 31))
    sharded = cut(array.references)
    assert sharded.references.parts == IN_TWO
    data, following, index = sharded.references.columns
    assert data.paths.shape == (4, 1)
    assert [str(each) for each in data.paths[:, 0]] == [f"s3://one/{number}.nc" for number in (0, 0, 1, 2)]
    assert following.inlined == {(0, 0): b"\0", (3, 0): b"\0"}
    assert [str(each) for each in following.paths[1:3, 0]] == [f"s3://one/{number}.nc" for number in (1, 2)]
    assert {len(each) for each in index.inlined.values()} == {23 * 16 + 4}


NOT_CUT: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "a single value": ({}, (), "a single value"),
    "no values": ({}, (0, 4), "too few chunks for shards: 0"),
    "few values": ({}, (3, 4), "too few chunks for shards: 3"),
    "shards": ({"shards": (2, 4)}, (40, 4), "it is in shards"),
    "parts": ({"parts": 2}, (40, 4), "its chunks have several parts"),
    "inlined chunks": ({"inline": 0.5}, (40, 4), "some chunks are not in files"),
}


@pytest.mark.parametrize("case", NOT_CUT)
def test_arrays_that_stay_as_they_are(case: str) -> None:
    options, shape, reason = NOT_CUT[case]
    files = Files(np.random.default_rng(0), ("s3://one/a",), inline=options.pop("inline", 0))
    kind = Kind("uint8", "plain", options.pop("parts", 1), (1, 4)[: len(shape)], **options)
    array, values = make(random_values(shape, kind, files.rng), kind, files)
    sharded = cut(array.references)
    assert (sharded.is_cut, sharded.reason) == (False, reason)
    assert sharded.references is array.references
    assert np.array_equal(load(sharded, files), values)


def test_damaged_index_is_named() -> None:
    files = Files(np.random.default_rng(0))
    array, _ = in_turn((80, 2), Kind("uint8", "plain", 1, (1, 2)), files, (80,))
    references = cut(array.references).references
    data, index = ({str(key): value for key, value in each.manifest().dict().items()} for each in references.columns)
    index["0.0"] = {**index["0.0"], "data": b"\1" * 1284}
    with pytest.raises(ManifestError, match=r"shard '0\.0': expected an index of 80 chunks that fits its checksum"):
        uncut(References.parse(references.metadata, [data, index], {}))
