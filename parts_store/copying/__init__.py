"""Copy arrays and groups from one store to another."""

from parts_store.copying.execution import Copied, copy

__all__ = ["Copied", "copy"]
