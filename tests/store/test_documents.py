"""Metadata documents of arrays in parts: what is stored, what zarr sees, what is refused."""

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import PartsConfigError, UnknownTransformerError
from tests.store.arrays import HEADER_DATA_INDEX, VALUES, content, create, create_sharded, get, keys_of


def test_attributes_resize_and_append_keep_the_transformer(objects: Any) -> None:
    array = create_sharded(ps.PartsStore(objects))
    before = json.loads(content(objects, "a/zarr.json"))["storage_transformers"]
    array[...] = VALUES
    array.attrs["title"] = "picture"
    array.resize((96, 64))
    array.append(VALUES[:32])
    stored = json.loads(content(objects, "a/zarr.json"))
    assert stored["storage_transformers"] == before
    assert stored["attributes"] == {"title": "picture"}
    assert stored["shape"] == [128, 64]
    fresh = zarr.open_array(ps.PartsStore(objects), path="a")
    np.testing.assert_array_equal(fresh[:64], VALUES)
    np.testing.assert_array_equal(fresh[96:], VALUES[:32])


def test_consolidated_metadata_keeps_the_transformer(objects: Any) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    create_sharded(store, name="g/a")[...] = VALUES
    with pytest.warns(match="onsolidated metadata"):
        zarr.consolidate_metadata(store)
    stored = json.loads(content(objects, "zarr.json"))["consolidated_metadata"]["metadata"]
    assert stored["g/a"]["storage_transformers"][0]["name"] == "concat-parts"
    fresh = ps.PartsStore(objects)
    group = zarr.open_consolidated(fresh)
    fresh.stats.reset()
    np.testing.assert_array_equal(group["g/a"][...], VALUES)  # type: ignore[index]
    # The tags of the chunks confirm what it says, so that the document of the array itself is not needed. A disk has no
    # tags: there it is read before the first chunk, and a journal is looked for before and after each.
    if isinstance(objects, LocalStore):
        assert 4 * 5 < fresh.stats.get <= 4 * 6
    else:
        assert fresh.stats.get == 4 * 3


def test_recreated_array_does_not_inherit_old_parts(objects: Any) -> None:
    store = ps.PartsStore(objects)
    create_sharded(store)[...] = VALUES
    plain = zarr.create_array(store, name="a", shape=(4,), chunks=(4,), dtype="uint8", compressors=None, overwrite=True)
    plain[...] = 3
    assert store.parts_of("a") is None
    assert keys_of(objects) - {"zarr.json"} == {"a/zarr.json", "a/c/0"}
    create(store, ["", ps.Part(".t", size=1)], shape=(4,), chunks=(4,), dtype="uint8", overwrite=True)[...] = 5
    assert keys_of(objects) - {"zarr.json"} == {"a/zarr.json", "a/c/0", "a/c/0.t"}


def test_arrays_created_by_zarr_get_parts_of_the_first_pattern(objects: Any) -> None:
    patterns: Any = {"images/*": HEADER_DATA_INDEX, "*": ["", ps.Part(".tail", size=4)]}
    store = ps.PartsStore(objects, parts=patterns)
    arguments: dict[str, Any] = {"shape": (64, 64), "chunks": (8, 8), "dtype": "uint16", "compressors": None}
    zarr.create_array(store, name="images/a", shards=(32, 32), **arguments)[...] = VALUES
    zarr.create_array(store, name="other", **arguments)[...] = VALUES
    assert [part.key_suffix for part in getattr(store.parts_of("images/a"), "parts", ())] == [".header", "", ".index"]
    assert [part.key_suffix for part in getattr(store.parts_of("other"), "parts", ())] == ["", ".tail"]
    plain = ps.PartsStore(objects)
    np.testing.assert_array_equal(zarr.open_array(plain, path="images/a")[...], VALUES)
    np.testing.assert_array_equal(zarr.open_array(plain, path="other")[...], VALUES)
    with pytest.raises(PartsConfigError, match=r"array 'images/b', concat-parts, 'size'.*SHARD_INDEX"):
        zarr.create_array(store, name="images/b", **arguments)
    assert not any(key.startswith("images/b") for key in keys_of(objects))


