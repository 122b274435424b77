"""Zarr v3 chunks that other programs read too: in parts, with headers, on any object store."""

from importlib.metadata import version

from parts_store import codecs, errors, headers
from parts_store.copying import Copied, copy
from parts_store.create import create_array
from parts_store.errors import PartsStoreError
from parts_store.plan.references import Reference
from parts_store.plan.spec import SHARD_INDEX, ConcatParts, Part
from parts_store.stats import Report, Request
from parts_store.store import PartsStore

__version__ = version("parts_store")

__all__ = [
    "SHARD_INDEX",
    "ConcatParts",
    "Copied",
    "Part",
    "PartsStore",
    "PartsStoreError",
    "Reference",
    "Report",
    "Request",
    "__version__",
    "codecs",
    "copy",
    "create_array",
    "errors",
    "headers",
]
