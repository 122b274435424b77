"""Existing files adopted as Zarr arrays, without a copy of their data: one module for each file format."""

from parts_store.adoption.adopt_file import adopt, require_file
from parts_store.adoption.report import AdoptedArray, Adoption, Skipped

__all__ = ["AdoptedArray", "Adoption", "Skipped", "adopt", "require_file"]
