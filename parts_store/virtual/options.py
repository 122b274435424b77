"""The options of an adoption: one object from the call of `adopt` to the last write."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from parts_store._compat.zarr import allows_rectilinear, normalize_path
from parts_store.errors import StoreConfigError, describe
from parts_store.executors import ExecutorLike
from parts_store.progress import ProgressLike
from parts_store.virtual.parsers.file_parsers import Parser
from parts_store.virtual.store_access import parse_count

DEFAULT_MAX_LOADED: Final = 64 << 20
"""Variables that have to be loaded, or compared, have at most this number of bytes."""

type Combine = Literal["nested", "by_coords"]
type OnError = Literal["raise", "skip"]
type Uneven = Literal["rectilinear", "load", "refuse"]
"""What becomes of compressed chunks that do not make up a regular grid, such as one chunk for each month."""
type WriteRegion = Mapping[str, slice | str] | str
"""Slices by the names of dimensions, or `"auto"` for a dimension or for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptOptions:
    """How files are parsed, combined and written: arguments of `adopt` and `to_icechunk`."""

    path: str = ""
    parser: Parser | None = None
    concat_dim: str | None = None
    append_dim: str | None = None
    region: WriteRegion | None = None
    combine: Combine | None = None
    variables: tuple[str, ...] | None = None
    loadable_variables: tuple[str, ...] | None = None
    executor: ExecutorLike = None
    on_error: OnError = "raise"
    # None for plain references, unless an array has very many chunks.
    shard_chunks: int | None = None
    uneven: Uneven = "load"
    max_loaded_nbytes: int = DEFAULT_MAX_LOADED
    strict: bool = False
    overwrite: bool = False
    progress: ProgressLike = None
    # Whether variables without the dimension of a join are compared by their values.
    compares: bool = True
    # The length of the chunks of stored arrays that variables are appended to, and of the arrays, by their paths.
    stored_lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # When the call began: files that are stored already were not modified later.
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    # Whether an append must have all stored arrays, also those that do not change.
    is_complete: bool = False

    def __post_init__(self) -> None:
        parse_path(self.path)
        if self.shard_chunks is not None:
            parse_count("shard_chunks", self.shard_chunks, least=1)
        parse_count("max_loaded_nbytes", self.max_loaded_nbytes)
        if self.on_error not in ("raise", "skip"):
            raise StoreConfigError("on_error", "'raise' or 'skip'", describe(self.on_error))
        _require_uneven(self.uneven)
        if self.combine not in (None, "nested", "by_coords"):
            raise StoreConfigError("combine", "'nested' or 'by_coords'", describe(self.combine))
        if self.parser is not None and not callable(self.parser):
            raise StoreConfigError("parser", "a parser of VirtualiZarr, or of `ps.parsers`", describe(self.parser))
        if self.concat_dim is not None and self.append_dim not in (None, self.concat_dim):
            raise StoreConfigError("append_dim", f"{self.concat_dim!r}, as `concat_dim`", describe(self.append_dim))
        if self.combine == "by_coords" and self.dim is not None:
            raise StoreConfigError("combine", "'nested', because a dimension is named", "'by_coords'")
        if self.append_dim is not None and self.region is not None:
            raise StoreConfigError("region", "None, because `append_dim` is given", repr(self.region))
        if self.overwrite and (self.append_dim is not None or self.region is not None):
            raise StoreConfigError("overwrite", "False, because stored arrays are changed", "True")

    @property
    def dim(self) -> str | None:
        """Return the dimension along which files are joined, if it is named."""
        return self.append_dim or self.concat_dim


def _require_uneven(uneven: str) -> None:
    """Raise `StoreConfigError` unless this is possible for uneven chunks, with the settings of zarr."""
    if uneven not in ("rectilinear", "load", "refuse"):
        raise StoreConfigError("uneven", "'rectilinear', 'load' or 'refuse'", describe(uneven))
    if uneven == "rectilinear" and not allows_rectilinear():
        expected = (
            "'load' or 'refuse'; or call zarr.config.set({'array.rectilinear_chunks': True}) first, a setting that all "
            "readers of such arrays need"
        )
        raise StoreConfigError("uneven", expected, "'rectilinear'")


def parse_path(path: str) -> str:
    """Return a path as zarr has it; raise `StoreConfigError` if it is none."""
    try:
        return normalize_path(path)
    except ValueError as error:
        raise StoreConfigError("path", "a path of names in the repository, without '.' and '..'", repr(path)) from error


def parse_names(argument: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names that a caller gave, one or several; raise `StoreConfigError` unless they are text."""
    if names is None:
        return None
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise StoreConfigError(argument, "names of variables", describe(names))
    return found
