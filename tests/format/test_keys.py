"""Keys: what zarr calls a chunk is one, nothing else is, and the array of a part is always among the candidates."""

import itertools
import re
from hashlib import blake2b
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding, V2ChunkKeyEncoding

from parts_store.errors import PartsConfigError
from parts_store.format.keys import (
    DOCUMENT,
    PROTOCOL_FOLDER,
    Chunk,
    ChunkKeyEncoding,
    candidates,
    is_protocol_key,
    join,
    may_be_part,
    side_folder_of,
    split,
)
from parts_store.format.parts import ConcatParts
from tests.effort import examples

type Name = Literal["default", "v2"]
type Separator = Literal["/", "."]

ENCODERS = {"default": DefaultChunkKeyEncoding, "v2": V2ChunkKeyEncoding}
NAMES: list[Name] = ["default", "v2"]
SEPARATORS: list[Separator] = ["/", "."]
NUMBERS = (0, 1, 9, 10, 123)
PATHS = ("", "a", "a/b", "c", "0", "c/0", "0/1", "a.b", "c.0", "a/c/0", "c/c", "10", "c0", "deep/er/c/1/c")
SUFFIXES = (".header", ".index", ".crc32c", ".x", "_tail", "-a", ".c", "c", "x.0", ".0.x", "ü", " x")


def zarr_keys(name: Name, separator: Separator, ndim: int) -> list[str]:
    """Keys as zarr makes them."""
    encoder = ENCODERS[name](separator=separator)
    return [encoder.encode_chunk_key(coordinates) for coordinates in itertools.product(NUMBERS, repeat=ndim)]


ENCODINGS = [
    pytest.param(name, separator, ndim, id=f"{name}{separator}{ndim}")
    for name, separator, ndim in itertools.product(NAMES, SEPARATORS, range(4))
]


@pytest.mark.parametrize(("name", "separator", "ndim"), ENCODINGS)
def test_every_key_that_zarr_makes_is_a_chunks(name: Name, separator: Separator, ndim: int) -> None:
    encoding = ChunkKeyEncoding(name, separator, ndim)
    assert all(encoding.is_chunk_key(key) for key in zarr_keys(name, separator, ndim))


@pytest.mark.parametrize(("name", "separator", "ndim"), ENCODINGS)
def test_near_misses_of_zarrs_keys_are_no_chunks(name: Name, separator: Separator, ndim: int) -> None:
    encoding = ChunkKeyEncoding(name, separator, ndim)
    made = set(zarr_keys(name, separator, ndim))
    other: Separator = "." if separator == "/" else "/"
    misses = {"", "c", "0", "C", "zarr.json", "c/zarr.json", "c/", "/", "c//0", ".zarray"}
    for key in made:
        misses |= {key + end for end in (".header", ".", "/", "x", "\n", " ", "/0", ".0", "a", "/c", "٣")}
        misses |= {start + key for start in ("a/", "c", "c/", "c.", "/", ".", " ", "-", "+", "x", "0/", "0.")}
        misses |= {key.replace("1", "01"), key.replace("9", "-9"), key.replace("0", "00"), key.replace("9", "٩")}
        misses |= {key.replace(separator, other), key.replace(separator, separator * 2), key.upper(), key[:-1]}
    for count in range(5):
        if count != ndim:
            misses |= set(zarr_keys(name, separator, count) if count < 4 else ["c/0/0/0/0", "0.0.0.0"])
    for miss in misses - made:
        # Removing or adding a digit may give another chunk's key: zarr itself says whether it does.
        assert encoding.is_chunk_key(miss) == decodes(name, separator, ndim, miss), miss


def decodes(name: Name, separator: Separator, ndim: int, key: str) -> bool:
    """Whether zarr makes this very key for some chunk of an array of `ndim` dimensions."""
    encoder = ENCODERS[name](separator=separator)
    if ndim == 0:
        return key == encoder.encode_chunk_key(())
    try:
        coordinates = encoder.decode_chunk_key(key)
    except ValueError:
        return False
    return len(coordinates) == ndim and min(coordinates) >= 0 and encoder.encode_chunk_key(coordinates) == key


