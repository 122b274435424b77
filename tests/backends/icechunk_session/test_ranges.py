"""Reads and writes of chunks in a session, by any byte range, also of chunks that are references."""

from typing import Any

import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import ChunkSizeError, PartsConfigError
from tests.backends.icechunk_session.stores import (
    KINDS,
    LAYOUTS,
    PROTOTYPE,
    buffer,
    keys_of,
    make_bytes,
    requests,
    value_of,
)


def fixed_size(parts: list[Any]) -> tuple[int, bool]:
    """Return the number of bytes in parts with a size, and whether there is a part without a size."""
    sizes = [each.size if isinstance(each, ps.Part) else None for each in parts]
    return sum(size for size in sizes if isinstance(size, int)), None in sizes


@pytest.mark.sampled(15)
@KINDS
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_any_range_of_a_chunk_reads_as_a_slice(store: ps.PartsStore, layout: str, *, split: bool) -> None:
    make_bytes(store, LAYOUTS[layout], split=split)
    fixed, is_open = fixed_size(LAYOUTS[layout])
    for number, nbytes in enumerate(range(fixed + 1, 9) if is_open else [fixed]):
        value, key = bytes(range(1, nbytes + 1)), f"a/c/{number % 8}"
        store.set_sync(key, buffer(value))
        wanted = list(requests(nbytes))

        async def read_each(key: str, wanted: list[Any]) -> list[Any]:
            return [await store.get(key, PROTOTYPE, each) for each, _ in wanted]

        for (each, expected), found in zip(wanted, sync(read_each(key, wanted)), strict=True):
            assert found is not None
            assert found.to_bytes() == value[expected], (nbytes, each)
        together = store.get_ranges_sync(key, [each for each, _ in wanted], prototype=PROTOTYPE)
        assert [None if each is None else each.to_bytes() for _, each in together] == [
            value[each] for _, each in wanted
        ]
        partial = sync(store.get_partial_values(PROTOTYPE, [(key, each) for each, _ in wanted]))
        assert [None if each is None else each.to_bytes() for each in partial] == [value[each] for _, each in wanted]
        assert sync(store.getsize(key)) == nbytes
        assert sync(store.exists(key))


@KINDS
def test_no_range_of_a_chunk_that_is_not_there_reads_as_anything(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    for wanted, _ in requests(2):
        assert value_of(store, "a/c/0", wanted) is None
    with pytest.raises(BaseExceptionGroup) as caught:
        store.get_ranges_sync("a/c/0", [RangeByteRequest(0, 1)], prototype=PROTOTYPE)
    assert caught.group_contains(FileNotFoundError)
    assert sync(store.get_partial_values(PROTOTYPE, [("a/c/0", None)])) == [None]
    assert not sync(store.exists("a/c/0"))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a/c/0"))


@KINDS
def test_a_value_that_does_not_fit_is_refused_and_the_old_chunk_stays(store: ps.PartsStore, *, split: bool) -> None:
    make_bytes(store, LAYOUTS["both"], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    # In a split array each part is a chunk by itself, and Icechunk keeps none that is empty.
    for value in (b"", b"12", *([b"123"] if split else [])):
        for write in (store.set_sync, lambda key, new: sync(store.set_if_not_exists(key, new))):
            with pytest.raises(ChunkSizeError):
                write("a/c/0", buffer(value))
        with pytest.raises(ChunkSizeError):
            store.set_sync("a/c/1", buffer(value))
    assert value_of(store, "a/c/0") == b"12345"
    assert value_of(store, "a/c/1") is None
    assert store.verify().is_clean


def test_split_array_with_an_empty_part_is_refused_at_creation(store: ps.PartsStore) -> None:
    with pytest.raises(PartsConfigError, match="at least 1"):
        make_bytes(store, [ps.Part(".empty", size=0), ""], split=True)
    assert not sync(store.exists("a/zarr.json"))
    make_bytes(store, [ps.Part(".empty", size=0), ""], split=False)
    store.set_sync("a/c/0", buffer(b"1"))
    assert value_of(store, "a/c/0") == b"1"


@KINDS
def test_arrays_without_dimensions_and_at_the_root_are_stored(repository: Any, session: Any, *, split: bool) -> None:
    store = ps.PartsStore.from_session(session)
    parts = [ps.Part(".h", size=1), ps.Part(""), ps.Part(".t", size=1)]
    scalar = ps.create_array(store, None, parts=parts, split=split, shape=(), dtype="float64", compressors=None)
    scalar[...] = 2.5
    session.commit("a number")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    assert zarr.open_array(reader)[...] == 2.5
    assert keys_of(reader.list()) == {"zarr.json", "c"}
    assert reader.verify().is_clean


@pytest.mark.sampled(3)
@KINDS
@pytest.mark.parametrize("suffix", [".x", ".a.b", "%2E", "~", " x", "ü", "-" * 60, ":", "?", "#"])
def test_any_suffix_that_the_specification_allows_is_kept(store: ps.PartsStore, suffix: str, *, split: bool) -> None:
    make_bytes(store, ["", ps.Part(suffix, size=2)], split=split)
    store.set_sync("a/c/0", buffer(b"12345"))
    assert value_of(store, "a/c/0") == b"12345"
    store.session.commit("a chunk")
    assert value_of(store, "a/c/0", SuffixByteRequest(3)) == b"345"
    assert keys_of(store.list()) == {"zarr.json", "a/zarr.json", "a/c/0"}
    assert store.verify().is_clean
