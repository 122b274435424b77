"""Adopt existing files as Zarr arrays, without a copy of their data."""

from parts_store.adoption import parsers
from parts_store.adoption.adopt_copy import require_file
from parts_store.adoption.in_place import adopt_in_place
from parts_store.adoption.many_files import adopt
from parts_store.adoption.opening import open_virtual_dataset, open_virtual_mfdataset
from parts_store.adoption.report import AdoptedArray, Adoption, Skipped
from parts_store.adoption.to_icechunk import to_icechunk

__all__ = [
    "AdoptedArray",
    "Adoption",
    "Skipped",
    "adopt",
    "adopt_in_place",
    "open_virtual_dataset",
    "open_virtual_mfdataset",
    "parsers",
    "require_file",
    "to_icechunk",
]
