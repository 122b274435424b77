"""Padding made by a callable: right for every chunk, never stored, never silently replaced by zeros."""

import base64
import copy
import json
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.dtype import UInt8
from zarr.storage import LocalStore

from parts_store.codecs import PadCodec, bind_padding, offset_codec, pad_codec
from parts_store.errors import CodecConfigError, CodecError, UnboundPaddingError
from tests.codecs.arrays import Stored

VALUES = np.arange(64, dtype="<u4").reshape(8, 8)
CHUNK_KEYS = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]


def checksum(encoded: bytes) -> bytes:
    """Four bytes that depend on every byte of the chunk."""
    assert type(encoded) is bytes
    return zlib.crc32(encoded).to_bytes(4, "big")


def length(encoded: bytes) -> bytes:
    return len(encoded).to_bytes(8, "big")


class Unhashable:
    """A callable as people write them: with equality, and so without a hash."""

    def __init__(self, letter: bytes) -> None:
        self.letter = letter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable) and self.letter == other.letter

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, encoded: bytes) -> bytes:
        return self.letter * 4


def create(folder: Path, *codecs: Any, **arguments: Any) -> zarr.Array[Any]:
    return zarr.create_array(
        LocalStore(folder), shape=(8, 8), chunks=(4, 4), dtype="uint32", compressors=codecs, **arguments
    )


def assert_checksummed(folder: Path) -> None:
    for key in CHUNK_KEYS:
        chunk = (folder / key).read_bytes()
        assert chunk[:4] == zlib.crc32(chunk[4:]).to_bytes(4, "big")


@pytest.mark.parametrize("codec", [pad_codec(4, padding_func=checksum), offset_codec(4, prefix_func=checksum)])
@pytest.mark.parametrize("before", [(), (ZstdCodec(level=1),)], ids=["raw", "zstd"])
def test_the_callable_makes_every_chunks_padding_from_its_encoded_bytes(
    tmp_path: Path, codec: Any, before: tuple[Any, ...], pipeline: str
) -> None:
    array = create(tmp_path, *before, codec)
    array[...] = VALUES
    assert_checksummed(tmp_path)
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], VALUES)


def test_a_trailer_may_depend_on_the_header_before_it(tmp_path: Path, pipeline: str) -> None:
    array = create(tmp_path, pad_codec(8, padding_func=length), pad_codec(4, location="end", padding_func=checksum))
    array[...] = VALUES
    chunk = (tmp_path / "c/1/0").read_bytes()
    assert chunk[:8] == (64).to_bytes(8, "big")
    assert chunk[-4:] == zlib.crc32(chunk[:-4]).to_bytes(4, "big")


def test_zarr_json_holds_the_mark_and_not_the_callable(tmp_path: Path) -> None:
    create(tmp_path, pad_codec(100, padding_func=Unhashable(b"x")))
    document = json.loads((tmp_path / "zarr.json").read_text())
    padding = base64.b64decode(document["codecs"][-1]["configuration"]["padding"])
    # Arrays that are out there hold these bytes: they are part of the format.
    text = b"\x10\x16{made by a callable: parts_store.codecs.bind_padding(array, callable) before writing} "
    assert padding == (text * 2)[:100]


def test_array_of_an_earlier_version_refuses_unbound_writes() -> None:
    # What `zarr.json` held when this was first released.
    stored = {"name": "offset", "configuration": {"offset": 12, "prefix": "EBZ7bWFkZSBieSBh"}}
    array = Stored((4,), "uint8", (4,), [{"name": "bytes"}, stored])
    with pytest.raises(UnboundPaddingError):
        array.write(np.ones(4, np.uint8))
    assert set(array.objects) == {"zarr.json"}


@pytest.mark.parametrize("padding", [b"\x10", b"{", b"\x10{", b"\x16\x10", b"{made by a callable"])
def test_a_static_padding_that_only_looks_like_the_mark_is_static(padding: bytes) -> None:
    codec = PadCodec("start", nbytes=len(padding), padding=padding)
    array = Stored((4,), "uint8", (4,), [{"name": "bytes"}, codec.to_dict()])
    array.write(np.ones(4, np.uint8))
    assert array.chunk("c/0") == padding + b"\1\1\1\1"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nbytes", [2, 4, 12, 110, 1000])
