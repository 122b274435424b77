"""Two changes of a shard are merged by inner chunk, or refused."""

import itertools
from typing import Any, Literal

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from parts_store.format.shard_index import (
    NO_CHUNK,
    Merged,
    NotMergedError,
    ShardIndex,
    empty_shard,
    index_of_codec,
    is_empty,
    merge_shards,
)

type Chunks = tuple[bytes | None, ...]

LOCATIONS: tuple[Literal["start", "end"], ...] = ("start", "end")


def index_for(slots: int, location: Literal["start", "end"], *, has_checksum: bool = True) -> ShardIndex:
    """Return the index as the package makes it for zarr's codec."""
    codecs: list[Any] = [BytesCodec(), Crc32cCodec()] if has_checksum else [BytesCodec()]
    codec = ShardingCodec(chunk_shape=(1,), index_codecs=codecs, index_location=location)
    found = index_of_codec(codec, (slots,))
    assert found is not None
    return found


def shard(index: ShardIndex, chunks: Chunks, *, gap: int = 0, reverse: bool = False) -> memoryview | None:
    """Make a shard in any order, with bytes between the inner chunks that belong to none."""
    if not any(each is not None for each in chunks):
        return None
    start = index.nbytes if index.location == "start" else 0
    data, places = b"", dict[int, tuple[int, int]]()
    for slot in reversed(range(len(chunks))) if reverse else range(len(chunks)):
        chunk = chunks[slot]
        if chunk is not None:
            data += b"?" * gap
            places[slot] = (start + len(data), len(chunk))
            data += chunk
    table = b"".join(
        number.to_bytes(8, "little")
        for slot in range(len(chunks))
        for number in places.get(slot, (int(NO_CHUNK), int(NO_CHUNK)))
    )
    # Google's crc32c of the table, as zarr's codec appends it.
    import google_crc32c

    checksum = google_crc32c.value(table).to_bytes(4, "little") if index.has_checksum else b""
    return memoryview(table + checksum + data if index.location == "start" else data + table + checksum)


def taken_apart(index: ShardIndex, value: memoryview | None) -> Chunks:
    """Return the inner chunks of a shard, read without the package."""
    if value is None:
        return (None,) * index.slots
    data = bytes(value)
    table = data[: index.nbytes] if index.location == "start" else data[-index.nbytes :]
    rows = np.frombuffer(table[: 16 * index.slots], "<u8").reshape(-1, 2).tolist()
    return tuple(None if start == NO_CHUNK else data[start : start + nbytes] for start, nbytes in rows)


def expected(base: Chunks, mine: Chunks, theirs: Chunks) -> Chunks | None:
    """Return what should be there, None if it cannot be decided."""
    merged = []
    for was, here, there in zip(base, mine, theirs, strict=True):
        choices = {here, there} - {was} or {was}
        if len(choices) > 1:
            return None
        merged.append(choices.pop())
    return tuple(merged)


def check(index: ShardIndex, base: Chunks, mine: Chunks, theirs: Chunks, **theirs_options: Any) -> None:
    stored = shard(index, theirs, **theirs_options)
    wanted = expected(base, mine, theirs)
    try:
        merged = merge_shards(index, shard(index, base, reverse=True), shard(index, mine), stored)
    except NotMergedError:
        assert wanted is None
        return
    assert wanted is not None
    assert taken_apart(index, merged.shard) == wanted
    assert merged.differs == (wanted != theirs)
    assert (merged.shard is None) == (not any(each is not None for each in wanted)) or merged.shard is stored


@pytest.mark.slow
@pytest.mark.parametrize("location", LOCATIONS)
def test_all_changes_of_two_inner_chunks(location: Literal["start", "end"]) -> None:
    index = index_for(2, location)
    values = list(itertools.product((None, b"", b"a", b"bc"), repeat=2))
    for base, mine, theirs in itertools.product(values, repeat=3):
        check(index, base, mine, theirs)


CHUNK = st.one_of(st.none(), st.binary(max_size=3))


@given(data=st.data(), location=st.sampled_from(LOCATIONS), has_checksum=st.booleans(), gap=st.integers(0, 2))
def test_random_changes(
    data: st.DataObject, location: Literal["start", "end"], gap: int, *, has_checksum: bool
) -> None:
    slots = data.draw(st.integers(1, 6))
    index = index_for(slots, location, has_checksum=has_checksum)
    base = tuple(data.draw(CHUNK) for _ in range(slots))
    # Each writer changes some of them.
    mine, theirs = (tuple(data.draw(CHUNK) if data.draw(st.booleans()) else each for each in base) for _ in range(2))
    check(index, base, mine, theirs, gap=gap, reverse=data.draw(st.booleans()))


