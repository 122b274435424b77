"""Adopt existing files as Zarr arrays, without a copy of their data."""

from parts_store.adoption.adopt_file import adopt, require_file
from parts_store.adoption.report import AdoptedArray, Adoption, Skipped

__all__ = ["AdoptedArray", "Adoption", "Skipped", "adopt", "require_file"]
