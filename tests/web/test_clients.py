"""Programs of others read the served arrays with equal values."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from obstore.store import HTTPStore
from zarr.storage import FsspecStore, ObjectStore

import parts_store as ps
from tests.interoperability import installed
from tests.web.served import NAMES, expected, served, write_arrays

# Of GDAL before 3.13, which knows no shards.
WITHOUT_SHARDS = ("plain", "three")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    write_arrays(ps.PartsStore.from_url(folder))
    with served(folder) as page:
        yield page


def by_fsspec(url: str, name: str) -> Any:
    array: Any = zarr.open_group(FsspecStore.from_url(f"{url}zarr"), mode="r")[name]
    return array[...]


def by_obstore(url: str, name: str) -> Any:
    store = HTTPStore.from_url(f"{url}zarr", client_options={"allow_http": True})
    array: Any = zarr.open_group(ObjectStore(store, read_only=True), mode="r")[name]
    return array[...]


def by_zarrs(url: str, name: str) -> Any:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}):
        array: Any = zarr.open_array(FsspecStore.from_url(f"{url}zarr/{name}"), mode="r")
        assert type(array.async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline"
        return array[...]


def by_tensorstore(url: str, name: str) -> Any:
    spec = {"driver": "zarr3", "kvstore": f"{url}zarr/{name}/"}
    return tensorstore.open(spec, read=True).result().read().result()


@pytest.mark.parametrize("read", [by_fsspec, by_obstore, by_zarrs, by_tensorstore])
@pytest.mark.parametrize("name", NAMES)
def test_a_client_reads_equal_values(url: str, read: Callable[[str, str], Any], name: str) -> None:
    assert np.array_equal(read(url, name), expected(name))


@pytest.mark.parametrize("name", WITHOUT_SHARDS)
def test_gdal_reads_equal_values(url: str, name: str) -> None:
    rasterio = pytest.importorskip("rasterio")
    with (
        pytest.warns(rasterio.errors.NotGeoreferencedWarning),
        rasterio.open(f'ZARR:"/vsicurl/{url}zarr/{name}"') as file,
    ):
        assert np.array_equal(file.read(1), expected(name))


ZARRITA = """
import {{ pathToFileURL }} from "node:url";
import {{ join }} from "node:path";
const zarr = await import(pathToFileURL(join({folder}, "node_modules", "zarrita/dist/src/index.js")));
const storage = join({folder}, "node_modules", "@zarrita/storage/dist/src/fetch.js");
const {{ default: FetchStore }} = await import(pathToFileURL(storage));
const array = await zarr.open.v3(new FetchStore({url}), {{ kind: "array" }});
const {{ data }} = await zarr.get(array);
console.log(JSON.stringify(Array.from(data)));
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_zarrita_reads_equal_values(url: str, name: str, tmp_path: Path) -> None:
    try:
        node, *_, folder = installed.zarrita()
    except installed.MissingError as missing:
        pytest.skip(str(missing))
    script = tmp_path / "read.mjs"
    script.write_text(ZARRITA.format(folder=json.dumps(folder), url=json.dumps(f"{url}zarr/{name}")))
    printed = subprocess.run([node, str(script)], check=True, capture_output=True, text=True).stdout
    assert np.array_equal(np.array(json.loads(printed)).reshape(expected(name).shape), expected(name))


def test_xarray_opens_the_hierarchy_with_its_consolidated_metadata(tmp_path: Path) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    data = xr.Dataset({"t": (("y", "x"), np.arange(12.0).reshape(3, 4))}, {"y": [1, 2, 3]}, {"units": "K"})
    data.to_zarr(store, group="a/b", consolidated=False, zarr_format=3)
    with served(tmp_path) as url:
        opened = xr.open_zarr(f"{url}zarr/a/b", consolidated=True)
        xr.testing.assert_identical(opened.load(), data)
