"""Existing files as Zarr: parsers, arrays of references, many files as one dataset, and references in sessions."""
