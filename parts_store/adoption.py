"""Adopt existing files as Zarr arrays, without a copy of their data. Needs the extra `virtual`."""

from parts_store.virtual.adopt import adopt
from parts_store.virtual.adopt_copy import require_file
from parts_store.virtual.in_place import adopt_in_place
from parts_store.virtual.opening import open_virtual_dataset, open_virtual_mfdataset
from parts_store.virtual.report import AdoptedArray, Adoption, OtherForm, Skipped
from parts_store.virtual.write import to_icechunk

__all__ = [
    "AdoptedArray",
    "Adoption",
    "OtherForm",
    "Skipped",
    "adopt",
    "adopt_in_place",
    "open_virtual_dataset",
    "open_virtual_mfdataset",
    "require_file",
    "to_icechunk",
]
