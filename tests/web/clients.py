"""Programs of others that read a served array, each as a function of the URL of the page and the name of the array."""

import json
import subprocess
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from obstore.store import HTTPStore
from zarr.storage import FsspecStore, ObjectStore

from tests.interoperability import installed

# Of GDAL before 3.13, which knows no shards.
WITHOUT_SHARDS = ("plain", "three")


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


def by_gdal(url: str, name: str) -> Any:
    if name not in WITHOUT_SHARDS:
        pytest.skip("GDAL reads shards from version 3.13 on")
    rasterio = pytest.importorskip("rasterio")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(f'ZARR:"/vsicurl/{url}zarr/{name}"') as file:
            return file.read(1)


ZARRITA = """
import {{ pathToFileURL }} from "node:url";
import {{ join }} from "node:path";
const zarr = await import(pathToFileURL(join({folder}, "node_modules", "zarrita/dist/src/index.js")));
const storage = join({folder}, "node_modules", "@zarrita/storage/dist/src/fetch.js");
const {{ default: FetchStore }} = await import(pathToFileURL(storage));
const array = await zarr.open.v3(new FetchStore({url}), {{ kind: "array" }});
const {{ data, shape }} = await zarr.get(array);
console.log(JSON.stringify({{ data: Array.from(data), shape }}));
"""


def by_zarrita(url: str, name: str) -> Any:
    try:
        node, *_, folder = installed.zarrita()
    except installed.MissingError as missing:
        pytest.skip(str(missing))
    script = ZARRITA.format(folder=json.dumps(str(Path(folder))), url=json.dumps(f"{url}zarr/{name}"))
    command = [node, "--input-type=module", "--eval", script]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return np.array(found["data"]).reshape(found["shape"])


CLIENTS: Mapping[str, Callable[[str, str], Any]] = {
    "zarr and fsspec": by_fsspec,
    "zarr and obstore": by_obstore,
    "zarrs": by_zarrs,
    "tensorstore": by_tensorstore,
    "GDAL": by_gdal,
    "zarrita": by_zarrita,
}
