"""Suffixes that are another file's name somewhere: refused when an array is created, and when it is opened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore

import parts_store as ps
from parts_store.errors import PartsConfigError

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
def test_suffixes_that_file_systems_confuse_are_refused_at_creation(suffixes: list[str], tmp_path: Path) -> None:
    for store in (LocalStore(tmp_path), MemoryStore()):
        with pytest.raises(PartsConfigError, match="suffix"):
            ps.create_array(ps.PartsStore(store), "a", shape=(8,), chunks=(8,), dtype="uint8", parts=sized(suffixes))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffixes", REFUSED, ids=ascii)
def test_suffixes_that_file_systems_confuse_are_refused_at_opening(suffixes: list[str]) -> None:
    store = MemoryStore()
    zarr.create_array(ps.PartsStore(store), name="a", shape=(8,), chunks=(8,), dtype="uint8", compressors=None)
    document = json.loads(bytes(store.get("a/zarr.json").bytes()))
    document["storage_transformers"] = [{"name": "concat-parts", "configuration": {"parts": sized(suffixes)}}]
    store.put("a/zarr.json", json.dumps(document).encode())
    with pytest.raises(PartsConfigError, match=r"array 'a'.*suffix"):
        zarr.open_array(ps.PartsStore(store), path="a")


def test_suffixes_with_an_inner_number_sign_are_written_and_read(tmp_path: Path) -> None:
    for store in (LocalStore(tmp_path), MemoryStore()):
        parts: list[ps.Part | str] = ["", ps.Part("#", size=4), ps.Part(".#1x", size=2)]
        array = ps.create_array(
            ps.PartsStore(store), "a", shape=(64,), chunks=(16,), dtype="uint8", compressors=None, parts=parts
        )
        array[...] = np.arange(64)
        np.testing.assert_array_equal(zarr.open_array(ps.PartsStore(store), path="a")[...], np.arange(64))
