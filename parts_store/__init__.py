"""Zarr v3 chunks that other programs read too: in parts, with headers, on any object store."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from parts_store import codecs, errors, headers
from parts_store.copying import Copied, copy
from parts_store.create import create_array
from parts_store.errors import PartsStoreError
from parts_store.plan.references import Reference
from parts_store.plan.spec import SHARD_INDEX, ConcatParts, Part
from parts_store.stats import Report, Request
from parts_store.store import PartsStore

if TYPE_CHECKING:
    from parts_store import manifests
    from parts_store.adoption import adopt

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
    "adopt",
    "codecs",
    "copy",
    "create_array",
    "errors",
    "headers",
    "manifests",
]


def __getattr__(name: str) -> Any:
    """What needs packages of the extra `virtual`, imported when it is asked for."""
    if name not in ("adopt", "manifests"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return (
            import_module("parts_store.adoption").adopt if name == "adopt" else import_module("parts_store.manifests")
        )
    except ImportError as error:
        raise ImportError(f"parts_store.{name} needs more packages: pip install 'parts_store[virtual]'") from error
