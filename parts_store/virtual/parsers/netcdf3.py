"""Correct what VirtualiZarr's parser for netCDF3 files returns: types of attributes, NUL after names, and chunks."""

from dataclasses import replace
from typing import Any, Final, override

from parts_store._compat.virtualizarr import NETCDF3_TYPES, NetCDF3Header
from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.virtual.attribute_types import BYTES, to_member, type_name
from parts_store.virtual.description import plain_chunk_shape
from parts_store.virtual.existing_files import FileReader
from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.group import PartsGroup
from parts_store.virtual.manifests.operations import contiguous_range, cut_range
from parts_store.virtual.manifests.references import References, document_of
from parts_store.virtual.report import Skipped

_FILL_VALUE: Final = "_FillValue"
_MISSING_VALUE: Final = "missing_value"


def corrected(group: PartsGroup, reader: FileReader) -> tuple[PartsGroup, tuple[Skipped, ...]]:
    """Return the variables with the types of their attributes and without NUL in names, and what is listed of them."""
    types = _types_of_attributes(reader)
    arrays, skipped = {}, []
    for name, array in group.arrays.items():
        shown = name if (plain := _plain(name)) in group.arrays else plain
        cut = _cut(array.references)
        document = document_of(cut.metadata)
        document["dimension_names"] = [_plain(each) for each in document.get("dimension_names") or ()]
        document["attributes"] = {_plain(key): value for key, value in document["attributes"].items()}
        kinds = {_plain(key): kind for key, kind in types[name].items() if kind is not None}
        if array.dtype.kind == "S" and _FILL_VALUE in document["attributes"]:
            reason = 'bytes, and JSON has none: xarray masks the same values only with engine="parts_store"'
            skipped.append(Skipped(f"{shown}@{_FILL_VALUE}", reason, has_values=False))
            # xarray cannot open texts with this attribute. `missing_value` has the same meaning.
            document["attributes"][_MISSING_VALUE] = document["attributes"].pop(_FILL_VALUE)
            kinds[_MISSING_VALUE] = BYTES
        # A document does not have the byte order of the data type, which reports and virtual datasets show.
        metadata = replace(ArrayV3Metadata.from_dict(document | to_member(kinds)), data_type=array.metadata.data_type)
        arrays[shown] = PartsArray.of(replace(cut, metadata=metadata), array.registries)
    attributes = {_plain(key): value for key, value in group.attributes.items()}
    return PartsGroup(arrays, attributes=attributes), tuple(skipped)


def _cut(references: References) -> References:
    """Return a variable in chunks of pages or rows. Records of several variables alternate, and stay as they are."""
    if (found := contiguous_range(references)) is None:
        return references
    return cut_range(references, found, plain_chunk_shape(references.metadata.shape, references.dtype.itemsize))


def _plain(name: str) -> str:
    """Return a name without NUL at its end, as netCDF libraries read it."""
    return name.rstrip("\0")


class _Types(NetCDF3Header):
    """A reader of a header that returns the types of attributes in place of their values."""

    @override
    def values(self, nc_type: int, nelems: int) -> Any:
        super().values(nc_type, nelems)
        return None if NETCDF3_TYPES[nc_type].kind == "S" else type_name(NETCDF3_TYPES[nc_type])


def _types_of_attributes(reader: FileReader) -> dict[str, dict[str, str | None]]:
    """Return the names of the types of attributes of each variable, None for a type that JSON keeps."""
    file = reader.file
    file.seek(0)
    header = _Types(file, file.read(4)[3])
    # The number of records, and the dimensions.
    header.size()
    header.int32()
    for _ in range(header.size()):
        header.name()
        header.size()
    header.att_list()
    header.int32()
    found = {}
    for _ in range(header.size()):
        name = header.name()
        for _ in range(header.size()):
            header.size()
        found[name] = header.att_list()
        # The data type, the size and the offset.
        header.int32()
        header.size()
        header.offset()
    return found
