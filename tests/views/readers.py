"""Readers of views that do not use parts_store: the whole array, as other programs read it from one file."""

import shutil
import warnings
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401 - registers zstd for h5py
import numpy as np
import rasterio
import tifffile
from rasterio.errors import NotGeoreferencedWarning


def read_gdal(path: Path, samples: int = 1) -> np.ndarray:
    """Return all images of a VRT, one after the other, with the colours as the last axis if there are any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path) as file:
            bands: np.ndarray = file.read()
    images = np.moveaxis(bands.reshape(-1, samples, *bands.shape[1:]), 1, -1)
    return images if samples > 1 else images[..., 0]


def read_h5py(path: Path, name: str) -> np.ndarray:
    """Return the values of a dataset; read in the folder of the file, where HDF5 would look for relative names, too."""
    with h5py.File(path, "r") as file:
        return np.asarray(file[name][...])


def read_tifffile(path: Path, first: Path) -> np.ndarray:
    """Return the array that a companion file shows, as tifffile reads it.

    tifffile takes the OME-XML from the companion file, and opens files relative to a TIFF file that it is given.
    """
    beside = path.with_name("opened.tif")
    shutil.copy(first, beside)
    with warnings.catch_warnings(), tifffile.TiffFile(beside, omexml=path.read_text()) as file:
        # It opens a file again that it has closed.
        warnings.filterwarnings("ignore", ".* reading array from closed file")
        return file.asarray(squeeze=False)
