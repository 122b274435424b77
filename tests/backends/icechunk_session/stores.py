"""Arrays in a session, and what is stored for them."""

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import icechunk
import numpy as np
import pytest
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import parts_store as ps
from parts_store.errors import PartsStoreError

PROTOTYPE = default_buffer_prototype()
SHARDED = [ps.Part(""), ps.Part(".index", size=ps.SHARD_INDEX)]
KINDS = pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])


def new_repository() -> icechunk.Repository:
    return icechunk.Repository.create(icechunk.in_memory_storage())


def buffer(data: bytes) -> cpu.Buffer:
    return cpu.Buffer.from_bytes(data)


def value_of(store: ps.PartsStore, key: str, wanted: ByteRequest | None = None) -> bytes | None:
    found = sync(store.get(key, PROTOTYPE, wanted))
    return None if found is None else found.to_bytes()


def keys_of(listing: Any) -> set[str]:
    async def collect() -> set[str]:
        return {key async for key in listing}

    return sync(collect())


def make_sharded(store: ps.PartsStore, name: str = "a", *, split: bool, **arguments: Any) -> Any:
    """Create an array of two shards of four inner chunks, with values that are not the fill value."""
    options: dict[str, Any] = {"shape": (16,), "chunks": (2,), "shards": (8,), "dtype": "uint8", "compressors": None}
    array = ps.create_array(store, name, parts=SHARDED, split=split, **{**options, **arguments})
    array[:] = np.arange(1, array.shape[0] + 1)
    return array


def make_bytes(store: ps.PartsStore, parts: Any, name: str = "a", *, split: bool) -> None:
    """Create an array whose chunks may be any bytes, as long as they are not decoded."""
    ps.create_array(store, name, parts=parts, split=split, shape=(8,), chunks=(1,), dtype="uint8", compressors=None)


def requests(nbytes: int) -> Iterator[tuple[ByteRequest | None, slice]]:
    """Yield all requests within and beyond a value, each with the slice that it means."""
    yield None, slice(None)
    for start, stop in itertools.product(range(nbytes + 3), repeat=2):
        if start <= stop:
            yield RangeByteRequest(start, stop), slice(start, stop)
    for offset in range(nbytes + 3):
        yield OffsetByteRequest(offset), slice(offset, None)
        yield SuffixByteRequest(offset), slice(max(nbytes - offset, 0), None)


def cut(value: bytes, wanted: ByteRequest | None) -> bytes:
    """Return the bytes that a request selects."""
    match wanted:
        case None:
            return value
        case RangeByteRequest(start=start, end=end):
            return value[start:end]
        case OffsetByteRequest(offset=offset):
            return value[offset:]
        case SuffixByteRequest(suffix=suffix):
            return value[max(len(value) - suffix, 0) :]


LAYOUTS: dict[str, list[Any]] = {
    "one": [""],
    "header": [ps.Part(".h", size=2), ""],
    "trailer": ["", ps.Part(".t", size=3)],
    "both": [ps.Part(".h", size=1), "", ps.Part(".t", size=2)],
    "no anchor of its own": [ps.Part(".h", size=1), ".main", ps.Part(".t", size=1)],
    "fixed": [ps.Part(".h", size=2), ps.Part("", size=3)],
}
PLAIN: dict[str, Any] = {"shape": (16,), "chunks": (2,), "shards": (8,), "dtype": "uint8", "compressors": None}


def require_ours(error: BaseException) -> None:
    """Check that the error is one of this package, does not mean absence to zarr, and can be pickled."""
    assert isinstance(error, PartsStoreError)
    assert not isinstance(error, KeyError | FileNotFoundError)
    # Without where it came from: distributed, once imported, pickles that too, and it can be too deep.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))


def in_threads(*targets: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
