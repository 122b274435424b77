"""Arrays of references to ranges of existing files. Needs the extra `virtual`."""

try:
    import virtualizarr  # noqa: F401
except ImportError as error:
    raise ImportError("parts_store.manifests needs VirtualiZarr: pip install 'parts_store[virtual]'") from error

from parts_store.virtual.manifests.array import PartsArray
from parts_store.virtual.manifests.from_store import manifest_of
from parts_store.virtual.manifests.group import PartsGroup

__all__ = ["PartsArray", "PartsGroup", "manifest_of"]