@pytest.mark.parametrize(
    ("transformers", "error"),
    [
        ([{"name": "other"}], UnknownTransformerError),
        ("concat-parts", UnknownTransformerError),
        ([{"name": "concat-parts", "configuration": {"parts": [{"key_suffix": "/../b"}]}}], PartsConfigError),
    ],
)
def test_a_transformer_that_we_do_not_understand_is_refused_by_name(
    objects: Any, transformers: Any, error: Any
) -> None:
    store = ps.PartsStore(objects)
    zarr.create_group(store)
    create_sharded(store)
    document = json.loads(content(objects, "a/zarr.json")) | {"storage_transformers": transformers}
    obstore.put(objects, "a/zarr.json", json.dumps(document).encode())
    fresh = ps.PartsStore(objects)
    for open_it in (
        lambda: zarr.open(fresh, path="a"),
        lambda: zarr.open_array(fresh, path="a"),
        lambda: zarr.open_group(fresh)["a"],
        lambda: "a" in zarr.open_group(fresh),
        lambda: fresh.get_sync("a/c/0/0"),
    ):
        with pytest.raises(error, match="array 'a'"):
            open_it()


@pytest.mark.parametrize("parts", [[], [""] * 2, ["/"], [ps.Part("")] * 65, "abc", {"a": 1}, 3, [{"size": 3}]])
def test_wrong_parts_are_refused_at_creation_and_nothing_written(objects: Any, parts: Any) -> None:
    store = ps.PartsStore(objects)
    with pytest.raises(PartsConfigError):
        create(store, parts)
    assert keys_of(objects) == set()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"a": ' * 2000])
def test_a_document_that_is_no_document_is_passed_on_as_it_is(objects: Any, text: bytes) -> None:
    obstore.put(objects, "a/zarr.json", text)
    store = ps.PartsStore(objects)
    assert get(store, "a/zarr.json") == text
    with pytest.raises((ValueError, TypeError, RecursionError, AttributeError)):
        zarr.open_array(store, path="a")


@pytest.mark.parametrize("in_parts", [False, True], ids=["plain", "parts"])
@pytest.mark.parametrize("sharded", [False, True], ids=["chunks", "shards"])
@pytest.mark.parametrize("shape", [[0], [[2, 2, 4]], [True]], ids=str)
def test_zarr_warns_as_often_of_a_repaired_document_as_with_its_store(
    tmp_path: Path, shape: Any, *, in_parts: bool, sharded: bool
) -> None:
    layout: dict[str, Any] = {"shape": (8,), "chunks": (1,), "shards": (2,) if sharded else None, "dtype": "int32"}
    warned = {}
    for name, plain in (("ours", False), ("zarr", True)):
        folder = tmp_path / name
        creating = ps.PartsStore.from_url(
            folder, parts={"*": ["", ps.Part(".x", size=1)]} if in_parts and not plain else {}
        )
        zarr.create_array(creating, name="a", **layout)
        document = folder / "a" / "zarr.json"
        changed = json.loads(document.read_text())
        changed["chunk_grid"]["configuration"]["chunk_shape"] = shape
        # Documents that differ are not found in a cache.
        changed["attributes"] = {"name": str(tmp_path)}
        document.write_text(json.dumps(changed))
        store: Any = zarr.storage.LocalStore(folder) if plain else ps.PartsStore.from_url(folder)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            with contextlib.suppress(ValueError, TypeError):
                zarr.open_array(store, path="a", mode="r+").update_attributes({"x": 1})
        warned[name] = [str(each.message).partition(": ")[2] for each in given if "is invalid" in str(each.message)]
    assert warned["ours"] == warned["zarr"]
    assert len(warned["zarr"]) == (1 if shape == [0] else 0)