def test_merged_shard_is_read_by_zarr() -> None:
    def written(**regions: int) -> memoryview:
        array: Any = zarr.create_array(
            stored := zarr.storage.MemoryStore(), shape=(8,), chunks=(2,), shards=(8,), dtype="i4"
        )
        array[...] = 1
        for start, value in regions.items():
            array[int(start[1:]) : int(start[1:]) + 2] = value
        return memoryview(stored._store_dict["c/0"].to_bytes())

    index = index_of_codec(ShardingCodec(chunk_shape=(2,)), (8,))
    assert index is not None
    merged = merge_shards(index, written(), written(_0=7, _4=0), written(_2=8, _6=9))
    array: Any = zarr.create_array(
        store := zarr.storage.MemoryStore(), shape=(8,), chunks=(2,), shards=(8,), dtype="i4"
    )
    assert merged.shard is not None
    store._store_dict["c/0"] = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(merged.shard))
    np.testing.assert_array_equal(array[...], [7, 7, 8, 8, 0, 0, 9, 9])


def damaged(index: ShardIndex, whole: bytes) -> dict[str, bytes]:
    """Return shards that zarr would not write, by what is wrong with them."""
    bare = index_for(index.slots, index.location, has_checksum=False)
    table = whole[: index.nbytes] if index.location == "start" else whole[-index.nbytes :]
    rest = whole[index.nbytes :] if index.location == "start" else whole[: -index.nbytes]
    rows = np.frombuffer(table[: 16 * index.slots], "<u8").reshape(-1, 2)

    def with_rows(*changes: tuple[int, int, int]) -> Any:
        import google_crc32c

        changed = rows.copy()
        for slot, column, value in changes:
            changed[slot, column] = value
        numbers = changed.tobytes()
        encoded = numbers + google_crc32c.value(numbers).to_bytes(4, "little")
        return encoded + rest if index.location == "start" else rest + encoded

    assert bare.nbytes == index.nbytes - 4
    first = int(rows[0, 0])
    return {
        "too short": whole[: index.nbytes - 1],
        "empty": b"",
        "wrong checksum": whole[:-1] + bytes([whole[-1] ^ 1]) if index.location == "end" else b"\xff" + whole[1:],
        "beyond the end": with_rows((0, 1, len(whole))),
        "offset beyond the end": with_rows((0, 0, len(whole) + 1)),
        "sum too large": with_rows((0, 0, 2**64 - 2), (0, 1, 5)),
        "in the index": with_rows((0, 0, 0 if index.location == "start" else len(rest)), (0, 1, 1)),
        "half a hole": with_rows((0, 0, 2**64 - 1)),
        "other half": with_rows((0, 1, 2**64 - 1)),
        "shared": with_rows((1, 0, first), (1, 1, int(rows[0, 1]))),
        "overlapping": with_rows((1, 0, first + 1)),
    }


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["base", "mine", "theirs"])
def test_shards_that_are_not_understood_are_refused(location: Literal["start", "end"], place: int) -> None:
    index = index_for(2, location)
    whole = shard(index, (b"abc", b"def"))
    assert whole is not None
    merge_shards(index, whole, whole, whole)
    for name, wrong in damaged(index, bytes(whole)).items():
        shards: list[memoryview | None] = [whole, whole, whole]
        shards[place] = memoryview(wrong)
        with pytest.raises(NotMergedError):
            pytest.fail(f"{name}: {merge_shards(index, *shards)}")


@pytest.mark.parametrize("location", LOCATIONS)
def test_an_empty_shard_has_no_inner_chunks(location: Literal["start", "end"]) -> None:
    index = index_for(3, location)
    empty = empty_shard(index)
    assert taken_apart(index, empty) == (None, None, None)
    assert is_empty(index, empty)
    assert is_empty(index, None)
    assert not is_empty(index, shard(index, (b"", None, None)))
    assert not is_empty(index, shard(index, (b"a", None, None)))
    assert not is_empty(index, memoryview(b""))
    # It is the same as no shard.
    mine = shard(index, (b"a", None, None))
    assert merge_shards(index, empty, mine, None) == merge_shards(index, None, mine, empty)
    assert merge_shards(index, mine, None, empty) == Merged(empty, differs=False)
