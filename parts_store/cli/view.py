"""`parts-store view`."""

from typing import Annotated, Literal

from parts_store.cli.exits import OK, did_you_mean
from parts_store.cli.parameters import Durable, Options, Output, Url, new_argument, new_option, parse_options
from parts_store.errors import StoreConfigError


def view(
    url: Url,
    path: Annotated[str, new_argument("PATH", "The path of the array; the root if none is given.")] = "",
    *,
    format: Annotated[  # noqa: A002 - the name of the option
        Literal["vrt", "hdf5", "ome"],
        new_option(
            "vrt for GDAL and QGIS, ome for Bio-Formats (arrays of TIFF files), or hdf5 (arrays of HDF5 files).",
            "--format",
        ),
    ],
    option: Options = None,
    durable: Durable = False,
    output: Output,
) -> int:
    """Write a file that other programs open as a whole array.

    The shards of the array must be TIFF or HDF5 files. The view is beside the
    array, and shows the shards that exist when it is written.
    """
    from parts_store.store.repositories import open_writable
    from parts_store.views.write import write_view

    store = open_writable(url, durable=durable, **parse_options(option))
    try:
        key = write_view(store, path, format=format)
    except StoreConfigError as error:
        if error.subject != "path":
            raise
        raise StoreConfigError("PATH", error.expected, f"{error.found}{did_you_mean(store, path)}") from error
    output.show({"key": key}, [f"wrote {key}"])
    return OK