@pytest.mark.parametrize("in_parts", [False, True], ids=["plain", "parts"])
@pytest.mark.parametrize("sharded", [False, True], ids=["chunks", "shards"])
@pytest.mark.filterwarnings("ignore:.*is read as.*:zarr.errors.ZarrUserWarning")
def test_the_first_of_two_writers_stores_the_chunk_grid_that_zarr_repairs(
    objects: Any, pipeline: str, *, in_parts: bool, sharded: bool
) -> None:
    parts: Any = {"*": ["", ps.Part(".x", size=1)]} if in_parts else {}
    layout: dict[str, Any] = {"shape": (8,), "chunks": (1,), "shards": (1,) if sharded else None, "dtype": "int32"}
    zarr.create_array(ps.PartsStore(objects, parts=parts), name="a", **layout)
    stored = json.loads(content(objects, "a/zarr.json"))
    invalid = {"name": "regular", "configuration": {"chunk_shape": [0]}}
    obstore.put(objects, "a/zarr.json", json.dumps(stored | {"chunk_grid": invalid}).encode())
    writers: list[Any] = [zarr.open_array(ps.PartsStore(objects), path="a", mode="r+") for _ in range(2)]
    writers[0][:4] = 1
    assert json.loads(content(objects, "a/zarr.json")) == stored
    writers[1][4:] = 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = zarr.open_array(ps.PartsStore(objects), path="a")
    np.testing.assert_array_equal(found[...], [1] * 4 + [2] * 4)


def test_verify_does_not_warn_of_a_repaired_document(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    create_sharded(store)
    document = tmp_path / "a" / "zarr.json"
    changed = json.loads(document.read_text())
    changed["chunk_grid"]["configuration"]["chunk_shape"] = [0, 0]
    document.write_text(json.dumps(changed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not ps.PartsStore.from_url(tmp_path).verify().not_understood


# Of one array each.
REFUSED = [
    ["", "#1"],
    ["", ".index#20"],
    ["", "."],
    ["", ".header."],
    ["", " "],
    ["", ".header "],
    ["", ".a", ".A"],
    ["", ".straße", ".STRASSE"],
    ["", ".\u00e4", ".A\u0308"],
    ["", ".a\u0308"],
    ["", ".x²", ".x2"],
]


def sized(suffixes: list[str]) -> list[dict[str, Any]]:
    """Parts of which only the one without a suffix has any size."""
    return [{"key_suffix": suffix} | ({"size": 4} if suffix else {}) for suffix in suffixes]


@pytest.mark.parametrize("suffixes", REFUSED, ids=ascii)
def test_suffixes_that_file_systems_confuse_are_refused(objects: Any, suffixes: list[str]) -> None:
    store = ps.PartsStore(objects)
    arguments: dict[str, Any] = {"shape": (8,), "chunks": (8,), "dtype": "uint8", "compressors": None}
    with pytest.raises(PartsConfigError, match="suffix"):
        ps.create_array(store, "a", parts=sized(suffixes), **arguments)
    assert keys_of(objects) == set()
    zarr.create_array(store, name="a", **arguments)
    document = json.loads(content(objects, "a/zarr.json"))
    document["storage_transformers"] = [{"name": "concat-parts", "configuration": {"parts": sized(suffixes)}}]
    obstore.put(objects, "a/zarr.json", json.dumps(document).encode())
    with pytest.raises(PartsConfigError, match=r"array 'a'.*suffix"):
        zarr.open_array(ps.PartsStore(objects), path="a")


def test_suffixes_with_an_inner_number_sign_are_written_and_read(objects: Any) -> None:
    create(ps.PartsStore(objects), ["", ps.Part("#", size=4), ps.Part(".#1x", size=2)])[...] = VALUES
    np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(objects), path="a")[...], VALUES)