def test_reopened_array_refuses_writes_until_a_callable_is_bound(tmp_path: Path, nbytes: int, pipeline: str) -> None:
    def stamp(encoded: bytes) -> bytes:
        return b"s" * nbytes

    create(tmp_path, pad_codec(nbytes, padding_func=stamp))[...] = VALUES
    stored = {key: (tmp_path / key).read_bytes() for key in CHUNK_KEYS}

    reopened = zarr.open_array(tmp_path)
    np.testing.assert_array_equal(reopened[...], VALUES)
    for selection in (np.s_[...], np.s_[0, 0]):
        with pytest.raises(UnboundPaddingError, match="bind_padding"):
            reopened[selection] = 7
    assert {key: (tmp_path / key).read_bytes() for key in CHUNK_KEYS} == stored

    bind_padding(reopened, stamp)[0, 0] = 7
    assert (tmp_path / "c/0/0").read_bytes()[:nbytes] == b"s" * nbytes
    assert zarr.open_array(tmp_path)[0, 0] == 7
    assert zarr.open_array(tmp_path)[0, 1] == VALUES[0, 1]


def test_binding_survives_everything_that_changes_the_arrays_metadata(tmp_path: Path) -> None:
    create(tmp_path, pad_codec(4, padding_func=checksum))
    array = bind_padding(zarr.open_array(tmp_path), checksum)
    array.attrs["title"] = "still bound"
    array[...] = VALUES
    array.update_attributes({"more": 1})[...] = VALUES
    array.resize((12, 8))
    array[8:] = VALUES[:4]
    array.append(VALUES[:4])
    array.with_config({"write_empty_chunks": True})[:4] = 0
    for key in sorted(tmp_path.glob("c/*/*")):
        assert key.read_bytes()[:4] == checksum(key.read_bytes()[4:])
    assert zarr.open_array(tmp_path).shape == (16, 8)


def test_binding_reaches_codecs_inside_shards_in_their_order(tmp_path: Path, pipeline: str) -> None:
    sharding = ShardingCodec(
        chunk_shape=(2, 2),
        codecs=[BytesCodec(), pad_codec(4, padding_func=checksum), pad_codec(8, padding_func=length)],
        index_codecs=[BytesCodec(), pad_codec(4, padding_func=checksum)],
    )
    zarr.create_array(
        LocalStore(tmp_path), shape=(8, 8), chunks=(4, 4), dtype="uint32", serializer=sharding, compressors=None
    )
    reopened = zarr.open_array(tmp_path)
    with pytest.raises(UnboundPaddingError):
        reopened[...] = VALUES
    assert not (tmp_path / "c").exists()
    bind_padding(reopened, checksum, length, checksum)[...] = VALUES
    shard = (tmp_path / "c/0/0").read_bytes()
    # Four inner chunks of 8 + 4 + 16 bytes, then the padded index.
    assert len(shard) == 4 * 28 + 4 + 4 * 16
    for start in range(0, 4 * 28, 28):
        assert shard[start : start + 8] == (20).to_bytes(8, "big")
        assert shard[start + 8 : start + 12] == zlib.crc32(shard[start + 12 : start + 28]).to_bytes(4, "big")
    assert shard[112:116] == zlib.crc32(shard[116:]).to_bytes(4, "big")
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], VALUES)


def test_bind_padding_counts_its_callables(tmp_path: Path) -> None:
    array = create(tmp_path / "a", pad_codec(4, padding_func=checksum))
    with pytest.raises(ValueError, match=r"expected 1 callables, found 0"):
        bind_padding(array)
    with pytest.raises(ValueError, match=r"expected 1 callables, found 2"):
        bind_padding(array, checksum, checksum)
    with pytest.raises(CodecConfigError, match="'padding_func': expected a callable"):
        bind_padding(array, "checksum")  # type: ignore[arg-type]
    static = create(tmp_path / "b", pad_codec(4))
    with pytest.raises(ValueError, match="no codec whose padding is made by a callable"):
        bind_padding(static, checksum)
    with pytest.raises(TypeError, match=r"expected a zarr.Array"):
        bind_padding(zarr.create_group({}), checksum)  # type: ignore[arg-type]
    version2 = zarr.create_array({}, shape=(4,), dtype="uint8", zarr_format=2)
    with pytest.raises(ValueError, match="no codec whose padding is made by a callable"):
        bind_padding(version2, checksum)


@pytest.mark.parametrize(
    "made", [b"", b"abc", b"abcde", "abcd", None, 4, [1, 2, 3, 4], np.int16(4), np.array(4, "u1"), np.zeros(1, "M8[s]")]
)
def test_callable_that_returns_wrong_bytes_is_a_codec_error(tmp_path: Path, made: Any, pipeline: str) -> None:
    array = create(tmp_path, pad_codec(4, padding_func=lambda encoded: made))
    with pytest.raises(CodecError, match="expected 4 bytes from 'padding_func', as 'nbytes' says, found"):
        array[...] = VALUES
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "made", [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), np.frombuffer(b"abcd", "u1"), np.array(b"abcd")]
)
def test_a_callable_may_return_any_kind_of_bytes(tmp_path: Path, made: Any) -> None:
    create(tmp_path, pad_codec(4, padding_func=lambda encoded: made))[...] = VALUES
    assert (tmp_path / "c/0/0").read_bytes()[:4] == b"abcd"