@pytest.mark.parametrize(
    ("data", "name", "separator"),
    [
        ({"name": "default"}, "default", "/"),
        ({"name": "default", "configuration": {}}, "default", "/"),
        ({"name": "default", "configuration": {"separator": "."}}, "default", "."),
        ({"name": "v2"}, "v2", "."),
        ({"name": "v2", "configuration": {"separator": "/"}}, "v2", "/"),
        ("default", "default", "/"),
        ("v2", "v2", "."),
    ],
)
def test_encodings_are_read_with_zarrs_defaults(data: Any, name: Name, separator: Separator) -> None:
    assert ChunkKeyEncoding.from_json(data, 2) == ChunkKeyEncoding(name, separator, 2)
    if isinstance(data, dict):
        encoder = ENCODERS[name].from_dict(data)
        assert encoder.to_dict() == {"name": name, "configuration": {"separator": separator}}


@pytest.mark.parametrize(
    "data",
    [
        None,
        1,
        [],
        {},
        "v3",
        {"name": "fanout"},
        {"name": ["default"]},
        {"name": "default", "configuration": None},
        {"name": "default", "configuration": []},
        {"name": "default", "configuration": {"separator": "-"}},
        {"name": "default", "configuration": {"separator": ""}},
        {"name": "default", "configuration": {"separator": None}},
        {"name": "v2", "configuration": {"separator": ["/"]}},
    ],
)
def test_other_encodings_are_refused_by_name(data: Any) -> None:
    with pytest.raises(PartsConfigError, match="chunk_key_encoding") as caught:
        ChunkKeyEncoding.from_json(data, 2)
    assert caught.value.member == "chunk_key_encoding"


@pytest.mark.parametrize(("name", "separator", "ndim"), ENCODINGS)
def test_the_array_of_a_chunk_and_of_its_parts_is_among_the_candidates(
    name: Name, separator: Separator, ndim: int
) -> None:
    for path, relative, suffix in itertools.product(PATHS, zarr_keys(name, separator, ndim)[:40], ("", *SUFFIXES)):
        key = f"{path}/{relative}{suffix}" if path else relative + suffix
        found = candidates(key)
        assert (path, relative + suffix) in found, key
        assert len(set(found)) == len(found)
        assert all((f"{folder}/{rest}" if folder else rest) == key for folder, rest in found)


@pytest.mark.parametrize(("name", "separator", "ndim"), ENCODINGS)
def test_every_key_with_a_suffix_may_be_a_part_and_no_chunks_own_key_may(
    name: Name, separator: Separator, ndim: int
) -> None:
    for path, relative in itertools.product(PATHS, zarr_keys(name, separator, ndim)[:40]):
        key = f"{path}/{relative}" if path else relative
        assert not may_be_part(key), key
        for suffix in SUFFIXES:
            assert may_be_part(key + suffix), key + suffix


NUMBER = "(?:0|[1-9][0-9]*)"
LIKE_CHUNKS = [rf"c(?:[/.]{NUMBER})*(?P<suffix>[^/]*)", rf"{NUMBER}(?:[/.]{NUMBER})*(?P<suffix>[^/]*)"]
SEGMENTS = st.text(alphabet="c019.x\n²", min_size=1, max_size=4)


@settings(max_examples=examples(100))
@given(st.lists(SEGMENTS, min_size=1, max_size=5))
def test_candidates_are_all_paths_above_which_the_rest_looks_like_a_chunk(segments: list[str]) -> None:
    found = [
        ("/".join(segments[:count]), rest, match["suffix"])
        for pattern in LIKE_CHUNKS
        for count in reversed(range(len(segments)))
        if (match := re.fullmatch(pattern, rest := "/".join(segments[count:])))
    ]
    key = "/".join(segments)
    assert candidates(key) == tuple((path, rest) for path, rest, _ in found)
    assert may_be_part(key) is any(suffix for _, _, suffix in found)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("document", ["zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"])
