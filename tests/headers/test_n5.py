"""N5: real datasets, written by tensorstore and z5py, read through pad and offset; and ours, read by them."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import z5py
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, TransposeCodec

from parts_store.codecs import offset_codec, pad_codec
from parts_store.errors import HeaderError
from parts_store.headers import N5Header, n5

# zarr's names for the compressions of N5; `level` is what zarr asks for beside the name.
COMPRESSORS: dict[str, list[dict[str, Any]]] = {
    "raw": [],
    "gzip": [{"name": "gzip", "configuration": {"level": 5}}],
    "zstd": [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}],
}
DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"]


def values_of(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    return (np.arange(np.prod(shape)) % 120 + 1).astype(dtype).reshape(shape)


def around(spelling: str, ndim: int, content: str | None = None) -> dict[str, Any]:
    nbytes = 4 + 4 * ndim
    if spelling == "pad":
        members = {"location": "start", "nbytes": nbytes} | ({} if content is None else {"padding": content})
        return {"name": "pad", "configuration": members}
    return {"name": "offset", "configuration": {"offset": nbytes} | ({} if content is None else {"prefix": content})}


def describe_as_zarr(folder: Path, compressors: list[dict[str, Any]], spelling: str) -> None:
    """Write a `zarr.json` beside `attributes.json`, for the same blocks at the same keys."""
    attributes = json.loads((folder / "attributes.json").read_text())
    ndim = len(attributes["dimensions"])
    transpose = {"name": "transpose", "configuration": {"order": list(reversed(range(ndim)))}}
    big_endian = {"name": "bytes", "configuration": {"endian": "big"}}
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": attributes["dimensions"],
        "data_type": attributes["dataType"],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": attributes["blockSize"]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
        "codecs": [transpose, big_endian, *compressors, around(spelling, ndim)],
        "fill_value": 0,
    }
    (folder / "zarr.json").write_text(json.dumps(document))


def open_n5(folder: Path, **metadata: object) -> Any:
    specification = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    if metadata:
        return tensorstore.open({**specification, "metadata": metadata}, create=True).result()
    return tensorstore.open(specification).result()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spelling", ["pad", "offset"])
@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize(("shape", "blocks"), [((12,), (4,)), ((12, 20), (6, 5)), ((6, 8, 10), (3, 4, 5))])
@pytest.mark.parametrize("dtype", ["uint16", "float64"])
def test_a_dataset_of_tensorstore_is_read_equal(
    tmp_path: Path, spelling: str, compression: str, shape: Any, blocks: Any, dtype: str
) -> None:
    values = values_of(shape, dtype)
    dataset = open_n5(tmp_path, dimensions=shape, blockSize=blocks, dataType=dtype, compression={"type": compression})
    dataset.write(values).result()
    describe_as_zarr(tmp_path, COMPRESSORS[compression], spelling)
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_data_type_of_n5_is_read_equal(tmp_path: Path, dtype: str) -> None:
    values = values_of((8, 12), dtype)
    dataset = open_n5(tmp_path, dimensions=(8, 12), blockSize=(4, 4), dataType=dtype, compression={"type": "raw"})
    dataset.write(values).result()
    describe_as_zarr(tmp_path, [], "pad")
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], values)


@pytest.mark.parametrize("spelling", ["pad", "offset"])
@pytest.mark.parametrize("compression", ["raw", "gzip"])
@pytest.mark.parametrize(("shape", "blocks"), [((12, 20), (6, 5)), ((6, 8, 10), (3, 4, 5))])
def test_a_dataset_of_z5py_is_read_equal(
    tmp_path: Path, spelling: str, compression: str, shape: Any, blocks: Any
) -> None:
    values = values_of(shape, "uint16")
    with z5py.File(str(tmp_path / "file.n5"), use_zarr_format=False, mode="w") as file:
        file.create_dataset("data", data=values, chunks=blocks, compression=compression)
    folder = tmp_path / "file.n5" / "data"
    describe_as_zarr(folder, COMPRESSORS[compression], spelling)
    # z5py shows the axes of N5 in reverse, as h5py users expect them.
    np.testing.assert_array_equal(np.asarray(zarr.open_array(folder)[...]).T, values)


def test_the_specifications_header_is_that_of_a_block_of_64_by_64() -> None:
    assert n5((64, 64)) == bytes.fromhex("0000 0002 00000040 00000040")
    assert N5Header((64, 64))(b"any") == n5((64, 64))
    assert N5Header((3, 4, 5)).nbytes == len(n5((3, 4, 5))) == 16


@pytest.mark.parametrize("spelling", ["pad", "offset"])
@pytest.mark.parametrize("compression", COMPRESSORS)
def test_tensorstore_and_z5py_read_what_zarr_writes(tmp_path: Path, spelling: str, compression: str) -> None:
    values = values_of((6, 8, 10), "int32")
    header = N5Header((3, 4, 5))
    codec: Any = (
        pad_codec(header.nbytes, padding_func=header)
        if spelling == "pad"
        else offset_codec(header.nbytes, prefix=n5((3, 4, 5)))
    )
    folder = tmp_path / "data"
    array = zarr.create_array(
        folder,
        shape=(6, 8, 10),
        chunks=(3, 4, 5),
        dtype="int32",
        chunk_key_encoding={"name": "v2", "separator": "/"},
        filters=[TransposeCodec(order=(2, 1, 0))],
        serializer=BytesCodec(endian="big"),
        compressors=[*COMPRESSORS[compression], codec],
    )
    array[...] = values
    attributes = {"dimensions": [6, 8, 10], "blockSize": [3, 4, 5], "dataType": "int32"}
    (tmp_path / "attributes.json").write_text('{"n5": "2.0.0"}')
    # z5py asks for the members that N5 lets be left out.
    full = {"type": compression, **({"level": 5, "useZlib": False} if compression == "gzip" else {})}
    (folder / "attributes.json").write_text(json.dumps({**attributes, "compression": full}))
    np.testing.assert_array_equal(open_n5(folder).read().result(), values)
    # z5py does not know zstd in N5, and refuses a folder that is an array of Zarr too.
    if compression != "zstd":
        (folder / "zarr.json").unlink()
        with z5py.File(str(tmp_path), use_zarr_format=False, mode="r") as file:
            np.testing.assert_array_equal(file["data"][...].T, values)


def test_a_truncated_edge_block_is_an_error_and_never_wrong_values(tmp_path: Path) -> None:
    values = values_of((10, 10), "uint16")
    with z5py.File(str(tmp_path / "file.n5"), use_zarr_format=False, mode="w") as file:
        file.create_dataset("data", data=values, chunks=(4, 4), compression="raw")
    folder = tmp_path / "file.n5" / "data"
    describe_as_zarr(folder, [], "pad")
    array = zarr.open_array(folder)
    np.testing.assert_array_equal(np.asarray(array[:8, :8]).T, values[:8, :8])
    # The block at the edge says of itself that it is 2 x 4 elements, and holds no more.
    assert (folder / "2/0").read_bytes()[:12] == n5((2, 4))
    with pytest.raises(ValueError, match="reshape"):
        array[8:, :4]


def test_headers_are_values_that_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(N5Header([4, 5]))) == N5Header((4, 5))
    assert repr(N5Header((4, 5))) == "N5Header(shape=(4, 5))"


@pytest.mark.parametrize("shape", [(), (0,), (4, -1), (2**31,), (1.5,), 4, "ab", None])
def test_shapes_that_n5_cannot_hold_are_refused_by_name(shape: Any) -> None:
    for build in (n5, N5Header):
        with pytest.raises(HeaderError, match="N5 header: expected a shape of"):
            build(shape)