def test_an_error_in_the_callable_reaches_the_user_as_it_is(tmp_path: Path, pipeline: str) -> None:
    def broken(encoded: bytes) -> bytes:
        raise ZeroDivisionError("in the user's own code")

    with pytest.raises(ZeroDivisionError, match="in the user's own code"):
        create(tmp_path, pad_codec(4, padding_func=broken))[...] = VALUES


def test_callables_are_compared_but_need_no_hash() -> None:
    one, same, other = (PadCodec("start", nbytes=4, padding_func=Unhashable(letter)) for letter in (b"x", b"x", b"y"))
    assert one == same != other
    assert hash(one) == hash(same)
    assert one.to_dict() == other.to_dict()
    assert one != PadCodec.from_dict(json.loads(json.dumps(one.to_dict())))


def create_sharded(folder: Path, function: Any) -> zarr.Array[Any]:
    return zarr.create_array(
        LocalStore(folder),
        shape=(8, 8),
        chunks=(2, 2),
        shards=(4, 4),
        dtype="uint32",
        compressors=[pad_codec(4, padding_func=function)],
    )


def assert_checksummed_in_shards(folder: Path) -> None:
    for key in CHUNK_KEYS:
        shard = (folder / key).read_bytes()
        # Four inner chunks of 4 + 16 bytes, then the index and its checksum.
        for start in range(0, len(shard) - 4 * 16 - 4, 20):
            assert shard[start : start + 4] == zlib.crc32(shard[start + 4 : start + 20]).to_bytes(4, "big")


@pytest.mark.parametrize("duplicate", [lambda array: pickle.loads(pickle.dumps(array)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_pickled_or_copied_array_keeps_its_callable(tmp_path: Path, duplicate: Any, *, sharded: bool) -> None:
    make = create_sharded if sharded else lambda folder, made: create(folder, pad_codec(4, padding_func=made))
    duplicate(make(tmp_path, checksum))[...] = VALUES
    (assert_checksummed_in_shards if sharded else assert_checksummed)(tmp_path)
    with pytest.raises(UnboundPaddingError):
        zarr.open_array(tmp_path)[...] = VALUES


def test_a_callable_may_use_zarr_itself(tmp_path: Path, pipeline: str) -> None:
    headers = zarr.create_array({}, shape=(4,), dtype="uint8")
    headers[...] = np.frombuffer(b"abcd", "u1")
    create(tmp_path, pad_codec(4, padding_func=lambda encoded: np.asarray(headers[...]).tobytes()))[...] = VALUES
    assert (tmp_path / "c/1/1").read_bytes()[:4] == b"abcd"


@pytest.mark.parametrize("part", [slice(0, 3), slice(2, None), slice(None, None, -1)])
def test_the_callable_gets_the_chunk_and_nothing_of_the_memory_around_it(part: slice) -> None:
    seen = []

    def watch(encoded: bytes) -> bytes:
        seen.append(encoded)
        return b"!!"

    codec = pad_codec(2, padding_func=watch)
    spec = ArraySpec((3,), UInt8(), np.uint8(0), ArrayConfig.from_dict({}), default_buffer_prototype())
    codec._encode_sync(cpu.Buffer(np.frombuffer(b"hello", "u1")[part]), spec)
    assert seen == [b"hello"[part]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
def test_dask_workers_call_it_in_their_own_processes(tmp_path: Path, cluster: Client) -> None:
    created = create(tmp_path / "created", ZstdCodec(level=1), pad_codec(4, padding_func=checksum))
    create(tmp_path / "reopened", ZstdCodec(level=1), offset_codec(4, prefix_func=checksum))
    reopened = bind_padding(zarr.open_array(tmp_path / "reopened"), checksum)
    for folder, array in (("created", created), ("reopened", reopened)):
        dask.array.store(dask.array.from_array(VALUES, chunks=(4, 4)), array, lock=False)
        assert_checksummed(tmp_path / folder)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / folder)[...], VALUES)
    sharded = create_sharded(tmp_path / "sharded", checksum)
    dask.array.store(dask.array.from_array(VALUES, chunks=(4, 4)), sharded, lock=False)
    assert_checksummed_in_shards(tmp_path / "sharded")
