"""Zarr v3 chunks that other programs read too."""

from importlib.metadata import version

from parts_store import codecs, errors, headers
from parts_store.errors import PartsStoreError

__version__ = version("parts_store")

__all__ = ["PartsStoreError", "__version__", "codecs", "errors", "headers"]
