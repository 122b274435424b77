"""Zarr v3 chunks that other programs read too: in parts, with headers, on any object store.

Every name is imported when it is first used, so that `import parts_store` and `parts-store --help` take no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from parts_store import codecs, errors, headers, manifests, parsers
    from parts_store.copying import Copied, copy
    from parts_store.engine.stats import Request
    from parts_store.errors import PartsStoreError
    from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part
    from parts_store.format.references import Reference
    from parts_store.maintenance.report import Report
    from parts_store.pipeline.opening import fast, open_array, open_group
    from parts_store.store.create import create_array
    from parts_store.store.repositories import open_repository
    from parts_store.store.store import PartsStore
    from parts_store.views.write import write_view
    from parts_store.virtual.adopt import adopt
    from parts_store.virtual.in_place import adopt_in_place
    from parts_store.virtual.opening import open_virtual_dataset, open_virtual_mfdataset
    from parts_store.virtual.write import to_icechunk
    from parts_store.web.server import serve

    __version__: str

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
    "adopt_in_place",
    "codecs",
    "copy",
    "create_array",
    "errors",
    "fast",
    "headers",
    "manifests",
    "open_array",
    "open_group",
    "open_repository",
    "open_virtual_dataset",
    "open_virtual_mfdataset",
    "parsers",
    "serve",
    "to_icechunk",
    "write_view",
]

# The module that each name is defined in. A test compares them with the imports above.
_MODULES: Final = {
    "SHARD_INDEX": "parts_store.format.parts",
    "ConcatParts": "parts_store.format.parts",
    "Copied": "parts_store.copying",
    "Part": "parts_store.format.parts",
    "PartsStore": "parts_store.store.store",
    "PartsStoreError": "parts_store.errors",
    "Reference": "parts_store.format.references",
    "Report": "parts_store.maintenance.report",
    "Request": "parts_store.engine.stats",
    "adopt": "parts_store.virtual.adopt",
    "adopt_in_place": "parts_store.virtual.in_place",
    "copy": "parts_store.copying",
    "create_array": "parts_store.store.create",
    "fast": "parts_store.pipeline.opening",
    "open_array": "parts_store.pipeline.opening",
    "open_group": "parts_store.pipeline.opening",
    "open_repository": "parts_store.store.repositories",
    "open_virtual_dataset": "parts_store.virtual.opening",
    "open_virtual_mfdataset": "parts_store.virtual.opening",
    "serve": "parts_store.web.server",
    "to_icechunk": "parts_store.virtual.write",
    "write_view": "parts_store.views.write",
}
_SUBPACKAGES: Final = ("codecs", "errors", "headers", "manifests", "parsers")
# Names that need packages of the extra `virtual`.
_VIRTUAL: Final = (
    *("adopt", "adopt_in_place", "manifests", "open_virtual_dataset", "open_virtual_mfdataset", "parsers"),
    "to_icechunk",
)
# The extra with the packages that a name needs.
_EXTRAS: Final = dict.fromkeys(_VIRTUAL, "virtual") | {"serve": "serve"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = _import(name)
    except ImportError as error:
        if name not in _EXTRAS:
            raise
        problem = f"parts_store.{name} needs more packages: pip install 'parts_store[{_EXTRAS[name]}]'"
        raise ImportError(problem, name=error.name) from error
    globals()[name] = value
    return value


def _import(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("parts_store")
    if name in _SUBPACKAGES:
        return import_module(f"parts_store.{name}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    # Python suggests these names in the traceback for a wrong one.
    return sorted(__all__)