def test_no_document_may_be_a_part(path: str, document: str) -> None:
    key = f"{path}/{document}" if path else document
    assert not may_be_part(key)
    assert candidates(key) == ()


def test_a_chunks_parts_lie_at_its_key_with_their_suffixes() -> None:
    chunk = Chunk("a/c/0/1", ConcatParts([".header", "", ".index"]))
    assert chunk.part_keys == ("a/c/0/1.header", "a/c/0/1", "a/c/0/1.index")
    assert chunk.anchor_key == "a/c/0/1"


@pytest.mark.parametrize("array", PATHS)
def test_protocol_objects_are_in_a_folder_of_the_array(array: str) -> None:
    folders = {}
    for relative in zarr_keys("default", "/", 1) + zarr_keys("default", "/", 2) + zarr_keys("v2", ".", 2):
        chunk = Chunk(join(array, relative), ConcatParts([""]), array)
        assert chunk.relative == relative
        digest = blake2b(relative.encode(), digest_size=16).hexdigest()
        # Below the array, so that no listing of a group shows it; by a digest, for `c/1` is a prefix of `c/1/0`.
        assert chunk.side_folder == (f"{array}/" if array else "") + f".parts-txn/{digest}"
        assert is_protocol_key(chunk.side_folder)
        folders[relative] = chunk.side_folder
    assert len(set(folders.values())) == len(folders)


def test_no_part_of_one_chunk_is_a_chunk_or_a_part_of_another() -> None:
    for name, separator, ndim in itertools.product(NAMES, SEPARATORS, range(3)):
        keys = zarr_keys(name, separator, ndim)
        part_keys = [key for chunk in keys for key in Chunk(chunk, ConcatParts(["", *SUFFIXES])).part_keys]
        assert len(set(part_keys)) == len(part_keys), (name, separator, ndim)


@pytest.mark.parametrize(
    ("key", "is_protocols"),
    [
        (f"a/{PROTOCOL_FOLDER}/h/gen", True),
        (f"{PROTOCOL_FOLDER}/h/gen.done", True),
        (f"a/b/{PROTOCOL_FOLDER}", True),
        (f"a/x{PROTOCOL_FOLDER}/h", False),
        (f"a/{PROTOCOL_FOLDER}x/h", False),
        ("a/c/0", False),
        ("", False),
    ],
)
def test_the_protocols_keys_are_those_in_its_folder(key: str, is_protocols: bool) -> None:
    assert is_protocol_key(key) is is_protocols


@pytest.mark.parametrize("array", ["", "a/b"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        (f"{'0a' * 16}/{'1b' * 16}", "0a" * 16),
        (f"{'0a' * 16}.journal", "0a" * 16),
        (f"{'0a' * 16}.journal.{'1b' * 8}", "0a" * 16),
        (f"{'0a' * 16}.{'1b' * 16}.0", "0a" * 16),
        (f"{'0a' * 16}.{'1b' * 16}.12", "0a" * 16),
        (f"{'0a' * 16}.lock", None),
        ("array.lock", None),
        (f"probe-{'0a' * 16}", None),
        (f"{'0a' * 16}.clock", None),
    ],
)
def test_files_of_one_chunk_are_in_its_folder_or_named_after_it(array: str, name: str, folder: str | None) -> None:
    expected = None if folder is None else join(array, f"{PROTOCOL_FOLDER}/{folder}")
    assert side_folder_of(join(array, f"{PROTOCOL_FOLDER}/{name}")) == expected


@pytest.mark.parametrize("path", PATHS)
def test_splitting_and_joining_undo_each_other(path: str) -> None:
    key = join(path, DOCUMENT)
    assert split(key) == (path, "zarr.json")
    assert key == (f"{path}/zarr.json" if path else "zarr.json")
