"""Read what one program is asked for: `python -P programs.py PROGRAM OUT [PACKAGES]`, without parts_store.

Lines on standard input are a number, `array` or `repository` or `file`, a path, and the name of the array. An answer is
a line with the number, `reads`, the type and the shape; the values are in `OUT/<number>`. Or it is `refuses`, and why.
"""

import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

# The package may be installed here, and must not be found: neither imported, nor by the names that it registers.
sys.modules["parts_store"] = None  # type: ignore[assignment]
_distributions = metadata.distributions
metadata.distributions = lambda **found: (each for each in _distributions(**found) if each.name != "parts_store")

type Read = Callable[[str, str, str], Any]


def zarr() -> Read:
    import zarr

    def read(kind: str, path: str, name: str) -> Any:
        array: Any = zarr.open_group(_store(kind, path), mode="r")[name]
        return array[...]

    return read


def _store(kind: str, path: str) -> Any:
    from zarr.storage import LocalStore

    if kind != "repository":
        return LocalStore(path, read_only=True)
    import icechunk

    storage = icechunk.local_filesystem_storage(f"{path}/repository")
    allowed = icechunk.Repository.open(storage).config.virtual_chunk_containers or {}
    access = icechunk.containers_credentials(dict.fromkeys(allowed))
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    return repository.readonly_session("main").store


def xarray() -> Read:
    import xarray

    return lambda kind, path, name: xarray.open_zarr(_store(kind, path), consolidated=False)[name].load().to_numpy()


def zarrs() -> Read:
    import zarr
    import zarrs  # noqa: F401 - registers its pipeline

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True})

    def read(kind: str, path: str, name: str) -> Any:
        array: Any = zarr.open_group(_store(kind, path), mode="r")[name]
        pipeline = type(array.async_array.codec_pipeline).__name__
        if pipeline != "ZarrsCodecPipeline":
            raise TypeError(f"zarr reads this array with {pipeline}")
        return array[...]

    return read


def tensorstore() -> Read:
    import tensorstore

    def read(kind: str, path: str, name: str) -> Any:
        kvstore = {"driver": "file", "path": f"{path}/{name}"}
        return tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result().read().result()

    return read


def tensorstore_n5() -> Read:
    import tensorstore

    def read(kind: str, path: str, name: str) -> Any:
        kvstore = {"driver": "file", "path": f"{path}/{name}"}
        return tensorstore.open({"driver": "n5", "kvstore": kvstore}, read=True).result().read().result()

    return read


def z5py() -> Read:
    import z5py

    return lambda kind, path, name: z5py.File(path, "r")[name][:].T


def _rasterio() -> Callable[..., Any]:
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    warnings.simplefilter("ignore", NotGeoreferencedWarning)

    def read(name: str, driver: str) -> Any:
        with rasterio.open(name, driver=driver) as file:
            return file.read(1)

    return read


def gdal_zarr() -> Read:
    read = _rasterio()
    return lambda kind, path, name: read(f'ZARR:"{path}":/{name}', "Zarr")


def gdal_gtiff() -> Read:
    read = _rasterio()
    return lambda kind, path, name: read(path, "GTiff")


def gdal_hdf5() -> Read:
    read = _rasterio()
    return lambda kind, path, name: read(f'HDF5:"{path}"://{name}', "HDF5Image")


def read_tifffile() -> Read:
    import tifffile

    return lambda kind, path, name: tifffile.imread(path)


def pillow() -> Read:
    import numpy as np
    from PIL import Image

    def read(kind: str, path: str, name: str) -> Any:
        with Image.open(path) as image:
            return np.asarray(image)

    return read


def opencv() -> Read:
    import cv2

    def read(kind: str, path: str, name: str) -> Any:
        found = cv2.imread(path, cv2.IMREAD_UNCHANGED)
        if found is None:
            raise OSError("OpenCV cannot read it")
        return found

    return read


def h5py() -> Read:
    import h5py

    def read(kind: str, path: str, name: str) -> Any:
        with h5py.File(path) as file:
            return file[name][...]

    return read


def h5py_with_plugins() -> Read:
    import hdf5plugin  # noqa: F401 - registers zstd

    return h5py()


def xarray_hdf5() -> Read:
    import hdf5plugin  # noqa: F401 - registers zstd
    import xarray

    def read(kind: str, path: str, name: str) -> Any:
        with xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort") as dataset:
            return dataset[name].load().to_numpy()

    return read


def netcdf4() -> Read:
    import netCDF4

    def read(kind: str, path: str, name: str) -> Any:
        with netCDF4.Dataset(path) as file:
            file.set_auto_maskandscale(False)
            return file[name][...]

    return read


PROGRAMS = {
    "zarr": zarr,
    "xarray": xarray,
    "zarrs": zarrs,
    "tensorstore": tensorstore,
    "gdal_zarr": gdal_zarr,
    "tifffile": read_tifffile,
    "pillow": pillow,
    "gdal_gtiff": gdal_gtiff,
    "opencv": opencv,
    "h5py": h5py,
    "h5py_with_plugins": h5py_with_plugins,
    "xarray_hdf5": xarray_hdf5,
    "gdal_hdf5": gdal_hdf5,
    "netcdf4": netcdf4,
    "tensorstore_n5": tensorstore_n5,
    "z5py": z5py,
}


def main(program: str, out: Path) -> None:
    import numpy as np

    read = PROGRAMS[program]()
    for line in sys.stdin:
        number, kind, path, name = line.rstrip("\n").split("\t")
        try:
            found = np.ascontiguousarray(read(kind, path, name))
        # What a library raises when it refuses: a panic of Rust is no `Exception`.
        except BaseException as error:
            why = str(error).partition("\n")[0].replace("\t", " ")
            print(number, "refuses", f"{type(error).__name__}: {why}", sep="\t", flush=True)
            continue
        (out / number).write_bytes(found.tobytes())
        print(number, "reads", f"{found.dtype.str} {'x'.join(map(str, found.shape))}", sep="\t", flush=True)
    assert not [module for module in sys.modules if module.startswith("parts_store.")]


if __name__ == "__main__":
    # A folder with a package that is installed for this program alone.
    sys.path += sys.argv[3:]
    main(sys.argv[1], Path(sys.argv[2]))
