"""Listings of random trees, compared with a slow rule that looks at every key by itself."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import obstore
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore
from zarr.core.sync import sync

import parts_store as ps
from parts_store.engine.steps import Get
from parts_store.store.catalog import Catalog
from parts_store.store.shown_keys import ShownKeys
from tests.effort import examples
from tests.store.arrays import collect, keys_of

# No array is inside another one.
PATHS = ("a", "0", "c", "b/c", "b/0", "b/c.1", "d/1/2", "e")
PARTS: tuple[list[str], ...] = (
    [],
    [""],
    ["", ".t"],
    [".h", "", ".t"],
    [".h", ".t"],
    ["", "x", ".0x"],
)
TAILS = ("", ".t", ".h", "x", ".0x", ".1", ".y", "/zarr.json", "/0", "/x", "/.parts-txn/0")


@dataclass(frozen=True)
class Array:
    """An array of a random tree: an array without parts has no suffixes."""

    suffixes: Sequence[str]
    name: str
    separator: str
    ndim: int

    def document(self) -> bytes:
        # All parts have a size except the anchor.
        parts = [{"key_suffix": each} | ({} if each == self.anchor else {"size": 1}) for each in self.suffixes]
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [4] * self.ndim,
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * self.ndim}},
            "chunk_key_encoding": {"name": self.name, "configuration": {"separator": self.separator}},
            "codecs": [{"name": "bytes"}],
            "fill_value": 0,
            "storage_transformers": [{"name": "concat-parts", "configuration": {"parts": parts}}] if parts else [],
        }
        return json.dumps(document).encode()

    @property
    def anchor(self) -> str:
        return "" if "" in self.suffixes else self.suffixes[0]

    def is_chunk(self, relative: str) -> bool:
        """Whether this is the key of a chunk, by what the specification says of both encodings."""
        if self.name == "default":
            first, *numbers = relative.split(self.separator)
            if first != "c":
                return False
        elif self.ndim == 0:
            return relative == "0"
        else:
            numbers = relative.split(self.separator)
        return len(numbers) == self.ndim and all(re.fullmatch("0|[1-9][0-9]*", each) for each in numbers)

    def shown(self, relative: str) -> str | None:
        """Return what is shown of an object of the array, by trying every suffix."""
        if self.suffixes:
            for suffix in {"", *self.suffixes}:
                chunk = relative.removesuffix(suffix)
                if relative.endswith(suffix) and self.is_chunk(chunk):
                    return chunk if suffix == self.anchor else None
        return relative


def expected(keys: set[str], arrays: dict[str, Array]) -> set[str]:
    """Return what a listing shows of these objects."""
    shown = set()
    for key in keys:
        if ".parts-txn" in key.split("/"):
            continue
        above = [path for path in arrays if key.startswith(f"{path}/")]
        if key.endswith("zarr.json") or not above:
            shown.add(key)
            continue
        (path,) = above
        relative = arrays[path].shown(key.removeprefix(f"{path}/"))
        if relative is not None:
            shown.add(f"{path}/{relative}")
    return shown


ARRAYS = st.builds(
    Array, st.sampled_from(PARTS), st.sampled_from(["default", "v2"]), st.sampled_from(["/", "."]), st.integers(0, 3)
)
NAMES = st.sampled_from(["c", "0", "1", "10", "01", "c.0", "c.1.2", "1.2", "1.2.3", "cx", "x", "b", ".parts-txn"])
KEYS = st.builds(
    lambda path, names, tail: "/".join(filter(None, (path, *names))) + tail,
    st.sampled_from(("", *PATHS)),
    st.lists(NAMES, min_size=1, max_size=4),
    st.sampled_from(TAILS),
)


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(PATHS), ARRAYS, max_size=5), st.sets(KEYS, max_size=40))
def test_listing_shows_what_a_look_at_every_single_key_shows(arrays: dict[str, Array], keys: set[str]) -> None:
    objects = MemoryStore()
    documents = {f"{path}/zarr.json": array.document() for path, array in arrays.items()}
    for key in keys - documents.keys():
        obstore.put(objects, key, b"x" if not key.endswith("zarr.json") else b"{}")
    for key, document in documents.items():
        obstore.put(objects, key, document)
    stored = keys_of(objects)
    # An object at a chunk's key that no part has: a listing by a new store may come to it before it reads a document.
    doubtful = {
        key
        for key in stored
        for path, array in arrays.items()
        if array.suffixes and array.anchor and key.startswith(f"{path}/") and array.is_chunk(key[len(path) + 1 :])
    }
    known = ps.PartsStore(objects)
    for path in arrays:
        known.parts_of(path)
    assert sorted(sync(collect(known.list()))) == sorted(expected(stored, arrays))
    for prefix in ("", *arrays, "b", "d/1"):
        below = {key for key in stored if not prefix or key.startswith(f"{prefix}/")}
        shown = expected(below, arrays)
        for store in (known, ps.PartsStore(objects)):
            listed = sync(collect(store.list_prefix(prefix)))
            assert set(listed) - doubtful == shown - doubtful
            if store is known:
                assert len(listed) == len(shown)
            assert sync(store.is_empty(prefix)) is (not listed)


def test_documents_of_all_arrays_of_a_page_are_asked_for_at_once() -> None:
    catalog: Catalog = ps.PartsStore(MemoryStore()).catalog
    names = [f"a{number}" for number in range(5)]
    steps = ShownKeys(catalog).of([f"{name}/c/0{suffix}" for name in names for suffix in ("", ".t", ".u")])
    batch: Any = next(steps)
    # The encoding v2 is possible, too, but the encoding default is asked for first.
    assert batch == tuple(Get(f"{name}/zarr.json", None, "which parts the array has") for name in names)
